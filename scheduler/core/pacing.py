# SPDX-License-Identifier: BSD-3-Clause
"""What groups count as, the order of those that wait, and how fast holders may submit: what the policy is asked for."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace
from typing import cast

from .burst_model import Classes
from .burst_predictor import Predictor
from .eviction import Chooser
from .messages import Class, Pace
from .model import Gpu, Group, Wait, place
from .planner import is_managed
from .policy_api import FREE, SHARE_STALL, Speed
from .turn import stir

#: A policy that wants to be asked again at once is asked after so many seconds.
SOONEST = 0.001


class Pacer(Chooser):
    """Keeps what policies say up to date, and is what they look at."""

    _sorted_by: tuple[int, int]
    _classes: Classes
    _predictor: Predictor
    _absences: Predictor

    # --- What policies look at ---------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time of the event that is handled, seconds."""
        return self.turn.now

    @property
    def interactive_burst(self) -> float:
        """GPU time after which a cell counts as background, seconds."""
        return self._classes.interactive_burst

    @property
    def longest_quantum(self) -> float:
        """Bound of quanta that follow from costs, seconds."""
        return self.model.rules.longest_quantum

    @property
    def background_quantum(self) -> float:
        """For how long a holder that has to make way soon is left alone, seconds."""
        return self.model.rules.background_quantum

    def class_of(self, group: Group) -> Class:
        """Return what a group counts as."""
        return group.classed

    def expected(self, group: Group) -> float:
        """Return for how many seconds of GPU time its burst is expected to go on."""
        return self._predictor.expected(group.id, self._burst_so_far(group))

    def _burst_so_far(self, group: Group) -> float:
        running = self.turn.now - group.ran_since if group.busy else 0.0
        return group.burst_before + group.ran_before - group.counted_burst + running

    def due_since(self, group: Group) -> float | None:
        """Return when its cell began, if that is expected to use the GPU and has not yet."""
        return self._classes.due_since(group)

    def focused(self, group: Group) -> bool:
        """Whether it is in front of its user."""
        return self.model.focus.get(group.user) == group.id

    def limited_by(self, group: Group, now: float) -> str | None:
        """Return whose limit a group has had."""
        found = (self.times.limited_by(group, uuid, now) for uuid in group.shares)
        return next((whose for whose in found if whose is not None), None)

    # --- Classes -----------------------------------------------------------------------------------

    def _count_time(self, group: Group) -> None:
        """Count what a burst had of the GPU so far, unless its clients say."""
        if not group.busy:
            return
        since = max(group.ran_since, group.counted_until)
        group.counted_until = self.turn.now
        if (group.metered and not group.overdue) or self.turn.now <= since:
            return
        for uuid in group.shares:
            self.times.add(group, uuid, self.turn.now - since, self.turn.now)
        self._classes.ran(group, self.turn.now - since, self.turn.now)

    def _end_absence(self, group: Group) -> None:
        """It has work again: from how long it had none, the next absence is guessed."""
        if group.away_since is not None:
            self._absences.remember(group.id, self.turn.now - group.away_since)
            group.away_since = None

    def _end_burst(self, group: Group) -> None:
        """The burst is over: from its length, the next one's is guessed."""
        length = self._burst_so_far(group)
        if length > 0:
            self._predictor.remember(group.id, length)
        group.burst_before, group.counted_burst = 0.0, group.ran_before

    def _classify(self) -> None:
        """See what has become of those that something happened to."""
        touched, self.turn.unclassed = self.turn.unclassed, {}
        for group in touched.values():
            for uuid, share in group.shares.items():
                self.turn.repace[uuid] = share.gpu
            found = self._classes.of(group)
            if found != group.classed:
                group.classed = found
                stir(group)
                if group.lease is not None:
                    for share in group.shares.values():
                        share.gpu.background += 1 if found == "background" else -1
                self._rank_anew(group)
            self._time_class(group)

    def _time_class(self, group: Group) -> None:
        """Look again when a burst that goes on would change what its group counts as."""
        at = None
        if group.busy and (not group.metered or group.overdue):
            at = self._classes.changes_at(group, max(group.ran_since, group.counted_until))
        self.timers.set(group.ages, at)

    # --- The queue's order -------------------------------------------------------------------------

    def _rank(self, wait: Wait) -> None:
        own = wait.group.wait
        lease = own if wait.wakes and wait.for_lease and own is not None else wait
        parts, rank = self.policy.rank(lease)
        retry = -1.0 if lease.front else 0.0
        wait.parts, wait.rank = ({"retry": retry}, *parts), (retry, *rank)
        first = wait.group.makes_way_for
        # Else it would take back at once what was taken from it.
        if lease.grow is None and first is not None and first.rank > wait.rank and first.queued:
            wait.parts, wait.rank = first.parts, first.rank

    def _waits_of(self, group: Group) -> list[Wait]:
        """Return its places in the queue, in order."""
        found = {w: None for s in group.shares.values() for w in s.gpu.queue if w.group is group}
        if group.wait is not None and not group.shares:
            found[group.wait] = None
        return sorted(found, key=place)

    def _rank_anew(self, group: Group) -> None:
        """Its place in the queue may be another."""
        for wait in self._waits_of(group):
            self._remove(wait)
            self._rank(wait)
            self._insert(wait)

    def _insert(self, wait: Wait) -> None:
        insort(self.model.queue, wait, key=place)
        if wait.grow is None and not wait.group.shares:
            self.model.nowhere.append(wait)
        for gpu in self._gpus_of(wait):
            insort(gpu.queue, wait, key=place)
            self._mark(wait, gpu)

    def _mark(self, wait: Wait, gpu: Gpu) -> None:
        self.turn.dirty[gpu.uuid] = self.turn.crowded[gpu.uuid] = gpu
        if wait.grow is not None:
            self.turn.restock[gpu.uuid] = gpu

    def _remove(self, wait: Wait) -> None:
        # One that is woken for a lease has the same place as its wait for that.
        del self.model.queue[
            self.model.queue.index(wait, bisect_left(self.model.queue, place(wait), key=place))
        ]
        if wait in self.model.nowhere:
            self.model.nowhere.remove(wait)
        for gpu in self._gpus_of(wait):
            del gpu.queue[gpu.queue.index(wait, bisect_left(gpu.queue, place(wait), key=place))]
            self._mark(wait, gpu)

    def _sort(self) -> None:
        for wait in sorted(self.model.queue, key=lambda w: w.group.makes_way_for is not None):
            self._rank(wait)
        self.model.queue.sort(key=place)
        for gpu in self.model.gpus.values():
            if gpu.queue:
                gpu.queue.sort(key=place)
                self.turn.dirty[gpu.uuid] = gpu
        self._sorted_by = self.policy.version

    # --- Paces -------------------------------------------------------------------------------------

    def _pace(self) -> None:
        """Say to the holders, where it changed, how fast they may submit."""
        changed: dict[str, Group] = {}
        if self.turn.unpaced:
            changed = {i: g for i, g in self.turn.unpaced.items() if g.lease is not None}
            self.turn.unpaced.clear()
        for gpu in self.turn.repace.values():
            before, gpu.paces = gpu.paces, self.policy.paces(gpu)
            if self.model.pages:
                self._with_meters(gpu, gpu.paces)
            again = self.policy.pace_again(gpu)
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
        self.turn.repace.clear()
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
                self._count_time(group)
                group.metered = metered
                self._time_class(group)

    def _limit(self, gpu: Gpu, again: float | None) -> float | None:
        """Hold everybody to the limits, whatever the policy is; return when the paces are to be looked at again."""
        portions = {name: self._portion(group, gpu) for name, group in gpu.holders.items()}
        if min(portions.values(), default=1.0) == 1.0:
            return again
        for name, group in gpu.holders.items():
            portion = portions[name]
            if portion == 1.0:
                # By the clock it would be busy also while it pauses, and be charged for what the others have.
                gpu.paces[name] = replace(gpu.paces.get(name, FREE), meter=True)
                continue
            # The client goes by the time for which it is busy.
            share = min(1.0, portion * self.times.stretch(group, gpu.uuid, self.turn.now))
            bound = Speed(share=share, meter=True)
            until = self.times.throttled_until(group, gpu.uuid, self.turn.now)
            if until is not None:
                bound = replace(bound, inflight=0.0, stall=SHARE_STALL)
                again = until if again is None else min(again, until)
            gpu.paces[name] = strictest([gpu.paces.get(name, FREE), bound])
        return again

    def _portion(self, group: Group, gpu: Gpu) -> float:
        """Return the part of the time that each process of a group may have: those limited together divide it."""
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
        """Have those metered whose memory may be paged, until it is known what they lose by it."""
        if self.model.rules.anti_thrash == "auto":
            floating = any(g.floating for g in gpu.holders.values())
            for group in gpu.holders.values():
                if is_managed(group) and (floating or not self.thrash.measured(group.id)):
                    paces[group.id] = replace(paces.get(group.id, FREE), meter=True)


def _at_work(group: Group, gpu: Gpu) -> int:
    """How many of a group's processes are at work that use this GPU."""
    return sum(c.busy and gpu.uuid in c.holdings for c in group.granted.values())


def strictest(speeds: list[Speed]) -> Speed:
    """Return what keeps within each of them."""
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
