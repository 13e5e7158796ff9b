# SPDX-License-Identifier: BSD-3-Clause
"""How fast holders may submit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from .activity import Activity
from .messages import Pace
from .model import Gpu, Group, Model, is_managed
from .paging import ThrashingDetector
from .policy_api import FREE, SHARE_STALL, Speed
from .policy_guard import PolicyGuard
from .timers import Timers
from .turn import Turn
from .usage import GpuTime

#: If a policy wants to be asked again at once, it is asked after this many seconds.
SOONEST = 0.001


@dataclass(slots=True, eq=False)
class Pacer:
    """Sends holders their pace."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    policy: PolicyGuard
    thrash: ThrashingDetector
    activity: Activity

    def pace(self) -> None:
        """Send holders their pace where it has changed."""
        changed: dict[str, Group] = {}
        if self.turn.pace_unsent:
            changed = {i: g for i, g in self.turn.pace_unsent.items() if g.lease is not None}
            self.turn.pace_unsent.clear()
        for gpu in self.turn.paces_stale.values():
            before = gpu.paces
            gpu.paces, again = self.policy.paces(gpu)
            if self.model.pages:
                self._with_meters(gpu, gpu.paces)
            if again is not None and again <= self.turn.now:
                again = self.turn.now + SOONEST
            if self.times.active:
                again = self._limit(gpu, again)
            self.timers.set(gpu.paces_again, again)
            if before == gpu.paces:
                continue
            for name in {**before, **gpu.paces}:
                if before.get(name, FREE) != gpu.paces.get(name, FREE) and name in gpu.holders:
                    changed[name] = gpu.holders[name]
        self.turn.paces_stale.clear()
        for group in changed.values():
            metered = False
            for client in group.granted.values():
                speed = strictest(
                    [g.share.gpu.paces.get(group.id, FREE) for g in client.holdings.values()]
                )
                metered = metered or speed.meter
                if speed != client.pace:
                    client.pace = speed
                    self.turn.decisions.append(
                        Pace(client.number, speed.inflight, speed.stall, speed.share, speed.meter)
                    )
            if metered != group.metered:
                self.activity.count_time(group)
                group.metered = metered
                self.activity.schedule_class_change(group)

    def _limit(self, gpu: Gpu, again: float | None) -> float | None:
        """Hold all groups to their limits under any policy; return when to compute the paces again."""
        portions = {name: self._portion(group, gpu) for name, group in gpu.holders.items()}
        if min(portions.values(), default=1.0) == 1.0:
            return again
        for name, group in gpu.holders.items():
            portion = portions[name]
            if portion == 1.0:
                # By the clock, it would be busy even while it pauses, and be charged for the other groups' time.
                gpu.paces[name] = replace(gpu.paces.get(name, FREE), meter=True)
                continue
            # The client measures the time for which it is busy.
            share = min(1.0, portion * self.times.stretch(group, gpu.uuid, self.turn.now))
            bound = Speed(share=share, meter=True)
            until = self.times.throttled_until(group, gpu.uuid, self.turn.now)
            if until is not None:
                bound = replace(bound, inflight=0.0, stall=SHARE_STALL)
                again = until if again is None else min(again, until)
            gpu.paces[name] = strictest([gpu.paces.get(name, FREE), bound])
        return again

    def _portion(self, group: Group, gpu: Gpu) -> float:
        """Return the fraction of the time for each process of a group: the processes under one limit divide it."""
        found = 1.0
        for claim in self.times.of(group):
            if claim.entitlement.limit:
                at_work = max(1, _at_work(group, gpu)) + sum(
                    _at_work(other, gpu)
                    for other in gpu.holders.values()
                    if other is not group and claim in self.times.of(other)
                )
                found = min(found, claim.entitlement.limit / at_work)
        return found

    def _with_meters(self, gpu: Gpu, paces: dict[str, Speed]) -> None:
        """Meter groups whose memory may be paged, until it is known how much paging slows them."""
        if self.model.rules.anti_thrash == "auto":
            floating = any(g.floating for g in gpu.holders.values())
            for group in gpu.holders.values():
                if is_managed(group) and (floating or not self.thrash.measured(group.id)):
                    paces[group.id] = replace(paces.get(group.id, FREE), meter=True)


def _at_work(group: Group, gpu: Gpu) -> int:
    """Return the number of a group's processes that are at work and use this GPU."""
    return sum(c.busy and gpu.uuid in c.holdings for c in group.granted.values())


def strictest(speeds: list[Speed]) -> Speed:
    """Return the pace that satisfies all of these bounds."""
    bounds = [s for s in speeds if s != FREE]
    if len(bounds) < 2:
        return bounds[0] if bounds else FREE
    bounded = [s for s in bounds if s.inflight is not None]
    return Speed(
        min((cast("float", s.inflight) for s in bounded), default=None),
        max((s.stall for s in bounded), default=FREE.stall),
        min(s.share for s in bounds),
        any(s.meter for s in bounds),
    )
