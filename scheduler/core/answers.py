# SPDX-License-Identifier: BSD-3-Clause
"""Deadlines of clients' answers."""

from __future__ import annotations

from dataclasses import dataclass

from .costs import Costs
from .model import Client, Model
from .timers import Timers
from .turn import Turn


@dataclass(slots=True, eq=False)
class Answers:
    """Sets the deadlines of clients' answers."""

    model: Model
    turn: Turn
    timers: Timers
    costs: Costs

    def await_answer(self, client: Client) -> None:
        """Set the deadline by which a client must free memory or release its lease."""
        if client.owes_since is None:
            client.owes_since = self.turn.now
        if client.silent:
            return
        moves = sum(h.evicting / h.share.gpu.bandwidth for h in client.holdings.values())
        if client.restoring:
            moves += client.group.footprint_cost
        # Not from its last report: a client that moves a little now and then would never be late.
        due = (
            client.owes_since
            + self.model.rules.revoke_deadline
            + self.model.rules.residency_factor * moves
        )
        self.timers.set(client.answers, due)
