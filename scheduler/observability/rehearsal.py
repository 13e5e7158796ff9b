# SPDX-License-Identifier: BSD-3-Clause
"""Practices a hand-off just before a real one.

After a sleep, the first hand-off of a scheduler takes two to five times as long as the second, because the processor's
caches contain other programs' code. The GPU would be idle for that time. So the scheduler first runs a hand-off of a
small core of its own, while the holder of the real lease still computes.
"""

from __future__ import annotations

from ..core import messages as ev
from ..core.core import Core
from ..core.rules import Rules
from ..policies import REGISTRY
from ..protocol import wire as protocol

_GPU = "GPU-00000000-0000-0000-0000-000000000000"
_MEMORY, _PART = 1 << 30, 1 << 20
#: Seconds on the clock of the small core.
_QUANTUM = 1.0


class Rehearsal:
    """Two clients of a small core: one holds the lease and the other waits for it."""

    def __init__(self) -> None:
        self._core = Core(REGISTRY, Rules(quantum=_QUANTUM, anti_thrash="on", hibernate_after=0))
        self._reader = protocol.FrameReader()
        self._now = 0.0
        self._leases: dict[int, int] = {}
        self._handle(ev.Device(_GPU, _MEMORY, 0))
        for client in (1, 2):
            usage = ev.Usage(_GPU, promised=_PART, resident=_PART)
            self._handle(
                ev.Attach(client, client, str(client), str(client), "swap", usages=(usage,))
            )
            self._handle(ev.Request(client, 0))

    def run(self) -> None:
        """Pass the lease from one client to the other."""
        self._now += 2 * _QUANTUM
        self._handle(ev.Tick())
        for client, lease in list(self._leases.items()):
            del self._leases[client]
            released = protocol.encode_event(ev.Released(client, lease, "revoke"))
            for frame in self._reader.feed(released):
                self._handle(protocol.decode(client, str(client), frame))
            self._handle(ev.Request(client, 0))

    def _handle(self, event: ev.Event) -> None:
        for decision in self._core.handle(event, self._now):
            if isinstance(decision, ev.Grant):
                self._leases[decision.client] = decision.lease
            if not isinstance(decision, ev.Log):
                protocol.encode(decision, self._now)
