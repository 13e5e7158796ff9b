# SPDX-License-Identifier: BSD-3-Clause
"""Costs of moving memory, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Group, Model

#: The expected seconds of a process's wake until one was measured, without the restore of its memory.
FIRST_WAKE = 0.5
#: The weight of each wake in the average.
WEIGHT = 0.3


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
        return self.model.rules.residency_factor * group.footprint_cost * beside

    def wake_estimate(self, group: Group) -> float:
        """Return the seconds that it takes to wake a group and restore its memory if there is room."""
        seconds = FIRST_WAKE if self.model.wake_seconds is None else self.model.wake_seconds
        return seconds + group.footprint_cost

    def measure_wake(self, seconds: float) -> None:
        """Add a measured wake, without moves, to the average."""
        if self.model.wake_seconds is None:
            self.model.wake_seconds = seconds
        self.model.wake_seconds += WEIGHT * (seconds - self.model.wake_seconds)
