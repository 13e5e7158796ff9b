# SPDX-License-Identifier: BSD-3-Clause
"""Lets programs wait until a reservation is ready, without polling."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: Asks the scheduler for the reservation of a group.
Ask = Callable[[str], Awaitable[dict[str, Any]]]
#: Seconds after which a change is looked for although the scheduler reported none: its event may have been missed while
#: the connection was lost.
LOOK = 5.0


class ReservationWaiters:
    """The requests that wait for a change of a reservation.

    Parameters
    ----------
    ask
        Asks the scheduler for the reservation of a group.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[str, set[asyncio.Event]] = {}
        #: The groups that made a reservation and may still have it.
        self.made: set[str] = set()

    def changed(self, group: str, result: str) -> None:
        """Note that the reservation of a group changed, as the scheduler's event about it says."""
        if result == "waiting":
            self.made.add(group)
        elif result != "ready":
            self.made.discard(group)
        for event in self._waiting.get(group, ()):
            event.set()

    async def wait(self, group: str, seconds: float) -> dict[str, Any]:
        """Return the reservation of a group as soon as it is not waiting, or after this many seconds."""
        until = time.monotonic() + seconds
        # The group may be named in another way.
        found = await self._ask(group)
        group, changed = found["group"], asyncio.Event()
        waiting = self._waiting.setdefault(group, set())
        waiting.add(changed)
        try:
            while True:
                changed.clear()
                # After each wait, because the change may have come before.
                found = await self._ask(group)
                left = until - time.monotonic()
                if (found["reservation"] or {}).get("state") != "waiting" or left <= 0:
                    return found
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, LOOK))
        finally:
            waiting.discard(changed)
            if not waiting:
                self._waiting.pop(group, None)
