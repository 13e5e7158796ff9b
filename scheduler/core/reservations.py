# SPDX-License-Identifier: BSD-3-Clause
"""Reservations: places in the queue that no thread of the group waits for.

A program makes a reservation and does something else in the meantime. The group enters the queue with a wait like any
other, at its own rank, and is woken if it is hibernated. When the wait is served, the memory of the group is restored
under its lease. The lease is then kept for ``Rules.reservation_hold``, even if other groups wait: the group counts as
running, and its quantum ends with that time. A person's wait ends an agent's reservation sooner
(``Residency.quantum_end``).

The group's first use of the GPU ends the reservation, and its time slice begins. If the group does not use the GPU in
time, the reservation lapses with a notice, and the lease becomes an idle one.

The time for which the lease is kept counts as GPU time of the group, its user and its team, however the reservation
ends. Otherwise, a program that reserves again and again and uses nothing would keep the GPU from others for free. Time
in the queue is not charged, because others have the GPU meanwhile.

A group that already has a lease keeps it for the reservation only while no other group waits. Otherwise, a program that
reserves after each burst would never leave the GPU to others. The group enters the queue when that lease ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .hibernation import HibernationManager
from .leases import Leases
from .messages import Notice, Reserve
from .model import Group, Model, Reservation
from .notices import NoticeBoard
from .queue import WaitQueue
from .residency import Residency
from .timers import Timers
from .turn import Turn
from .usage import GpuTime

#: How a reservation ended: the group used the GPU; it did not use the GPU in time; the lease ended before, or the group
#: could not be woken; its user cancelled it.
Result = Literal["used", "lapsed", "lost", "cancelled"]
#: The code of the notice that a reservation ended without use.
LAPSED = "reservation_lapsed"


@dataclass(slots=True, eq=False)
class Reservations:
    """Makes, follows and ends reservations."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    queue: WaitQueue
    residency: Residency
    leases: Leases
    hibernation: HibernationManager
    notices: NoticeBoard

    def on_reserve(self, event: Reserve) -> None:
        """Make or cancel a reservation, as a user wants."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        if not event.on:
            if group.reservation is not None:
                self.end(group, "cancelled")
            return
        if not group.shares:
            raise ValueError(
                f"{group.name} has not used the GPU yet, so it cannot reserve it; first run a cell that uses the GPU"
            )
        if group.reservation is not None or group.busy:
            return
        group.reservation = Reservation(self.turn.now)
        self.model.reserving[group.id] = group
        group.hibernate_asked_at = None
        self.turn.log("reservation", group, result="waiting")
        self.turn.touch(group)
        if group.lease is None or group.yielding:
            self._enqueue(group)
            self.hibernation.request_wake(group)
        elif group.lease_ahead:
            self.leases.use(group)
        else:
            group.reservation.earlier = group.lease

    def run(self) -> None:
        """Follow the reservations, as a step of the cycle."""
        for group in list(self.model.reserving.values()):
            reservation = group.reservation
            assert reservation is not None
            if not group.shares:
                # The processes that used the GPU have ended, so there is nothing to restore, and no client to grant.
                self.end(group, "lost")
                continue
            has_lease = group.lease is not None and not group.yielding and not group.lease_ahead
            if reservation.until is not None:
                if not has_lease:
                    self.end(group, "lost")
            elif has_lease:
                if group.busy:
                    self.end(group, "used")  # a thread was waiting for it
                elif group.filling is None and not group.restoring and self._may_hold(group):
                    self._hold(group)
            elif _stays_hibernated(group):
                self.end(group, "lost")
            elif group.lease is None:
                # It waits, or its last lease does not count: it failed, is from before, or was granted ahead of use.
                self._enqueue(group)

    def note_use(self, group: Group) -> None:
        """Note that a group's GPU work begins, or waits in the queue by itself."""
        if group.lease is None or group.yielding:
            return  # the wait of the reservation is for what comes after
        kept = group.reserved
        self.end(group, "used")
        if kept:
            self.leases.begin_time_slice(group, self.turn.now)

    def expire(self, group: Group) -> None:
        """End a reservation whose time is over."""
        if group.reservation is not None:
            self.end(group, "lapsed")

    def end(self, group: Group, result: Result) -> None:
        """End a reservation. Its lease stays, as an idle one, until it is needed."""
        self._charge(group)
        group.reservation = None
        del self.model.reserving[group.id]
        self.timers.set(("reservation", group.id), None)
        self.turn.log("reservation", group, result=result)
        if result in ("lapsed", "lost"):
            self.notices.on_notice(Notice(group.id, LAPSED, {"why": result}))
        waits = any(client.wants for client in group.clients.values())
        if result != "used" and not waits:
            if group.wait is not None:
                self.queue.dequeue(group.wait)
            if any(client.asked for client in group.clients.values()):
                # A thread waits to wake, no longer for a lease.
                self.queue.rank_again(group)
            else:
                self.hibernation.cancel_wakes(group)
            if group.lease is not None and not group.busy:
                # Others may have its memory at once.
                group.ended_at = self.turn.now - self.model.rules.debounce
        self.turn.touch(group)
        self.turn.mark_gpus(group)

    def _charge(self, group: Group) -> None:
        """Count the time for which the GPU was kept for a group as its GPU time: no other group could have it."""
        reservation = group.reservation
        if reservation is None or reservation.until is None:
            return
        seconds = min(self.turn.now, reservation.until) - reservation.kept_since
        for uuid in group.shares:
            self.times.add(group, uuid, seconds, self.turn.now)

    def _enqueue(self, group: Group) -> None:
        if group.wait is None:
            group.wait = self.queue.enqueue(group)
            if group.hibernation is not None:
                self.queue.rank_again(group)

    def _may_hold(self, group: Group) -> bool:
        """Whether the lease of a group may be kept. A lease from before may be kept only if no other group waits."""
        assert group.reservation is not None
        return group.lease != group.reservation.earlier or self.residency.first_from(group) is None

    def _hold(self, group: Group) -> None:
        """Keep a lease for a group from now on."""
        assert group.reservation is not None
        group.reservation.kept_since = self.turn.now
        group.reservation.until = self.turn.now + self.model.rules.reservation_hold
        self.timers.set(("reservation", group.id), group.reservation.until)
        self.turn.log("reservation", group, result="ready")
        self.turn.touch(group)
        self.turn.mark_gpus(group)


def _stays_hibernated(group: Group) -> bool:
    """Whether a group that was to be woken is hibernated: its wake failed, and is not tried again."""
    state = group.hibernation
    return state is not None and state.stage == "hibernated" and not state.wanted
