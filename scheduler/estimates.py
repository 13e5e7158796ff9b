# SPDX-License-Identifier: BSD-3-Clause
"""How long those that wait will wait: a walk along the queue, and how far earlier walks were off.

The walk
    Each holder is expected to make way after as long as it has lately used the GPU at a stretch (its *stint*), given
    how long it has been at it, and at the end of its quantum at the latest. Those that wait get their room in the
    queue's order, each as soon as enough of those before it made way, and then hold it for a stint of their own. Every
    step has a mean and a variance, which add up along the queue.

The interval
    How far such walks were off, in standard deviations, is kept for the first, the second and the later places; the
    interval reaches between the quantiles of the last of these that leave a tenth out.
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
    from .core import Core
    from .state import Gpu, Group, Share, Wait
    from .timeline import Glimpse

#: Of so many waits at each place, and so many stints of each group, is learned.
WAITS, STINTS = 200, 16
#: How far off walks are taken to be until enough is known, in standard deviations: wide.
PRIOR = (-3.0, -2.0, -1.2, -0.7, -0.3, 0.0, 0.2, 0.5, 1.0, 1.6, 2.5, 4.0, 6.0)
#: Chance that a group goes on after a pause until it is known, and how much each pause counts for that.
DOUBT = 0.1
#: Share of the waits that fall outside on either side.
TAIL = 0.05
#: Seconds: no forecast is more certain than this, for want of knowing what the machine does meanwhile.
FINEST = 0.005
#: Forecasts are of a class each: by the place, from 0 to the later ones; and, since they wait for nothing but the
#: machine, those that are to be served within so many seconds.
LATER, AT_ONCE, SOON = 2, 3, 0.1
#: Nor more certain than this part of itself.
COARSE = 0.1


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


@dataclass(slots=True)
class Room:
    """The walk's idea of one GPU."""

    free: int
    #: Who makes way when, earliest first: mean, a number that breaks ties, variance, bytes, group.
    ways: list[tuple[float, int, float, int, Group]]
    #: When the last one in the queue is served; and when its memory is in, from when room is made for another.
    served: Time = NOW
    filled: float = 0.0
    place: int = 0


