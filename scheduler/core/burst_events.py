# SPDX-License-Identifier: BSD-3-Clause
"""Handles what clients report about their work: requests, bursts, GPU time, leases."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Activity, ActivityClassifier
from .cell_queue import CellQueue
from .checks import ProtocolViolation
from .collectives import Collectives
from .hibernation import HibernationManager
from .leases import OVER, Leases
from .messages import Burst, Meter, Released, Request, Stuck
from .model import Client, Group, Model, is_managed
from .paging import ThrashingDetector
from .prefetch import Prefetcher
from .queue import WaitQueue
from .reservations import Reservations
from .turn import Turn
from .usage import GpuTime

#: More seconds of GPU time than any client reaches.
LONGEST_METER = 1e9


@dataclass(slots=True, eq=False)
class BurstEvents:
    """Handles what clients report about their work."""

    model: Model
    turn: Turn
    times: GpuTime
    classes: ActivityClassifier
    thrash: ThrashingDetector
    queue: WaitQueue
    activity: Activity
    cell_queue: CellQueue
    leases: Leases
    hibernation: HibernationManager
    collectives: Collectives
    prefetcher: Prefetcher
    reservations: Reservations

    def on_request(self, client: Client, event: Request) -> None:
        """Handle a client's request for a lease."""
        group = client.group
        self.turn.touch(group)
        ahead = (group.lease_ahead or group.reservation is not None) and not group.yielding
        if group.id in self.model.hinted or group.prefetch is not None:
            self.prefetcher.note_use(group)
        if group.reservation is not None:
            self.reservations.note_use(group)
        if group.hibernation is not None:
            self.hibernation.request_wake(group)
        if group.lease is not None and not group.yielding:
            if client.lease is not None and ahead and not client.busy:
                # It has its grant, and continues as soon as that is carried out.
                self.leases.join(client)
            elif client.lease is not None:
                self.leases.send_grant(client, client.lease)
            elif client.silent or client.stage != "awake":
                client.wants = True
            else:
                self.leases.grant(client)
            return
        client.wants = True
        if group.yielding or group.id in self.collectives.steps:
            self.collectives.on_gate_reached(client)
        if group.wait is None:
            self.activity.end_absence(group)
            group.wait = self.queue.enqueue(group)
            if group.hibernation is not None:
                self.queue.rank_again(group)

    def on_burst(self, client: Client, event: Burst) -> None:
        """Note that a burst began or ended."""
        group = client.group
        if client.lease is None or (event.phase == "end" and event.at < client.burst_at):
            return
        if event.phase == "begin":
            client.burst_at = event.at
            if not client.busy:
                if group.id in self.model.hinted or group.prefetch is not None:
                    self.prefetcher.note_use(group)
                if group.lease_ahead:
                    self.leases.use(group)  # it began before it received the revocation
                if group.reservation is not None:
                    self.reservations.note_use(group)
                group.totals.bursts += 1
            self.activity.set_busy(client, True)
            group.ended_at = None
        elif group.lease_ahead or (group.reservation is not None and not client.busy):
            # Its memory was restored, and no thread has used it yet.
            client.restoring.clear()
            self.turn.touch(group)
            return
        else:
            self.activity.set_busy(client, False)
            client.restoring.clear()
            if event.cause == "cell":
                # The end of the cell itself is reported just after.
                self.cell_queue.end_cell(group)
            if not group.busy:
                group.ended_at = self.turn.now if event.cause in OVER else None
                group.away_since = self.turn.now
                group.burst.end(self.turn.now, group.busy > 0)
        self.turn.record("burst", group, phase=event.phase, cause=event.cause)

    def on_meter(self, client: Client, event: Meter) -> None:
        """Add the GPU time that a client reports."""
        if event.gpu not in self.model.gpus:
            raise ProtocolViolation(client.number, f"names a GPU that is not here: {event.gpu}")
        if not (0 <= event.busy <= LONGEST_METER and event.submissions >= 0):
            raise ProtocolViolation(client.number, "states GPU time that cannot be")
        group = client.group
        at = min(event.at, self.turn.now)
        seconds, submissions = self.times.meter(
            group, event.gpu, client.number, event.busy, at, event.submissions
        )
        if seconds > 0:
            self.classes.add_time(group, seconds, self.turn.now)
            if self.model.rules.anti_thrash == "auto" and is_managed(group):
                self._watch_thrashing(group, seconds, submissions, at)
        self.turn.touch(group)

    def _watch_thrashing(self, group: Group, seconds: float, submissions: int, at: float) -> None:
        """Have groups without resident memory take turns if running side by side slows one of them too much."""
        beside = {g.id: g for s in group.shares.values() for g in s.gpu.holders.values()}
        floating = [g for g in beside.values() if g.floating]
        if not self.thrash.feed(group.id, bool(floating), seconds, submissions, at):
            return
        # One group continues: one whose memory is resident, otherwise the group with the oldest time slice.
        first = min(beside.values(), key=lambda g: (g.floating, g.turn))
        for other in floating:
            if other is not first:
                self.leases.revoke(other)

    def on_stuck(self, client: Client, event: Stuck) -> None:
        """Handle a client that cannot release its lease yet."""
        group = client.group
        if client.lease is None or client.lease != event.lease:
            return
        if not group.yielding:
            self.leases.revoke(group)  # the client has begun to release the lease by itself
        if group.stuck is None or group.stuck[0] != event.kernel:
            self.turn.log("stuck", group, kernel=event.kernel, since=event.since)
        self.leases.note_stuck(group, event.kernel, event.since)
        # Its work may wait for a thread that waits for memory, and all other groups for that.
        for wait in self.queue.waits_of(group):
            wait.front = wait.front or wait.grow is not None
        self.queue.rank_again(group)
        self.collectives.on_stuck(client)

    def on_released(self, client: Client, event: Released) -> None:
        """Handle a client that released its lease."""
        if client.lease is None or client.lease != event.lease:
            return
        if client.group.lease_ahead:
            if not client.group.yielding:
                # Its memory could not be restored ahead, and no thread of it waits for that.
                self.prefetcher.hints.drop(client.group)
            self.leases.release(client, event.cause)
            self.collectives.schedule_step(client.group)
        elif event.cause == "failed" and not client.group.yielding:
            self.leases.retry(client)
        else:
            if event.cause == "release":
                client.group.ended_at = self.turn.now - self.model.rules.debounce
                client.group.failures, client.group.restore_error = 0, None
            self.leases.release(client, event.cause)
            self.collectives.schedule_step(client.group)
