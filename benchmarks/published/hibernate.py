# SPDX-License-Identifier: BSD-3-Clause
"""What hibernation gives and costs, compared with the driver's checkpoint alone and with what is possible, in one run.

- ``memory``: bytes of the GPU that a hibernated kernel uses, compared with an idle, evicted kernel.
- ``out``: from the request to hibernate a kernel that holds 24 GiB until that is done; compared with the driver's
  checkpoint of a process that holds as much, and with what is possible: a page-locked copy, and a checkpoint of a
  process that holds nothing.
  Then the same of a kernel that was evicted and has been idle, so that it has no page-locks any more.
- ``wake``: from the beginning of that kernel's next cell to the end of its first GPU kernel, on a GPU that is free.
- ``crowd``: the requested number of kernels, with 0.5 GiB each, under 6 GiB of the GPU (the scheduler keeps the rest).
  A tenth of them run cells at any time. Compared with how many fit without hibernation.
- ``cycles``: some kernels at once are hibernated and woken again and again under random cells, some of them interrupted
  while a kernel wakes; every byte is compared after each. Another ``--seed`` draws other cells.
- ``elsewhere``, where it is named: a kernel is woken on another GPU of the same name again and again, since its own is
  drained; every byte is compared. Compared with the same where it was.
- ``pages``, where it is named: what page-locked host memory costs a checkpoint (``pages.py``).
- ``mapping``, where it is named: which ranges of addresses can be mapped after a checkpoint (``ranges.py``).

::

    gpushare bench hibernate --json
    gpushare bench hibernate --part out wake --gib 24

Kernels are PyTorch processes on a real GPU. On the simulated driver they call the driver, sizes are a 128th, and times
say nothing about a GPU. Ends within ``--time-limit``, and ends what it started. A goal that was missed is said on
standard error; a byte that differs is a failure.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...scheduler.protocol.client import ControlError
from ..experiments.pages import pages
from ..experiments.ranges import mapping
from ..harness.figures import Figure, percentile, quartile_distance, warn_if_missed
from ..harness.hibernation import Clock, Scene, scene_of
from ..harness.machine import MIB
from ..programs.sleeper import FIRST, Kernel

GIB = 1 << 30
PARTS = ("memory", "out", "wake", "crowd", "cycles", "elsewhere", "pages", "mapping")
#: Those that are run only where they are named.
NAMED = ("elsewhere", "pages", "mapping")
#: GiB that are held in ``out`` and ``wake``; bytes of one tensor; how often, in addition to the first time.
HELD, TENSOR, ROUNDS = 24.0, 512 * MIB, 3
#: Bytes that a kernel holds whose use of the GPU is read.
LITTLE = 512 * MIB
#: A crowd: kernels, bytes that they may have of the GPU, and bytes of each; the same on the simulated driver.
KERNELS, CAP = 40, 6 * GIB
SIMULATED_KERNELS, SIMULATED_CAP = 100, 24 * GIB
DATA, BLOCK = 512 * MIB, 64 * MIB
#: Part of the kernels that are active; seconds for which they are; most passes over the data in a cell.
ACTIVE, SECONDS, SIMULATED_SECONDS, PASSES = 0.1, 60.0, 15.0, 40
#: Seconds of idleness after which a kernel of the crowd is hibernated although no other kernel lacks room.
AFTER = 600.0
#: Seconds that a newcomer waits until it is said not to fit; and that a process may take to start.
PATIENCE, STARTING = 4.0, 90.0
#: Kernels that start at once, at most; bytes of host memory that have to be free for another one on a real GPU.
AT_ONCE, HOST = 4, 8 * GIB
#: Cycles of all kernels together, the number of kernels that live through them, and bytes of each.
CYCLES, CYCLING, CYCLED = 200, 4, GIB
#: GiB of the kernel that changes GPUs, and how often it does.
CHANGING, CHANGES = 8.0, 6
#: Parts of the cycles in which the cell comes while the kernel is still on its way out, and in which it is interrupted.
EARLY, INTERRUPTED = 0.2, 0.2
#: Seconds after which all of it ends; and what is left of them for the end of a part.
LIMIT, ENDING = 1200.0, 30.0
#: Goals: bytes, seconds.
MEMORY_GOAL, TIME_GOAL, IDLE_GOAL, WAKE_GOAL = MIB, 1.0, 0.5, 0.8
#: Seconds for which page-locks may last after a kernel was evicted.
UNLOCKING = 60.0
#: Units of what there should be much of.
MANY = ("kernels", "cycles", "times")


def run(
    part: list[str] | None = None,
    gib: float = HELD,
    kernels: int | None = None,
    cycles: int = CYCLES,
    seconds: float | None = None,
    time_limit: float = LIMIT,
    seed: int = 1,
) -> Iterator[Figure]:
    """Measure.

    Parameters
    ----------
    part
        Which parts; all but ``elsewhere``, ``pages`` and ``mapping`` by default.
    gib
        What is held in ``out`` and ``wake``, and page-locked in ``pages``, GiB.
    kernels, seconds
        Of the crowd, and for how long it is active.
    cycles
        How many.
    time_limit
        Seconds after which all of it ends.
    seed
        What the cycles are drawn from.

    Raises
    ------
    ValueError
        If there is no such part.
    RuntimeError
        If a byte differs, a process ended, or the time was over.
    """
    chosen = part or [name for name in PARTS if name not in NAMED]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise ValueError(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    clock, faults = Clock(time_limit), list[str]()
    moves = [name for name in ("out", "wake") if name in chosen]
    todo: list[Iterator[Figure]] = []
    if "memory" in chosen:
        todo.append(_memory(clock, faults))
    if moves:
        todo.append(_moves(clock, faults, moves, gib))
    if "crowd" in chosen:
        todo.append(_crowd(clock, faults, kernels, seconds, "cycles" in chosen))
    if "cycles" in chosen:
        todo.append(_cycles(clock, faults, cycles, seed))
    if "elsewhere" in chosen:
        todo.append(_elsewhere(clock, faults))
    if "pages" in chosen:
        todo.append(pages(gib, clock.watch))
    if "mapping" in chosen:
        todo.append(mapping(clock.watch))
    try:
        for figures in todo:
            for figure in figures:
                yield figure
                warn_if_missed(figure)
    except (OSError, RuntimeError, ControlError) as error:
        if clock.left() <= 0:
            raise RuntimeError(
                f"it was not done within {clock.seconds:g} s; give it longer (--time-limit), or less to do (--part)"
            ) from error
        raise
    finally:
        clock.close()
    if faults:
        raise RuntimeError(f"{len(faults)} faults: {'; '.join(faults[:5])}")


def _figure(
    metric: str,
    values: Sequence[float],
    unit: str,
    bare: float | None = None,
    target: float | None = None,
) -> Figure:
    return Figure(
        "hibernate", metric, statistics.median(values) if values else 0.0, unit, bare, len(values),
        quartile_distance(values), target, unit in MANY,
    )  # fmt: skip


# --- One kernel -----------------------------------------------------------------------------------


def _memory(clock: Clock, faults: list[str]) -> Iterator[Figure]:
    """Read what is in use before there is a kernel, while it is idle and evicted, and while it is hibernated."""
    with scene_of(clock) as scene:
        before = scene.used()
        kernel = scene.kernel("one")
        kernel.call("start", scene.scaled(LITTLE), scene.scaled(BLOCK), 1)
        kernel.call("cell", 1)
        scene.evict("one")
        idle, idle_own = scene.used() - before, scene.held(kernel)
        scene.hibernate("one")
        left, own = scene.used() - before, scene.held(kernel) or 0
        _compare(kernel, "the kernel whose memory was read", faults)
    metric = "GPU memory of a hibernated kernel, next to an idle one's"
    yield _figure(f"{metric}: all in use", [left / MIB], "MiB", idle / MIB, MEMORY_GOAL / MIB)
    if idle_own is not None:
        yield _figure(f"{metric}: its own", [own / MIB], "MiB", idle_own / MIB, MEMORY_GOAL / MIB)


def _compare(kernel: Kernel, what: str, faults: list[str]) -> None:
    if not kernel.call("equal"):
        faults.append(f"{what} has bytes that differ")


def _moves(clock: Clock, faults: list[str], chosen: Sequence[str], gib: float) -> Iterator[Figure]:
    """Time one kernel out and back, the driver's checkpoint alone, and what is possible."""
    with scene_of(clock) as scene:
        size = scene.scaled(gib * GIB)
        block = scene.scaled(TENSOR)
        empty = scene.bare()
        copies = empty.call("page_locked", size)
        empty.close()
        empty = scene.bare()
        empty.call("start", 2 * MIB, 2 * MIB, 1)
        least = scene.alone(empty)
        empty.close()
        bare = scene.bare()
        bare.call("start", size, block, 1)
        alone = scene.alone(bare)
        _compare(bare, "the kernel that the driver alone checkpointed", faults)
        bare.close()
        kernel = scene.kernel("one")
        kernel.call("start", size, block, 1)
        kernel.call("cell", 1)
        times: list[tuple[float, float]] = []
        for turn in range(ROUNDS + 1):
            out = scene.hibernate("one")
            start, end = kernel.call("touch")
            times.append((out, end - start))
            _compare(kernel, f"the kernel of {gib:g} GiB, time {turn + 1},", faults)
        restores = _woken(scene)[1:]
        # Page-locks last for some time.
        idle = [_idle_out(scene, kernel) for _ in range(1 if scene.simulated else ROUNDS)]
        _compare(kernel, f"the kernel of {gib:g} GiB, hibernated while it was idle,", faults)
    held = not scene.simulated and gib == HELD
    for name, index, metric, copy, goal in (
        ("out", 0, "hibernate order to done", copies["out"], TIME_GOAL),
        ("wake", 1, "cell run to its first kernel's end, hibernated", copies["back"], WAKE_GOAL),
    ):
        if name not in chosen:
            continue
        first, *others = (each[index] for each in times)
        what, step = f"{name}, {size / GIB:.3g} GiB: ", ("checkpoint", "restore")[index]
        yield _figure(f"{what}{metric}", others, "s", alone[index], goal if held else None)
        yield _figure(f"{what}the first time", [first], "s")
        yield _figure(f"{what}the driver's {step} alone", [alone[index]], "s")
        possible = f"{what}possible: a page-locked copy, and the {step} of an empty process"
        yield _figure(possible, [size / copy + least[index]], "s")
    if "out" in chosen:
        metric = f"out, {size / GIB:.3g} GiB: evicted and idle before"
        yield _figure(metric, idle, "s", least[0], IDLE_GOAL if held else None)
    if "wake" in chosen:
        yield _figure(f"wake, {size / GIB:.3g} GiB: of that, the driver's restore", restores, "s")


