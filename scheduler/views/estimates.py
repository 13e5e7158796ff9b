# SPDX-License-Identifier: BSD-3-Clause
"""Estimates how long waits will last: a walk along the queue, corrected by the errors of earlier walks.

The walk
    A group that uses the GPU without a break has a *stint*. Each holder is expected to make way when its stint is as
    long as its recent ones, and at the end of its quantum at the latest. Waiting groups get their room in the queue's
    order. Each gets it as soon as enough groups before it made way, and then holds it for a stint of its own. Every
    step has a mean and a variance, which add up along the queue.

The interval
    The errors of such walks are kept in standard deviations, for the first, the second and the later places. The
    interval reaches between the quantiles of the last errors that leave a tenth out. So it is as wide as needed,
    however wrong the walks are, provided that they stay wrong in the same way (conformal prediction with normalised
    residuals).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from .cell_times import CellTimes

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.model import Gpu, Group, Share, Wait
    from .timeline import GroupSnapshot

#: The number of waits at each place, and of stints of each group, that are remembered.
WAITS, STINTS = 200, 16
#: The assumed errors of walks until enough were measured, in standard deviations: wide.
PRIOR = (-3.0, -2.4, -1.8, -1.2, -0.7, -0.3, 0.0, 0.1, 0.3, 0.6, 1.0, 1.8, 3.0)
#: The probability that a group continues after a pause, until pauses were observed; and the weight of each pause.
DOUBT = 0.1
#: The fraction of the waits that fall outside the interval on either side.
TAIL = 0.05
#: Seconds: no forecast is more certain than this, because the machine also does other things.
FINEST = 0.005
#: Nor is it more certain than this fraction of itself, and this fraction of the typical error of its class. The last
#: number is the weight of each wait in the typical error.
COARSE, PART, TYPICAL = 0.1, 0.6, 0.05
#: The classes of forecasts: by the place in the queue, from 0 to the later ones; and a class for waits that are to be
#: served within so many seconds, because they wait for nothing but the machine.
LATER, AT_ONCE, SOON = 2, 3, 0.1


class LearntErrors(Struct, frozen=True, array_like=True):
    """The errors of the last walks in standard deviations, oldest first; and their typical size in seconds."""

    recent: tuple[float, ...]
    typical: float


class LearntForecast(Struct, frozen=True, omit_defaults=True):
    """What a forecast has learnt, for that of the next scheduler."""

    #: By group: the lengths of its stints and cells, and how often it continues after a pause.
    stints: dict[str, tuple[float, ...]] = {}
    cells: dict[str, tuple[float, ...]] = {}
    persistence: dict[str, float] = {}
    #: By class of forecasts.
    errors: tuple[LearntErrors, ...] = ()


class Estimate(NamedTuple):
    """Seconds until a wait is served, and the interval in which nine of ten such waits end."""

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
    """A time for which a group uses the GPU without a break, until others could have its room."""

    begin: float
    #: When others could have its room unless it continues before; None: it is busy.
    end: float | None = None


@dataclass(slots=True)
class FirstForecast:
    """The first forecast for a wait."""

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
    #: Whether this is what the group has now, rather than what it will have when it is served.
    now: bool


@dataclass(slots=True)
class Room:
    """The state of one GPU during the walk."""

    gpu: Gpu
    #: Bytes that are being evicted, and bytes that are free afterwards.
    leaving: int
    free: int
    #: The groups that make way, earliest first.
    ways: list[Way]
    #: When the last wait so far is served; and when its memory is resident, so that room is made for another.
    served: Time = NOW
    filled: float = 0.0
    #: The number of waits that are served before, up to ``LATER``.
    place: int = 0
    #: Groups that were served in the walk, so that their present memory does not count; and the bytes that other
    #: waiting groups lose.
    moved: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Residuals:
    """The errors of the last walks, and of the prior."""

    ordered: list[float] = field(default_factory=lambda: list(PRIOR))
    recent: deque[float] = field(default_factory=lambda: deque(PRIOR))
    #: The recent average error, seconds.
    typical: float = 0.0

    def add(self, off: float, deviation: float) -> None:
        """Add an error in seconds, with the standard deviation of its forecast."""
        self.typical += (abs(off) - self.typical) * TYPICAL
        value = off / deviation
        insort(self.ordered, value)
        self.recent.append(value)
        if len(self.recent) > WAITS:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def learnt(self) -> LearntErrors:
        """Return these errors."""
        return LearntErrors(tuple(self.recent), self.typical)

    def recall(self, learnt: LearntErrors) -> None:
        """Apply the errors of another scheduler's walks, in place of these."""
        if learnt.recent:
            self.recent = deque(learnt.recent[-WAITS:])
            self.ordered, self.typical = sorted(self.recent), learnt.typical

    def interval(self) -> tuple[float, float, float]:
        """Return the ends and the middle of the interval."""
        return self.quantile(TAIL), self.quantile(0.5), self.quantile(1 - TAIL)

    def quantile(self, part: float) -> float:
        """Return the error below which this fraction of all errors is."""
        # One more on either side than the empirical quantile, because the next error is one of them.
        last = len(self.ordered) - 1
        at = math.floor(part * (last + 2)) - 1 if part < 0.5 else math.ceil(part * (last + 2)) - 1
        return self.ordered[min(max(at, 0), last)]


