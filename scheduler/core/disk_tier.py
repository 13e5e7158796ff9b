# SPDX-License-Identifier: BSD-3-Clause
"""Decides whose host memory may go to a disk, and whose comes back.

The evicted memory of groups that have been idle the longest goes first: after ``Rules.disk_after``, or earlier if host
memory is needed, which the server sees. If that is not enough, the memory of groups that wait goes, too: they were
admitted because the disk has room for them. A group needs its memory back when it has a lease, gets ready ahead of its
use, or is the head of a queue. The server reads it while the group's other memory is being restored.

Nothing here moves data. While no disk is in use, there is nothing to decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .eligibility import Eligibility
from .messages import Disk, Fetch, Spill
from .model import Client, Group, Model
from .timers import Timers
from .turn import Turn


@dataclass(slots=True, eq=False)
class DiskTier:
    """Decides which clients' host memory goes to the disk and which comes back."""

    model: Model
    turn: Turn
    timers: Timers
    eligibility: Eligibility

    #: Whether to decide again although no group was touched.
    stale: bool = False
    _spill: Spill = field(default=Spill(()), init=False)
    _fetch: Fetch = field(default=Fetch(()), init=False)

    def on_disk(self, event: Disk) -> None:
        """Apply a new state of the disk."""
        before, self.model.disk_size = self.model.disk_size, event.size
        self.model.on_disk, self.model.off_disk = event.held, frozenset(event.apart)
        self.stale = True
        if before != event.size:
            self.turn.dirty.update(self.model.gpus)

    def decide(self) -> None:
        """Decide again if something has changed."""
        self.stale = False
        if self.model.disk_size:
            self._decide_spill()
        elif self._spill.clients:
            self._set_spill(Spill(()))
        fetch = Fetch(tuple(c.number for c in self._needed() if c.number in self.model.on_disk))
        if fetch != self._fetch:
            self._fetch = fetch
            self.turn.decisions.append(fetch)

    def _decide_spill(self) -> None:
        now, after = self.turn.now, self.model.rules.disk_after
        idle: list[tuple[float, int, Client]] = []
        for group in self.model.groups.values():
            since = self._idle_since(group)
            if since is not None:
                idle += [(since, c.number, c) for c in group.clients.values() if _in_host(c)]
        idle.sort(key=lambda entry: entry[:2])
        due = [entry for entry in idle if after is not None and entry[0] + after <= now]
        clients = [client for _, _, client in idle] + self._waiting()
        self._set_spill(Spill(tuple(client.number for client in clients), len(due)))
        next_due = None
        if after is not None and len(due) < len(idle):
            next_due = idle[len(due)][0] + after
        self.timers.set(("disk", ""), next_due)

    def _set_spill(self, spill: Spill) -> None:
        if spill != self._spill:
            self._spill = spill
            self.turn.decisions.append(spill)

    def _idle_since(self, group: Group) -> float | None:
        if group.lease is not None or group.prefetch is not None:
            return None
        return self.eligibility.idle_since(group)

    def _waiting(self) -> list[Client]:
        """Return the clients with evicted memory whose groups wait behind others, the last ones first."""
        needed = self._needed_groups()
        groups = {wait.group.id: wait.group for wait in self.model.queue}
        return [
            client
            for group in reversed(groups.values())
            if group.id not in needed and not (group.silent or group.yielding or group.restoring)
            for client in group.clients.values()
            if _in_host(client)
        ]

    def _needed(self) -> list[Client]:
        """Return the clients whose memory is needed on a GPU, the most urgent first."""
        groups = self._needed_groups()
        return [client for group in groups.values() for client in group.clients.values()]

    def _needed_groups(self) -> dict[str, Group]:
        groups: dict[str, Group] = dict(self.model.leased)
        groups.update(self.model.prefetching)
        for gpu in self.model.gpus.values():
            if gpu.queue:
                groups.setdefault(gpu.queue[0].group.id, gpu.queue[0].group)
        return groups


def _in_host(client: Client) -> bool:
    """Whether a client has evicted memory."""
    return any(h.host for h in client.holdings.values())
