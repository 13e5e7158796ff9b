# SPDX-License-Identifier: BSD-3-Clause
"""Carries out what is decided: leases are granted and taken, memory is promised and ordered out."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from .ledger import growth, staying
from .messages import Cause, Contended, Evict, Grant, Grow, Grown, Growth, Notice, Revoke
from .model import Client, Gpu, Group, Holding, Share, Wait
from .pacing import Pacer
from .planner import Plan
from .timers import Timer
from .turn import stir

#: Bursts that end for these causes are over; others may go on any moment.
OVER: frozenset[Cause] = frozenset({"cell", "idle", "release", "exit"})


class Leases(Pacer):
    """Grants, revokes, evicts."""

    #: Seconds after its wake in which a group asks for its lease from the place in the queue that its wake had.
    place_kept = 2.0
    _new_waits: list[Wait]

    def _on_notice(self, event: Notice) -> None:
        raise NotImplementedError

    def _end_filling(self, group: Group) -> None:
        raise NotImplementedError

    def _allot(self, share: Share) -> None:
        raise NotImplementedError

    def _distribute(self, share: Share, give: int) -> None:
        raise NotImplementedError

    def _tell_room(self, client: Client, anew: bool = False) -> None:
        raise NotImplementedError

    def _wake_up(self, client: Client) -> None:
        raise NotImplementedError

    # --- The queue ---------------------------------------------------------------------------------

    def _enqueue(
        self, group: Group, grow: Grow | None = None, front: bool = False, wakes: bool = False
    ) -> Wait:
        self.model.last_number += 1
        wait = Wait(group, self.model.last_number, self.turn.now, grow, front, wakes)
        if wakes and group.wait is not None:
            # It is woken in the turn of its lease.
            wait.number, wait.since = group.wait.number, group.wait.since
        place = self._kept_place(group) if grow is None else None
        if place is not None:
            wait = Wait(group, place.number, place.since)
            wait.not_before = place.not_before
        wait.queued = True
        self._rank(wait)
        self._insert(wait)
        self._new_waits.append(wait)
        return wait

    def _kept_place(self, group: Group) -> Wait | None:
        """Take the place in the queue that a group may come back to: after its wake, only at once."""
        place, group.place = group.place, None
        if place is not None and place.wakes and group.active_at + self.place_kept < self.turn.now:
            return None
        return place

    def _dequeue(self, wait: Wait) -> None:
        self.turn.recount = True
        self._remove(wait)
        wait.queued = False
        if not wait.logged:
            self._new_waits.remove(wait)
        if wait.group.wait is wait:
            wait.group.wait = None

    def _admit(self, wait: Wait, continues: bool, filling: bool = False) -> None:
        group = wait.group
        self._dequeue(wait)
        waited = max(0.0, self.turn.now - wait.since)
        if wait.logged:
            group.totals.waits += 1
        self.turn.touch(group)
        if wait.grow is not None:
            client = self.model.clients[wait.grow.client]
            if client.stage == "waiting":
                group.place = wait
                self._wake_up(client)
                return
            holding = client.holdings[wait.grow.least.gpu]
            more, fixed = growth(holding, wait.grow)
            pinned = max(0, wait.grow.least.pinned - holding.pinned)
            stays = staying(holding, wait.grow)
            # Others were admitted since it asked.
            unserved = self._crowded_out(holding.share, fixed, pinned, stays)
            if unserved is not None:
                self._refuse_growth(holding, wait.grow, "device", unserved[1])
                return
            mapped = more <= 0 or client.lease is not None
            self._promise(holding, wait.grow, more, fixed, "resident" if mapped else "swapped")
            return
        self.model.last_lease += 1
        if filling:
            group.filling, group.filled_at = wait, self.turn.now
            self.model.filling[group.id] = group
            for share in group.shares.values():
                share.gpu.filling = share
                for holding in share.holdings.values():
                    holding.room = holding.told = holding.resident
        self._begin_lease(group, self.model.last_lease)
        for share in group.shares.values():
            if filling:
                self._allot(share)
            elif share.ceiling is not None:
                self._distribute(share, share.unallotted)
        if not continues:
            group.turn, group.turn_at = self.model.last_lease, self.turn.now
        self.turn.log("grant", group, waited=waited)
        self._grant_waiting(group)

    # --- Leases ------------------------------------------------------------------------------------

    def _begin_lease(self, group: Group, lease: int) -> None:
        # Where its memory has room, nothing has to be tried.
        group.floating = self._floats(group) and (
            self.model.rules.anti_thrash == "off"
            or any(s.need > s.gpu.free for s in group.shares.values())
        )
        for share in group.shares.values():
            if share.oversubscribes and not group.floating:
                share.ceiling = max(share.goal, share.resident)
                for holding in share.holdings.values():
                    yields = holding.client.oversubscribes or share.gpu.filling is share
                    holding.room = holding.resident if yields else holding.promised
        group.lease = lease
        group.intact = True
        group.spent = False
        group.makes_way_for = None
        group.ran_before = group.counted_burst = 0.0
        self.model.leased[group.id] = group
        for share in group.shares.values():
            self._hold(group, share.gpu)
        self._charge(group)

    def _grant_waiting(self, group: Group) -> None:
        for client in group.clients.values():
            if client.wants and not client.silent and client.stage == "awake":
                self._grant(client)

    def _grant(self, client: Client) -> None:
        group = client.group
        assert group.lease is not None
        client.lease = group.lease
        client.wants = False
        client.burst_at = self.turn.now
        client.restoring = {
            u for u, h in client.holdings.items() if h.promised > h.resident or h.evicting
        }
        group.granted[client.number] = client
        self.turn.unpaced[group.id] = group
        group.ended_at = None
        group.totals.bursts += 1
        self._set_busy(client, True)
        self.turn.decisions.append(self._grant_of(client, client.lease))
        self._tell_room(client, anew=True)

    def _grant_of(self, client: Client, lease: int) -> Grant:
        """One that may hold more than the GPU has is told how much comes in, also where all the room is there."""
        return Grant(
            client.number, lease, client.group.filling is not None or client.oversubscribes
        )

    def _revoke(self, group: Group, head: Wait | None = None) -> None:
        """Have a group give its lease back; ``head``: for this one that waits."""
        if group.lease is None:
            return
        if head is not None:
            group.makes_way_for = head
            if group.runs:
                group.spent = True
                if group.exclusive:
                    self._end_exclusive(group)
        if group.yielding:
            return
        group.yielding = True
        group.revoked_at = self.turn.now
        for share in group.shares.values():
            share.gpu.yielding[group.id] = group
        for client in group.granted.values():
            if client.lease is not None:
                self.turn.decisions.append(Revoke(client.number, client.lease))
                self._await_answer(client)
        self.turn.log("revoke", group)
        self.turn.touch(group)
        if group.overdue:
            # It owes other answers for too long already, so it is not waited for.
            self.turn.look_at(self.turn.now)

    def _give_back(self, client: Client, cause: Cause) -> None:
        group = client.group
        self._set_busy(client, False)
        client.lease = None
        client.restoring.clear()
        del group.granted[client.number]
        self._hear(client)
        self.turn.touch(group)
        if group.granted:
            # A lease is for the whole group: one that grows or fails is in nobody's hands.
            if cause in ("growth", "failed"):
                self._revoke(group)
            return
        if group.stalled and group.filling is not None:
            # No fault of its own: it comes back to where it was, and others may go before it meanwhile.
            group.restore_error = None
            group.place = group.filling
            group.place.not_before = self.turn.now + self._pause_after_failure(group)
        self._end_filling(group)
        group.lease = None
        for share in group.shares.values():
            share.ceiling = None
            for holding in share.holdings.values():
                holding.room = holding.promised
        group.yielding = group.floating = group.stalled = False
        group.stuck = None
        group.idle_since = self.turn.now
        if cause in OVER:
            self._end_burst(group)
            if group.away_since is None:
                group.away_since = self.turn.now
        group.burst_before, group.counted_burst = self._burst_so_far(group), group.ran_before
        del self.model.leased[group.id]
        for share in group.shares.values():
            self._end_holding(group, share.gpu)
        self._charge(group)
        self.turn.log("release", group, cause=cause, ran=group.ran_before)
        for other in group.clients.values():
            self._tell(other, 0)
        if group.offload:
            self._offload(group)

    def _end_holding(self, group: Group, gpu: Gpu) -> None:
        self.turn.recount = True
        del gpu.holders[group.id]
        gpu.yielding.pop(group.id, None)
        if gpu.audience is not None:
            gpu.audience.remove(group)
        gpu.background -= group.classed == "background"
        self.turn.crowded[gpu.uuid] = self.turn.repace[gpu.uuid] = gpu

    def _leave(self, share: Share) -> None:
        """A group has nothing on a GPU any more."""
        group, gpu = share.group, share.gpu
        if gpu.filling is share:
            gpu.filling = None
        del group.shares[gpu.uuid], gpu.shares[group.id]
        if group.lease is not None:
            self._end_holding(group, gpu)
        if group.wait is not None:
            gpu.queue.remove(group.wait)
        self.turn.crowded[gpu.uuid] = gpu

    def _retry(self, client: Client, error: int = 0) -> None:
        """The footprint could not be made resident: back to the old place in the queue, after a pause."""
        group = client.group
        group.restore_error = error
        group.ended_at = self.turn.now - self.model.rules.debounce
        self._give_back(client, "failed")
        client.wants = True
        if group.wait is None:
            group.wait = self._enqueue(group, front=True)
        group.wait.not_before = self.turn.now + self._pause_after_failure(group)
        for uuid in group.shares:
            self.turn.ask(self.model.gpus[uuid])

    def _pause_after_failure(self, group: Group) -> float:
        pause = min(
            self.model.rules.shortest_retry * 2.0**group.failures, self.model.rules.longest_retry
        )
        group.failures = min(group.failures + 1, 20)
        return pause

    def _end_exclusive(self, group: Group) -> None:
        if group.wishes.exclusive:
            group.wishes = replace(group.wishes, exclusive=False)
            self.turn.reseat(group)
            self.turn.log("adjust", group, wishes=asdict(group.wishes))

    def _set_busy(self, client: Client, busy: bool) -> None:
        if client.busy == busy:
            return
        client.busy = busy
        group = client.group
        if busy:
            if not group.busy:
                self._end_absence(group)
                group.ran_since = self.turn.now
            group.busy += 1
        else:
            if group.busy == 1:
                self._count_time(group)
            group.busy -= 1
            if not group.busy:
                group.ran_before += self.turn.now - group.ran_since

    def _tell(self, client: Client, waiting: int, beside: int = 0) -> None:
        """Say how many wait and run beside it, where either changes from none to some or back."""
        if bool(client.contended) != bool(waiting) or bool(client.beside) != bool(beside):
            client.contended, client.beside = waiting, beside
            self.turn.decisions.append(Contended(client.number, waiting, beside))

    # --- Answers -----------------------------------------------------------------------------------

    def _await_answer(self, client: Client) -> None:
        """It was told to give something up: who does not answer in time holds nobody up any longer."""
        if client.owes_since is None:
            client.owes_since = self.turn.now
        if client.silent:
            return
        moves = sum(h.evicting / h.share.gpu.bandwidth for h in client.holdings.values())
        if client.restoring:
            moves += self.footprint_cost(client.group)
        # Not from the last sign of life: one that moves a little now and then would never be late.
        due = (
            client.owes_since
            + self.model.rules.revoke_deadline
            + self.model.rules.residency_factor * moves
        )
        self.timers.set(client.answers, due)

    def _hear(self, client: Client) -> None:
        """It has answered, if only one of several orders."""
        client.owes_since = None
        self.timers.set(client.answers, None)
        if client.silent:
            client.silent = False
            client.group.silent -= 1
            for holding in client.holdings.values():
                self._find_gone(holding, holding.evicting)
                self._lose(holding, False)
            self._reach_again(client)
        revoked = client.lease is not None and client.group.yielding
        if revoked or any(h.client is client for h, _ in self.model.evictions.values()):
            self._await_answer(client)

    def _reach_again(self, client: Client) -> None:
        """It answers again, or is awake again: what it asked for holds."""
        group = client.group
        self._mark_silence(group)
        if not client.wants or client.silent or client.stage != "awake":
            return
        if group.lease is not None and not group.yielding:
            self._grant(client)
        elif group.wait is None:
            group.wait = self._enqueue(group)

    def _miss(self, client: Client) -> None:
        """It has not answered in time: the others are served without what it holds."""
        group = client.group
        client.silent = True
        group.silent += 1
        for holding in client.holdings.values():
            self._lose(holding, True)
        if group.overdue and client.lease is not None:
            # Whether it computes cannot be known, and nobody else can.
            self._count_time(group)
            self._set_busy(client, True)
        kernel, since = group.stuck or (None, self.turn.now)
        self._on_notice(
            Notice(
                group.id,
                "stuck",
                {
                    "name": group.name,
                    "pid": client.pid,
                    "for": self.turn.now - (client.owes_since or self.turn.now),
                    "kernel": kernel,
                    "kernel_for": None if kernel is None else max(0.0, self.turn.now - since),
                },
            )
        )
        self._mark_silence(group)

    def _mark_silence(self, group: Group) -> None:
        self.turn.touch(group)
        if group.wait is not None:
            self.turn.crowded.update({uuid: share.gpu for uuid, share in group.shares.items()})

    def _try_again(self, holding: Holding) -> None:
        """One that refused for long may be asked once more."""
        self._lose(holding, holding.client.silent)
        self.turn.touch(holding.share.group)

    # --- Memory ------------------------------------------------------------------------------------

    def _read(self, wait: Wait) -> bool:
        """Whether the readings that a grant depends on are fresh; if not, they are asked for."""
        fresh = True
        for gpu in self._gpus_of(wait):
            # If the spare part is used after all and has no room, the restore fails and is tried again. Not where
            # something died or hibernated: it may have held, or have left, more than is known.
            unread = gpu.ghosts or gpu.shrunk or gpu.read_at == -math.inf
            known = wait.grow is None and not unread
            spare = wait.group.shares[gpu.uuid].spare if known else 0
            if self.need(wait, gpu) > spare:
                fresh = self._is_fresh(gpu) and fresh
        return fresh

    def _carry_out(self, plan: Plan) -> bool:
        """Take what can be had of it now; return whether anything was taken."""
        now = self.turn.now
        when = max((w for w, _ in plan.later), default=now)
        if when > now + self.model.rules.debounce:
            # All at once, when the last of them can be had: earlier, the room would lie idle.
            self.turn.look_at(when)
            return False
        for later, _ in plan.later:
            self.turn.look_at(later)
        if not plan.evict and not plan.revoke:
            return False
        fresh = True
        for gpu, _ in plan.lacks:
            fresh = self._is_fresh(gpu) and fresh
        if fresh:
            for group in plan.revoke:
                self._revoke(group, plan.wait)
            for share, size in plan.evict:
                self._evict(share, size)
        return fresh

    def _evict(self, share: Share, size: int) -> None:
        share.group.intact = False
        stir(share.group)
        for holding in share.holdings.values():
            part = min(size, holding.resident - holding.evicting)
            if part > 0 and holding.stuck_until <= self.turn.now and not holding.lost:
                size -= part
                self.model.last_serial += 1
                self.model.evictions[self.model.last_serial] = (holding, part)
                self._order_out(holding, part)
                self.turn.decisions.append(
                    Evict(holding.client.number, self.model.last_serial, share.gpu.uuid, part)
                )
                self._await_answer(holding.client)

    def _offload(self, group: Group) -> None:
        group.offload = False
        for share in group.shares.values():
            self._evict(share, share.movable)

    def _promise(
        self, holding: Holding, event: Grow, more: int, fixed: int, status: Growth
    ) -> None:
        least = event.least
        promised = holding.promised + max(0, more)
        pinned = max(holding.pinned, least.pinned)
        stated = max(holding.stated, least.context)
        context = holding.contexts(stated)
        if stated != holding.stated:
            self._try_context(holding)
        self._state_contexts(holding, stated)
        self._unsettle(holding, max(0, fixed))
        self._spare(holding, max(0, promised - least.promised))
        share = holding.share
        if share.ceiling is not None:
            give = self._charged(holding, promised - holding.promised)
            share.ceiling = share.goal + give
            holding.room += give
        self._account(holding, promised, holding.resident, pinned, context)
        self._tell_room(holding.client)
        self.turn.decisions.append(Grown(holding.client.number, event.serial, status, promised))
        if more > 0 or fixed > 0:
            gpu = holding.share.gpu
            self.turn.log(
                "grow", holding.client.group,
                promised=holding.share.promised, gpu=gpu.uuid, beyond=max(0, gpu.excess),
            )  # fmt: skip

    def _refuse_growth(self, holding: Holding, event: Grow, status: Growth, text: str) -> None:
        self.turn.decisions.append(
            Grown(holding.client.number, event.serial, status, holding.promised, text)
        )
        self.turn.log("refuse", holding.client.group, code=status, text=text)

    def _charged(self, holding: Holding, more: int) -> int:
        """How much of a holder's growth comes to the GPU: what has no room there is used from the host."""
        share = holding.share
        if share.ceiling is None or not holding.client.oversubscribes:
            return more
        return min(more, max(0, share.gpu.capacity - share.gpu.ghosts - share.goal))


def refusal(holding: Holding) -> Timer:
    """Return the timer to ask a holding once more that refused for long."""
    return "holding", (holding.client.number, holding.share.gpu.uuid)
