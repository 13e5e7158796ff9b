# SPDX-License-Identifier: BSD-3-Clause
"""When to check what again. Each timer is known by its kind and its key."""

from __future__ import annotations

import heapq
import math
from typing import Literal

#: The purpose of a timer. Its key is a GPU's UUID, a group's id, a client's number, or a holding's client and GPU.
Kind = Literal[
    "again",
    "class",
    "client",
    "disk",
    "gpu",
    "hint",
    "holding",
    "pace",
    "pool",
    "reservation",
    "rest",
    "step",
    "wake",
]
Key = str | int | tuple[int, str]
Timer = tuple[Kind, Key]


def retry_timer(client: int, gpu: str) -> Timer:
    """Return the timer for the next eviction order to a client that has repeatedly failed to evict."""
    return "holding", (client, gpu)


class Timers:
    """When to check what again. Each timer has one time."""

    def __init__(self) -> None:
        self._times: dict[Timer, float] = {}
        #: Earliest first, including outdated times of timers that were set again.
        self._heap: list[tuple[float, Timer]] = []
        #: No timer is due before this time.
        self.soonest = math.inf

    def set(self, timer: Timer, when: float | None) -> None:
        """Set a timer; None stops it."""
        if when is None:
            self._times.pop(timer, None)
        elif self._times.get(timer) != when:
            self._times[timer] = when
            heapq.heappush(self._heap, (when, timer))
            if when < self.soonest:
                self.soonest = when
            if len(self._heap) > 4 * len(self._times) + 64:
                self._heap = [(at, known) for known, at in self._times.items()]
                heapq.heapify(self._heap)

    def earliest(self) -> float | None:
        """Return when the next timer is due."""
        heap, times = self._heap, self._times
        while heap:
            when, timer = heap[0]
            if times.get(timer) == when:
                return when
            heapq.heappop(heap)
        return None

    def due(self, now: float) -> list[Timer]:
        """Stop the timers that are due, and return them."""
        found = []
        while (when := self.earliest()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[1]
            del self._times[timer]
            found.append(timer)
        self.soonest = math.inf if when is None else when
        return found
