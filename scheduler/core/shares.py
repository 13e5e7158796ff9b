# SPDX-License-Identifier: BSD-3-Clause
"""The shares of groups on GPUs."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from .eviction_orders import EvictionOrders
from .leases import Leases
from .ledger import Ledger
from .model import Client, Holding, Model, Share
from .queue import place
from .timers import Timers, retry_timer
from .turn import Turn


@dataclass(slots=True, eq=False)
class Shares:
    """Adds and removes the shares of groups on GPUs."""

    model: Model
    turn: Turn
    timers: Timers
    ledger: Ledger
    orders: EvictionOrders
    leases: Leases

    def holding(self, client: Client, uuid: str) -> Holding:
        """Return what a client holds on a GPU; make it if it is new."""
        holding = client.holdings.get(uuid)
        if holding is None:
            group, gpu = client.group, self.model.gpus[uuid]
            share = group.shares.get(uuid)
            if share is None:
                self.model.last_share += 1
                share = Share(group, gpu, self.model.last_share)
                group.shares[uuid] = gpu.shares[group.id] = share
                group.gpus[uuid] = gpu
                gpu.victims.changed[share.number] = share
                self.turn.notify_again(group)
                self.turn.dirty[uuid] = gpu
                if group.lease is not None and not group.lease_ahead:
                    self.leases.hold(group, gpu)
                if group.wait is not None:
                    insort(gpu.queue, group.wait, key=place)
            holding = client.holdings[uuid] = Holding(client, share)
            share.holdings[client.number] = holding
            self.ledger.open(holding)
        return holding

    def close(self, holding: Holding) -> None:
        """Remove what a client holds on a GPU."""
        self.orders.forget(holding)
        self.ledger.close(holding)
        client, share = holding.client, holding.share
        self.timers.set(retry_timer(client.number, share.gpu.uuid), None)
        del share.holdings[client.number]

    def leave(self, share: Share) -> None:
        """Remove the share of a group that has nothing on a GPU any more."""
        group, gpu = share.group, share.gpu
        if gpu.filling is share:
            gpu.filling = None
        del group.shares[gpu.uuid], group.gpus[gpu.uuid], gpu.shares[group.id]
        if group.lease is not None and not group.lease_ahead:
            self.leases.end_holding(group, gpu)
        if group.wait is not None:
            gpu.queue.remove(group.wait)
        self.turn.contention_stale[gpu.uuid] = gpu
