# SPDX-License-Identifier: BSD-3-Clause
"""First come, first served, one at a time, with a fixed quantum, like nvshare."""

from __future__ import annotations

from math import inf

from ..core.policy_api import GpuView, GroupView, Paces, Parts, Rank, View, WaitView


class FirstComeFirstServed:
    """The simplest policy, and what the other policies have in common with it.

    The group that has been idle for longest loses its memory first: background groups, then agents, then the others.
    """

    name = "fcfs"
    serialises = True
    orders_by_gpu_time = False
    #: Seconds; the default of nvshare.
    fixed_quantum: float = 30.0

    def __init__(self, view: View) -> None:
        self.view = view

    def queue_parts(self, wait: WaitView) -> Parts:
        """Order by age; unevictable memory first, because its client waits inside an allocation."""
        return ({"came": wait.since}, *self.ties(wait))

    def ties(self, wait: WaitView) -> Parts:
        """Return the order of waits that are otherwise equal."""
        return (
            {"growth": 0.0 if wait.grow and not wait.wakes else 1.0},
            {"number": float(wait.number)},
        )

    def victim_rank(self, group: GroupView) -> Rank:
        """Order by idle time; waiting groups by their place, last first. Kept memory comes last."""
        kept = group.preferences.keep and not group.preferences.stopped
        standing = self.standing(group)
        wait = group.wait
        if wait is not None and not wait.frozen:
            place = (-sum(parts.values()) for parts in self.queue_parts(wait))
            return (kept, 1, standing, *place)
        return (kept, 0, standing, group.idle_since, group.number)

    def standing(self, group: GroupView) -> int:
        """Return the order of classes among victims. Next to agents, a person's long cell is not background work."""
        if group.activity_class == "interactive" or (self.view.agents and group.attended):
            return 2
        return 1 if group.activity_class == "agent" else 0

    def lasting_victim_rank(self, group: GroupView) -> tuple[Rank, float]:
        """Return this order. It is valid until something happens to the group."""
        return self.victim_rank(group), inf

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return the same quantum for all groups."""
        return self.fixed_quantum

    def paces(self, gpu: GpuView) -> Paces:
        """Set no bounds, because groups run one at a time."""
        return {}, None
