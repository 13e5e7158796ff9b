# SPDX-License-Identifier: BSD-3-Clause
"""Tells holders whether other groups wait for their GPUs or run there."""

from __future__ import annotations

from dataclasses import dataclass

from .contention import Audience
from .messages import Contended
from .model import Client, Gpu, Group
from .turn import Turn


@dataclass(slots=True, eq=False)
class ContentionNotices:
    """Tells holders, where that changed."""

    turn: Turn

    def tell(self, client: Client, waiting: int, beside: int = 0) -> None:
        """Say how many wait and run beside it, where either changes from none to some or back."""
        if bool(client.contended) != bool(waiting) or bool(client.beside) != bool(beside):
            client.contended, client.beside = waiting, beside
            self.turn.decisions.append(Contended(client.number, waiting, beside))

    def tell_contended(self) -> None:
        """Say to the holders, where it changed, whether other groups wait for their GPUs or run there."""
        touched = self.turn.touched
        for gpu in self.turn.crowded.values():
            gpu.waiting = len(
                {w.group.id for w in gpu.queue if w.logged and w.counts(self.turn.now)}
            )
            crowd = (min(gpu.waiting, 2), min(len(gpu.holders), 2))
            if crowd != gpu.crowd:
                gpu.crowd = crowd
                self._tell_holders(gpu, touched)
        self.turn.crowded.clear()
        for group in touched.values():
            if group.lease is not None and self._may_be_told(group):
                waiting = self._others_waiting(group)
                beside = 0
                for share in group.shares.values():
                    beside = max(beside, len(share.gpu.holders) - 1)
                for client in group.clients.values():
                    self.tell(client, waiting, beside)

    def _may_be_told(self, group: Group) -> bool:
        """Whether a holder may have been told otherwise, though nothing changed for all on its GPU."""
        if self.turn.untold.pop(group.id, None) is not None or group.wishes.exclusive:
            return True
        for share in group.shares.values():
            if share.gpu.queue:
                return True
        return len(group.shares) != 1

    def _tell_holders(self, gpu: Gpu, apart: dict[str, Group]) -> None:
        """Tell the holders of one GPU; those for whom more than that counts are to be told apart."""
        audience = gpu.audience
        if audience is None:
            audience = gpu.audience = Audience.of(gpu.holders.values())
        themselves = {w.group.id: w.group for w in gpu.queue if w.group.id in gpu.holders}
        if themselves or audience.apart:
            for name, group in gpu.holders.items():
                if name in themselves or name in audience.apart:
                    apart[name] = group
        spared = {n for group in themselves.values() for n in group.clients}
        waiting, beside = gpu.waiting, len(gpu.holders) - 1
        some, several = waiting > 0, beside > 0
        out = self.turn.decisions
        # They may be many: as ``_tell`` does, without asking.
        for number, client in audience.alike.items():
            if (client.contended > 0) is some and (client.beside > 0) is several:
                continue
            if number not in spared:
                client.contended, client.beside = waiting, beside
                out.append(Contended(number, waiting, beside))

    def _others_waiting(self, group: Group) -> int:
        """Return how many other groups wait for its GPUs."""
        if group.exclusive:
            return 0  # nobody is to go quiet for them
        if len(group.shares) == 1:
            gpu = next(iter(group.shares.values())).gpu
            waits = gpu.waiting and any(
                w.group is group and w.logged and w.counts(self.turn.now) for w in gpu.queue
            )
            return gpu.waiting - bool(waits)
        return len(
            {
                w.group.id
                for s in group.shares.values()
                for w in s.gpu.queue
                if w.logged and w.group is not group and w.counts(self.turn.now)
            }
        )
