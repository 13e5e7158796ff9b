# SPDX-License-Identifier: BSD-3-Clause
"""The room of leases that are granted before all of it is there (``core.py``, "Filling")."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Ledger
from .messages import ALL, Room
from .model import Client, Group, Model, Share, Wait
from .readings import Readings
from .turn import Turn


@dataclass(slots=True, eq=False)
class Rooms:
    """Allots room to groups that fill, and notifies their clients."""

    model: Model
    turn: Turn
    ledger: Ledger
    readings: Readings

    def allot(self, share: Share) -> None:
        """Allot the free room of the GPU to a share that fills."""
        give = min(share.gpu.free, share.missing)
        if give <= 0 or not self.readings.is_fresh(share.gpu, self.model.rules.fresh_for_growth):
            return
        share.group.filled_at = self.turn.now
        self.ledger.distribute(share, give)

    def send_room(self, client: Client, resend: bool = False) -> None:
        """Send a client how much of its footprint may be on the GPU, if that has changed."""
        fills = client.group.filling is not None
        if client.lease is None or not (fills or client.oversubscribes):
            return
        for holding in client.holdings.values():
            share = holding.share
            limited = share.ceiling is not None and client.oversubscribes
            if resend:
                holding.sent_room = holding.resident if holding.promised or limited else ALL
                holding.sent_last = False
            room = ALL if holding.room >= holding.promised and not limited else holding.room
            last = client.oversubscribes and share.gpu.filling is not share
            if room > holding.sent_room or (
                last and (room != holding.sent_room or not holding.sent_last)
            ):
                holding.sent_room, holding.sent_last = room, last
                self.turn.decisions.append(
                    Room(client.number, client.lease, share.gpu.uuid, room, last)
                )

    def end_filling(self, group: Group) -> None:
        """Charge a group's shares normally again, because all of its room is there or its lease has ended."""
        if group.filling is None:
            return
        for share in group.shares.values():
            if share.gpu.filling is share:
                share.gpu.filling = None
            for holding in share.holdings.values():
                if share.ceiling is None or not holding.client.oversubscribes:
                    holding.room = holding.promised
        if not group.yielding:
            for client in group.granted.values():
                self.send_room(client)
        group.filling = None
        self.model.filling.pop(group.id, None)
        self.ledger.charge(group)

    def begin_filling(self, group: Group, wait: Wait) -> None:
        """Begin to fill a group, whose lease is granted before its room is there."""
        group.filling, group.filled_at = wait, self.turn.now
        self.model.filling[group.id] = group
        for share in group.shares.values():
            share.gpu.filling = share
            for holding in share.holdings.values():
                holding.room = holding.sent_room = holding.resident
