# SPDX-License-Identifier: BSD-3-Clause
"""Whose memory one that waits may take, and when: the order that ``core.py`` describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .burst_predictor import Predictor
from .ledger import Accounts, growth
from .messages import Class
from .model import Gpu, Group, Share, Wait, place
from .paging import Detector
from .policy_guard import Guard


@dataclass(slots=True)
class Plan:
    """What stands between one that waits and its grant."""

    wait: Wait
    #: GPUs with too little room, and by how much.
    lacks: list[tuple[Gpu, int]] = field(default_factory=list)
    #: GPUs that lack room even if everybody yields, and by how much.
    short: list[tuple[Gpu, int]] = field(default_factory=list)
    serialised: list[Group] = field(default_factory=list)
    evict: list[tuple[Share, int]] = field(default_factory=list)
    revoke: list[Group] = field(default_factory=list)
    #: Revoked already; evicted already and not answered.
    draining: list[Group] = field(default_factory=list)
    leaving: list[Group] = field(default_factory=list)
    #: Chosen, but protected until then.
    later: list[tuple[float, Group]] = field(default_factory=list)
    #: Of those, the ones whose memory people keep from it.
    kept: list[Group] = field(default_factory=list)


class Planner(Accounts):
    """Finds out what stands between one that waits and its grant."""

    policy: Guard
    thrash: Detector
    _absences: Predictor

    def _fits(self, wait: Wait) -> bool:
        if wait.grow is not None:
            gpu = self.model.gpus[wait.grow.least.gpu]
            need = self.need(wait, gpu)
            return need <= 0 or need <= gpu.free - gpu.owed
        group = wait.group
        if self.one_at_a_time and self._others_leased(group):
            return False
        for share in group.shares.values():
            need = share.need
            owed = share.gpu.owed
            # What is leaving another's GPU memory for one that fills has to come back after it.
            if (owed and share.evicting) or (need > 0 and need > share.gpu.free - owed):
                return self._floats(group)
        return True

    def _continues(self, wait: Wait, ahead: list[Wait]) -> bool:
        """Whether it comes back within its residency, as those before it see it, its memory still in."""
        group = wait.group
        # Headroom that was promised and never used is not in: what counts is that nothing was taken.
        if wait.grow is not None or group.turn == 0 or not group.intact:
            return False
        if not ahead:
            return self.turn.now < group.turn_at + self.residency(group)
        return all(self.turn.now < group.turn_at + self.residency(group, head) for head in ahead)

    def _may_pass(self, wait: Wait, ahead: list[Wait] | None) -> bool:
        """Whether those before it are held up no longer for its being served now."""
        group = wait.group
        for head in ahead or ():
            if wait.grow is None and group.makes_way_for is head:
                return False
            if wait.wakes and group.hibernation is not None and group.hibernation.head is head:
                return False  # it would be sent away again
            if wait.grow is None and self.keeps(group, head):
                continue  # it takes no room, and the head cannot have its memory yet
            if wait.grow is None and (
                self.one_at_a_time or any(s.evicting for s in group.shares.values())
            ):
                return False
            for gpu in self._gpus_of(head):
                if gpu.uuid not in self.uuids(wait):
                    continue
                if not self._leaves_room(head, gpu, group, self.need(wait, gpu)):
                    return False
        return True

    def _leaves_room(self, head: Wait, gpu: Gpu, group: Group, take: int) -> bool:
        """Whether a head can still be served, and no later, if a group takes so much of a GPU."""
        need = self.need(head, gpu)
        if need <= 0:
            return True
        reach = self._reach(head, gpu, group)
        if need > reach:
            # It waits for others to hibernate as well.
            return need <= reach - take + self._departing(head, gpu, group)
        if need > reach - take:
            return False
        # What people keep can be had too, but late: nobody makes a head need it.
        sooner = reach - sum(s.resident for s in gpu.shares.values() if self.keeps(s.group, head))
        return need > sooner or need <= sooner - take

    def uuids(self, wait: Wait) -> Iterator[str] | tuple[str]:
        """Return the GPUs that one waits for."""
        return iter(wait.group.shares) if wait.grow is None else (wait.grow.least.gpu,)

    def _gpus_of(self, wait: Wait) -> list[Gpu]:
        return [self.model.gpus[u] for u in self.uuids(wait)]

    def need(self, wait: Wait, gpu: Gpu) -> int:
        """Room that serving this one takes on a GPU."""
        group = wait.group
        if wait.grow is None:
            share = group.shares[gpu.uuid]
            return share.missing if group.filling is wait else share.need
        if wait.wakes and wait.for_lease:
            # Awake without its lease, it would only be in the way of those that can run.
            fixed = left = 0
            for c in group.clients.values():
                if c.stage == "waiting" and c.needs is not None and c.needs.gpu == gpu.uuid:
                    fixed += c.needs.pinned + c.needs.context
                    left += c.holdings[gpu.uuid].left
            fixed = max(0, fixed - gpu.freed_without(left))
            need = fixed + group.shares[gpu.uuid].need
            if need - gpu.free <= self._host_room():
                return need
            # The host cannot hold what would have to leave, too. Awake, it fills: they change places piece by piece.
            return fixed
        more, fixed = growth(self.model.clients[wait.grow.client].holdings[gpu.uuid], wait.grow)
        return fixed + (more if group.lease is not None and not group.floating else 0)

    @property
    def one_at_a_time(self) -> bool:
        """Whether one lease excludes another on a GPU even where both fit."""
        return self.model.rules.anti_thrash == "on" or self.policy.serialises

    def class_of(self, group: Group) -> Class:
        """Return what a group counts as."""
        raise NotImplementedError

    def counts(self, wait: Wait) -> bool:
        """Whether one that waits could be served at all: else it holds nobody up."""
        return not wait.passed_over and wait.limited_until <= self.turn.now and wait.barred is None

    def _precedes(self, wait: Wait, group: Group) -> bool:
        """Whether a group is to make way soon for one that waits."""
        return (
            wait.group.user == group.user
            and self.class_of(group) == "background"
            and self.class_of(wait.group) == "interactive"
        )

    def _floats(self, group: Group) -> bool:
        """Whether a group may run without its whole footprint resident: the GPU faults it in."""
        if self.model.rules.anti_thrash == "on" or not is_managed(group):
            return False
        return self.model.rules.anti_thrash == "off" or self._may_try(group)

    def _may_try(self, group: Group) -> bool:
        """Whether it is worth a try to have a group beside those that hold a lease, without its memory in.

        Of all of them it has to be known what they lose by it, and nobody's memory may be other than managed.
        """
        fellows = {group.id: group}
        for share in group.shares.values():
            fellows.update(share.gpu.holders)
        return (
            len(fellows) > 1
            and not self.policy.serialises
            and all(is_managed(g) and self.thrash.measured(g.id) for g in fellows.values())
            and self.thrash.verdict(fellows, self.turn.now) == "try"
        )

    def thrashes(self, group: Group, other: Group) -> bool:
        """Whether two rotate because paging slowed one of them too much."""
        return (
            self.model.rules.anti_thrash == "auto"
            and is_managed(group)
            and is_managed(other)
            and self.thrash.retry_at((group.id, other.id), self.turn.now) is not None
        )

    def _others_leased(self, group: Group) -> list[Group]:
        return [
            g
            for g in self.model.leased.values()
            if g is not group and g.shares.keys() & group.shares and not g.overdue
        ]

    def _reach(self, head: Wait, gpu: Gpu, without: Group) -> int:
        """Room that the head of the queue can count on without one group."""
        barrier = self.model.last_lease if head.barrier is None else head.barrier
        own = head.group if head.grow is None or head.group.lease is not None else None
        room = gpu.free
        for share in gpu.shares.values():
            group = share.group
            if group is own or group is without:
                room -= share.missing
                continue
            if group.lease is None:
                room += share.leaving + share.movable
            elif group.overdue:
                continue
            elif group.turn <= barrier:
                room += share.resident + share.arriving
            else:
                room -= share.missing
        return room

    def _departing(self, head: Wait, gpu: Gpu, without: Group) -> int:
        """Room that all others would leave, beside their memory, if they hibernated for the head."""
        raise NotImplementedError

    def plan(self, wait: Wait, waiters: bool = False) -> Plan:
        """Choose whom one that waits takes its room from, and find out when.

        With ``waiters``, others that wait are not protected.
        """
        plan = Plan(wait)
        now = self.turn.now
        group = wait.group
        if self.one_at_a_time and wait.grow is None:
            for other in self._others_leased(group):
                plan.serialised.append(other)
                end = self.quantum_end(other, wait)
                if other.yielding:
                    plan.draining.append(other)
                elif not (other.busy or other.exclusive) or end <= now:
                    plan.revoke.append(other)
                else:
                    plan.later.append((end, other))
        if wait.grow is None and self._floats(group):
            return plan
        for gpu in self._gpus_of(wait):
            lack = self.need(wait, gpu) - gpu.free
            if group.filling is not wait:
                lack += gpu.owed
            if lack <= 0:
                continue
            plan.lacks.append((gpu, lack))
            candidates: list[Share] = []
            for share in self._restless(gpu):
                other = share.group
                if other is group and (
                    wait.grow is None or (group.lease is not None and share.ceiling is None)
                ):
                    continue
                if other.lease is None:
                    leaving = share.leaving
                    if leaving:
                        lack -= leaving
                        plan.leaving.append(other)
                    if share.movable:
                        candidates.append(share)
                elif other.overdue:
                    continue
                elif other.yielding or other in plan.revoke:
                    lack -= share.resident + share.arriving + share.missing
                    if other.yielding and other not in plan.draining:
                        plan.draining.append(other)
                else:
                    candidates.append(share)
            for other in plan.revoke:
                chosen = other.shares.get(gpu.uuid)
                if chosen is not None and chosen.number in gpu.victims.spots:
                    lack -= chosen.resident + chosen.arriving
            if lack > 0:
                lack = self._choose(plan, gpu, lack, candidates, waiters)
            if lack > 0:
                plan.short.append((gpu, lack))
        return plan

    def _restless(self, gpu: Gpu) -> list[Share]:
        raise NotImplementedError

    def _choose(
        self, plan: Plan, gpu: Gpu, lack: int, candidates: list[Share], waiters: bool
    ) -> int:
        raise NotImplementedError

    def margin_of(self, gpu: Gpu) -> int:
        """Bytes by which an eviction exceeds what lacks, so that one round suffices."""
        return min(self.model.rules.margin, gpu.total // 256)

    def footprint_cost(self, group: Group) -> float:
        """Return the seconds that it takes to move a group's footprint one way."""
        return sum(s.goal / s.gpu.bandwidth for s in group.shares.values())

    def move_cost(self, group: Group) -> float:
        """Return the seconds that it takes to bring in what a group lacks."""
        return sum(s.need / s.gpu.bandwidth for s in group.shares.values())

    def quantum_of(self, group: Group, wait: Wait | None = None) -> float:
        """Return the seconds for which a running holder is left alone, by one that waits or by its equals."""
        if group.exclusive:
            return self.model.rules.exclusive_limit
        if self.model.rules.quantum != "auto":
            length = self.model.rules.quantum
        else:
            wish = self.policy.quantum(group, wait)
            if wish is not None:
                return min(max(wish, 0.0), self.model.rules.longest_turn)
            length = self.cost_quantum(group)
        if wait is not None and self._precedes(wait, group):
            length = min(length, self.model.rules.background_quantum)
        return length

    def cost_quantum(self, group: Group) -> float:
        """Return the quantum that follows from what it costs to move a group's footprint, seconds."""
        return min(
            max(self._worth_moving(group), self.model.rules.shortest_quantum),
            self.model.rules.longest_quantum,
        )

    def _worth_moving(self, group: Group) -> float:
        """Return for how long a group's memory has to stay for its moves to be worth it, seconds.

        Those at work side by side take turns at once: each stays so many times as long, or all of them together would
        spend so many times as much of the time moving.
        """
        beside = 1
        for share in group.shares.values():
            at_work = sum([g.busy > 0 for g in share.gpu.holders.values() if g is not group])
            beside = max(beside, 1 + at_work)
        return self.model.rules.residency_factor * self.footprint_cost(group) * beside

    def quantum_end(self, group: Group, wait: Wait | None = None) -> float:
        """When a running holder may be revoked for one that waits; by default, for the first that does."""
        if wait is None:
            wait = self._first_from(group)
        end = group.turn_at + self.quantum_of(group, wait)
        if group.state == "moving":
            # Its clock starts when the memory is in, but a restore that never ends holds nobody up.
            end += max(1.0, self.model.rules.residency_factor * self.footprint_cost(group))
        return end

    def _first_from(self, group: Group) -> Wait | None:
        """Return the first that waits for a GPU of a group's."""
        found = [
            next((w for w in s.gpu.queue if w.group is not group and self.counts(w)), None)
            for s in group.shares.values()
        ]
        return min((w for w in found if w is not None), key=place, default=None)

    def residency(self, group: Group, wait: Wait | None = None) -> float:
        """Return the seconds for which a group's memory stays once it is in."""
        quantum = self.quantum_of(group, wait)
        if group.exclusive:
            return quantum
        return min(self._worth_moving(group), quantum)

    def movable_at(self, group: Group, wait: Wait | None = None) -> float:
        """When the memory of a group that does not run may be taken."""
        if group.turn == 0 or group.wishes.stopped:
            return 0.0
        if group.lease is None and not group.intact:
            # Some was taken already: what is left serves nobody, and it cannot go on before the others anyway.
            return 0.0
        if group.ended_at is not None and not group.cells:
            return group.ended_at + self.model.rules.debounce
        stays = group.turn_at + self.residency(group, wait)
        if wait is None or group.away_since is None or group.exclusive:
            return stays
        return min(stays, group.away_since + self._patience(group, wait))

    def _patience(self, group: Group, wait: Wait) -> float:
        """Return for how many seconds a group may have no work before its memory is taken for one that waits.

        An absence that lasts as long as the move has cost as much as the move: to wait for that is at most twice as
        bad as to know (ski rental). One that is expected to last longer is not waited for, once it is clear that it
        is none of the group's short ones.
        """
        cost = 0.0
        for uuid in self.uuids(wait):
            share = group.shares.get(uuid)
            if share is not None:
                lack = max(0, self.need(wait, share.gpu) - share.gpu.free)
                cost = max(cost, min(share.resident, lack) / share.gpu.bandwidth)
        short = cost / 10
        known = self._absences.expected(group.id, short) >= cost
        return max(self.model.rules.debounce, short if known else cost)

    def _evictable_at(self, share: Share, wait: Wait | None = None) -> float:
        stuck = max((h.stuck_until for h in share.holdings.values() if not h.lost), default=0.0)
        return max(self.movable_at(share.group, wait), stuck)

    def _is_kept(self, group: Group, wait: Wait) -> bool:
        """Whether people want the memory of a group that does not run to stay where it is."""
        wishes = group.wishes
        if not wishes.keep or wishes.stopped or group.spent or group is wait.group:
            return False
        if group.lease is not None or group.wait is None:
            return True
        # One that could run at once does. Otherwise each would wait for what the other holds.
        return not self.one_at_a_time and all(
            s.need <= s.spare and not s.evicting for s in group.shares.values()
        )

    def keeps(self, group: Group, wait: Wait) -> bool:
        """Whether one that waits cannot have the memory of a group yet, because people keep it."""
        return (
            self.turn.now < wait.since + self.model.rules.keep_patience
            and not (group.runs or group.yielding)
            and self._is_kept(group, wait)
        )


def is_managed(group: Group) -> bool:
    """Whether the GPU faults in what a group lacks."""
    return all(c.backend == "managed" for c in group.clients.values())
