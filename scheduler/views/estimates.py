# SPDX-License-Identifier: BSD-3-Clause
"""How long those that wait will wait: a walk along the queue, and how far earlier walks were off.

The walk
    Each holder is expected to make way after as long as it has lately used the GPU at a stretch (its *stint*), given
    how long it has been at it, and at the end of its quantum at the latest. Those that wait get their room in the
    queue's order, each as soon as enough of those before it made way, and then hold it for a stint of their own. Every
    step has a mean and a variance, which add up along the queue.

The interval
    How far such walks were off when a wait began, in standard deviations, is kept for the first, the second and the
    later places; the interval reaches between the quantiles of the last of these that leave a tenth out.
    So it is as wide as it has to be, however wrong the walk is, provided that it goes on being wrong in the same way
    (conformal prediction with normalised residuals).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.model import Gpu, Group, Share, Wait
    from .timeline import Glimpse

#: Of so many waits at each place, and so many stints of each group, is learned.
WAITS, STINTS = 200, 16
#: How far off walks are taken to be until enough is known, in standard deviations: wide.
PRIOR = (-3.0, -2.4, -1.8, -1.2, -0.7, -0.3, 0.0, 0.1, 0.3, 0.6, 1.0, 1.8, 3.0)
#: Chance that a group goes on after a pause until it is known, and how much each pause counts for that.
DOUBT = 0.1
#: Share of the waits that fall outside on either side.
TAIL = 0.05
#: Seconds: no forecast is more certain than this, for want of knowing what the machine does meanwhile.
FINEST = 0.005
#: Nor more certain than this part of itself, and this part of what its class has been off by, of which each wait
#: counts for the last.
COARSE, PART, TYPICAL = 0.1, 0.6, 0.05
#: Forecasts are of a class each: by the place, from 0 to the later ones; and, since they wait for nothing but the
#: machine, those that are to be served within so many seconds.
LATER, AT_ONCE, SOON = 2, 3, 0.1


class Estimate(NamedTuple):
    """Seconds until one that waits is served, and the interval in which nine of ten such waits end."""

    seconds: float
    low: float
    high: float


class Time(NamedTuple):
    """A moment in the future, seconds from now: its mean and variance."""

    mean: float
    variance: float


NOW = Time(0.0, 0.0)


@dataclass(slots=True)
class Stint:
    """A stretch for which a group uses the GPU, until others could have its room."""

    begin: float
    #: When others could have its room if it does not go on before; None: it is busy.
    end: float | None = None


@dataclass(slots=True)
class Shown:
    """The first forecast for one that waits."""

    at: float
    walk: Time
    kind: int


class Way(NamedTuple):
    """When a group makes way, and for how much."""

    mean: float
    #: Breaks ties.
    number: int
    variance: float
    size: int
    group: Group
    #: It is what it has now, and not what it will have when it is served.
    now: bool


@dataclass(slots=True)
class Room:
    """The walk's idea of one GPU."""

    gpu: Gpu
    #: Bytes that are on their way out of it, and that are free then.
    leaving: int
    free: int
    #: Who makes way when, earliest first.
    ways: list[Way]
    #: When the last one in the queue is served; and when its memory is in, from when room is made for another.
    served: Time = NOW
    filled: float = 0.0
    #: How many are served before, up to the later ones.
    place: int = 0
    #: Who is served and not where it is now; and what the others lose that wait, in bytes.
    moved: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Residuals:
    """How far walks were off: the last ones, with the prior among them."""

    ordered: list[float] = field(default_factory=lambda: list(PRIOR))
    recent: deque[float] = field(default_factory=lambda: deque(PRIOR))
    #: By how many seconds they are off, lately.
    typical: float = 0.0

    def add(self, off: float, deviation: float) -> None:
        """Take in by how many seconds one more was off, and its standard deviation."""
        self.typical += (abs(off) - self.typical) * TYPICAL
        value = off / deviation
        insort(self.ordered, value)
        self.recent.append(value)
        if len(self.recent) > WAITS:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def interval(self) -> tuple[float, float, float]:
        """Return the ends and the middle of the interval."""
        return self.quantile(TAIL), self.quantile(0.5), self.quantile(1 - TAIL)

    def quantile(self, part: float) -> float:
        """Return what this part of them stays under."""
        # One more on either side than the empirical quantile: what comes next is one of them too.
        last = len(self.ordered) - 1
        at = math.floor(part * (last + 2)) - 1 if part < 0.5 else math.ceil(part * (last + 2)) - 1
        return self.ordered[min(max(at, 0), last)]


