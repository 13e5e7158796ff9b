# SPDX-License-Identifier: BSD-3-Clause
"""The host memory and the disk of a simulated node, in which evicted data is kept."""

from __future__ import annotations

from dataclasses import dataclass

from .calibration import Calibration
from .node_client import Client
from .outcome import Outcome
from .tiers import Content, Tiers


@dataclass(frozen=True, slots=True)
class Parts:
    """What happens to a piece that is evicted; bytes."""

    copied: int
    zero: int
    shared: int
    kept: int


class HostStore:
    """Accounts for evicted data.

    Equal data of one user is stored once. A copy is kept after a restore while there is room, and kept copies make way
    for evicted data, the least recently restored first. If evicted data exceeds host memory, data of the notebooks that
    were restored longest ago goes to the disk first.

    Parameters
    ----------
    tiers
        The disk, and what memory contains unless a kernel of the trace says otherwise.
    costs
        The speed of hashing and mapping.
    size
        Bytes of host memory.
    outcome
        Where the results are added.
    """

    def __init__(self, tiers: Tiers, costs: Calibration, size: int, outcome: Outcome) -> None:
        self._tiers, self._costs, self._size, self._outcome = tiers, costs, size, outcome
        self._clients: dict[int, Client] = {}
        self._users: dict[str, dict[int, Client]] = {}
        #: What the evicted data of each user takes in host memory.
        self._taken: dict[str, int] = {}
        #: Bytes that are being copied into host memory; of kept copies; and on disk.
        self._coming = self._kept = self._disk = 0
        self._used = 0
        #: When the disk is free again, seconds.
        self._free_at = 0.0

    @property
    def budget(self) -> int:
        """The bytes that evicted data may take in host memory and on disk."""
        return self._size + self._tiers.disk

    def add(self, client: Client) -> None:
        """Begin to account for a client."""
        spec, usual = client.spec, self._tiers
        client.content = Content(
            usual.changed if spec.changed is None else spec.changed,
            usual.zeros if spec.zeros is None else spec.zeros,
            usual.equal if spec.equal is None else spec.equal,
        )
        self._clients[client.number] = client
        self._users.setdefault(spec.user, {})[client.number] = client

    def remove(self, client: Client) -> None:
        """Free what a client has here."""
        del self._clients[client.number]
        del self._users[client.spec.user][client.number]
        self._set_kept(client.content, 0)
        self._disk -= client.content.disk
        self._coming -= client.coming
        self._update(client.spec.user)

    def shrink(self, client: Client) -> None:
        """Note that a client has freed memory."""
        content = client.content
        self._set_kept(content, min(content.kept, client.resident))
        disk = min(content.disk, content.filled(client.host))
        self._disk -= content.disk - disk
        content.disk = disk
        self.settle(client)

    def begin_leaving(
        self, client: Client, size: int, sharing: int, rate: float, now: float
    ) -> float:
        """Make room for a piece that leaves a GPU; return the seconds until it has left.

        It shares the link with other pieces: ``sharing`` in all.
        """
        copied = self._parts(client, size).copied
        lack = self._used + self._coming + copied - self._size
        client.coming = copied
        self._coming += copied
        written = self._spill(lack, client) if lack > 0 and self._tiers.disk else 0
        seconds = copied * sharing / rate
        if not client.content.is_plain:
            seconds += size / self._costs.hashing
        return self._with_disk(seconds, written, now)

    def leave(self, client: Client, size: int) -> int:
        """Note that a piece has left a GPU, before the client's own figures change; return how much was copied."""
        content = client.content
        parts = self._parts(client, size)
        self._coming -= client.coming
        client.coming = 0
        # Fractions are rounded, so a few bytes may be left over.
        self._set_kept(content, min(content.kept - parts.kept, client.resident - size))
        content.copied += parts.copied
        content.zero += parts.zero
        content.shared += parts.shared
        content.hashed += 0 if content.is_plain else size
        self._outcome.uncopied += size - parts.copied
        return parts.copied

    def begin_arriving(
        self, client: Client, size: int, sharing: int, rate: float, now: float
    ) -> float:
        """Return the seconds until a piece has arrived on a GPU; what was never there before is only mapped."""
        evicted = min(size, client.host)
        read = client.content.disk * evicted // client.host if evicted else 0
        seconds = client.content.filled(evicted) * sharing / rate + size * self._costs.mapping
        return self._with_disk(seconds, read, now)

    def arrive(self, client: Client, size: int, now: float) -> int:
        """Note that evicted data has arrived on a GPU, before the client's figures change; return the bytes copied."""
        content = client.content
        filled = content.filled(size)
        read = content.disk * size // client.host if client.host else 0
        content.disk -= read
        self._disk -= read
        self._outcome.disk_read += read
        content.copied += filled
        content.zero += size - filled
        content.known, content.restored_at = True, now
        self._set_kept(content, content.kept + int(filled * (1 - content.changed)))
        return filled

    def settle(self, client: Client) -> None:
        """Add up again after a client's figures have changed."""
        self._update(client.spec.user)
        self._drop_kept()
        self._outcome.host_peak = max(self._outcome.host_peak, self._used)
        client.stated = self._statement(client)

    def _statement(self, client: Client) -> tuple[int, int, int, int]:
        """Return what a client states: bytes in host memory, clean, shared and on disk."""
        content, own = client.content, _equal(client)
        others = self._users[client.spec.user].values()
        most = max((_equal(other) for other in others if other is not client), default=0)
        stored = content.filled(client.host) - content.disk
        return stored, content.clean(client.resident), min(own, most), content.disk

    def _parts(self, client: Client, size: int) -> Parts:
        """Divide a piece that is evicted. Its parts are as in all memory of the client on the GPU."""
        content = client.content
        filled = content.filled(size)
        kept = min(filled, content.kept * size // client.resident) if client.resident else 0
        shared = 0
        if content.equal:
            others = self._users[client.spec.user].values()
            most = max((_equal(other) for other in others if other is not client), default=0)
            shared = min(int((filled - kept) * content.equal), max(0, most - _equal(client)))
        return Parts(filled - kept - shared, size - filled, shared, kept)

    def _spill(self, lack: int, client: Client) -> int:
        """Write evicted data to the disk until there is room; return how many bytes."""
        written = 0
        room = self._tiers.disk - self._disk
        order = sorted(
            self._clients.values(), key=lambda c: (c is client, c.content.restored_at, c.number)
        )
        for other in order:
            stored = other.content.filled(other.host) - other.content.disk
            size = min(lack - written, room - written, stored)
            if size > 0:
                other.content.disk += size
                self._update(other.spec.user)
                written += size
        self._disk += written
        self._outcome.disk_written += written
        self._outcome.disk_peak = max(self._outcome.disk_peak, self._disk)
        return written

    def _with_disk(self, seconds: float, size: int, now: float) -> float:
        """Return how long a move takes if the disk moves so many bytes meanwhile, after what it does already."""
        if not size:
            return seconds
        self._free_at = max(self._free_at, now) + size / self._tiers.disk_speed
        self._outcome.disk_waiting += max(0.0, self._free_at - now - seconds)
        return max(seconds, self._free_at - now)

    def _set_kept(self, content: Content, kept: int) -> None:
        self._kept += kept - content.kept
        content.kept = kept

    def _drop_kept(self) -> None:
        """Give up kept copies for which there is no room."""
        over = self._used + self._coming + self._kept - self._size
        if over <= 0 or not self._kept:
            return
        order = sorted(self._clients.values(), key=lambda c: (c.content.restored_at, c.number))
        for client in order:
            size = min(over, client.content.kept)
            self._set_kept(client.content, client.content.kept - size)
            over -= size
            if over <= 0:
                break

    def _update(self, user: str) -> None:
        """Add up what the evicted data of a user takes in host memory."""
        stored = equal = most = 0
        for client in self._users[user].values():
            stored += client.content.filled(client.host) - client.content.disk
            own = _equal(client)
            equal += own
            most = max(most, own)
        self._used += stored - equal + most - self._taken.get(user, 0)
        self._taken[user] = stored - equal + most


def _equal(client: Client) -> int:
    """Return the evicted data of a client in host memory that is equal in all notebooks of its user."""
    content = client.content
    return int((content.filled(client.host) - content.disk) * content.equal)
