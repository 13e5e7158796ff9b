# SPDX-License-Identifier: BSD-3-Clause
"""Checks that clients' statements are possible at all."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Evicted, Moving, Restored, Usage
from .model import Client, Model

#: Larger figures are a fault of the client.
LARGEST = 1 << 50


class ProtocolViolation(Exception):
    """A client sent an impossible statement. The server disconnects it; the core's state is as before the event."""

    def __init__(self, client: int, text: str) -> None:
        super().__init__(text)
        self.client = client
        self.text = text


@dataclass(slots=True, eq=False)
class Checks:
    """Checks clients' statements."""

    model: Model

    def usage(self, client: int, backend: str, usage: Usage, growth: bool = False) -> None:
        """Check a client's statement about a GPU."""
        if usage.gpu not in self.model.gpus:
            raise ProtocolViolation(client, f"names a GPU that is not here: {usage.gpu}")
        sizes = (
            usage.promised,
            usage.resident,
            usage.unevictable,
            usage.context,
            usage.host,
            usage.disk,
        )
        if min(sizes) < 0 or max(sizes) > LARGEST:
            raise ProtocolViolation(client, "states a size that cannot be")
        if not 0 <= usage.clean <= usage.resident:
            raise ProtocolViolation(client, "states more clean memory than is on the GPU")
        if not 0 <= usage.shared <= usage.host:
            raise ProtocolViolation(client, "states more shared memory than is in host memory")
        if usage.resident > usage.promised and not growth:
            raise ProtocolViolation(client, "states more resident than it was promised")
        # Some figures are estimates, but no client holds twice the GPU.
        if not growth and sum(sizes[1:4]) > 2 * self.model.gpus[usage.gpu].total:
            raise ProtocolViolation(client, "states that it holds more than the GPU has")
        if backend == "plain" and usage.promised:
            raise ProtocolViolation(client, "states memory that can move, without a backend for it")

    def moved(self, client: Client, move: Evicted | Moving | Restored) -> None:
        """Check a client's statement about a move."""
        self.usage(client.number, client.backend, move.usage)
        sizes = (move.bytes, move.copied, move.hashed, move.zero, move.shared)
        if min(sizes) < 0 or max(sizes) > LARGEST or not 0 <= move.duration < 1e9:
            raise ProtocolViolation(client.number, "states a move that cannot be")
