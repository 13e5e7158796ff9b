# SPDX-License-Identifier: BSD-3-Clause
"""How good the estimates of waits are: the scheduler's core with people and their programs, in virtual time.

Each wait is compared with the first estimate that was shown for it. What people do is drawn at random, with a fixed
seed: lengths of cells and pauses are log-normal, so that a few take very long.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from ...scheduler.core import messages as ev
from ...scheduler.core.core import Core
from ...scheduler.core.rules import Rules
from ...scheduler.policies import REGISTRY
from ...scheduler.views.estimates import Estimate, Forecast
from ...scheduler.views.timeline import Ledger, take_snapshot
from ..harness.figures import Figure, quartile_distance

GIB = 1 << 30
GPU = "GPU-0"
TOTAL = 80 * GIB
#: Bytes per second of moves, each way, and how much moves at a time.
SPEED, PIECE = 25e9, 4 * GIB
#: While others wait, a burst is over after this time without work, in seconds.
QUIET = 0.008
#: Seconds of each mix.
LONG = 2 * 3600.0
GOAL = 0.8


class Cell(NamedTuple):
    """Pieces of work on the GPU and on the CPU in turn, in seconds, and the pause after the cell."""

    pieces: list[float]
    pause: float


#: The cells of one notebook, without an end.
Cells = Iterator[Cell]


@dataclass(frozen=True)
class Wait:
    """One wait, and what was first shown for it."""

    waited: float
    shown: Estimate

    @property
    def inside(self) -> bool:
        """Whether it ended within the interval."""
        return self.shown.low <= self.waited <= self.shown.high


@dataclass(eq=False)
class Notebook:
    """A notebook's process, as the core sees it."""

    world: World
    number: int
    cells: Cells
    usage: ev.Usage
    lease: int | None = None
    #: What is left of the open cell; work on the GPU and on the CPU in turn, GPU first.
    pieces: list[float] = field(default_factory=list)
    pause: float = 0.0
    cell: int = 0
    #: Work on the GPU goes on since then; it waits for the lease; others wait for it.
    since: float | None = None
    waiting: bool = False
    contended: int = 0
    #: How much may be in under a lease that fills, and how much came in.
    limit: int = ev.ALL
    came: int = 0
    arriving: bool = False
    moving: bool = False
    turn: int = 0

    @property
    def group(self) -> str:
        """Its lease group."""
        return f"n{self.number}"

    def say(self, event: ev.Event) -> None:
        """Tell the core."""
        self.world.feed(event)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something after some time, unless a lease came or went meanwhile."""
        turn = self.turn
        self.world.after(seconds, lambda: what() if turn == self.turn else None)

    # --- Its program ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the next cell."""
        self.pieces, self.pause = next(self.cells)
        self.pieces = list(self.pieces)
        self.cell += 1
        self.say(ev.Cell(self.group, "begin", str(self.cell), self.world.now, from_kernel=True))
        self.submit()

    def submit(self) -> None:
        """Want the GPU."""
        if self.lease is None:
            self.waiting = True
            self.say(ev.Request(self.number, 1))
        else:
            self.say(ev.Burst(self.number, "begin", "none", self.world.now))
            self.work()

    def work(self) -> None:
        """Use the GPU."""
        self.since = self.world.now
        self.later(self.pieces[0], self.stop)

    def stop(self) -> None:
        """End a piece of work on the GPU."""
        self.since = None
        self.turn += 1
        del self.pieces[0]
        if self.pieces:
            cpu = self.pieces.pop(0)
            self.world.after(cpu, self.submit)
            if cpu > QUIET:
                self.later(QUIET, self.quiet)
            return
        self.say(ev.Burst(self.number, "end", "cell", self.world.now))
        self.say(ev.Cell(self.group, "end", str(self.cell), self.world.now, from_kernel=True))
        self.world.after(self.pause, self.begin)

    def quiet(self) -> None:
        """Report the end of the burst if another group is waiting; otherwise check again later."""
        if self.lease is not None and self.since is None:
            if self.contended:
                self.say(ev.Burst(self.number, "end", "quiet", self.world.now))
            else:
                self.later(QUIET, self.quiet)

    # --- What the core decides --------------------------------------------------------------------

    def hear(self, decision: ev.Decision) -> None:
        """Obey."""
        match decision:
            case ev.Grant():
                self.lease, self.waiting = decision.lease, False
                self.turn += 1
                self.limit = self.usage.resident if decision.filling else ev.ALL
                self.came, self.arriving = 0, True
                self.arrive()
            case ev.Room():
                self.limit = decision.resident
                if self.arriving and not self.moving:
                    self.arrive()
            case ev.Revoke():
                self.revoke()
            case ev.Evict():
                size = min(decision.bytes, self.usage.resident)
                self.leave(decision, size, 0, self.world.now)
            case ev.Contended():
                self.contended = decision.waiting

    def revoke(self) -> None:
        """Give the lease back; go on waiting if there is work left."""
        lease = self.lease
        if lease is None:
            return
        wants = self.arriving or self.since is not None
        if self.since is not None:
            self.pieces[0] = max(0.001, self.pieces[0] - (self.world.now - self.since))
        self.turn += 1
        self.since = None
        was_arriving, self.arriving = self.arriving, False

        def give_back() -> None:
            self.lease = None
            if was_arriving:
                self.say(self.restored(lease, "partial"))
            self.say(ev.Released(self.number, lease, "failed" if was_arriving else "revoke"))
            if wants:
                self.submit()

        self.world.after(self.world.random.uniform(0.0005, 0.03) if wants else 0.0005, give_back)

    def restored(self, lease: int, status: ev.MoveStatus) -> ev.Restored:
        """What came in."""
        size = self.came
        return ev.Restored(self.number, lease, self.usage, size, size, size / SPEED, status)

    def arrive(self) -> None:
        """Bring the next piece in, or begin to work."""
        usage, lease = self.usage, self.lease
        if not self.arriving or lease is None:
            return
        lack = usage.promised - usage.resident
        piece = min(PIECE, lack, self.limit - usage.resident)
        if lack == 0:
            self.arriving = False
            self.say(self.restored(lease, "done"))
            if self.lease == lease and self.since is None:
                self.work()
        elif piece > 0:
            self.moving = True
            self.world.after(piece / self.world.speed(), lambda: self.arrived(piece, lease))

    def arrived(self, piece: int, lease: int) -> None:
        """Have one more piece on the GPU."""
        self.moving = False
        if self.lease == lease and self.arriving:
            self.came += piece
            self.change(piece)
            self.arrive()

    def change(self, more: int) -> None:
        """Have more on the GPU, or less."""
        usage = self.usage
        self.usage = replace(usage, resident=usage.resident + more, host=usage.host - more)

    def leave(self, order: ev.Evict, size: int, done: int, begun: float) -> None:
        """Move the next piece out, or say that all is out."""
        if done >= size:
            took = self.world.now - begun
            self.say(ev.Evicted(self.number, order.serial, self.usage, done, done, took, "done"))
            return
        piece = min(PIECE, size - done)

        def left() -> None:
            self.change(-piece)
            if done + piece < size:
                took = self.world.now - begun
                self.say(
                    ev.Moving(
                        self.number, order.serial, self.usage, done + piece, done + piece, took,
                        "done",
                    )
                )  # fmt: skip
            self.leave(order, size, done + piece, begun)

        self.world.after(piece / self.world.speed(), left)


