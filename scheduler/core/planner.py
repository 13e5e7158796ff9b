# SPDX-License-Identifier: BSD-3-Clause
"""Plans from which groups a wait may take memory, and when, in the order that ``core.py`` describes."""

from __future__ import annotations

from dataclasses import dataclass

from .eligibility import Eligibility
from .eviction import VictimChooser
from .model import Gpu, Group, Model, Share, Wait, is_managed
from .paging import ThrashingDetector
from .plan import Plan
from .policy_guard import PolicyGuard
from .residency import Residency
from .turn import Turn


@dataclass(slots=True, eq=False)
class Planner:
    """Finds what stands between a wait and its grant. It changes nothing."""

    model: Model
    turn: Turn
    policy: PolicyGuard
    thrash: ThrashingDetector
    eligibility: Eligibility
    residency: Residency
    chooser: VictimChooser

    def fits(self, wait: Wait) -> bool:
        """Whether there is room now for what a wait is for."""
        if wait.grow is not None:
            return all(
                (need := self.model.need(wait, gpu)) <= 0 or need <= gpu.free - gpu.owed
                for gpu in wait.gpus.values()
            )
        group = wait.group
        if self.residency.one_at_a_time and self._others_leased(group):
            return False
        for share in group.shares.values():
            if not share.has_room:
                return self.floats(group)
        return True

    def continues(self, wait: Wait, ahead: list[Wait]) -> bool:
        """Whether a group returns within its residency, as seen by the waits ahead, with its memory still resident."""
        group = wait.group
        # Promised headroom that was never used is not resident, so the test is whether anything was evicted.
        if wait.grow is not None or group.turn == 0 or not group.intact:
            return False
        if not ahead:
            return self.turn.now < group.turn_at + self.residency.residency(group)
        return all(
            self.turn.now < group.turn_at + self.residency.residency(group, head) for head in ahead
        )

    def may_pass(self, wait: Wait, ahead: list[Wait] | None) -> bool:
        """Whether the waits ahead are not delayed if this wait is served now."""
        group = wait.group
        for head in ahead or ():
            if wait.grow is None and group.makes_way_for is head:
                return False
            if wait.wakes and group.hibernation is not None and group.hibernation.head is head:
                return False  # it would have to hibernate again
            if wait.grow is None and self.residency.keeps(group, head):
                continue  # it takes no room, and the head cannot have its memory yet
            if wait.grow is None and (
                self.residency.one_at_a_time or any(s.evicting for s in group.shares.values())
            ):
                return False
            for gpu in head.gpus.values():
                if gpu.uuid not in wait.gpus:
                    continue
                if not self.leaves_room(head, gpu, group, self.model.need(wait, gpu)):
                    return False
        return True

    def leaves_room(self, head: Wait, gpu: Gpu, group: Group, take: int) -> bool:
        """Whether a head can still be served, and no later, if a group takes ``take`` bytes of a GPU."""
        need = self.model.need(head, gpu)
        if need <= 0:
            return True
        if (
            group.lease is not None
            and group.turn <= self._barrier(head)
            and need <= self._reach(head, gpu, None) - take
        ):
            return True  # the head waits for the end of this group's turn anyway, and gets its memory then
        reach = self._reach(head, gpu, group)
        if need > reach:
            # It also waits for other groups to hibernate.
            return need <= reach - take + self.eligibility.departing(head, gpu, group)
        if need > reach - take:
            return False
        # Kept memory also becomes available, but late, and no other group may make a head wait for it.
        sooner = reach - sum(
            s.resident for s in gpu.shares.values() if self.residency.keeps(s.group, head)
        )
        return need > sooner or need <= sooner - take

    def floats(self, group: Group) -> bool:
        """Whether a group may run while part of its footprint is not resident, because the GPU pages it in."""
        if not self.model.pages or self.model.rules.anti_thrash == "on" or not is_managed(group):
            return False
        return self.model.rules.anti_thrash == "off" or self._may_try(group)

    def _may_try(self, group: Group) -> bool:
        """Whether to try running a group next to the holders while its memory is not resident.

        It must be known for all of them how much they lose by paging, and all memory must be managed.
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
        """Whether two groups take turns because paging slowed one of them too much."""
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

    def _barrier(self, head: Wait) -> int:
        """Return the last turn whose end the head of the queue waits for."""
        return self.model.last_lease if head.barrier is None else head.barrier

    def _reach(self, head: Wait, gpu: Gpu, without: Group | None) -> int:
        """Return the room that the head of the queue can count on, without one group if one is given."""
        barrier = self._barrier(head)
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

    def plan(self, wait: Wait, waiters: bool = False) -> Plan:
        """Choose the groups from which a wait takes its room, and find when it can.

        With ``waiters``, waiting groups are not protected.
        """
        plan = Plan(wait)
        group = wait.group
        if self.residency.one_at_a_time and wait.grow is None:
            self._serialise(plan)
        if wait.grow is None and self.floats(group):
            return plan
        for gpu in wait.gpus.values():
            lack = self.model.need(wait, gpu) - gpu.free
            if group.filling is not wait:
                lack += gpu.owed
            if lack <= 0:
                continue
            plan.lacks.append((gpu, lack))
            lack, candidates = self._deduct_leaving(plan, gpu, lack)
            if lack > 0:
                lack = self.chooser.choose(plan, gpu, lack, candidates, waiters)
            if lack > 0:
                plan.short.append((gpu, lack))
        return plan

    def _serialise(self, plan: Plan) -> None:
        """Add to a plan all holders that must release their leases first, because groups run one at a time."""
        for other in self._others_leased(plan.wait.group):
            plan.serialised.append(other)
            reservation = other.reservation
            reached = reservation is not None and reservation.is_reached(other.lease)
            if other.busy or other.exclusive or other.reserved or reached:
                end = self.residency.quantum_end(other, plan.wait)
            else:
                end = self.residency.next_cell_by(other, plan.wait)
            if other.yielding:
                plan.draining.append(other)
            elif end <= self.turn.now:
                plan.revoke.append(other)
            else:
                plan.later.append((end, other))

    def _deduct_leaving(self, plan: Plan, gpu: Gpu, lack: int) -> tuple[int, list[Share]]:
        """Deduct bytes that are leaving a GPU already from the missing bytes; return the rest, and possible victims."""
        wait, group = plan.wait, plan.wait.group
        candidates: list[Share] = []
        for share in self.chooser.volatile(gpu):
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
        return lack, candidates