class Forecast:
    """Learns how long groups use the GPU and how wrong it is about that, and says how long waits will be."""

    def __init__(self) -> None:
        self._stints: dict[str, Stint] = {}
        self._lengths: dict[str, deque[float]] = {}
        #: How often a group that pauses goes on before others could have its room.
        self._persistence: dict[str, float] = {}
        self._waits: dict[str, Shown | None] = {}
        self._residuals = tuple(Residuals() for _ in range(AT_ONCE + 1))
        #: How long a group will use the GPU when it is served, under this quantum.
        self._expected: dict[str, Time] = {}
        self._quantum: object = None
        #: Somebody waits for whom nothing was forecast yet.
        self.due = False

    # --- Learning ---------------------------------------------------------------------------------

    def observe(self, seen: Glimpse) -> None:
        """Take in how a group stands."""
        group = seen.group
        self._expected.pop(group, None)
        if seen.left:
            self._stints.pop(group, None)
            self._lengths.pop(group, None)
            self._persistence.pop(group, None)
            self._waits.pop(group, None)
            return
        self._observe_stint(seen)
        if seen.waited_since is not None:
            if group not in self._waits:
                self._waits[group] = None
                self.due = True
            return
        shown = self._waits.pop(group, None)
        # Whoever has no lease now was cancelled.
        if shown is not None and seen.leased:
            off = seen.time - shown.at - shown.walk.mean
            self._residuals[shown.kind].add(off, math.sqrt(shown.walk.variance))

    def _observe_stint(self, seen: Glimpse) -> None:
        group, stint = seen.group, self._stints.get(seen.group)
        if seen.ran_since is not None and seen.leased:
            if stint is not None and stint.end is not None:
                went_on = seen.ran_since < stint.end
                self._add_pause(group, went_on)
                if went_on:
                    stint.end = None
                else:
                    self._add_length(group, stint.end - stint.begin)
                    stint = None
            if stint is None:
                self._stints[group] = Stint(seen.ran_since)
        elif stint is not None:
            if not seen.leased:
                if stint.end is not None:
                    self._add_pause(group, False)
                end = seen.time if stint.end is None else min(seen.time, stint.end)
                self._add_length(group, end - stint.begin)
                del self._stints[group]
            elif stint.end is None:
                stint.end = max(seen.time, seen.movable_at)

    def _add_length(self, group: str, length: float) -> None:
        self._lengths.setdefault(group, deque(maxlen=STINTS)).append(length)

    def _add_pause(self, group: str, went_on: bool) -> None:
        before = self._persistence.get(group, DOUBT)
        self._persistence[group] = before + (went_on - before) * DOUBT

    # --- Forecasting ------------------------------------------------------------------------------

    def estimates(self, core: Core, now: float) -> dict[str, Estimate]:
        """Return what can be said about those that wait, by group."""
        self.due = False
        if (core.rules.quantum, core.policy.name) != self._quantum:
            self._quantum = core.rules.quantum, core.policy.name
            self._expected.clear()
        intervals = [one.interval() for one in self._residuals]
        found: dict[str, Estimate] = {}
        before: dict[str, float] = {}
        for wait, walk, kind in self._walk(core, now):
            group = wait.group.id
            if group in found:
                continue
            if self._waits.get(group, walk) is None:
                self._waits[group] = Shown(now, walk, kind)
            # One that is behind others is not said to be served first, though it may be.
            least = max((before.get(uuid, 0.0) for uuid in wait.gpus), default=0.0)
            found[group] = one = _estimate(walk, intervals[kind], least)
            for uuid in wait.gpus:
                before[uuid] = one.seconds
        return found

    def _walk(self, core: Core, now: float) -> list[tuple[Wait, Time, int]]:
        """Return when those that wait are served, as far as can be said, and the class of each forecast."""
        rooms: dict[str, Room] = {}
        found: list[tuple[Wait, Time, int]] = []
        for wait in core.queue:
            if not wait.counts(core.turn.now):
                continue
            on = []
            for uuid in wait.gpus:
                room = rooms.get(uuid)
                if room is None:
                    room = rooms[uuid] = self._room(core, core.gpus[uuid], wait, now)
                on.append(room)
            served = self._serve(core, wait, on, now)
            if served is None:
                continue
            place = 0
            for room in on:
                place = max(place, room.place)
                room.place = min(room.place + 1, LATER)
            kind = AT_ONCE if served.mean < SOON else place
            deviation = max(FINEST, COARSE * served.mean, PART * self._residuals[kind].typical)
            walk = Time(served.mean, served.variance + deviation * deviation)
            found.append((wait, walk, kind))
        return found

    def _serve(self, core: Core, wait: Wait, rooms: list[Room], now: float) -> Time | None:
        """Return when one that waits is served; None if it cannot be said."""
        group = wait.group
        if wait.grow is None and group.restore_error is not None:
            return None  # its process alone knows when it gives up
        alone = core.residency.one_at_a_time and wait.grow is None
        served = Time(max(0.0, wait.not_before - now), 0.0)
        needs = []
        for room in rooms:
            need = _need(core, wait, room)
            needs.append(need)
            if room.served.mean > served.mean:
                served = room.served
            if need > room.free and room.filled > served.mean:
                served = Time(room.filled, 0.0)
            own = None
            while room.ways and (alone or need > room.free):
                way = heapq.heappop(room.ways)
                if way.group is group and wait.grow is None:
                    own = way
                elif not (way.now and way.group.id in room.moved):
                    room.free += way.size
                    if way.mean > served.mean:
                        served = Time(way.mean, way.variance)
                    if way.now and way.group.wait is not None:
                        room.lost[way.group.id] = way.size
            if need > room.free:
                if own is not None:
                    heapq.heappush(room.ways, own)
                return None
        for room, need in zip(rooms, needs, strict=True):
            room.free -= need
            room.served = served
            room.filled = served.mean + max(0, need) / room.gpu.bandwidth
            if wait.grow is None:
                room.moved.add(group.id)
                stint = self._stint(core, group)
                heapq.heappush(
                    room.ways,
                    Way(
                        served.mean + stint.mean,
                        -group.number,
                        served.variance + stint.variance,
                        group.shares[room.gpu.uuid].goal,
                        group,
                        now=False,
                    ),
                )
        return served

    def _room(self, core: Core, gpu: Gpu, wait: Wait, now: float) -> Room:
        """Return how things stand on one GPU, and who will make way when for the first that waits."""
        ways = []
        for share in gpu.shares.values():
            size = share.resident + share.arriving
            if size or share.group.lease is not None:
                size, when = self._way(core, share, wait, now)
                group = share.group
                ways.append(Way(when.mean, group.number, when.variance, size, group, now=True))
        heapq.heapify(ways)
        leaving = gpu.coming
        return Room(gpu, leaving, gpu.free - gpu.owed + leaving, ways)

    def _way(self, core: Core, share: Share, wait: Wait, now: float) -> tuple[int, Time]:
        group = share.group
        size = share.resident + share.arriving + share.missing
        at = core.residency.movable_at(group, wait)
        if group.lease is None:
            size = share.movable
        elif group.overdue:
            return 0, NOW
        elif group.yielding:
            at = now
        elif group.runs or at > now:
            stint = self._stints.get(group.id)
            elapsed = 0.0 if stint is None else now - stint.begin
            last = max(0.0, core.residency.quantum_end(group, wait) - now)
            left = self._left(group, elapsed, last)
            if group.runs:
                return size, left
            return size, _either(
                self._persistence.get(group.id, DOUBT), left, Time(max(0.0, at - now), 0.0)
            )
        if core.residency.keeps(group, wait):
            at = max(at, wait.since + core.rules.keep_patience)
        return size, Time(max(0.0, at - now), 0.0)

    def _stint(self, core: Core, group: Group) -> Time:
        """Return how long a group will use the GPU once it is served."""
        found = self._expected.get(group.id)
        if found is None:
            last = core.residency.quantum_of(group) + group.footprint_cost
            found = self._expected[group.id] = self._left(group, 0.0, last)
        return found

    def _left(self, group: Group, elapsed: float, last: float) -> Time:
        """Return for how long a group will go on after so many seconds, at most until ``last``."""
        lengths: Sequence[float] = self._lengths.get(group.id, ())
        left = [min(one - elapsed, last) for one in lengths if one > elapsed]
        # One that has not ended yet may go on for as long as it may: the less likely, the more is known.
        doubt = 1.0 / (1 + len(left))
        mean = (sum(left) + doubt * last) / (len(left) + doubt)
        variance = sum((one - mean) ** 2 for one in left) + doubt * (last - mean) ** 2
        variance = variance / (len(left) + doubt) + doubt * (last / 3) ** 2
        return Time(mean, variance)


def _estimate(walk: Time, interval: tuple[float, float, float], least: float) -> Estimate:
    deviation = math.sqrt(walk.variance)
    low, seconds, high = (max(0.0, walk.mean + part * deviation) for part in interval)
    # To hundredths of a second, outwards: nobody sees less.
    seconds = max(round(seconds, 2), least)
    return Estimate(seconds, math.floor(low * 100) / 100, max(math.ceil(high * 100) / 100, seconds))


def _need(core: Core, wait: Wait, room: Room) -> int:
    """Return the room that it will need: what leaves the GPU by then has to come back."""
    need = core.model.need(wait, room.gpu)
    if wait.grow is None:
        need += room.lost.get(wait.group.id, 0)
        if room.leaving:
            need += wait.group.shares[room.gpu.uuid].leaving
    return need


def _either(chance: float, one: Time, other: Time) -> Time:
    """Return what is ``one`` with this chance, and else ``other``."""
    mean = chance * one.mean + (1 - chance) * other.mean
    spread = chance * (1 - chance) * (one.mean - other.mean) ** 2
    return Time(mean, chance * one.variance + (1 - chance) * other.variance + spread)
