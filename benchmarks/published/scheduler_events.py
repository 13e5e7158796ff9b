# SPDX-License-Identifier: BSD-3-Clause
"""How many events a second the scheduler's core takes on one core, and how long one decision takes, with 1 000 clients.

The clients are notebooks on 8 GPUs of 139 GiB that run cells in virtual time: some seconds of thought, a burst, and
what the core then asks of them. What they said is then put through a core again, whose time is all that counts. Once
all of them fit together, and once an eighth of them more than fits, so that leases rotate and memory moves.

Timed is what the server calls for each event: ``Core.handle``, with the decisions and lines of history that it makes,
and ``Core.deadline``. What is before and after that is not: to make the event from the message that it came in, to
record it, to write out what was decided. A rate is of this thread's CPU time; a decision's is of the clock, so it has
what the machine did meanwhile in it.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.policies import REGISTRY

from ..harness.figures import Figure, quartile_distance

GIB = 1 << 30
CLIENTS, GPUS, TOTAL = 1000, 8, 139 * GIB
#: Bytes per second; seconds of thought and of a burst, on average.
SPEED, THOUGHT, BURST = 50e9, 10.0, 0.3
EVENTS, TURNS = 20_000, 5
#: Bytes of footprint of each.
CROWDS = {"all fit": 1 * GIB, "rotating": 5 * GIB // 4}


class Crowd:
    """Obedient clients around a core, in virtual time.

    Parameters
    ----------
    footprint
        Bytes of each client.
    """

    def __init__(self, footprint: int, seed: int) -> None:
        self._core = Core(REGISTRY)
        self._now = 0.0
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        #: What happens when: at the time, in order; and at once.
        self._later: list[tuple[float, int, ev.Event]] = []
        self._next: deque[ev.Event] = deque()
        self._memory = [footprint] * CLIENTS
        self._resident = [0] * CLIENTS
        self._leases = [0] * CLIENTS
        self._used = dict.fromkeys(self._uuids(), 0)
        self._footprint = footprint
        #: What the core took in, and when.
        self.said: list[tuple[ev.Event, float]] = []
        for index, uuid in enumerate(self._uuids()):
            self._handle(ev.Device(uuid, TOTAL, 0, "GPU", index))
        self._handle(ev.HostMemory(4 * CLIENTS * footprint))
        for number in range(CLIENTS):
            self._handle(ev.Attach(number, number, f"g{number}", f"{number}.ipynb", "swap"))
            least = ev.Usage(self._gpu(number), promised=footprint)
            self._handle(ev.Grow(number, 1, least, footprint))
            self._think(number)

    def run(self, events: int) -> list[tuple[ev.Event, float]]:
        """Go on until there are this number of events, and return them."""
        while len(self.said) < events:
            if self._next:
                self._handle(self._next.popleft())
                continue
            deadline = self._core.deadline()
            if deadline is not None and deadline <= self._later[0][0]:
                self._now = max(self._now, deadline)
                self._handle(ev.Tick())
                continue
            self._now, _, event = heapq.heappop(self._later)
            if isinstance(event, ev.Cell) and event.phase == "begin":
                self._begin(int(event.group[1:]))
            self._handle(event)
        return self.said

    def _uuids(self) -> list[str]:
        return [f"GPU-{index}" for index in range(GPUS)]

    def _gpu(self, number: int) -> str:
        return f"GPU-{number % GPUS}"

    def _at(self, seconds: float, event: ev.Event) -> None:
        heapq.heappush(self._later, (self._now + seconds, next(self._numbers), event))

    def _think(self, number: int) -> None:
        seconds = self._random.expovariate(1 / THOUGHT)
        cell = ev.Cell(f"g{number}", "begin", str(next(self._numbers)), self._now + seconds, True)
        self._at(seconds, cell)

    def _begin(self, number: int) -> None:
        if self._leases[number]:
            self._next.append(ev.Burst(number, "begin", "none", self._now))
            self._end_later(number)
        else:
            self._next.append(ev.Request(number, 1))

    def _end_later(self, number: int) -> None:
        seconds = self._random.expovariate(1 / BURST)
        self._at(seconds, ev.Burst(number, "end", "cell", self._now + seconds))

    def _usage(self, number: int, gpu: str) -> ev.Usage:
        footprint, resident = self._footprint, self._resident[number]
        return ev.Usage(gpu, footprint, resident, host=footprint - resident)

    def _handle(self, event: ev.Event) -> None:
        decisions = self._core.handle(event, self._now)
        self.said.append((event, self._now))
        if isinstance(event, ev.Burst) and event.phase == "end":
            cells = self._core.groups[f"g{event.client}"].cells
            for cell in list(cells):
                end = ev.Cell(f"g{event.client}", "end", cell, self._now, from_kernel=True)
                self._next.append(end)
            self._think(event.client)
        for decision in decisions:
            self._obey(decision)

    def _obey(self, decision: ev.Decision) -> None:
        match decision:
            case ev.Grant(client=number, lease=lease):
                self._leases[number] = lease
                gpu = self._gpu(number)
                size = self._footprint - self._resident[number]
                self._resident[number] += size
                self._used[gpu] += size
                usage = self._usage(number, gpu)
                seconds = size / SPEED
                restored = ev.Restored(number, lease, usage, size, size, seconds or 1e-6, "done")
                self._at(seconds, restored)
                self._end_later(number)
            case ev.Revoke(client=number, lease=lease):
                self._leases[number] = 0
                self._next.append(ev.Released(number, lease, "revoke"))
            case ev.Evict(client=number, serial=serial, gpu=gpu, bytes=size):
                size = min(size, self._resident[number])
                self._resident[number] -= size
                self._used[gpu] -= size
                usage = self._usage(number, gpu)
                seconds = size / SPEED
                self._at(seconds, ev.Evicted(number, serial, usage, size, size, seconds, "done"))
            case ev.ReadDevice(gpu=gpu):
                used = self._used[gpu]
                self._next.append(ev.Device(gpu, TOTAL, used, "GPU", int(gpu[4:])))


def replay(said: list[tuple[ev.Event, float]], one_by_one: bool) -> list[float]:
    """Return how long the core took for the last events: each, or all at once; seconds of this thread."""
    core = Core(REGISTRY)
    for event, now in said[:-EVENTS]:
        core.handle(event, now)
    # What is here is not what is measured: it is not to be looked through again and again.
    gc.collect()
    gc.freeze()
    times = []
    began = time.thread_time()
    if one_by_one:
        for event, now in said[-EVENTS:]:
            before = time.perf_counter()
            core.handle(event, now)
            core.deadline()
            times.append(time.perf_counter() - before)
    else:
        for event, now in said[-EVENTS:]:
            core.handle(event, now)
            core.deadline()
        times.append(time.thread_time() - began)
    gc.unfreeze()
    return times


def run() -> Iterator[Figure]:
    """Measure; the medians of several turns."""
    for name, footprint in CROWDS.items():
        rates, slowest = [], []
        for turn in range(TURNS):
            said = Crowd(footprint, turn).run(2 * EVENTS)
            rates.append(EVENTS / replay(said, one_by_one=False)[0])
            times = sorted(replay(said, one_by_one=True))
            slowest.append(times[len(times) * 99 // 100] * 1e6)
        yield Figure(
            "scheduler", f"events a second, {CLIENTS} clients, {name}", statistics.median(rates),
            "/s", None, len(rates), quartile_distance(rates),
        )  # fmt: skip
        yield Figure(
            "scheduler", f"decision, 99 of 100, {name}", statistics.median(slowest), "us", None,
            len(slowest), quartile_distance(slowest), 1000.0,
        )  # fmt: skip
