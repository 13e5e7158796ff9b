# SPDX-License-Identifier: BSD-3-Clause
"""Chooses victims: by when their memory is available, by kind, and then by the policy (``core.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

from .model import Gpu, Model, Share, Wait
from .plan import Plan
from .policy_guard import PolicyGuard
from .residency import Residency
from .turn import Turn
from .victims import Spot

#: Kinds of victims, in the order in which they lose memory.
_IDLE, _IDLE_LEASE, _WAITING, _RUNNING, _KEPT = range(5)


#: When its memory is available, its size, and the share.
_Victim = tuple[float, int, Share]


@dataclass(slots=True, eq=False)
class VictimChooser:
    """Chooses victims."""

    model: Model
    turn: Turn
    policy: PolicyGuard
    residency: Residency

    def margin_of(self, gpu: Gpu) -> int:
        """Return the bytes by which an eviction exceeds what is missing, so that one round suffices."""
        return min(self.model.rules.margin, gpu.total // 256)

    def volatile(self, gpu: Gpu) -> list[Share]:
        """Bring ``Gpu.victims`` up to date, and return the volatile shares in the order in which they were made."""
        victims = gpu.victims
        policy = self.policy.policy
        if victims.ranked_by is not policy:
            victims.ranked_by = policy
            victims.changed.update((share.number, share) for share in gpu.shares.values())
        if victims.ends and victims.ends[0][0] <= self.turn.now:
            victims.wake(self.turn.now)
        while victims.changed:
            number, share = victims.changed.popitem()
            group = share.group
            if gpu.shares.get(group.id) is not share:
                victims.remove(share)
            elif not self._is_at_rest(share):
                victims.remove(share)
                if group.lease is not None or share.resident or share.evicting:
                    victims.volatile[number] = share
            elif share.resident + share.arriving > 0:
                victims.rest(share, *self.policy.lasting_rank(group))
            else:
                victims.remove(share)
        return [share for _, share in sorted(victims.volatile.items())]

    def _is_at_rest(self, share: Share) -> bool:
        """Whether any wait may take its memory now, until something happens to its group."""
        group, preferences = share.group, share.group.preferences
        if preferences.keep and not preferences.stopped:
            return False
        if group.lease is not None:
            if group.yielding or group.runs or self.residency.expects_cell(group):
                return False
        elif group.wait is not None and not preferences.stopped:
            return False
        if share.evicting or share.lost or share.gpu.filling is share:
            return False
        for holding in share.holdings.values():
            if holding.stuck_until > self.turn.now:
                return False
        return (
            (group.ended_at is not None and not group.cells)
            or group.turn == 0
            or group.lease_ahead
            or preferences.stopped
            or (group.lease is None and not group.intact)
        )

    def choose(
        self, plan: Plan, gpu: Gpu, lack: int, candidates: list[Share], waiters: bool
    ) -> int:
        """Choose the victims on one GPU; return the bytes that are missing even if all of them lose their memory."""
        wait, now = plan.wait, self.turn.now
        kinds, running = self._by_availability(candidates, wait, waiters)
        # Running groups come last; mostly the others suffice.
        for order, kind, ready, resting in self._passes(wait, gpu, kinds, running):
            victims = self._ranked(plan, ready, resting)
            if order > now:
                victims = ((max(when, order), size, share) for when, size, share in victims)
            lack = self._take(plan, gpu, lack, order, kind, victims)
            if lack <= 0:
                return lack
        for share in running:
            victim = self._running_victim(share, wait)
            when, size, _ = victim
            if size > 0:
                order = 0.0 if when <= now else when
                kinds.setdefault((order, _RUNNING), []).append(victim)
        for order, kind in sorted(kinds):
            victims = self._ranked(plan, kinds[order, kind], [])
            lack = self._take(plan, gpu, lack, order, kind, victims)
            if lack <= 0:
                break
        return lack

    def _passes(
        self,
        wait: Wait,
        gpu: Gpu,
        kinds: dict[tuple[float, int], list[_Victim]],
        running: list[Share],
    ) -> Iterator[tuple[float, int, list[_Victim], list[Spot]]]:
        """Iterate over the victims that are available now: since when, their kind, and those at rest, in this order.

        While there are agents, memory that no person waits for comes first, so that people find theirs when they
        return. An agent does not take people's memory before it has waited for a while.
        """
        found = [
            (_IDLE, kinds.pop((0.0, _IDLE), []), gpu.victims.idle),
            (_IDLE_LEASE, kinds.pop((0.0, _IDLE_LEASE), []), gpu.victims.held),
            (_WAITING, kinds.pop((0.0, _WAITING), []), []),
        ]
        if not self.model.agents:
            yield from ((0.0, *one) for one in found)
            return
        at = 0.0
        if wait.group.activity_class == "agent":
            at = wait.since + self.model.rules.agent_patience
        for attended in (False, True):
            if attended and wait.group.attended:
                # An agent that runs is paused, or soon will be. If it has had its quantum, it goes before people.
                agents = [s for s in running if s.group.activity_class == "agent"]
                ready = [
                    victim
                    for victim in (self._running_victim(share, wait) for share in agents)
                    if victim[0] <= self.turn.now
                ]
                for _, _, share in ready:
                    running.remove(share)
                yield 0.0, _RUNNING, ready, []
            for kind, ready, resting in found:
                ready = [victim for victim in ready if victim[2].group.attended is attended]
                resting = [spot for spot in resting if spot.share.group.attended is attended]
                yield at if attended and at > self.turn.now else 0.0, kind, ready, resting

    def _running_victim(self, share: Share, wait: Wait) -> _Victim:
        """Return the memory of a running group as a victim, which is available when its quantum ends."""
        size = share.resident + share.arriving + share.missing
        return self.residency.quantum_end(share.group, wait), size, share

    def _by_availability(
        self, candidates: list[Share], wait: Wait, waiters: bool
    ) -> tuple[dict[tuple[float, int], list[_Victim]], list[Share]]:
        """Return idle candidates by the time at which they are available and by kind; and the running candidates."""
        soon = self.turn.now + self.model.rules.debounce
        running: list[Share] = []
        kinds: dict[tuple[float, int], list[_Victim]] = {}
        for share in candidates:
            other = share.group
            if other.lease is None:
                size = share.movable
                when = self.residency.evictable_at(share, wait)
                queues = other.wait is not None and not other.wait.passed_over
                kind = _WAITING if queues else _IDLE
                if waiters and kind == _WAITING:
                    found = (h.stuck_until for h in share.holdings.values() if not h.lost)
                    when = max(found, default=0.0)
            elif other.runs:
                running.append(share)
                continue
            else:
                size = share.resident + share.arriving + share.missing
                kind, when = _IDLE_LEASE, self.residency.movable_at(other, wait)
            if self.residency.is_kept(other, wait):
                kind, when = _KEPT, max(when, wait.since + self.model.rules.keep_patience)
            if size > 0:
                # The debounce is too short to choose another victim.
                order = 0.0 if when <= soon else when
                kinds.setdefault((order, kind), []).append((when, size, share))
        return kinds, running

    def _take(
        self, plan: Plan, gpu: Gpu, lack: int, order: float, kind: int, victims: Iterable[_Victim]
    ) -> int:
        """Choose as many victims of one kind as needed; return the bytes that are still missing."""
        now = self.turn.now
        for when, size, share in victims:
            # Evict a little more than is missing, because figures change by that much while they are read.
            take = min(size, lack + self.margin_of(gpu))
            lack -= take
            if kind == _KEPT and when > now:
                plan.kept.append(share.group)
            if share.group.lease is not None:
                if order > 0:
                    plan.later.append((when, share.group))
                elif share.group not in plan.revoke:
                    plan.revoke.append(share.group)
            elif when <= now:
                plan.evict.append((share, take))
            else:
                plan.later.append((when, share.group))
            if lack <= 0:
                break
        return lack

    def _ranked(self, plan: Plan, victims: list[_Victim], resting: list[Spot]) -> Iterator[_Victim]:
        """Iterate over the victims of one kind in the policy's order, including those at rest."""
        if len(victims) == 1 and not resting:
            yield from victims
            return
        rank = self.policy.victim_rank
        known = {victim[2].number: victim for victim in victims}
        spots = sorted(Spot(rank(s.group), s.number, s) for _, _, s in victims)
        wait = plan.wait
        # A victim that was chosen on another GPU counts as evicted.
        gone = {g.number for g in plan.revoke}
        if wait.grow is None or wait.group.lease is not None:
            gone.add(wait.group.number)
        for spot in merge(spots, resting) if spots else resting:
            share: Share = spot.share
            if spot.number in known:
                yield known[spot.number]
            elif share.group.number not in gone:
                when = (
                    self.residency.evictable_at(share, wait) if share.group.lease is None else 0.0
                )
                yield when, share.resident + share.arriving, share
