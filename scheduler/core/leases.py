# SPDX-License-Identifier: BSD-3-Clause
"""Leases: granted, revoked, released. Only ``Leases`` changes their state."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from .activity import Activity
from .answers import Answers
from .contention import ContentionNotices, subscribe, unsubscribe
from .eviction_orders import EvictionOrders
from .ledger import Ledger
from .messages import ALL, Cause, Grant, Notice, Revoke, Room
from .model import Client, Gpu, Group, Holding, LeaseState, Model, Wait
from .notices import NoticeBoard
from .planner import Planner
from .queue import WaitQueue
from .rooms import Rooms
from .timers import Timers
from .turn import Turn

#: A burst that ends for one of these causes is over; after another cause, it may go on at any moment.
OVER: frozenset[Cause] = frozenset({"cell", "idle", "release", "exit"})


LeaseStep = Literal["grant", "revoke", "end"]
#: The transitions of a group's lease. A step that is not listed has no effect.
TRANSITIONS: dict[tuple[LeaseState, LeaseStep], LeaseState] = {
    ("none", "grant"): "held",
    ("held", "revoke"): "yielding",
    ("held", "end"): "none",
    ("yielding", "end"): "none",
}


@dataclass(slots=True, eq=False)
class Leases:
    """Grants, revokes and ends leases."""

    model: Model
    turn: Turn
    timers: Timers
    ledger: Ledger
    planner: Planner
    queue: WaitQueue
    activity: Activity
    contention: ContentionNotices
    notices: NoticeBoard
    rooms: Rooms
    answers: Answers
    orders: EvictionOrders

    def hold(self, group: Group, gpu: Gpu) -> None:
        """Note that a group holds a lease on a GPU."""
        self.turn.quotas_stale = True
        self.turn.contention_stale[gpu.uuid] = self.turn.paces_stale[gpu.uuid] = gpu
        gpu.holders[group.id] = group
        if group.yielding:
            gpu.yielding[group.id] = group
        gpu.background += group.activity_class == "background"
        self.turn.to_notify[group.id] = group
        if gpu.subscribers is not None:
            subscribe(gpu.subscribers, group)

    def skip_to(self, lease: int) -> None:
        """Make the numbers of new leases greater than this one."""
        self.model.last_lease = max(self.model.last_lease, lease)

    def begin_lease(self, group: Group, lease: int | None = None) -> None:
        """Begin a group's lease, by default with a new number."""
        if lease is None:
            lease = self.model.last_lease = self.model.last_lease + 1
        if self.model.pages:
            # If its memory has room, there is no need to page it.
            group.floating = self.planner.floats(group) and (
                self.model.rules.anti_thrash == "off"
                or any(s.need > s.gpu.free for s in group.shares.values())
            )
        for share in group.shares.values():
            if share.oversubscribing and not group.floating:
                share.ceiling = max(share.goal, share.resident)
                for holding in share.holdings.values():
                    yields = holding.client.oversubscribes or share.gpu.filling is share
                    holding.room = holding.resident if yields else holding.promised
        self._take_step(group, "grant", lease)
        group.intact = True
        group.spent = False
        group.makes_way_for = None
        group.burst.ran_before = group.burst.counted_burst = 0.0
        self.model.leased[group.id] = group
        for share in group.shares.values():
            self.hold(group, share.gpu)
        self.ledger.charge(group)

    def grant_ahead(self, group: Group) -> None:
        """Grant a group a lease ahead of its first request, so that its memory is restored by then.

        All of its room is free. The grant is nevertheless marked as filling, so that a revocation can stop the restore
        between two pieces. Until its first use, the group does not count as a holder of its GPUs.
        """
        lease = self.model.last_lease = self.model.last_lease + 1
        self._take_step(group, "grant", lease)
        group.lease_ahead = True
        # Its memory has no residency, and its user's wish to keep it counts from its use on.
        group.intact, group.spent = False, True
        self.model.leased[group.id] = group
        self.turn.quotas_stale = True
        self.ledger.charge(group)
        for client in group.clients.values():
            lacks = {u for u, h in client.holdings.items() if h.promised > h.resident}
            if not lacks or client.silent or client.stage != "awake":
                continue
            client.burst_at = self.turn.now
            client.restoring = lacks
            self.continue_lease(client, lease)
            self.turn.decisions.append(Grant(client.number, lease, True))
            for uuid in client.holdings:
                self.turn.decisions.append(Room(client.number, lease, uuid, ALL))
        self.turn.touch(group)

    def use(self, group: Group) -> None:
        """Note the first use of a lease that was granted ahead. From now on, it is a lease like any other."""
        group.lease_ahead = False
        if not group.yielding:
            group.intact = True
            group.spent = False
            group.makes_way_for = None
            self.begin_time_slice(group, self.turn.now)
        group.burst.ran_before = group.burst.counted_burst = 0.0
        for share in group.shares.values():
            self.hold(group, share.gpu)
        self.turn.record("grant", group, waited=0.0)

    def join(self, client: Client) -> None:
        """Note that a thread waits for the memory that is being restored under the client's lease."""
        client.wants = False
        client.burst_at = self.turn.now
        client.group.ended_at = None
        client.group.totals.bursts += not client.busy
        self.activity.set_busy(client, True)

    def serve(self, wait: Wait, continues: bool, filling: bool) -> None:
        """Grant a group the lease that it waits for.

        Parameters
        ----------
        wait
            Its place in the queue, which it has left.
        continues
            Whether it continues its last time slice.
        filling
            Whether its lease begins before all of its room is there.
        """
        group = wait.group
        if filling:
            self.rooms.begin_filling(group, wait)
        self.begin_lease(group)
        for share in group.shares.values():
            if filling:
                self.rooms.allot(share)
            elif share.ceiling is not None:
                self.ledger.distribute(share, share.unallotted)
        if not continues:
            self.begin_time_slice(group, self.turn.now)
        self.turn.record("grant", group, waited=max(0.0, self.turn.now - wait.since))
        self.grant_waiting(group)
        if not group.granted:
            self._grant_reserved(group)

    def _grant_reserved(self, group: Group) -> None:
        """Grant a reserved lease to all clients, none of which waits for it, so that they restore their memory."""
        assert group.reservation is not None
        assert group.lease is not None
        for client in group.clients.values():
            if client.silent or client.stage != "awake" or not client.holdings:
                continue
            client.burst_at = self.turn.now
            client.restoring = {
                u for u, h in client.holdings.items() if h.promised > h.resident or h.evicting
            }
            self.continue_lease(client, group.lease)
            self.send_grant(client, group.lease)
        group.ended_at = None

    def grant_waiting(self, group: Group) -> None:
        """Grant the lease of a group to its clients that wait for it."""
        for client in group.clients.values():
            if client.wants and not client.silent and client.stage == "awake":
                self.grant(client)

    def grant(self, client: Client) -> None:
        """Grant the lease of its group to a client."""
        group = client.group
        assert group.lease is not None
        assert not group.lease_ahead
        client.wants = False
        client.burst_at = self.turn.now
        client.restoring = {
            u for u, h in client.holdings.items() if h.promised > h.resident or h.evicting
        }
        self.continue_lease(client, group.lease)
        group.ended_at = None
        group.totals.bursts += 1
        self.activity.set_busy(client, True)
        self.send_grant(client, group.lease)

    def send_grant(self, client: Client, lease: int) -> None:
        """Send a client its lease and, if that is bounded, how much of its memory may come in."""
        bounded = client.group.filling is not None or client.oversubscribes
        self.turn.decisions.append(Grant(client.number, lease, bounded))
        if bounded:
            self.rooms.send_room(client, resend=True)

    def revoke(self, group: Group, head: Wait | None = None) -> None:
        """Revoke a group's lease, for the wait ``head`` if there is one."""
        if group.lease is None:
            return
        if head is not None:
            group.makes_way_for = head
            if group.runs:
                group.spent = True
                if group.exclusive:
                    self.end_exclusive(group)
        if not self._take_step(group, "revoke"):
            return
        group.revoked_at = self.turn.now
        if not group.lease_ahead:
            for share in group.shares.values():
                share.gpu.yielding[group.id] = group
        for client in group.granted.values():
            if client.lease is not None:
                self.turn.decisions.append(Revoke(client.number, client.lease))
                self.answers.await_answer(client)
        self.turn.touch(group)
        if not group.lease_ahead:
            self.turn.log("revoke", group)
        if group.overdue:
            # It has owed other answers for too long, so it is not waited for.
            self.turn.recheck_at(self.turn.now)

    def revoke_stalled(self, group: Group) -> None:
        """Revoke a lease whose room has not appeared."""
        group.stalled = True
        self.revoke(group)

    def note_stuck(self, group: Group, kernel: str, since: float) -> None:
        """Note the CUDA kernel that the revocation of a group's lease waits for."""
        group.stuck = kernel, since

    def release(self, client: Client, cause: Cause) -> None:
        """End a client's lease. The group's lease ends with that of its last client."""
        group = client.group
        self.activity.set_busy(client, False)
        client.lease = None
        client.restoring.clear()
        del group.granted[client.number]
        self.receive_answer(client)
        if group.granted:
            self.turn.touch(group)
            # A lease is for the whole group: if one client grows or fails, the others release it, too.
            if cause in ("growth", "failed"):
                self.revoke(group)
            return
        if group.stalled and group.filling is not None:
            # This is not its fault: it returns to its old place, and other groups may pass it meanwhile.
            group.restore_error = None
            group.place = group.filling
            group.place.not_before = self.turn.now + self._pause_after_failure(group)
        if group.filling is not None:
            self.rooms.end_filling(group)
        self._take_step(group, "end")
        for share in group.shares.values():
            share.ceiling = None
            for holding in share.holdings.values():
                holding.room = holding.promised
        group.floating = group.stalled = False
        group.stuck = None
        if group.lease_ahead:
            self._end_ahead(group)
            return
        group.idle_since = self.turn.now
        if cause in OVER:
            group.burst.end(self.turn.now, group.busy > 0)
            if group.away_since is None:
                group.away_since = self.turn.now
        group.burst.carry_over(self.turn.now, group.busy > 0)
        del self.model.leased[group.id]
        for share in group.shares.values():
            self.end_holding(group, share.gpu)
        self.ledger.charge(group)
        self.turn.record("release", group, cause=cause, ran=group.burst.ran_before)
        for other in group.clients.values():
            self.contention.send(other, 0)
        if group.evict_on_release:
            self.orders.evict_all(group)

    def _end_ahead(self, group: Group) -> None:
        """End a lease that was granted ahead and never used. It has only changed where the memory is."""
        group.lease_ahead = False
        del self.model.leased[group.id]
        self.turn.quotas_stale = True
        self.ledger.charge(group)
        self.turn.touch(group)
        if group.evict_on_release:
            self.orders.evict_all(group)

    def end_holding(self, group: Group, gpu: Gpu) -> None:
        """Note that a group no longer holds a lease on a GPU."""
        self.turn.quotas_stale = True
        del gpu.holders[group.id]
        gpu.yielding.pop(group.id, None)
        if gpu.subscribers is not None:
            unsubscribe(gpu.subscribers, group)
        gpu.background -= group.activity_class == "background"
        self.turn.contention_stale[gpu.uuid] = self.turn.paces_stale[gpu.uuid] = gpu

    def retry(self, client: Client, error: int = 0) -> None:
        """Return a group whose memory could not be restored to its old place in the queue, after a pause."""
        group = client.group
        group.restore_error = error
        group.ended_at = self.turn.now - self.model.rules.debounce
        # No thread may wait for a lease that was reserved.
        client.wants = client.busy or group.reservation is None
        self.release(client, "failed")
        if group.wait is None:
            group.wait = self.queue.enqueue(group, front=True)
        group.wait.not_before = self.turn.now + self._pause_after_failure(group)
        for uuid in group.shares:
            self.turn.request_reading(self.model.gpus[uuid])

    def _pause_after_failure(self, group: Group) -> float:
        pause = min(
            self.model.rules.shortest_retry * 2.0**group.failures, self.model.rules.longest_retry
        )
        group.failures = min(group.failures + 1, 20)
        return pause

    def end_exclusive(self, group: Group) -> None:
        """End the preference to keep the lease for a whole cell."""
        if group.preferences.exclusive:
            group.preferences = replace(group.preferences, exclusive=False)
            self.turn.notify_again(group)
            self.turn.log("adjust", group, preferences=asdict(group.preferences))

    def receive_answer(self, client: Client) -> None:
        """Note that a client has answered, even if only one of several orders."""
        client.owes_since = None
        self.timers.set(client.answers, None)
        if client.silent:
            client.silent = False
            client.group.silent -= 1
            for holding in client.holdings.values():
                self.ledger.note_unstated_eviction(holding, holding.evicting)
                self.ledger.set_unavailable(holding, False)
            self.resume_client(client)
        revoked = client.lease is not None and client.group.yielding
        if revoked or any(h.client is client for h, _ in self.model.evictions.values()):
            self.answers.await_answer(client)

    def resume_client(self, client: Client) -> None:
        """Serve the request of a client that answers again, or is awake again."""
        group = client.group
        self.mark_silence_changed(group)
        if not client.wants or client.silent or client.stage != "awake":
            return
        if group.lease is not None and not group.yielding:
            self.grant(client)
        elif group.wait is None:
            group.wait = self.queue.enqueue(group)

    def on_answer_timeout(self, client: Client) -> None:
        """Note that a client has not answered in time. Other groups are served without its memory."""
        group = client.group
        client.silent = True
        group.silent += 1
        for holding in client.holdings.values():
            self.ledger.set_unavailable(holding, True)
        if group.overdue and client.lease is not None:
            # The core does not know whether it computes, so it assumes that it does.
            if group.lease_ahead:
                self.use(group)
            self.activity.count_time(group)
            self.activity.set_busy(client, True)
        kernel, since = group.stuck or (None, self.turn.now)
        self.notices.on_notice(
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
        self.mark_silence_changed(group)

    def mark_silence_changed(self, group: Group) -> None:
        """Mark a group of which a client began or ceased to answer."""
        self.turn.touch(group)
        if group.wait is not None:
            self.turn.contention_stale.update(
                {uuid: share.gpu for uuid, share in group.shares.items()}
            )

    def retry_eviction(self, holding: Holding) -> None:
        """Allow another eviction order to a client that has repeatedly failed to evict."""
        self.ledger.set_unavailable(holding, holding.client.silent)
        self.turn.touch(holding.share.group)

    def _take_step(self, group: Group, step: LeaseStep, lease: int | None = None) -> bool:
        """Take a group's lease to its next state; return whether the step applies."""
        after = TRANSITIONS.get((_state_of(group), step))
        if after is None:
            return False
        if after == "none":
            group.lease = None
        elif lease is not None:
            group.lease = lease
        group.yielding = after == "yielding"
        return True

    def begin_time_slice(self, group: Group, at: float) -> None:
        """Begin a time slice with the lease that a group holds."""
        assert group.lease is not None
        group.turn, group.turn_at = group.lease, at

    def continue_lease(self, client: Client, lease: int) -> None:
        """Let a client continue under a lease of its group."""
        group = client.group
        client.lease = lease
        group.granted[client.number] = client
        self.turn.pace_unsent[group.id] = group

    def grant_step(self, client: Client, lease: int) -> None:
        """Let a client that has released its lease use it once more while its group drains."""
        if client.group.lease_ahead:
            self.use(client.group)
        client.lease = lease
        client.group.granted[client.number] = client
        self.activity.set_busy(client, True)


def _state_of(group: Group) -> LeaseState:
    """Return the state of a group's lease."""
    if group.lease is None:
        return "none"
    return "yielding" if group.yielding else "held"
