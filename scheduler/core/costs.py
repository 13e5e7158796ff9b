# SPDX-License-Identifier: BSD-3-Clause
"""What it costs to move memory, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Group, Model

#: Seconds for which the wake of a process is expected to take until one was measured, beside its memory's way back.
FIRST_WAKE = 0.5
#: Of the average, what each wake counts for.
WEIGHT = 0.3


@dataclass(slots=True, eq=False)
class Costs:
    """Estimates moves."""

    model: Model

    def cost_quantum(self, group: Group) -> float:
        """Return the quantum that follows from what it costs to move a group's footprint, seconds."""
        return min(
            max(self.worth_moving(group), self.model.rules.shortest_quantum),
            self.model.rules.longest_quantum,
        )

    def worth_moving(self, group: Group) -> float:
        """Return for how long a group's memory has to stay for its moves to be worth it, seconds.

        Those at work side by side take turns at once: each stays so many times as long, or all of them together would
        spend so many times as much of the time moving.
        """
        beside = 1
        for share in group.shares.values():
            at_work = sum([g.busy > 0 for g in share.gpu.holders.values() if g is not group])
            beside = max(beside, 1 + at_work)
        return self.model.rules.residency_factor * group.footprint_cost * beside

    def wake_estimate(self, group: Group) -> float:
        """Return how many seconds it takes to wake a group and bring its memory in, if there is room."""
        seconds = FIRST_WAKE if self.model.wake_seconds is None else self.model.wake_seconds
        return seconds + group.footprint_cost

    def measure_wake(self, seconds: float) -> None:
        """Learn from a wake how long it takes, without moves."""
        if self.model.wake_seconds is None:
            self.model.wake_seconds = seconds
        self.model.wake_seconds += WEIGHT * (seconds - self.model.wake_seconds)