def _idle_out(scene: Scene, kernel: Kernel) -> float:
    """Evict a kernel whose bytes have all changed, wait until nothing is page-locked, and time its hibernation."""
    kernel.call("cell", 1)
    scene.evict("one")
    until = time.monotonic() + UNLOCKING
    while time.monotonic() < until and _page_locked(scene):
        scene.clock.check()
        time.sleep(0.1)
    seconds = scene.hibernate("one")
    kernel.call("touch")
    return seconds


def _page_locked(scene: Scene) -> int:
    """Return the bytes of the pool that are page-locked."""
    pool = scene.status()["host"].get("pool") or {}
    return int(pool.get("page_locked", 0))


@dataclass
class _Cycles:
    """What came of the cycles of a kernel."""

    outs: list[float] = field(default_factory=list)
    done: int = 0
    right: int = 0
    interrupted: int = 0


def _cycles(clock: Clock, faults: list[str], cycles: int, seed: int) -> Iterator[Figure]:
    """Hibernate and wake some kernels again and again, all of them at once."""
    with scene_of(clock) as scene:
        kernels = min(CYCLING, cycles)
        counts = [len(range(number, cycles, kernels)) for number in range(kernels)]
        pool = scene.pool(kernels)
        each = [
            pool.submit(_cycle, scene, faults, f"{seed}-{number}", count)
            for number, count in enumerate(counts)
        ]
        all_of_them = [one.result() for one in each]
        woken = _woken(scene)
    done = sum(one.done for one in all_of_them)
    for metric, count, target in (
        ("cycles with every byte equal", sum(one.right for one in all_of_them), cycles),
        ("cycles whose wake was interrupted", sum(one.interrupted for one in all_of_them), None),
    ):
        yield Figure("hibernate", metric, count, "cycles", None, done, 0.0, target, at_least=True)
    yield _figure(
        "each: hibernate order to done", [out for one in all_of_them for out in one.outs], "s"
    )
    yield _figure("each: the driver's restore, the last ones", woken, "s")