class Forecast:
    """Records how long groups use the GPU, and forecasts how long waits will last."""

    def __init__(self) -> None:
        self._stints: dict[str, Stint] = {}
        self._lengths: dict[str, deque[float]] = {}
        #: By group: how often it continues after a pause before others could have its room.
        self._persistence: dict[str, float] = {}
        self._cells = CellTimes()
        self._waits: dict[str, FirstForecast | None] = {}
        self._residuals = tuple(Residuals() for _ in range(AT_ONCE + 1))
        #: How long a group will use the GPU once it is served, and the settings for which this holds.
        self._expected: dict[str, Time] = {}
        self._quantum: object = None
        #: Whether there is a wait without a forecast.
        self.due = False

    # --- Observing --------------------------------------------------------------------------------

    def observe(self, seen: GroupSnapshot) -> None:
        """Apply the new state of a group."""
        group = seen.group
        self._expected.pop(group, None)
        self._cells.observe(seen)
        if seen.left:
            self.forget(group)
            return
        self._observe_stint(seen)
        if seen.waited_since is not None:
            if group not in self._waits:
                self._waits[group] = None
                self.due = True
            return
        shown = self._waits.pop(group, None)
        # Without a lease, the wait was cancelled.
        if shown is not None and seen.leased:
            off = seen.time - shown.at - shown.walk.mean
            self._residuals[shown.kind].add(off, math.sqrt(shown.walk.variance))

    def forget(self, group: str) -> None:
        """Forget a group that has left."""
        self._stints.pop(group, None)
        self._lengths.pop(group, None)
        self._persistence.pop(group, None)
        self._waits.pop(group, None)
        self._cells.forget(group)

    def learnt(self) -> LearntForecast:
        """Return what was learnt."""
        return LearntForecast(
            {group: tuple(lengths) for group, lengths in self._lengths.items()},
            self._cells.learnt(),
            dict(self._persistence),
            tuple(errors.learnt() for errors in self._residuals),
        )

    def recall(self, learnt: LearntForecast) -> None:
        """Apply what another scheduler has learnt."""
        for group, lengths in learnt.stints.items():
            self._lengths[group] = deque(lengths, maxlen=STINTS)
        self._cells.recall(learnt.cells)
        self._persistence.update(learnt.persistence)
        for errors, found in zip(self._residuals, learnt.errors, strict=False):
            errors.recall(found)

    def _observe_stint(self, seen: GroupSnapshot) -> None:
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
        """Return the estimates for waiting groups, by group. Some waits cannot be estimated."""
        self.due = False
        found: dict[str, Estimate] = {}
        for wait, one, walk, kind in self._estimates(core, now, core.queue):
            group = wait.group.id
            if self._waits.get(group, walk) is None:
                self._waits[group] = FirstForecast(now, walk, kind)
            found[group] = one
        return found

    def foresee(
        self, core: Core, now: float, queue: Sequence[Wait], asked: Wait
    ) -> Estimate | None:
        """Return the estimate for a wait that does not exist, as if it were in the queue; None: there is none.

        Parameters
        ----------
        core
            The core.
        now
            The time.
        queue
            The waits in order, including ``asked``.
        asked
            The wait that does not exist.
        """
        for wait, one, _, _ in self._estimates(core, now, queue, asked):
            if wait is asked:
                return one
        return None

    def _estimates(
        self, core: Core, now: float, queue: Sequence[Wait], asked: Wait | None = None
    ) -> Iterator[tuple[Wait, Estimate, Time, int]]:
        """Iterate over the first wait of each group: its estimate, from which walk, and the class of the forecast."""
        if (core.rules.quantum, core.policy.name) != self._quantum:
            self._quantum = core.rules.quantum, core.policy.name
            self._expected.clear()
        intervals = [one.interval() for one in self._residuals]
        seen: set[str] = set()
        before: dict[str, float] = {}
        for wait, walk, kind in self._walk(core, now, queue, asked):
            if wait.group.id in seen:
                continue
            seen.add(wait.group.id)
            # An estimate is at least that of the waits ahead, although the group may be served first.
            least = max((before.get(uuid, 0.0) for uuid in wait.gpus), default=0.0)
            one = _estimate(walk, intervals[kind], least)
            for uuid in wait.gpus:
                before[uuid] = one.seconds
            yield wait, one, walk, kind

    def _walk(
        self, core: Core, now: float, queue: Sequence[Wait], asked: Wait | None
    ) -> list[tuple[Wait, Time, int]]:
        """Return when waits are served, as far as that can be estimated, and the class of each forecast."""
        rooms: dict[str, Room] = {}
        found: list[tuple[Wait, Time, int]] = []
        for wait in queue:
            # A hibernated group wakes for the wait that is asked for, and so it counts.
            if wait is not asked and not wait.counts(core.turn.now):
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
        """Return when a wait is served; None: that cannot be estimated."""
        group = wait.group
        if wait.grow is None and group.restore_error is not None:
            return None  # only its process can tell when it gives up
        if wait.wakes and group.hibernation is not None and group.hibernation.lacked_room:
            return None  # it is not known what holds the room that should be there
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
                stint = self._stint(core, group, now)
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
        """Return the state of one GPU, and which groups will make way for its first wait, and when."""
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
            left = self._left_with_queue(core, group, elapsed, last, now)
            if group.runs or core.residency.expects_cell(group):
                return size, left
            return size, _either(
                self._persistence.get(group.id, DOUBT), left, Time(max(0.0, at - now), 0.0)
            )
        if core.residency.keeps(group, wait):
            at = max(at, wait.since + core.rules.keep_patience)
        return size, Time(max(0.0, at - now), 0.0)

    def _stint(self, core: Core, group: Group, now: float) -> Time:
        """Return for how long a group will use the GPU once it is served."""
        found = self._expected.get(group.id)
        if found is None or group.queued:
            last = core.residency.quantum_of(group) + group.footprint_cost
            found = self._left_with_queue(core, group, 0.0, last, now)
            if not group.assumed:
                self._expected[group.id] = found
        return found

    def _left_with_queue(
        self, core: Core, group: Group, elapsed: float, last: float, now: float
    ) -> Time:
        """Return for how many more seconds a group will use the GPU, with the cells that wait in its Jupyter kernel."""
        left = self._left(group, elapsed, last)
        queued, usual = core.residency.queued_cells(group), self._cells.usual(group.id)
        if not queued or usual is None:
            return left
        mean, variance = usual
        # The open cell takes the rest of the usual time, if there is one.
        rest = max(0.0, mean - self._cells.so_far(group.id, now)) if group.cells else 0.0
        total = rest + queued * mean
        if total < left.mean and any(one > elapsed for one in self._lengths.get(group.id, ())):
            return left  # after these cells, others usually follow
        # Beyond the limit, only cells that are much shorter than usual, or a failing cell, make a difference.
        beyond = max(0.0, total - last)
        spread = max(0.0, (queued + bool(group.cells)) * variance - beyond * beyond)
        total = min(total, last)
        return Time(total, spread + (DOUBT * total) ** 2)

    def _left(self, group: Group, elapsed: float, last: float) -> Time:
        """Return for how many more seconds a group will use the GPU, at most ``last``."""
        lengths: Sequence[float] = self._lengths.get(group.id, ())
        left = [min(one - elapsed, last) for one in lengths if one > elapsed]
        # The stint may also last until the limit. That is less likely the more lengths were recorded.
        doubt = 1.0 / (1 + len(left))
        mean = (sum(left) + doubt * last) / (len(left) + doubt)
        variance = sum((one - mean) ** 2 for one in left) + doubt * (last - mean) ** 2
        variance = variance / (len(left) + doubt) + doubt * (last / 3) ** 2
        return Time(mean, variance)


