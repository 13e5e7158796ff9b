# SPDX-License-Identifier: BSD-3-Clause
"""How long the first cell waits after a person has come back to a notebook, with prefetch and without.

The person types for two seconds before the cell runs. The first keystroke is a hint to the scheduler, which restores
what is not on the GPU. Everybody else is idle.

- ``evicted``: the notebook's memory was evicted.
- ``hibernated``: its process was hibernated, too.

::

    gpushare bench comeback --json
    gpushare bench comeback --gib 24

Each figure is the time from the beginning of the cell to the end of its first CUDA kernel. It is printed next to that
of the same notebook without the hint, measured in turn in the same run. Kernels are PyTorch processes on a real GPU. On
the simulated driver, sizes are a 128th, and the times say nothing about a GPU. Every byte is compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from ..harness.figures import Figure, quartile_distance, warn_if_missed
from ..harness.hibernation import Clock, Scene, scene_of
from ..harness.machine import MIB
from ..programs.sleeper import Kernel

GIB = 1 << 30
#: GiB that the notebook holds; bytes of one tensor; the number of times for each figure, in addition to the first.
HELD, TENSOR, ROUNDS = 24.0, 512 * MIB, 5
#: Seconds for which the person types.
TYPING = 2.0
#: Seconds after which the whole run ends.
LIMIT = 400.0
#: Goals in seconds.
GOALS = {"evicted": 0.020, "hibernated": 0.100}


def run(gib: float = HELD, rounds: int = ROUNDS, time_limit: float = LIMIT) -> Iterator[Figure]:
    """Measure.

    Parameters
    ----------
    gib
        What the notebook holds, GiB.
    rounds
        The number of times for each figure.
    time_limit
        Seconds after which the whole run ends.

    Raises
    ------
    RuntimeError
        A byte differs, a process ended, or the time is over.
    """
    clock = Clock(time_limit)
    try:
        with scene_of(clock) as scene:
            kernel = scene.kernel("one")
            size = scene.scaled(gib * GIB)
            kernel.call("start", size, scene.scaled(TENSOR), 1)
            kernel.call("cell", 1)

            for name, leave in (("evicted", scene.evict), ("hibernated", scene.hibernate)):
                yield _figure(scene, kernel, size, name, leave, rounds)
    finally:
        clock.close()


def _figure(
    scene: Scene,
    kernel: Kernel,
    size: int,
    name: str,
    leave: Callable[[str], object],
    rounds: int,
) -> Figure:
    """Measure one way of having been away, with the hint and without in turn."""

    def first_cell(hint: bool) -> float:
        leave("one")
        if hint:
            scene.here.control("hint", group="bench-one", kind="typing")
        time.sleep(TYPING)
        start, end = kernel.call("touch")
        if not kernel.call("equal"):
            raise RuntimeError("bytes of the notebook differ")
        return float(end - start)

    first_cell(False)  # the first time page-locks host memory
    with_hint, without = list[float](), list[float]()
    for _ in range(rounds):
        with_hint.append(first_cell(True))
        without.append(first_cell(False))
    median, goal = statistics.median(with_hint), None if scene.simulated else GOALS[name]
    metric = f"cell run to its first kernel's end, {size / GIB:.3g} GiB {name}, after {TYPING:g} s of typing"
    figure = Figure(
        "comeback", metric, median, "s", statistics.median(without), rounds, quartile_distance(with_hint), goal
    )  # fmt: skip
    warn_if_missed(figure)
    return figure
