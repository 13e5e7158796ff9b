# SPDX-License-Identifier: BSD-3-Clause
"""Orders evictions."""

from __future__ import annotations

from dataclasses import dataclass

from .answers import Answers
from .ledger import Ledger
from .messages import Evict
from .model import Group, Holding, Model, Share
from .turn import Turn, mark_shares


@dataclass(slots=True, eq=False)
class EvictionOrders:
    """Sends eviction orders."""

    model: Model
    turn: Turn
    ledger: Ledger
    answers: Answers

    def forget(self, holding: Holding) -> None:
        """Forget the open orders of a holding."""
        evictions = self.model.evictions
        for serial in [serial for serial, found in evictions.items() if found[0] is holding]:
            del evictions[serial]

    def evict(self, share: Share, size: int) -> None:
        """Order the eviction of some bytes of a share."""
        share.group.intact = False
        mark_shares(share.group)
        for holding in share.holdings.values():
            part = min(size, holding.resident - holding.evicting)
            if part > 0 and holding.stuck_until <= self.turn.now and not holding.lost:
                size -= part
                self.model.last_serial += 1
                self.model.evictions[self.model.last_serial] = (holding, part)
                self.ledger.add_evicting(holding, part)
                self.turn.decisions.append(
                    Evict(holding.client.number, self.model.last_serial, share.gpu.uuid, part)
                )
                self.answers.await_answer(holding.client)

    def evict_all(self, group: Group) -> None:
        """Order the eviction of all memory of a group."""
        group.evict_on_release = False
        for share in group.shares.values():
            self.evict(share, share.movable)
