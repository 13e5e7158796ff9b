# SPDX-License-Identifier: BSD-3-Clause
"""The highest priority first: while it has work, groups of lower priority pause.

Priority is the class, then the weight. It counts as a number of minutes of waiting, so the lowest priority is also
served in the end.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ..core.policy_api import GpuView, GroupView, Paces, Parts, Speed, WaitView
from .fcfs import FirstComeFirstServed


class HighestPriority(FirstComeFirstServed):
    """Orders by priority, and pauses all but the highest on each GPU."""

    name = "priority"
    serialises = False
    #: Seconds of waiting that the class outweighs, and each doubling of the weight.
    class_favour: ClassVar[dict[str, float]] = {
        "interactive": 600.0,
        "agent": 300.0,
        "background": 0.0,
    }
    weight_favour = 60.0
    #: Seconds for which a running holder keeps its lease while a group of a higher priority waits.
    make_way = 0.1
    #: Seconds after which a paused group may submit once nevertheless.
    stall = 0.050

    def _levels(self, group: GroupView) -> tuple[float, float]:
        return (
            self.class_favour[group.activity_class],
            self.weight_favour * math.log2(group.preferences.weight),
        )

    def queue_parts(self, wait: WaitView) -> Parts:
        """Order by priority, and then by age."""
        by_class, by_weight = self._levels(wait.group)
        own = {"came": wait.since, "class": -by_class, "weight": -by_weight}
        return (own, *self.ties(wait))

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return next to nothing if the other group has a higher priority, and the core's choice for equals."""
        if wait is not None and self._levels(wait.group) > self._levels(group):
            return self.make_way
        return None

    def paces(self, gpu: GpuView) -> Paces:
        """Pause all but the highest priority that has work."""
        holders = gpu.holders.values()
        top = max((self._levels(g) for g in holders if g.busy), default=None)
        if top is None:
            return {}, None
        paused = Speed(inflight=0.0, stall=self.stall)
        return {g.id: paused for g in holders if self._levels(g) < top}, None
