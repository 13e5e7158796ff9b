# SPDX-License-Identifier: BSD-3-Clause
"""GPU work for the notebooks of the acceptance tests, and for the worker processes that these notebooks start.

The tests copy this file to a folder in ``PYTHONPATH``, so it imports nothing from the tests.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, launch

from jupyter_gpushare.scheduler.protocol.client import ControlClient

SOURCE = "__global__ void step(unsigned *x) { x[blockIdx.x] += 1; }"
BLOCKS = 50_000
STEPS = 40
PATIENCE = 60.0


class Work:
    """An array on the GPU, and how often a kernel has added one to its first numbers."""

    def __init__(self, fraction: float, value: int) -> None:
        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        compiled = Program(SOURCE, "c++").compile("cubin", name_expressions=["step"])
        self.kernel = compiled.get_kernel("step")
        _, _, total = driver.cuMemGetInfo()
        self.data = self.device.allocate(int(total * fraction) // 4 * 4, stream=self.stream)
        self.fill(value)

    def fill(self, value: int) -> None:
        """Set all numbers of the array."""
        # A library may run each task of a worker process on another thread.
        self.device.set_current()
        self.value, self.steps = value, 0
        size = self.data.size // 4
        (error,) = driver.cuMemsetD32Async(int(self.data.handle), value, size, self.stream.handle)
        assert error == driver.CUresult.CUDA_SUCCESS, error

    def step(self, count: int = STEPS) -> None:
        """Run the kernel, and wait for it."""
        for _ in range(count):
            launch(self.stream, LaunchConfig(grid=BLOCKS, block=1), self.kernel, self.data)
        self.stream.sync()
        self.steps += count

    def is_right(self) -> bool:
        """Return whether each number of the array is what it must be."""
        found = numpy.empty(self.data.size // 4, numpy.uint32)
        (error,) = driver.cuMemcpyDtoH(found.ctypes.data, int(self.data.handle), found.nbytes)
        assert error == driver.CUresult.CUDA_SUCCESS, error
        stepped = self.value + self.steps
        return bool((found[:BLOCKS] == stepped).all() and (found[BLOCKS:] == self.value).all())


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that has to come true soon."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@functools.cache
def _work_of_this_process() -> Work:
    return Work(3 / 8, 0)


def task(number: int, folder: str) -> dict[str, Any]:
    """Use the GPU in one of two worker processes; ``folder`` is where they leave their process ids."""
    place = Path(folder)
    (place / str(os.getpid())).touch()
    until(lambda: len(list(place.iterdir())) >= 2, "all tasks ran in the same process")
    work = _work_of_this_process()
    work.fill(number)
    work.step()
    return {"number": number, "pid": os.getpid(), "right": work.is_right()}


def look() -> dict[str, Any]:
    """Return what the scheduler's status shows about the GPU, and about the group of this process's notebook."""
    with ControlClient() as client:
        status = client.request("status")["status"]
    groups, mine = status["groups"], os.environ["GPUSHARE_GROUP"]
    # A group is shown for as long as it has clients.
    own: dict[str, Any] = next((group for group in groups if group["id"] == mine), {})
    return {
        "name": own.get("name"),
        "cell": own.get("cell"),
        "clients": {client["pid"] for client in own.get("clients", [])},
        # Not the footprints: evicted data that is all the same is stored once, and counts once.
        "contended": status["host"]["promised"] > status["gpus"][0]["total"],
        "outside": [process for process in status["processes"] if process["code"] == "outside"],
    }


def report(pids: Iterable[int], right: bool) -> dict[str, Any]:
    """Return what the tests expect to be as in ``EXPECTED`` of ``test_runners.py``."""
    found = look()
    return {
        "right": right,
        "name": found["name"],
        "in a cell": found["cell"] is not None,
        "not in the notebook's group": sorted({*pids} - found["clients"]),
        "needs more than the GPU has, with the other notebook": found["contended"],
        "called outside programs": found["outside"],
    }


def report_tasks(results: Iterable[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return the report about the tasks ``range(count)`` of two worker processes, which still live."""
    results = list(results)
    pids = {result["pid"] for result in results}
    assert len(pids) == 2, pids
    assert os.getpid() not in pids
    assert sorted(result["number"] for result in results) == list(range(count))
    return report(pids, all(result["right"] for result in results))


def until_left(results: Iterable[dict[str, Any]]) -> None:
    """Wait until the processes of these tasks have left the notebook's group."""
    pids = {result["pid"] for result in results}
    until(lambda: not pids & look()["clients"], "worker processes have ended but still count")


def contend(started: str, stop: str) -> None:
    """Keep the GPU busy, and three quarters of its memory, until there is a file named ``stop``."""
    mine, rounds = Work(3 / 4, 7), 0
    while not os.path.exists(stop):
        mine.step()
        rounds += 1
        if rounds == 1:
            Path(started).touch()
    assert mine.is_right()
    print("right")