@dataclass(slots=True)
class Residuals:
    """How far walks were off: the last ones, with the prior among them."""

    ordered: list[float] = field(default_factory=lambda: list(PRIOR))
    recent: deque[float] = field(default_factory=lambda: deque(PRIOR))

    def add(self, value: float) -> None:
        """Take in one more, in standard deviations."""
        insort(self.ordered, value)
        self.recent.append(value)
        if len(self.recent) > WAITS:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

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
        #: Somebody waits for whom nothing was forecast yet.
        self.due = False

    # --- Learning ---------------------------------------------------------------------------------

    def see(self, seen: Glimpse) -> None:
        """Take in how a group stands."""
        group = seen.group
        if seen.left:
            self._stints.pop(group, None)
            self._lengths.pop(group, None)
            self._persistence.pop(group, None)
            self._waits.pop(group, None)
            return
        self._see_stint(seen)
        if seen.waited_since is not None:
            if group not in self._waits:
                self._waits[group] = None
                self.due = True
            return
        shown = self._waits.pop(group, None)
        # Whoever has no lease now was cancelled.
        if shown is not None and seen.leased:
            off = seen.time - shown.at - shown.walk.mean
            self._residuals[shown.kind].add(off / math.sqrt(shown.walk.variance))

    def _see_stint(self, seen: Glimpse) -> None:
        group, stint = seen.group, self._stints.get(seen.group)
        if seen.ran_since is not None and seen.leased:
            if stint is not None and stint.end is not None:
                went_on = seen.ran_since < stint.end
                self._learn_pause(group, went_on)
                if went_on:
                    stint.end = None
                else:
                    self._learn(group, stint.end - stint.begin)
                    stint = None
            if stint is None:
                self._stints[group] = Stint(seen.ran_since)
        elif stint is not None:
            if not seen.leased:
                if stint.end is not None:
                    self._learn_pause(group, False)
                end = seen.time if stint.end is None else min(seen.time, stint.end)
                self._learn(group, end - stint.begin)
                del self._stints[group]
            elif stint.end is None:
                stint.end = max(seen.time, seen.movable_at)

    def _learn(self, group: str, length: float) -> None:
        self._lengths.setdefault(group, deque(maxlen=STINTS)).append(length)

    def _learn_pause(self, group: str, went_on: bool) -> None:
        before = self._persistence.get(group, DOUBT)
        self._persistence[group] = before + (went_on - before) * DOUBT

    # --- Forecasting ------------------------------------------------------------------------------

    def estimates(self, core: Core, now: float) -> dict[str, Estimate]:
        """Return what can be said about those that wait, by group."""
        self.due = False
        found: dict[str, Estimate] = {}
        for wait, walk, kind in self._walk(core, now):
            group = wait.group.id
            if group in found:
                continue
            if group in self._waits and self._waits[group] is None:
                self._waits[group] = Shown(now, walk, kind)
            found[group] = self._estimate(walk, self._residuals[kind])
        return found

    def _estimate(self, walk: Time, residuals: Residuals) -> Estimate:
        deviation = math.sqrt(walk.variance)
        low, seconds, high = (
            max(0.0, walk.mean + residuals.quantile(part) * deviation)
            for part in (TAIL, 0.5, 1 - TAIL)
        )
        # To hundredths of a second, outwards: nobody sees less.
        return Estimate(round(seconds, 2), math.floor(low * 100) / 100, math.ceil(high * 100) / 100)

    def _walk(self, core: Core, now: float) -> list[tuple[Wait, Time, int]]:
        """Return when those that wait are served, as far as can be said, and the class of each forecast."""
        rooms: dict[str, Room] = {}
        lost: dict[tuple[str, str], int] = {}
        found: list[tuple[Wait, Time, int]] = []
        for wait in core.queue:
            if wait.frozen:
                continue
            gpus = [core.gpus[uuid] for uuid in core.uuids(wait)]
            for gpu in gpus:
                if gpu.uuid not in rooms:
                    rooms[gpu.uuid] = self._room(core, gpu, wait, now)
            on = [(gpu, rooms[gpu.uuid]) for gpu in gpus]
            served = self._serve(core, wait, on, lost, now)
            if served is None:
                continue
            place = max((room.place for _, room in on), default=0)
            for _, room in on:
                room.place += 1
            deviation = max(FINEST, COARSE * served.mean)
            walk = Time(served.mean, served.variance + deviation * deviation)
            found.append((wait, walk, AT_ONCE if served.mean < SOON else min(place, LATER)))
        return found

    def _serve(
        self,
        core: Core,
        wait: Wait,
        rooms: list[tuple[Gpu, Room]],
        lost: dict[tuple[str, str], int],
        now: float,
    ) -> Time | None:
        """Return when one that waits is served; None if it cannot be said."""
        group = wait.group
        served = Time(max(0.0, wait.not_before - now), 0.0)
        for gpu, room in rooms:
            need = _need(core, wait, gpu, lost)
            if core.anti_thrash == "on" and wait.grow is None:
                # One at a time: whoever is there has to go.
                need = room.free + sum(way[3] for way in room.ways if way[4] is not group)
            served = max(served, room.served)
            if need > room.free:
                served = max(served, Time(room.filled, 0.0))
            own: list[tuple[float, int, float, int, Group]] = []
            while need > room.free and room.ways:
                way = heapq.heappop(room.ways)
                if way[4] is group and wait.grow is None:
                    own.append(way)
                    continue
                room.free += way[3]
                served = max(served, Time(way[0], way[2]))
                if way[4].wait is not None and way[4].lease is None:
                    key = (way[4].id, gpu.uuid)
                    lost[key] = lost.get(key, 0) + way[3]
            if need > room.free:
                for way in own:
                    heapq.heappush(room.ways, way)
                return None
        stint = self._stint(core, group)
        for gpu, room in rooms:
            need = _need(core, wait, gpu, lost)
            room.free -= need
            room.served = served
            room.filled = served.mean + max(0, need) / gpu.bandwidth
            if wait.grow is None:
                share = group.shares[gpu.uuid]
                room.ways = [way for way in room.ways if way[4] is not group]
                heapq.heapify(room.ways)
                until = Time(served.mean + stint.mean, served.variance + stint.variance)
                heapq.heappush(
                    room.ways, (until.mean, -group.number, until.variance, share.goal, group)
                )
        return served

    def _room(self, core: Core, gpu: Gpu, wait: Wait, now: float) -> Room:
        """Return how things stand on one GPU, and who will make way when for the first that waits."""
        ways = []
        for share in gpu.shares.values():
            size, when = self._way(core, share, wait, now)
            if size > 0:
                group = share.group
                ways.append((when.mean, group.number, when.variance, size, group))
        heapq.heapify(ways)
        return Room(gpu.free - gpu.owed + gpu.leaving, ways)

    def _way(self, core: Core, share: Share, wait: Wait, now: float) -> tuple[int, Time]:
        group = share.group
        size = share.resident + share.arriving + share.missing
        at = core.movable_at(group, wait)
        if group.lease is None:
            size = share.resident - share.evicting
        elif group.yielding:
            at = now
        elif group.runs or at > now:
            stint = self._stints.get(group.id)
            elapsed = 0.0 if stint is None else now - stint.begin
            last = max(0.0, core.quantum_end(group, wait) - now)
            left = self._left(group, elapsed, last)
            if group.runs:
                return size, left
            return size, _either(
                self._persistence.get(group.id, DOUBT), left, Time(max(0.0, at - now), 0.0)
            )
        if core.keeps(group, wait):
            at = max(at, wait.since + core.keep_patience)
        return size, Time(max(0.0, at - now), 0.0)

    def _stint(self, core: Core, group: Group) -> Time:
        """Return how long a group will use the GPU once it is served."""
        return self._left(group, 0.0, core.quantum_of(group) + core.move_cost(group))

    def _left(self, group: Group, elapsed: float, last: float) -> Time:
        """Return for how long a group will go on after so many seconds, at most until ``last``."""
        lengths: Sequence[float] = self._lengths.get(group.id, ())
        # One that has not ended yet may go on for as long as it may.
        left = [last, *(min(one - elapsed, last) for one in lengths if one > elapsed)]
        mean = sum(left) / len(left)
        variance = sum((one - mean) ** 2 for one in left) / len(left)
        if len(left) < 3:
            variance += (last / 3) ** 2
        return Time(mean, variance)


def _need(core: Core, wait: Wait, gpu: Gpu, lost: dict[tuple[str, str], int]) -> int:
    """Return the room that it will need: what leaves the GPU by then has to come back."""
    need = core.need(wait, gpu)
    if wait.grow is None:
        share = wait.group.shares[gpu.uuid]
        need += share.evicting + lost.get((wait.group.id, gpu.uuid), 0)
    return need


def _either(chance: float, one: Time, other: Time) -> Time:
    """Return what is ``one`` with this chance, and else ``other``."""
    mean = chance * one.mean + (1 - chance) * other.mean
    spread = chance * (1 - chance) * (one.mean - other.mean) ** 2
    return Time(mean, chance * one.variance + (1 - chance) * other.variance + spread)