def _cycle(scene: Scene, faults: list[str], name: str, cycles: int) -> _Cycles:
    """Hibernate and wake one kernel again and again."""
    rng, found = random.Random(name), _Cycles()
    kernel = scene.kernel(name)
    kernel.call("start", scene.scaled(CYCLED), scene.scaled(BLOCK), 1)
    kernel.call("varied", 0)
    while found.done < cycles and scene.clock.left() > ENDING:
        found.done += 1
        what = f"cycle {found.done} of {name}"
        call = rng.choice(FIRST)
        if rng.random() < EARLY:
            scene.here.control("hibernate", group=f"bench-{name}")
            time.sleep(rng.uniform(0, 0.1))
        else:
            found.outs.append(scene.hibernate(name))
        if rng.random() < INTERRUPTED and call != "free":
            kernel.send("first", call)
            time.sleep(rng.uniform(0, 0.03 if scene.simulated else 0.5))
            scene.here.control("cancel", group=f"bench-{name}")
            found.interrupted += not kernel.read()
            # It may come late, and end another wait. Once an eviction ordered after it is done, it is past.
            while not kernel.call("first", "touch"):
                scene.clock.check()
            scene.evict(name)
        elif not kernel.call("first", call):
            faults.append(f"{what}: a call was interrupted although none was cancelled")
        varied = kernel.call("varied", rng.randrange(1 << 30))
        same = kernel.call("equal")
        found.right += varied and same
        if not (varied and same):
            faults.append(f"{what}: {'bytes' if not same else 'results'} differ")
    return found


