# SPDX-License-Identifier: BSD-3-Clause
"""How much sooner jobs finish if they share the GPU than one after the other, although they do not fit together.

Two jobs that compute and leave the GPU alone in turn, two that fit, and three notebooks under Run All. Sizes are those
of an NVIDIA H200, scaled to the GPU; the simulated GPU's times and bandwidth are scaled alike::

    gpushare bench makespan --policy burst --policy fcfs --json
    gpushare bench makespan --part cells --seconds 5 --gib 60
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ...scheduler.policies import available
from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, machine
from ..programs.holder import torch_can
from ..programs.jobs import KERNEL_NS, PORTION, Job, calibrated, interval

GIB = 1 << 30
#: Fractions of the GPU: 90, 40 and 60 GiB of an H200's 139.8.
MOST, LITTLE, HALF = 90 / 139.8, 40 / 139.8, 60 / 139.8
#: Bytes of one block.
BLOCK = 512 << 20
#: Half a turn, seconds: on a real GPU, and on the simulated one, whose copies are as much slower.
TURN, SIMULATED_TURN = 10.0, 0.5
BANDWIDTH = "2000000000"
#: Turns of a job, cells of a notebook, and the part of half a turn that a cell computes.
TURNS, CELLS, CELL = 6, 10, 0.2
#: Shares of a turn on the GPU, and by how much two jobs are to be sooner done than one after the other.
SHARES = {"half": (0.5, 1.75), "most": (0.9, 1.0)}
#: What is measured, in this order.
PARTS = (*SHARES, "fitting", "cells")


class Stage:
    """A machine on which jobs are run together.

    Parameters
    ----------
    here
        The machine.
    seconds
        Half a turn.
    """

    def __init__(self, here: Machine, seconds: float) -> None:
        self.here = here
        self.seconds = seconds
        self.torch = torch_can(here.driver.simulated)
        self.portion = calibrated(here.bare_environ(), self.torch)

    def together(
        self, environs: Sequence[dict[str, str]], size: int, *command: Any
    ) -> list[list[tuple[float, float]]]:
        """Run jobs that hold ``size`` bytes each; return when each of their parts began and ended.

        Raises
        ------
        RuntimeError
            If a byte is wrong afterwards.
        """
        with contextlib.ExitStack() as stack:
            jobs = []
            for number, environ in enumerate(environs):
                job = Job(environ, torch=self.torch, portion=self.portion)
                stack.callback(job.close)
                job.call("hold", size, min(BLOCK, size // 4), 50 * number)
                jobs.append(job)
            for job in jobs:
                job.send(*command)
            found = [job.read() for job in jobs]
            if not all(job.call("equal") for job in jobs):
                raise RuntimeError("a job's memory is not what it should be")
        return [parts if isinstance(parts[0], list) else [parts] for parts in found]

    def clients(self, count: int) -> list[dict[str, str]]:
        """Return the environments of jobs that share under us."""
        return [self.here.client_environ(f"job-{number}") for number in range(count)]

    def bare(self, count: int) -> list[dict[str, str]]:
        """Return the environments of jobs without us."""
        return [self.here.bare_environ()] * count

    def turns(self, share: float) -> tuple[object, ...]:
        """Return the command of a job that computes for that share of each turn."""
        turn = 2 * self.seconds
        return "turns", TURNS, round(share * turn / PORTION), (1 - share) * turn


def span(jobs: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the seconds from the first begin to the last end."""
    return max(end for parts in jobs for _, end in parts) - min(
        start for parts in jobs for start, _ in parts
    )


def moving(events: Sequence[dict[str, Any]], begun: float, ended: float) -> float:
    """Return the seconds between these times in which memory moved, in whatever direction."""
    moves = sorted(
        (event["time"] - event["duration"], event["time"])
        for event in events
        if event["kind"] in ("evict", "restore") and event["bytes"]
    )
    total, until = 0.0, begun
    for start, end in moves:
        total += max(0.0, min(end, ended) - max(start, until))
        until = max(until, end)
    return total