class World:
    """A GPU, notebooks and a clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.core = Core(REGISTRY, Rules(bandwidth=SPEED))
        self.ledger, self.forecast = Ledger(), Forecast()
        self.notebooks: dict[int, Notebook] = {}
        self.waits: list[Wait] = []
        self._shown: dict[str, tuple[float, Estimate | None]] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.feed(self.reading())
        self.feed(ev.HostMemory(1000 * GIB))

    def speed(self) -> float:
        """Bytes per second of a move."""
        return SPEED * self.random.uniform(0.8, 1.0)

    def notebook(self, share: float, cells: Cells) -> None:
        """Open a notebook whose memory is this part of the GPU."""
        number = len(self.notebooks) + 1
        size = int(share * TOTAL)
        usage = ev.Usage(GPU, promised=size, context=GIB // 2, host=size)
        one = self.notebooks[number] = Notebook(self, number, cells, usage)
        self.feed(ev.Attach(number, number, one.group, one.group, "swap", usages=(usage,)))
        self.after(self.random.uniform(0, 20), one.begin)

    def reading(self) -> ev.Device:
        """What NVML says."""
        usages = [one.usage for one in self.notebooks.values()]
        return ev.Device(GPU, TOTAL, sum(u.resident + u.context for u in usages), GPU, 0)

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something later."""
        self._number += 1
        heapq.heappush(self._agenda, (self.now + seconds, self._number, what))

    def feed(self, event: ev.Event) -> None:
        """Give an event to the core, as the server does; carry out what it decides."""
        decisions = self.core.handle(event, self.now)
        groups = {d.group: None for d in decisions if isinstance(d, ev.Log)}
        for group in groups:
            self._see(group)
        if self.forecast.due:
            estimates = self.forecast.estimates(self.core, self.now)
            for group, (since, shown) in self._shown.items():
                self._shown[group] = (since, shown or estimates.get(group))
        at_once = False
        for decision in decisions:
            if isinstance(decision, ev.ReadDevice) and decision.after <= 0:
                at_once = True
            elif isinstance(decision, ev.ReadDevice):
                self.after(decision.after, lambda: self.feed(self.reading()))
            elif not isinstance(decision, ev.Log | ev.PreparePool | ev.Spill | ev.Fetch):
                one = self.notebooks[decision.client]
                self.after(0.0, lambda one=one, what=decision: one.hear(what))  # type: ignore[misc]
        if at_once:
            self.feed(self.reading())

    def _see(self, group: str) -> None:
        seen = self.ledger.observe(take_snapshot(self.core, group, self.now))
        self.forecast.observe(seen)
        if seen.waited_since is not None:
            self._shown.setdefault(group, (self.now, None))
        elif group in self._shown:
            at, shown = self._shown.pop(group)
            if shown is not None and seen.leased:
                self.waits.append(Wait(self.now - at, shown))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while True:
            deadline = self.core.deadline()
            due = self._agenda[0][0] if self._agenda else math.inf
            if min(due, math.inf if deadline is None else deadline) > end:
                return
            if deadline is not None and deadline < due:
                self.now = max(self.now, deadline)
                self.feed(ev.Tick())
            else:
                at, _, what = heapq.heappop(self._agenda)
                self.now = max(self.now, at)
                what()


