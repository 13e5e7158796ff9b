# SPDX-License-Identifier: BSD-3-Clause
"""GPU time over sliding windows, and how time is charged to processes that are busy at once.

Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from .messages import LearntWindow

#: Units of a second in which time is counted.
PARTS = 10**9
#: A process (0 if nothing is metered), and its team, user and group, which are charged.
Process = tuple[int, tuple[str, ...]]
#: What time is divided among.
Key = TypeVar("Key")
#: Numbers of buckets, and nanoseconds in each.
Parts = list[tuple[int, int]]
_NOTHING = (0, 0)


class Window:
    """GPU time over a sliding window: a ring of buckets, and their sum.

    Both are whole nanoseconds. A sum of floats would depend on when it was read, and a replay could differ.
    """

    __slots__ = ("buckets", "count", "newest", "sum", "width")

    def __init__(self, window: float, count: int) -> None:
        self.count, self.width = count, window / count
        #: One more than the window has, because the oldest slides out gradually.
        self.buckets = [0] * (count + 1)
        self.newest = 0
        self.sum = 0

    def _advance(self, newest: int) -> None:
        ahead = newest - self.newest
        if ahead <= 0:
            return
        size = self.count + 1
        if ahead >= size:
            self.buckets = [0] * size
            self.sum = 0
        elif self.sum:
            for number in range(self.newest + 1, newest + 1):
                slot = number % size
                self.sum -= self.buckets[slot]
                self.buckets[slot] = 0
        self.newest = newest

    def put(self, parts: Parts) -> None:
        """Add nanoseconds to the buckets of these numbers."""
        self._advance(max([number for number, _ in parts]))
        oldest, size, buckets, total = self.newest - self.count, self.count + 1, self.buckets, 0
        for number, part in parts:
            if number >= oldest:
                buckets[number % size] += part
                total += part
        self.sum += total

    def used(self, now: float) -> float:
        """Return the seconds of use within the window."""
        place = now / self.width
        self._advance(int(place))
        if place < self.newest:
            place = float(self.newest)
        passed = place - self.newest
        slot = (self.newest - self.count) % (self.count + 1)
        return max(0.0, self.sum - passed * self.buckets[slot]) / PARTS

    def learnt(self, now: float) -> LearntWindow | None:
        """Return its contents; None: there is nothing in it."""
        if self.newest + self.count < int(now / self.width):
            return None  # all of it is older
        slot = self.newest % (self.count + 1)
        # A part is below zero if a charge was corrected after its group had left and come back.
        parts = [max(0, part) for part in self.buckets[slot::-1] + self.buckets[:slot:-1]]
        while parts and not parts[-1]:
            parts.pop()
        return LearntWindow(self.newest, tuple(parts)) if parts else None

    def recall(self, learnt: LearntWindow) -> None:
        """Apply contents that another scheduler has counted, in place of these."""
        size = self.count + 1
        self.newest, self.buckets = learnt.newest, [0] * size
        for age, part in enumerate(learnt.parts[:size]):
            self.buckets[(self.newest - age) % size] = part
        self.sum = sum(self.buckets)

    def below_at(self, seconds: float, now: float) -> float:
        """Return when at most this many seconds are left in the window if no more are added."""
        excess = self.used(now) - seconds
        if excess <= 0:
            return now
        size, width = self.count + 1, self.width
        begin = max(now, self.newest * width)
        for number in range(self.newest - self.count, self.newest + 1):
            held = self.buckets[number % size] / PARTS
            end = (number + self.count + 1) * width
            there = held * (end - begin) / width
            if there >= excess:
                return begin + excess * width / held
            excess -= there
            begin = end
        return begin


def spread(seconds: float, since: float, until: float, width: float, count: int) -> Parts:
    """Divide use evenly between two moments among the last buckets: their numbers, and nanoseconds."""
    first, last = int(since / width), int(until / width)
    if first >= last:
        return [(last, round(seconds * PARTS))]
    rate = seconds / (until - since) * PARTS
    # All buckets between the first and the last get equal parts. There are many if reports are rare.
    whole = round(rate * width)
    parts = [(number, whole) for number in range(max(first + 1, last - count), last)]
    if first >= last - count:
        parts.append((first, max(0, round(rate * ((first + 1) * width - since)))))
    parts.append((last, max(0, round(rate * (until - last * width)))))
    return parts


class ChargedTime:
    """How long each process was busy on a GPU, in the window's buckets, and which part it was charged for.

    Reports come afterwards, each at its own time. The charge of a process in a bucket changes when another process
    turns out to have been busy in it.
    """

    __slots__ = ("buckets", "count", "newest", "width")

    def __init__(self, window: float, count: int) -> None:
        self.count, self.width = count, round(window / count * PARTS)
        #: By process: its busy time, and what it was charged for, in nanoseconds.
        self.buckets: list[dict[Process, tuple[int, int]]] = [{} for _ in range(count + 1)]
        self.newest = 0

    def put(self, process: Process, parts: Parts) -> dict[Process, Parts]:
        """Add to buckets; return the change of each process's charges, by bucket."""
        size, newest = self.count + 1, max([number for number, _ in parts])
        for passed in range(max(self.newest + 1, newest - self.count), newest + 1):
            self.buckets[passed % size].clear()
        self.newest = max(self.newest, newest)
        mine: Parts = []
        more = {process: mine}
        for number, part in parts:
            if part <= 0 or number < self.newest - self.count:
                continue
            bucket = self.buckets[number % size]
            busy, charged = bucket.get(process, _NOTHING)
            busy += part
            bucket[process] = busy, busy
            if len(bucket) == 1 or sum([b for b, _ in bucket.values()]) <= self.width:
                # The processes need not have been busy at the same time.
                mine.append((number, busy - charged))
                continue
            bucket[process] = busy, charged
            for one, charge in divide({p: b for p, (b, _) in bucket.items()}, self.width):
                busy, charged = bucket[one]
                if charge != charged:
                    bucket[one] = busy, charge
                    more.setdefault(one, []).append((number, charge - charged))
        return more


def divide(busy: dict[Key, int], passed: int) -> Iterable[tuple[Key, int]]:
    """Return the charges of processes that were busy for these times while ``passed`` nanoseconds passed.

    The overlap is assumed to be as small as possible. Within it, a process with a shorter busy time was busy only while
    the others were. Each moment is divided equally among the processes that were busy in it.
    """
    excess = sum(busy.values()) - passed
    if excess <= 0 or len(busy) == 1:
        return busy.items()
    by_length = sorted(busy.items(), key=lambda item: item[1])
    longest = by_length[-1][1]
    apart, overlaps = max(0, passed - longest), sum(busy.values()) - longest
    charges, had, before = [], 0, 0
    for rank, (process, length) in enumerate(by_length):
        had += (length - before) // (len(by_length) - rank)
        before = length
        charges.append((process, had + (length - had) * apart // overlaps))
    return charges


class Decayed:
    """GPU time that counts less the longer ago it was."""

    __slots__ = ("at", "seconds")

    def __init__(self, at: float) -> None:
        self.seconds, self.at = 0.0, at

    def until(self, now: float, memory: float) -> float:
        """Return what is left of it at a time, of which a third counts after ``memory``."""
        return self.seconds * math.exp(min(0.0, self.at - now) / memory)

    def add(self, seconds: float, at: float, memory: float) -> None:
        """Add time."""
        # Each event calls this, so it repeats ``until`` instead of calling it.
        if at > self.at:
            seconds += self.seconds * math.exp((self.at - at) / memory)
            self.at = at
        else:
            seconds += self.seconds
        self.seconds = seconds if seconds > 0.0 else 0.0
