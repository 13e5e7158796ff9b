# SPDX-License-Identifier: BSD-3-Clause
"""Orders the restores of hibernated clients, each with the room that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Ledger
from .messages import Grow, Usage, Wakeup
from .model import Client, Model
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

    def request(self, client: Client, *, home: bool = False) -> None:
        """Add a wait for the room that a hibernated client needs; ``home``: on its previous GPU."""
        group, needs = client.group, client.needs
        client.stage = "waiting"
        if needs is None or needs.gpu not in client.holdings:
            self.order(client)
            return
        if not home and (better := self.relocation.elsewhere(client)) is not None:
            self.relocation.move(client, needs.gpu, better)
        holding = client.holdings[needs.gpu]
        least = Usage(needs.gpu, holding.promised, 0, needs.unevictable, needs.context)
        self.queue.enqueue(group, Grow(client.number, 0, least, holding.promised), wakes=True)

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
        # Its residue is on the GPU already.
        size -= 0 if gpu is None else gpu.context_sizes.measured_residue(needs.context)
        return Wakeup(client.number, gpu=needs.gpu, needs=size)
