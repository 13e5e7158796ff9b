# SPDX-License-Identifier: BSD-3-Clause
"""What the CUDA context of a process takes of the GPU, as NVML shows it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from ...scheduler.gpu.devices import Devices
from ..harness.figures import Figure, quartile_distance
from ..harness.machine import MIB, Machine, Probe, environment, machine

#: Seconds until the readings of NVML stay the same, and between two of them.
PATIENCE, PAUSE = 10.0, 0.2
PROCESSES = 4


def run() -> Iterator[Figure]:
    """Start processes that hold nothing but a context; yield what each adds, under gpushare and without."""
    with machine() as here, environment(here):
        devices = Devices(here.driver.nvml)
        gpu = devices.start()[0].gpu
        try:
            bare = _added(devices, gpu, lambda number: _bare(here))
            ours = _added(devices, gpu, lambda number: here.probe(f"context-{number}"))
        finally:
            devices.stop()
    for number, what in enumerate(("by the GPU's free memory", "by NVML's list of processes")):
        values, beside = ([each[number] / MIB for each in found] for found in (ours, bare))
        yield Figure(
            "context",
            f"a context, {what}, median",
            statistics.median(values),
            "MiB",
            statistics.median(beside),
            len(values),
            quartile_distance(values),
        )


def _bare(here: Machine) -> Probe:
    probe = Probe(here.bare_environ())
    here.probes.append(probe)
    return probe


def _added(devices: Devices, gpu: str, start: Callable[[int], Probe]) -> list[tuple[int, int]]:
    """Return the bytes that each process adds to the used memory, and to the sum of NVML's list of processes."""
    found = []
    probes = []
    before = _settled(devices, gpu)
    for number in range(PROCESSES):
        probes.append(start(number))
        after = _settled(devices, gpu)
        found.append((after[0] - before[0], after[1] - before[1]))
        before = after
    for probe in probes:
        probe.close()
    return found


def _settled(devices: Devices, gpu: str) -> tuple[int, int]:
    """Return what NVML says as soon as it says the same twice."""
    deadline = time.monotonic() + PATIENCE
    last = None
    while (now := _reading(devices, gpu)) != last and time.monotonic() < deadline:
        last = now
        time.sleep(PAUSE)
    return now


def _reading(devices: Devices, gpu: str) -> tuple[int, int]:
    device = devices.read(gpu)
    if device is None:
        raise RuntimeError(f"NVML does not read {gpu}")
    # Processes of other containers count, too: NVML may number ours in a way that is not seen here.
    return device.used, sum((devices.processes(gpu) or {}).values())
