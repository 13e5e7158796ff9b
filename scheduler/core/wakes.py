# SPDX-License-Identifier: BSD-3-Clause
"""Orders the restores of hibernated clients, each with the room that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .ledger import Ledger
from .messages import Grow, Usage, Wakeup
from .model import Client, Model, Wait
from .queue import WaitQueue
from .relocation import Relocation
from .turn import Turn


@dataclass(slots=True, eq=False)
class WakeOrders:
    """Queues hibernated clients for the room that they need, and orders their restores once it is there."""

    model: Model
    turn: Turn
    ledger: Ledger
    queue: WaitQueue
    relocation: Relocation

    #: Seconds before a wake that found no room is tried again. Each further time in a row doubles them.
    shortest_room_pause: ClassVar[float] = 0.5
    longest_room_pause: ClassVar[float] = 8.0

    def request(
        self, client: Client, *, home: bool = False, before: Wait | None = None
    ) -> Wait | None:
        """Add a wait for the room that a hibernated client needs; None: it needs none.

        Parameters
        ----------
        client
            The client.
        home
            Whether it must be restored on its previous GPU.
        before
            The wait whose place in the queue this one takes.
        """
        group, needs = client.group, client.needs
        client.stage = "waiting"
        if needs is None or needs.gpu not in client.holdings:
            self.order(client)
            return None
        if not home and (better := self.relocation.elsewhere(client)) is not None:
            self.relocation.move(client, needs.gpu, better)
        holding = client.holdings[needs.gpu]
        least = Usage(needs.gpu, holding.promised, 0, needs.unevictable, needs.context)
        grow = Grow(client.number, 0, least, holding.promised)
        return self.queue.enqueue(group, grow, wakes=True, before=before)

    def request_again(self, client: Client, *, home: bool = False) -> None:
        """Have a client wait once more that was admitted, and whose GPU had no room.

        The sums say that the room is there, so no event announces it. Between two attempts is a growing pause, in which
        other groups can have the room that the client was charged for.
        """
        group = client.group
        state = group.hibernation
        assert state is not None
        place = group.place
        if place is not None and not (place.wakes and place.since >= state.since):
            place = None  # it is that of an earlier wake
        wait = self.request(client, home=home, before=place)
        if wait is not None:
            pause = self.shortest_room_pause * 2.0 ** min(state.lacked_room, 10)
            wait.not_before = self.turn.now + min(pause, self.longest_room_pause)
        state.lacked_room += 1

    def order(self, client: Client) -> None:
        """Order the restore of a client for which there is room."""
        client.stage, client.step_pause = "waking", 0.0
        self.ledger.return_contexts(client)
        self.order_again(client)

    def order_again(self, client: Client) -> None:
        """Order a restore that is under way once more, which has no effect if it has ended."""
        self.turn.decisions.append(self._wakeup_of(client))

    def _wakeup_of(self, client: Client) -> Wakeup:
        needs = client.needs
        if needs is None:
            return Wakeup(client.number)
        size = needs.unevictable + needs.context
        if client.home not in ("", needs.gpu):
            return Wakeup(client.number, client.home, needs.gpu, needs.gpu, size)
        gpu = self.model.gpus.get(needs.gpu)
        if gpu is not None and gpu.context_sizes.counts:
            size -= gpu.context_sizes.leaves(needs.context)  # which is on the GPU already
        return Wakeup(client.number, gpu=needs.gpu, needs=size)