def _elsewhere(clock: Clock, faults: list[str]) -> Iterator[Figure]:
    """Wake one kernel where it was, and then on another GPU, by turns."""
    with scene_of(clock, gpus=2) as scene:
        found = scene.status()["hibernation"]
        if not found["moves"]:
            raise RuntimeError(
                "nothing can be woken on another GPU here: that takes two of the same name, and driver 580"
            )
        size = scene.scaled(CHANGING * GIB)
        kernel = scene.kernel("one")
        kernel.call("start", size, scene.scaled(TENSOR), 1)
        kernel.call("varied", 0)
        stayed, changed, moved = list[float](), list[float](), 0
        for turn in range(CHANGES):
            scene.hibernate("one")
            start, done = kernel.call("touch")
            stayed.append(done - start)
            scene.hibernate("one")
            home = scene.gpu_of("one")
            scene.here.control("drain", gpu=home)
            start, done = kernel.call("touch")
            changed.append(done - start)
            moved += scene.gpu_of("one") != home
            varied = kernel.call("varied", turn + 1)
            scene.here.control("drain", gpu=home, on=False)
            _compare(kernel, f"the kernel, on the other GPU, time {turn + 1},", faults)
            if not varied:
                faults.append(f"results on the other GPU, time {turn + 1}, differ")
    what = f"elsewhere, {size / GIB:.3g} GiB: "
    metric = f"{what}cell run to its first kernel's end, woken on another GPU, beside where it was"
    yield _figure(metric, changed, "s", statistics.median(stayed))
    yield Figure(
        "hibernate", f"{what}times that it was on the other one", moved, "times", None, CHANGES, 0.0, CHANGES
    )  # fmt: skip


def _woken(scene: Scene) -> list[float]:
    """Return how long the driver took to restore each time, of the last ones."""
    return [event["seconds"] for event in _history(scene, 0)[0] if event["kind"] == "wake"]


