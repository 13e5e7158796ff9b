# SPDX-License-Identifier: BSD-3-Clause
"""Tells open panels that something changed, seldom enough that they need not defend themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jupyter_events import EventLogger

SCHEMA = Path(__file__).parent / "schemas" / "changed.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpushare/changed/v1"

#: Seconds that the first hint of a series waits for the changes that come with it.
GATHER = 0.01


class Hints:
    """Gathers changes and emits them as numbered events.

    Parameters
    ----------
    logger
        The server's event bus.
    interval
        Shortest time between two events, in seconds.
    """

    def __init__(self, logger: EventLogger, interval: float) -> None:
        self._logger = logger
        self._interval = interval
        self._kinds: set[str] = set()
        self._last = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        #: How many hints there were.
        self.sequence = 0

    def add(self, kind: str) -> None:
        """Note a change; a hint follows soon."""
        self._kinds.add(kind)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + GATHER, self._last + self._interval)
            self._timer = loop.call_at(at, self._emit, loop)

    def stop(self) -> None:
        """Emit nothing more of what was noted."""
        if self._timer is not None:
            self._timer.cancel()

    def _emit(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._last = loop.time()
        self.sequence += 1
        kinds, self._kinds = sorted(self._kinds), set()
        self._logger.emit(schema_id=SCHEMA_ID, data={"sequence": self.sequence, "kinds": kinds})
