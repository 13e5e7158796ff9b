# SPDX-License-Identifier: BSD-3-Clause
"""How often the memory of a notebook is back before its next cell, in simulated classes of students.

The trace is that of ``gpushare simulate --generate students --with people=1``: students look at other things, come back
to their notebook, read, type, and run the next cell. Now and then they only look at it, or edit it and run nothing
(docs/reference/simulation.md, "Students in the browser").

A cell *waits for memory* if some of its data is in host memory when it submits its first work. Each seed is simulated
with prefetches, and twice without them. These two differ only in when meters are read, so in chance. Each of them
tells which cells do not wait for memory; the waits of these cells in the other one are compared with those in the run
with prefetches. In the run that they are chosen from, they are those that were lucky.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...scheduler.core import messages as ev
from ...scheduler.simulation.calibration import H200
from ...scheduler.simulation.generate import generate
from ...scheduler.simulation.machine import Process
from ...scheduler.simulation.node import Node
from ...scheduler.simulation.node_client import Client
from ...scheduler.simulation.report import percentile
from ...scheduler.simulation.run import place
from ...scheduler.simulation.trace import Trace
from ..harness.figures import Figure

SEEDS = range(1, 21)
CLASS = {"people": 1.0, "students": 50.0, "hours": 1.0}
#: Seconds between two meters, and those of the first run.
METER, OTHER_METER = 1.0, 0.93
#: The least fraction of waits that are hidden, the largest of prefetches in vain, and how much longer others may wait.
HIDDEN, VAIN, LONGER = 0.8, 0.1, 0.02

Cell = tuple[str, int]


@dataclass(slots=True)
class Run:
    """One simulation: how long each cell waited, the cells that waited for memory, and how prefetches ended."""

    waits: dict[Cell, float] = field(default_factory=dict)
    for_memory: set[Cell] = field(default_factory=set)
    used: int = 0
    vain: int = 0


class Watched(Node):
    """A node that notes which cells wait for their memory."""

    def __init__(self, trace: Trace, meter: float, prefetch: bool) -> None:
        header = trace.header
        super().__init__(
            H200,
            header.gpu_memory,
            header.gpus,
            300.0,
            "burst",
            header.host_memory,
            meter,
            prefetch,
        )
        self.noted = Run()
        self._begun: set[Cell] = set()
        self._decisions[ev.Log] = self._on_log

    def _on_log(self, line: ev.Log) -> None:
        if line.kind == "prefetch":
            self.noted.used += line.fields["result"] == "used"
            # One that was given up before anything moved did nothing in vain.
            unused = line.fields["result"] in ("vain", "abandoned")
            self.noted.vain += unused and line.fields["bytes"] > 0

    def _submit(self, process: Process) -> None:
        assert isinstance(process, Client)
        cell = process.spec.name, process.cells
        if cell not in self._begun:
            self._begun.add(cell)
            if process.host:
                self.noted.for_memory.add(cell)
        super()._submit(process)

    def _count_cell(self, process: Process) -> None:
        super()._count_cell(process)
        if (cell := (process.spec.name, process.cells)) in self._begun:
            self.noted.waits[cell] = self.outcome.cells[process.spec.label].waits[-1]


def simulated(seed: int) -> tuple[Run, Run, Run]:
    """Return two runs without prefetches, and the run with them."""
    trace = generate("students", seed, CLASS)
    found = []
    for meter, prefetch in ((OTHER_METER, False), (METER, False), (METER, True)):
        node = Watched(trace, meter, prefetch)
        node.run(place(trace, trace.header.gpus))
        found.append(node.noted)
    first, second, prefetching = found
    return first, second, prefetching


def p95(waits: Sequence[float]) -> float:
    """Return a percentile of waits, in milliseconds."""
    return percentile(sorted(waits), 95) * 1000


def figures(found: Sequence[tuple[Run, Run, Run]]) -> Iterator[Figure]:
    """Yield the figures of all seeds together."""
    used = sum(runs[2].used for runs in found)
    vain = sum(runs[2].vain for runs in found)
    waited = sum(len(runs[2].for_memory) for runs in found)
    before = sum(len(run.for_memory) for runs in found for run in runs[:2]) / 2
    others: list[float] = []
    others_before: list[float] = []
    every: list[float] = []
    every_before: list[float] = []
    for first, second, prefetching in found:
        # Cells that have not ended in each run are in none.
        ended = first.waits.keys() & second.waits.keys() & prefetching.waits.keys()
        for chosen_from, compared in ((first, second), (second, first)):
            others += [prefetching.waits[c] for c in ended - chosen_from.for_memory]
            others_before += [compared.waits[c] for c in ended - chosen_from.for_memory]
            every_before += [compared.waits[c] for c in ended]
        every += [prefetching.waits[c] for c in ended]

    def figure(metric: str, value: float, unit: str, **more: Any) -> Figure:
        return Figure(
            "foresight", metric, value, unit, more.pop("bare", None), len(found), 0.0, **more
        )

    yield figure("cells that waited for memory", float(waited), "", bare=before)
    exposed = 100 * waited / max(1, used + waited)
    yield figure("waits for memory not hidden", exposed, "%", target=100 * (1 - HIDDEN))
    in_vain = 100 * vain / max(1, used + vain)
    yield figure("prefetches in vain", in_vain, "%", target=100 * VAIN)
    base = p95(others_before)
    yield figure(
        "p95 wait of all other cells", p95(others), "ms", bare=base, target=base * (1 + LONGER)
    )
    yield figure("p95 wait of all cells", p95(every), "ms", bare=p95(every_before))


def run() -> Iterator[Figure]:
    """Simulate all seeds, in as many processes as there are processors."""
    processes = min(len(SEEDS), len(os.sched_getaffinity(0)))
    if processes == 1:
        yield from figures([simulated(seed) for seed in SEEDS])
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from figures(pool.map(simulated, SEEDS, chunksize=1))
