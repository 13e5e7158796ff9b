# SPDX-License-Identifier: BSD-3-Clause
"""How often the memory of a notebook is back before its next cell, in simulated classes of students.

The trace is that of ``gpushare simulate --generate students --with people=1``: students look at other things, come back
to their notebook, read, type, and run the next cell. Now and then they only look at it, or edit it and run nothing
(docs/reference/simulation.md, "Students in the browser").

A cell *waits for memory* if some of its data is in host memory when it submits its first work. Each seed is simulated
with prefetches, without them, and once more without them as a reference. The reference tells which cells wait for
memory. It reads its meters at other times, so that chance is another one: cells that were lucky in the run from which
they are chosen would look worse in every other run.
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
#: Seconds between two meters, and those of the reference.
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
    """Return the reference, the run without prefetches, and the run with them."""
    trace = generate("students", seed, CLASS)
    found = []
    for meter, prefetch in ((OTHER_METER, False), (METER, False), (METER, True)):
        node = Watched(trace, meter, prefetch)
        node.run(place(trace, trace.header.gpus))
        found.append(node.noted)
    reference, without, with_prefetch = found
    return reference, without, with_prefetch


def p95(runs: Sequence[Run], cells: Sequence[set[Cell]]) -> float:
    """Return a percentile of the waits of some cells of each run, in milliseconds."""
    waits = [run.waits[cell] for run, some in zip(runs, cells, strict=True) for cell in some]
    return percentile(sorted(waits), 95) * 1000


def figures(found: Sequence[tuple[Run, Run, Run]]) -> Iterator[Figure]:
    """Yield the figures of all seeds together."""
    without, with_prefetch = [runs[1] for runs in found], [runs[2] for runs in found]
    # Cells that never ended in one of the runs are in none.
    ended = [run.waits.keys() & other.waits.keys() for _, run, other in found]
    others = [
        {cell for cell in cells if cell in runs[0].waits and cell not in runs[0].for_memory}
        for cells, runs in zip(ended, found, strict=True)
    ]
    used, vain = sum(run.used for run in with_prefetch), sum(run.vain for run in with_prefetch)
    waited = sum(len(run.for_memory) for run in with_prefetch)
    before = sum(len(run.for_memory) for run in without)

    def figure(metric: str, value: float, unit: str, **more: Any) -> Figure:
        return Figure(
            "foresight", metric, value, unit, more.pop("bare", None), len(found), 0.0, **more
        )

    yield figure("cells that waited for memory", float(waited), "", bare=float(before))
    yield figure("waits for memory hidden (at least 80)", 100 * used / max(1, used + waited), "%")
    yield figure("prefetches in vain", 100 * vain / max(1, used + vain), "%", target=100 * VAIN)
    base = p95(without, others)
    yield figure(
        "p95 wait of all other cells", p95(with_prefetch, others), "ms", bare=base,
        target=base * (1 + LONGER),
    )  # fmt: skip
    yield figure("p95 wait of all cells", p95(with_prefetch, ended), "ms", bare=p95(without, ended))


def run() -> Iterator[Figure]:
    """Simulate all seeds, in as many processes as there are processors."""
    processes = min(len(SEEDS), len(os.sched_getaffinity(0)))
    if processes == 1:
        yield from figures([simulated(seed) for seed in SEEDS])
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from figures(pool.map(simulated, SEEDS, chunksize=1))