def _estimate(walk: Time, interval: tuple[float, float, float], least: float) -> Estimate:
    deviation = math.sqrt(walk.variance)
    low, seconds, high = (max(0.0, walk.mean + part * deviation) for part in interval)
    # Rounded outwards to hundredths of a second, because no page shows more digits.
    seconds = max(round(seconds, 2), least)
    return Estimate(seconds, math.floor(low * 100) / 100, max(math.ceil(high * 100) / 100, seconds))


def _need(core: Core, wait: Wait, room: Room) -> int:
    """Return the room that a wait will need, including what is evicted before and must be restored."""
    need = core.model.need(wait, room.gpu)
    if wait.grow is None:
        # Without a wait for it, no room is made yet for what its hibernated clients need.
        need += 0 if wait.queued else wait.group.shares[room.gpu.uuid].asleep
        need += room.lost.get(wait.group.id, 0)
        if room.leaving:
            need += wait.group.shares[room.gpu.uuid].leaving
    return need


def _either(chance: float, one: Time, other: Time) -> Time:
    """Return a mixture: ``one`` with this probability, otherwise ``other``."""
    mean = chance * one.mean + (1 - chance) * other.mean
    spread = chance * (1 - chance) * (one.mean - other.mean) ** 2
    return Time(mean, chance * one.variance + (1 - chance) * other.variance + spread)