def run(
    policy: Sequence[str] = (),
    part: Sequence[str] = (),
    pairs: int = 1,
    seconds: float | None = None,
    gib: float | None = None,
) -> Iterator[Figure]:
    """Measure under these policies, by default all that there are.

    Parameters
    ----------
    policy
        Their names.
    part
        What is measured, of ``PARTS``: two jobs that do not fit together and need the GPU for half of the time, or for
        most of it; two that fit; the cells of three notebooks. By default all.
    pairs
        How often all is run.
    seconds
        Half a turn of the jobs.
    gib
        What each of two jobs holds that do not fit together.

    Raises
    ------
    ValueError
        There is no such part.
    """
    names = list(policy) or sorted(available())
    parts = list(part) or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"no part {unknown.pop()!r}; choose of {', '.join(PARTS)}")
    with machine(
        whole=True, GPUSHARE_SIM_KERNEL_NS=KERNEL_NS, GPUSHARE_SIM_BANDWIDTH=BANDWIDTH
    ) as here:
        if not here.driver.simulated and not torch_can(here.driver.simulated):
            raise RuntimeError(
                "on a real GPU this needs PyTorch; install torch, or set GPUSHARE_SIM=1"
            )
        stage = Stage(here, seconds or (SIMULATED_TURN if here.driver.simulated else TURN))
        status: Any = here.control("status")["status"]
        total = status["gpus"][0]["total"]
        most = total * MOST if gib is None else gib * GIB
        for name, (share, target) in SHARES.items():
            if name in parts:
                yield from _alternating(stage, names, pairs, _size(most), share, target)
        if "fitting" in parts:
            yield from _fitting(stage, names, pairs, _size(most * LITTLE / MOST))
        if "cells" in parts:
            yield from _run_all(stage, names, pairs, _size(most * HALF / MOST))


def _size(size: float) -> int:
    return int(size) // (4 << 20) * (4 << 20)


def _orders(names: Sequence[str], pairs: int) -> Iterator[str]:
    """Yield the names, forth and back."""
    for number in range(pairs):
        yield from names if number % 2 == 0 else reversed(names)


def _figure(
    metric: str, unit: str, values: list[float], target: float | None, *, at_least: bool = False
) -> Figure:
    low, high = interval(values, statistics.median)
    between = "" if len(values) < 2 else f" [{low:.2f}, {high:.2f}]"
    return Figure(
        "makespan",
        metric + between,
        statistics.median(values),
        unit,
        None,
        len(values),
        quartile_distance(values),
        target,
        at_least,
    )


def _alternating(
    stage: Stage, names: Sequence[str], pairs: int, size: int, share: float, target: float
) -> Iterator[Figure]:
    """Two jobs that do not fit together; that without us they run one after the other is measured with one of them."""
    command = stage.turns(share)
    sooner: dict[str, list[float]] = {name: [] for name in names}
    alone = 0.0
    for name in _orders(("", *names), pairs):
        if name == "":
            alone = span(stage.together(stage.bare(1), size, *command))
            continue
        if alone == 0.0:
            alone = span(stage.together(stage.bare(1), size, *command))
        stage.here.control("set", policy=name)
        sooner[name].append(2 * alone / span(stage.together(stage.clients(2), size, *command)))
    turn = 2 * stage.seconds
    what = f"{share * turn:g} s GPU, {(1 - share) * turn:.2g} s CPU, {size / GIB:.2f} GiB each"
    for name, values in sooner.items():
        goal = target if name == "burst" else None
        yield _figure(f"{name}: two jobs, {what}: sooner", "x", values, goal, at_least=True)


def _fitting(stage: Stage, names: Sequence[str], pairs: int, size: int) -> Iterator[Figure]:
    """Two jobs that fit together, against the same without us."""
    command = stage.turns(0.5)
    taken: dict[str, list[float]] = {name: [] for name in ("", *names)}
    for name in _orders(list(taken), pairs):
        if name:
            stage.here.control("set", policy=name)
        environs = stage.clients(2) if name else stage.bare(2)
        taken[name].append(span(stage.together(environs, size, *command)))
    freely = taken.pop("")
    for name, values in taken.items():
        slower = [100 * (mine / bare - 1) for mine, bare in zip(values, freely, strict=True)]
        target = 1.0 if name == "burst" else None
        yield _figure(f"{name}: two jobs that fit, slower than freely", "%", slower, target)


def _run_all(stage: Stage, names: Sequence[str], pairs: int, size: int) -> Iterator[Figure]:
    """Three notebooks that run all their cells, and do not fit together."""
    command = "cells", CELLS, round(CELL * stage.seconds / PORTION)
    moved: dict[str, list[float]] = {name: [] for name in names}
    waited: dict[str, list[float]] = {name: [] for name in names}
    (alone,) = stage.together(stage.bare(1), size, *command)
    own = statistics.median(end - start for start, end in alone)
    for name in _orders(names, pairs):
        stage.here.control("set", policy=name)
        since = stage.here.control("history")["sequence"]
        jobs = stage.together(stage.clients(3), size, *command)
        begun = min(start for parts in jobs for start, _ in parts)
        ended = max(end for parts in jobs for _, end in parts)
        events: Any = stage.here.control("history", since=since)["events"]
        moved[name].append(100 * moving(events, begun, ended) / (ended - begun))
        waited[name].append(max(end - start for parts in jobs for start, end in parts) - own)
    what = f"three under Run All, {CELL * stage.seconds:g} s a cell"
    for name in names:
        target = 10.0 if name == "burst" else None
        yield _figure(f"{name}: {what}: moving", "%", moved[name], target)
        yield _figure(f"{name}: {what}: longest wait", "s", waited[name], None)
