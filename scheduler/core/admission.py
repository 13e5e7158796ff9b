# SPDX-License-Identifier: BSD-3-Clause
"""Admits waits: a lease is granted, memory is promised, a hibernated client is woken."""

from __future__ import annotations

from dataclasses import dataclass

from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .leases import Leases
from .ledger import Ledger
from .limits import Limits
from .model import Model, Wait, growth, staying
from .queue import WaitQueue
from .rooms import Rooms
from .turn import Turn


@dataclass(slots=True, eq=False)
class Admission:
    """Admits a wait that has room."""

    model: Model
    turn: Turn
    ledger: Ledger
    limits: Limits
    queue: WaitQueue
    rooms: Rooms
    leases: Leases
    growth: GrowthAdmission
    hibernation: HibernationManager

    def admit(self, wait: Wait, continues: bool, filling: bool = False) -> None:
        """Grant a wait what it waits for."""
        group = wait.group
        self.queue.dequeue(wait)
        waited = max(0.0, self.turn.now - wait.since)
        if wait.logged:
            group.totals.waits += 1
        self.turn.touch(group)
        if wait.grow is not None:
            client = self.model.clients[wait.grow.client]
            if client.stage == "waiting":
                group.place = wait
                self.hibernation.wake_up(client)
                return
            holding = client.holdings[wait.grow.least.gpu]
            more, fixed = growth(holding, wait.grow)
            pinned = max(0, wait.grow.least.pinned - holding.pinned)
            stays = staying(holding, wait.grow)
            # Others were admitted since it asked.
            unserved = self.limits.crowded_out(holding.share, fixed, pinned, stays)
            if unserved is not None:
                self.growth.refuse_growth(holding, wait.grow, "device", unserved[1])
                return
            mapped = more <= 0 or client.lease is not None
            self.growth.promise(
                holding, wait.grow, more, fixed, "resident" if mapped else "swapped"
            )
            return
        if filling:
            self.rooms.begin_filling(group, wait)
        self.leases.begin_lease(group)
        for share in group.shares.values():
            if filling:
                self.rooms.allot(share)
            elif share.ceiling is not None:
                self.ledger.distribute(share, share.unallotted)
        if not continues:
            self.leases.begin_turn(group, self.turn.now)
        self.turn.log("grant", group, waited=waited)
        self.leases.grant_waiting(group)
