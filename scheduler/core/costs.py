# SPDX-License-Identifier: BSD-3-Clause
"""Costs of moving memory, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Group, Model, Share

#: The expected seconds of a process's wake until one was measured, without the restore of its memory.
FIRST_WAKE = 0.5
#: The weight of each wake in the average.
WEIGHT = 0.3


def clean_of(share: Share) -> int:
    """Return the bytes of a share that can be evicted without a copy, as far as its clients know."""
    clean = 0
    for holding in share.holdings.values():
        # Part of it may have left since the client stated it.
        clean += min(holding.tiers.clean, holding.resident)
    return clean


@dataclass(slots=True, eq=False)
class Costs:
    """Estimates the costs of moves."""

    model: Model

    def cost_quantum(self, group: Group) -> float:
        """Return the quantum that follows from the cost of moving a group's footprint, seconds."""
        return min(
            max(self.worth_moving(group), self.model.rules.shortest_quantum),
            self.model.rules.longest_quantum,
        )

    def worth_moving(self, group: Group) -> float:
        """Return how long a group's memory must stay for its moves to be worth it, seconds.

        Groups that are at work side by side take turns. Each must stay that many times as long, or all of them together
        would spend that much more of the time moving.
        """
        beside = 1
        for share in group.shares.values():
            at_work = sum([g.busy > 0 for g in share.gpu.holders.values() if g is not group])
            if self.model.agents and group.attended:
                # They pause, so they take no turns.
                at_work -= sum(
                    [g.busy > 0 for g in share.gpu.holders.values() if g.activity_class == "agent"]
                )
            beside = max(beside, 1 + at_work)
        # A move is a way out and a way back, and clean memory has only the way back.
        one_way = (self.eviction_cost(group) + group.footprint_cost) / 2
        return self.model.rules.residency_factor * one_way * beside

    def clean(self, group: Group) -> int:
        """Return the bytes of a group that can be evicted without a copy, as far as its clients know."""
        clean = 0
        for share in group.shares.values():
            clean += clean_of(share)
        return clean

    def eviction_cost(self, group: Group) -> float:
        """Return the seconds that it takes to evict a group's footprint now: clean memory is not copied."""
        return sum(
            max(0, share.goal - clean_of(share)) / share.gpu.bandwidth
            for share in group.shares.values()
        )

    def absence_cost(self, share: Share, size: int) -> float:
        """Return the seconds of a move of part of a share, on average of the way out and the way back."""
        seconds = size / share.gpu.bandwidth
        clean = clean_of(share)
        if clean:
            # Which part will leave is not known, so it counts as clean in proportion.
            seconds *= 1 - clean / share.resident / 2
        return seconds

    def wake_estimate(self, group: Group) -> float:
        """Return the seconds that it takes to wake a group and restore its memory if there is room."""
        seconds = FIRST_WAKE if self.model.wake_seconds is None else self.model.wake_seconds
        return seconds + group.footprint_cost

    def measure_wake(self, seconds: float) -> None:
        """Add a measured wake, without moves, to the average."""
        if self.model.wake_seconds is None:
            self.model.wake_seconds = seconds
        self.model.wake_seconds += WEIGHT * (seconds - self.model.wake_seconds)
