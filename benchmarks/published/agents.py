# SPDX-License-Identifier: BSD-3-Clause
"""How long people wait when agents share the GPU, and how fairly agents share it, in simulated classes of students.

The students of a seed do the same with and without agents. The table is in docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from statistics import median

from ...scheduler.simulation.generate import generate
from ...scheduler.simulation.report import percentile
from ...scheduler.simulation.run import simulate
from ..harness.figures import Figure, quartile_distance

#: Of the generator ``agents``; its other parameters have their defaults.
CLASS = {"students": 50.0, "hours": 0.5}
AGENTS = 20
SEEDS = range(1, 21)
#: Seconds between two meters: enough for the order of waits, and most of the events are spared.
METER = 1.0
#: The largest increase of a person's wait, in percent.
TARGET = 5.0


def run() -> Iterator[Figure]:
    """Yield for each seed, and for all, people's waits with and without agents, and the fairness between agents."""
    waits: dict[int, list[list[float]]] = {0: [], AGENTS: []}
    fairness: list[float] = []
    tasks = [(seed, {**CLASS, "agents": float(n)}) for seed in SEEDS for n in (0, AGENTS)]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for (seed, made), (found, index) in zip(tasks, pool.imap(_simulated, tasks), strict=True):
            agents = int(made["agents"])
            waits[agents].append(found)
            if agents:
                fairness.append(index)
                alone, together = (percentile(waits[n][-1], 99) for n in (0, AGENTS))
                name = f"a person's wait, p99, seed {seed}"
                yield Figure("agents", name, together, "s", alone, len(found), 0.0)
    for percent in (50, 95, 99):
        alone, together = (
            percentile(sorted(w for found in waits[n] for w in found), percent) for n in (0, AGENTS)
        )
        count = sum(map(len, waits[AGENTS]))
        name = f"a person's wait, p{percent}, all seeds"
        yield Figure("agents", name, together, "s", alone, count, 0.0)
    # In a small class, it may be that no student waited.
    more = (together / alone - 1) * 100 if alone else 0.0
    yield Figure(
        "agents", "a person's p99 over without agents", more, "%", None, count, 0.0, TARGET
    )
    spread = quartile_distance(fairness)
    name = "Jain's index of agents' GPU time, median"
    yield Figure("agents", name, median(fairness), "", None, len(fairness), spread)
    yield Figure("agents", "the same, smallest", min(fairness), "", None, len(fairness), spread)


def _simulated(task: tuple[int, dict[str, float]]) -> tuple[list[float], float]:
    """Return the sorted waits of people's cells that use the GPU, and the agents' fairness."""
    seed, made = task
    trace = generate("agents", seed, made)
    [(_, outcome)] = simulate(trace, ["burst"], 1, meter=METER, starving=300.0)
    cells = outcome.cells["interactive"]
    waits = sorted(w for w, work in zip(cells.waits, cells.work, strict=True) if work > 0)
    return waits, jain(outcome.paces.get("agent", ()))


def jain(parts: Sequence[float]) -> float:
    """Return Jain's index: 1 if all parts are equal, 1/n if one has everything."""
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0