# --- What people do -------------------------------------------------------------------------------


def _around(world: World, median: float, spread: float = 1.0) -> float:
    return median * math.exp(world.random.gauss(0.0, spread))


def student(world: World, work: float = 2.0, pause: float = 15.0) -> Cells:
    """Run a cell, look at the result, think."""
    while True:
        yield Cell([_around(world, work, 1.2)], _around(world, pause))


def trainer(world: World, hours: float = 0.3) -> Cells:
    """Train: on the GPU nearly all the time."""
    while True:
        pieces = []
        for _ in range(int(hours * 3600 / 30) + 1):
            pieces += [_around(world, 30, 0.2), _around(world, 0.5)]
        yield Cell(pieces[:-1], _around(world, 60))


def run_all(world: World) -> Cells:
    """Run all cells, one after the other; then think."""
    while True:
        cells = world.random.randint(10, 40)
        for left in reversed(range(cells)):
            yield Cell([_around(world, 0.5)], 0.004 if left else _around(world, 40))


def _students(world: World) -> None:
    for _ in range(8):
        world.notebook(0.3, student(world))


def _trainer(world: World) -> None:
    world.notebook(0.6, trainer(world))
    for _ in range(4):
        world.notebook(0.45, student(world))


def _run_alls(world: World) -> None:
    for _ in range(5):
        world.notebook(0.4, run_all(world))


def _all_sizes(world: World) -> None:
    for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
        world.notebook(share, student(world, 4.0))
    world.notebook(0.4, run_all(world))


def _trainers(world: World) -> None:
    for _ in range(3):
        world.notebook(0.7, trainer(world))


MIXES: dict[str, Callable[[World], None]] = {
    "students": _students,
    "a trainer and students": _trainer,
    "all run all": _run_alls,
    "all sizes": _all_sizes,
    "trainers": _trainers,
}


def waits(mix: str, seconds: float = LONG, seed: int = 1) -> list[Wait]:
    """Return the waits of one mix."""
    world = World(seed)
    MIXES[mix](world)
    world.run(seconds)
    return world.waits


def run() -> Iterator[Figure]:
    """For each mix: the share of waits that ended within the interval first shown, and its width."""
    for mix in MIXES:
        found = waits(mix)
        yield from _figures(mix, found)
        yield from _figures(f"{mix}, beyond 1 s", [one for one in found if one.waited > 1.0])


def _figures(mix: str, found: list[Wait]) -> Iterator[Figure]:
    if not found:
        return
    inside = sum(one.inside for one in found) / len(found)
    yield Figure(
        "estimates", f"{mix}: inside", inside, "", None, len(found), 0.0, GOAL, at_least=True
    )
    for metric, values in (
        ("width", [one.shown.high - one.shown.low for one in found]),
        ("waited", [one.waited for one in found]),
    ):
        median, spread = statistics.median(values), quartile_distance(values)
        yield Figure("estimates", f"{mix}: {metric}", median, "s", None, len(values), spread)