def _history(scene: Scene, since: int) -> tuple[list[dict[str, Any]], int]:
    reply: dict[str, Any] = scene.here.control("history", since=since)
    return reply["events"], reply["sequence"]


# --- Many kernels ---------------------------------------------------------------------------------


class Crowd:
    """Many kernels under little of a GPU.

    Parameters
    ----------
    scene
        Where.
    count
        How many there are to be.
    faults
        What goes wrong is added.
    """

    def __init__(self, scene: Scene, count: int, faults: list[str]) -> None:
        self.scene, self._count, self._faults = scene, count, faults
        self.live: dict[str, Kernel] = {}
        #: Seconds from the beginning of each cell to the end of its first kernel.
        self.waits: list[float] = []
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.most = 0
        self._since = 0
        self._lock = threading.Lock()
        self._free: set[str] = set()
        self._starting: dict[int, Future[str]] = {}
        self._pool = scene.pool(AT_ONCE + self.active)

    @property
    def active(self) -> int:
        """How many run cells at any time."""
        return max(1, round(ACTIVE * self._count))

    def start(self, number: int) -> str:
        """Start one, let it take its memory, and run a cell; what went wrong, or nothing."""
        name = f"kernel-{number}"
        try:
            kernel = self.scene.kernel(name)
            kernel.call("start", self.scene.scaled(DATA), self.scene.scaled(BLOCK), number)
            kernel.call("cell", 1)
        except (OSError, RuntimeError) as error:
            return f"{name} did not start: {error}"
        with self._lock:
            self.live[name] = kernel
            self._free.add(name)
        return ""

    def fill(self) -> int:
        """Start kernels one after the other without hibernation; return how many fit.

        The one that does not is left waiting, if it waits.
        """
        for number in range(self._count):
            newcomer = self._pool.submit(self.start, number)
            waiting, until = time.monotonic(), time.monotonic() + STARTING
            while not newcomer.done():
                self.scene.clock.check()
                wait([newcomer], timeout=0.1)
                if self._state(f"kernel-{number}") != "waiting":
                    waiting = time.monotonic()
                if time.monotonic() > min(waiting + PATIENCE, until):
                    self._starting[number] = newcomer
                    return len(self.live)
            if newcomer.result():
                return len(self.live)
        return len(self.live)

    def _state(self, name: str) -> str:
        groups = self.scene.status()["groups"]
        return next((str(group["state"]) for group in groups if group["name"] == name), "")

    def complete(self) -> None:
        """Start the others, some at once, as long as the host has memory for them."""
        for number in range(len(self.live) + len(self._starting), self._count):
            while sum(not starting.done() for starting in self._starting.values()) >= AT_ONCE:
                self.scene.clock.check()
                wait(self._starting.values(), timeout=0.1, return_when="FIRST_COMPLETED")
            if not self.scene.simulated and _available() < HOST:
                print(
                    f"gpushare: hibernate: the host has memory for {number} kernels only",
                    file=sys.stderr,
                )
                break
            self._starting[number] = self._pool.submit(self.start, number)
        for number, starting in self._starting.items():
            wait([starting], timeout=max(0.0, self.scene.clock.left() - ENDING))
            if not starting.done():
                self._faults.append(f"kernel-{number} did not start in time")
            elif said := starting.result():
                self._faults.append(said)

    def play(self, seconds: float) -> None:
        """Let a tenth of them run random cells."""
        until = time.monotonic() + seconds
        players = [
            self._pool.submit(self._play, random.Random(i), until) for i in range(self.active)
        ]
        while not all(player.done() for player in players):
            self.scene.clock.check()
            self.look()
            time.sleep(0.1)

    def look(self) -> None:
        """Take in what has happened."""
        self.most = max(self.most, self.scene.used())
        events, self._since = _history(self.scene, self._since)
        for event in events:
            self.events.setdefault(event["kind"], []).append(event)

    def _play(self, rng: random.Random, until: float) -> None:
        while time.monotonic() < until:
            with self._lock:
                if not self._free:
                    return
                name = rng.choice(sorted(self._free))
                self._free.remove(name)
            try:
                began, first, _ = self.live[name].call("cell", rng.randint(1, PASSES))
            except (OSError, RuntimeError) as error:
                self._faults.append(f"{name} ended: {error}")
                return
            with self._lock:
                self.waits.append(first - began)
                self._free.add(name)

    def host(self) -> tuple[list[float], list[float], int]:
        """Bytes of host memory of each kernel's process (as its share, and resident), and of all evicted data."""
        share, resident = [], []
        for kernel in self.live.values():
            with contextlib.suppress(OSError):
                rollup = Path(f"/proc/{kernel.process.pid}/smaps_rollup").read_text().splitlines()
                fields = dict(line.split(":", 1) for line in rollup[1:])
                share.append(int(fields["Pss"].split()[0]) * 1024.0)
                resident.append(int(fields["Rss"].split()[0]) * 1024.0)
        pool = self.scene.status()["host"]["pool"]
        return share, resident, int(pool["in_use"]) if pool else 0

    def compare(self) -> int:
        """Compare every byte of all, as many at a time as are active; how many are right."""

        def right(name: str) -> bool:
            try:
                same = bool(self.live[name].call("equal"))
            except (OSError, RuntimeError) as error:
                self._faults.append(f"{name} ended: {error}")
                return False
            if not same:
                self._faults.append(f"{name} has bytes that differ")
            return same

        with ThreadPoolExecutor(self.active) as pool:
            return sum(pool.map(right, list(self.live)))


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _crowd(
    clock: Clock, faults: list[str], kernels: int | None, seconds: float | None, more: bool
) -> Iterator[Figure]:
    """Measure many kernels; ``more``: time has to be left for another part."""
    with scene_of(clock, scheduler=False) as scene:
        cap = scene.scaled(SIMULATED_CAP if scene.simulated else CAP)
        goal = SIMULATED_KERNELS if scene.simulated else KERNELS
        count = kernels or goal
        total, before = scene.watcher.call("memory")
        scene.start_scheduler("--reserve", str(total - before - cap))
        crowd = Crowd(scene, count, faults)
        scene.here.control("set", hibernate_after=0)
        fit = crowd.fill()
        scene.here.control("set", hibernate_after=AFTER)
        crowd.complete()
        left = clock.left() - ENDING * (4 if more else 2)
        crowd.play(
            max(0.0, min(seconds or (SIMULATED_SECONDS if scene.simulated else SECONDS), left))
        )
        share, resident, swapped = crowd.host()
        live = len(share)
        right = crowd.compare()
        crowd.look()
    if right < live:
        faults.append(f"{live - right} of {live} kernels are not right")
    under = f"{cap / GIB:.3g} GiB, {crowd.active} active"
    yield _figure(
        f"crowd: live under {under}, next to how many fit without", [live], "kernels", fit,
        goal if count >= goal else None,
    )  # fmt: skip
    yield _figure("crowd: with every byte right", [right], "kernels", None, live)
    yield _figure("crowd: most of the GPU in use", [(crowd.most - before) / GIB], "GiB", cap / GIB)
    for percent in (50, 95):
        value = percentile(crowd.waits, percent) if crowd.waits else 0.0
        yield Figure(
            "hibernate", f"crowd: cell run to its first kernel's end, p{percent}", value, "s", None,
            len(crowd.waits), quartile_distance(crowd.waits),
        )  # fmt: skip
    for kind in ("hibernate", "wake"):
        times = [event["seconds"] for event in crowd.events.get(kind, ())]
        yield _figure(f"crowd: each {kind}", times, "s")
        failed = len(crowd.events.get(f"{kind}_failed", ()))
        metric, tried = f"crowd: times that {kind} failed", len(times) + failed
        yield Figure("hibernate", metric, failed, "", None, tried, 0.0)
    yield _figure("crowd: host memory of a process, next to its resident set",
                  [each / MIB for each in share], "MiB",
                  statistics.median(resident or [0.0]) / MIB)  # fmt: skip
    yield _figure("crowd: swapped data of a kernel", [swapped / max(live, 1) / MIB], "MiB")
