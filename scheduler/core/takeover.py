# SPDX-License-Identifier: BSD-3-Clause
"""Clients and leases of an earlier scheduler, or of a connection that broke.

Leases that clients state
-------------------------
A client continues under its lease when its scheduler is replaced or its connection breaks. Only the client itself
states that lease. A new scheduler accepts it, because it has no other information. A scheduler that has been up for
``takeover_patience`` accepts only two: the present lease of the group, and a lease of the same time slice that ended
within that time only because the connection broke. A client that states any other lease has it revoked: it drains, and
requests a lease like any other client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .activity import Activity
from .answers import Answers
from .leases import Leases
from .ledger import Ledger
from .messages import Attach, Await, Desist, Revoke
from .model import Client, Group, Model
from .queue import WaitQueue
from .rooms import Rooms
from .turn import Turn

#: New leases get higher numbers than the leases that were taken over, so that no number is used twice. No scheduler
#: reaches this number.
LAST_LEASE = 1 << 48


@dataclass(slots=True, eq=False)
class ReturningClients:
    """Awaits the clients of the previous scheduler."""

    model: Model
    turn: Turn

    def on_await(self, event: Await) -> None:
        """Await the clients in the list that the previous scheduler left."""
        self.model.awaited.update(enumerate(event.clients))
        for number, client in enumerate(event.clients):
            for usage in client.usages:
                gpu = self.model.gpus.get(usage.gpu)
                if gpu is None:
                    continue
                gpu.returning[number] = usage
                # Readings counted this as other programs' use.
                held = min(gpu.foreign, usage.resident + usage.unevictable + usage.context)
                gpu.foreign -= held
                gpu.pending_reclaim += held
                gpu.exited_at = self.turn.now
                self.turn.dirty[gpu.uuid] = gpu

    def on_desist(self, event: Desist) -> None:
        """Stop awaiting clients of the previous scheduler."""
        for number in event.clients:
            self._stop_awaiting(number, event.late)

    def _stop_awaiting(self, number: int, late: bool = False) -> None:
        for usage in self.model.awaited.pop(number).usages:
            gpu = self.model.gpus.get(usage.gpu)
            if gpu is not None and gpu.returning.pop(number, None) is not None:
                if late:
                    held = min(
                        gpu.pending_reclaim, usage.resident + usage.unevictable + usage.context
                    )
                    gpu.pending_reclaim -= held
                    gpu.foreign += held
                # If it has exited, what it still holds is free within moments.
                gpu.exited_at, gpu.reading.pause = self.turn.now, 0.0
                self.turn.dirty[gpu.uuid] = gpu
                self.turn.request_reading(gpu)

    def on_return(self, event: Attach) -> None:
        """Note that a client of the previous scheduler has attached again."""
        for number, awaited in self.model.awaited.items():
            if awaited.group == event.group and awaited.pid in (0, event.pid):
                self._stop_awaiting(number)
                return


@dataclass(slots=True, eq=False)
class Takeover:
    """Takes over leases that clients state."""

    model: Model
    turn: Turn
    ledger: Ledger
    queue: WaitQueue
    activity: Activity
    rooms: Rooms
    answers: Answers
    leases: Leases

    #: Seconds for which a new scheduler accepts any lease, and for which a lease may go on after its connection ended.
    takeover_patience: ClassVar[float] = 60.0

    #: Groups and leases that ended with a connection: when, and the start of the time slice; oldest first.
    _broken: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict, init=False)

    def has_lease(self, group: Group, lease: int) -> bool:
        """Whether a client may go on under the lease that it states."""
        patience = self.takeover_patience
        if self.turn.now < self.turn.first + patience or group.lease == lease:
            return True
        broken = self._broken.get((group.id, lease))
        return broken is not None and self.turn.now < broken[0] + patience

    def remember_lease(self, client: Client, lease: int) -> None:
        """Remember a lease whose client may come back."""
        broken, key = self._broken, (client.group.id, lease)
        broken.pop(key, None)
        broken[key] = self.turn.now, client.group.turn_at
        while broken[first := next(iter(broken))][0] + self.takeover_patience <= self.turn.now:
            del broken[first]

    def take_over(self, client: Client, event: Attach) -> None:
        """Accept a lease of an earlier scheduler, even if it over-commits; ``relief.py`` corrects that."""
        group = client.group
        lease = event.lease
        if not 0 < lease <= LAST_LEASE:
            lease = self.model.last_lease + 1
        self.leases.skip_to(lease)
        if group.lease is None:
            self.leases.begin_lease(group, lease)
            _, turn_at = self._broken.pop((group.id, event.lease), (0.0, self.turn.now))
            self.leases.begin_time_slice(group, turn_at)
        # A client that opened its gate by itself, while no scheduler answered, states lease 0.
        self.leases.continue_lease(client, event.lease)
        # It has no limit yet, so what it lacks may arrive at any moment.
        self.rooms.end_filling(group)
        for share in group.shares.values():
            if share.ceiling is not None:
                self.ledger.distribute(share, share.unallotted)
        self.rooms.send_room(client, resend=True)
        # Memory that was promised and not allocated does not arrive, and the end of a restore is not reported again.
        client.restoring = {
            uuid
            for uuid, h in client.holdings.items()
            if h.room > h.resident and (h.host or h.tiers.disk)
        }
        if event.busy:
            client.burst_at = self.turn.now
            self.activity.set_busy(client, True)
        if group.yielding:
            self.turn.decisions.append(Revoke(client.number, event.lease))
            self.answers.await_answer(client)
        elif group.preferences.stopped:
            self.leases.revoke(group)
        elif group.wait is not None:
            self.queue.dequeue(group.wait)
            self.leases.grant_waiting(group)
        self.turn.touch(group)
