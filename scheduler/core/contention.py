# SPDX-License-Identifier: BSD-3-Clause
"""Notifies holders of contention: whether other groups wait for their GPUs or run there.

Many holders of one GPU are notified without a look at each of their groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Contended
from .model import Client, Gpu, Group, Subscribers
from .turn import Turn


@dataclass(slots=True, eq=False)
class ContentionNotices:
    """Notifies holders where this has changed."""

    turn: Turn

    def send(self, client: Client, waiting: int, beside: int = 0) -> None:
        """Send a client how many groups wait and how many run with it, if either number changes from or to 0."""
        if bool(client.contended) != bool(waiting) or bool(client.beside) != bool(beside):
            client.contended, client.beside = waiting, beside
            self.turn.decisions.append(Contended(client.number, waiting, beside))

    def notify_holders(self) -> None:
        """Notify the holders on GPUs where other groups began or ceased to wait or to run."""
        touched = self.turn.touched
        for gpu in self.turn.contention_stale.values():
            gpu.waiting = len(
                {w.group.id for w in gpu.queue if w.logged and w.counts(self.turn.now)}
            )
            crowd = (min(gpu.waiting, 2), min(len(gpu.holders), 2))
            if crowd != gpu.contention:
                gpu.contention = crowd
                self._notify_all(gpu, touched)
        self.turn.contention_stale.clear()
        for group in touched.values():
            if group.lease is not None and not group.lease_ahead and self._may_have_changed(group):
                waiting = self._others_waiting(group)
                beside = 0
                for share in group.shares.values():
                    beside = max(beside, len(share.gpu.holders) - 1)
                for client in group.clients.values():
                    self.send(client, waiting, beside)

    def _may_have_changed(self, group: Group) -> bool:
        """Whether the numbers of one holder may have changed though those of its GPU did not."""
        if self.turn.to_notify.pop(group.id, None) is not None or group.preferences.exclusive:
            return True
        for share in group.shares.values():
            if share.gpu.queue:
                return True
        return len(group.shares) != 1

    def _notify_all(self, gpu: Gpu, apart: dict[str, Group]) -> None:
        """Notify the holders of one GPU, and collect in ``apart`` those for which more than this GPU counts."""
        subscribers = gpu.subscribers
        if subscribers is None:
            subscribers = gpu.subscribers = subscribers_of(gpu)
        themselves = {w.group.id: w.group for w in gpu.queue if w.group.id in gpu.holders}
        if themselves or subscribers.apart:
            for name, group in gpu.holders.items():
                if name in themselves or name in subscribers.apart:
                    apart[name] = group
        spared = {n for group in themselves.values() for n in group.clients}
        waiting, beside = gpu.waiting, len(gpu.holders) - 1
        some, several = waiting > 0, beside > 0
        out = self.turn.decisions
        # There may be many, so this repeats ``send`` instead of calling it.
        for number, client in subscribers.alike.items():
            if (client.contended > 0) is some and (client.beside > 0) is several:
                continue
            if number not in spared:
                client.contended, client.beside = waiting, beside
                out.append(Contended(number, waiting, beside))

    def _others_waiting(self, group: Group) -> int:
        """Return how many other groups wait for its GPUs, as far as it must react to them."""
        if len(group.shares) == 1:
            gpu = next(iter(group.shares.values())).gpu
            waiting = gpu.waiting
            if waiting and any(
                w.group is group and w.logged and w.counts(self.turn.now) for w in gpu.queue
            ):
                waiting -= 1
        else:
            waiting = len(
                {
                    w.group.id
                    for s in group.shares.values()
                    for w in s.gpu.queue
                    if w.logged and w.group is not group and w.counts(self.turn.now)
                }
            )
        # A group that keeps its lease for a whole cell need not react.
        return 0 if waiting == 0 or group.exclusive else waiting


def subscribers_of(gpu: Gpu) -> Subscribers[Client, Group]:
    """Return the holders of a GPU, as they are notified of contention."""
    found: Subscribers[Client, Group] = Subscribers()
    for group in gpu.holders.values():
        subscribe(found, group)
    return found


def subscribe(subscribers: Subscribers[Client, Group], group: Group) -> None:
    """Add a group that now holds a lease."""
    if len(group.shares) > 1 or group.preferences.exclusive:
        subscribers.apart[group.id] = group
    else:
        subscribers.alike.update(group.clients)


def unsubscribe(subscribers: Subscribers[Client, Group], group: Group) -> None:
    """Remove a group that no longer holds a lease."""
    subscribers.apart.pop(group.id, None)
    for number in group.clients:
        subscribers.alike.pop(number, None)
