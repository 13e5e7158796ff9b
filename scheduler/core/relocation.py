# SPDX-License-Identifier: BSD-3-Clause
"""Chooses another GPU for hibernated clients that are better restored there."""

from __future__ import annotations

from dataclasses import dataclass

from .eligibility import used_gpus
from .ledger import Ledger
from .model import Client, Gpu, Group, Model
from .queue import WaitQueue
from .shares import Shares
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Relocation:
    """Finds another GPU for a hibernated client, and charges the client there."""

    model: Model
    turn: Turn
    times: GpuTime
    ledger: Ledger
    queue: WaitQueue
    shares: Shares

    def elsewhere(self, client: Client) -> str | None:
        """Return a GPU on which a client is better restored than on its previous one; None: there is none."""
        group, needs = client.group, client.needs
        assert needs is not None
        if self.model.hibernatable is None or not self.model.hibernatable.moves or group.settled:
            return None
        if len(group.clients) > 1 or len(used_gpus(client)) > 1 or self.queue.waits_of(group):
            return None
        home = self.model.gpus[needs.gpu]
        promised = client.holdings[home.uuid].promised
        wanted = promised + needs.unevictable + needs.context
        own = home.freed_without(client.holdings[home.uuid].left)
        lacks = home.drained or wanted - own > home.free
        # A group with a quota of GPUs cannot use another GPU besides its own.
        crowded = _is_at_work(home, group) and not self.times.quotas(group)
        if home.uuid.startswith("MIG-") or not (lacks or crowded):
            return None
        found: list[tuple[int, int, str]] = []
        for gpu in self.model.gpus.values():
            if gpu is home or gpu.drained or gpu.name != home.name or gpu.uuid not in client.sees:
                continue
            room = self.times.memory_room(group, gpu)
            if room is not None and room.bytes < promised:
                continue
            now = not gpu.queue and gpu.delayed_growth == [] and wanted <= gpu.free - gpu.owed
            if not lacks:
                now = now and not _is_at_work(gpu, group)
            if now or (home.drained and wanted <= gpu.capacity):
                found.append((not now, -gpu.free, gpu.uuid))
        return min(found)[2] if found else None

    def return_home(self, client: Client) -> bool:
        """Charge a client on its previous GPU again; return whether it was to be restored on another one."""
        needs = client.needs
        if needs is None or client.home in ("", needs.gpu):
            return False
        self.move(client, needs.gpu, client.home)
        return True

    def move(self, client: Client, uuid: str, other: str) -> None:
        """Move the charges of a hibernated client from one GPU to another."""
        group, holding, needs = client.group, client.holdings.pop(uuid), client.needs
        share, gpu = holding.share, holding.share.gpu
        promised, spare, host = holding.promised, holding.spare, holding.host
        stated, tiers = holding.stated, holding.tiers
        # The residue is there until the client is restored elsewhere.
        gpu.foreign += holding.left
        self.shares.close(holding)
        if not share.holdings:
            self.shares.leave(share)
        moved = self.shares.holding(client, other)
        moved.host, moved.stated, moved.tiers = host, stated, tiers
        if needs is not None:
            needs.gpu = other
        self.ledger.charge_residue(moved)
        moved.share.gpu.foreign = max(0, moved.share.gpu.foreign - moved.left)
        self.ledger.account(moved, moved.promised + promised, 0, 0, 0)
        self.ledger.set_spare(moved, moved.spare + spare)
        self.turn.notify_again(group)
        self.turn.quotas_stale = True
        self.turn.dirty[uuid] = self.turn.reserve_stale[uuid] = gpu
        self.turn.dirty[other] = self.turn.reserve_stale[other] = moved.share.gpu


def _is_at_work(gpu: Gpu, group: Group) -> bool:
    """Whether groups other than this one compute on a GPU, or wait to."""
    if any(other.runs for other in gpu.holders.values() if other is not group):
        return True
    return any(wait.group is not group for wait in gpu.queue)
