# SPDX-License-Identifier: BSD-3-Clause
"""What an idle GPU consumes with a CUDA context and without any, and how soon after the last one hibernates.

- ``before``: no process of ours has a context.
- ``context``: a kernel has run a cell, holds memory, and is idle.
- ``hibernated``: that kernel, the only one, has hibernated. Also the time until NVML shows half of the fall.

::

    gpushare bench idle-power --json
    gpushare bench idle-power --seconds 60

The figures are means over the last part of ``--seconds``, from NVML's energy counter or, without it, from its power.
Other programs with a context on the GPU spoil them: the benchmark fails if the power falls by less than a watt. On the
simulated driver, the figures are those of its model. Uses only the backend ``swap``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...scheduler.gpu.devices import Devices, EnergyReading
from ..harness.figures import Figure
from ..harness.hibernation import Clock, Scene, scene_of
from ..harness.machine import MIB, environment

#: Seconds in each state: on a GPU, whose power falls in steps, and on the simulated driver.
SECONDS, SIMULATED_SECONDS = 30.0, 0.5
#: The part of them over which the mean is taken, at the end; and seconds between two readings, and the same as a part.
STEADY, PAUSE, PAUSES = 1 / 3, 0.1, 1 / 15
#: Bytes that the kernel holds.
HELD = 512 * MIB
#: Seconds after which all of it ends.
LIMIT = 600.0


def run(seconds: float | None = None, time_limit: float = LIMIT) -> Iterator[Figure]:
    """Measure.

    Parameters
    ----------
    seconds
        For how long the GPU is watched in each state.
    time_limit
        Seconds after which all of it ends.

    Raises
    ------
    RuntimeError
        NVML has no figure, nothing can be hibernated, or other programs have contexts.
    """
    clock = Clock(time_limit)
    try:
        with scene_of(clock) as scene, environment(scene.here):
            devices = Devices(scene.here.driver.nvml)
            try:
                gpu = devices.start()[0].gpu
                yield from _figures(scene, _Meter(devices, gpu, clock), seconds)
            finally:
                devices.stop()
    finally:
        clock.close()


def _figures(scene: Scene, meter: _Meter, seconds: float | None) -> Iterator[Figure]:
    seconds = seconds or (SIMULATED_SECONDS if scene.simulated else SECONDS)
    before = meter.watch(seconds)
    kernel = scene.kernel("one")
    kernel.call("start", scene.scaled(HELD), scene.scaled(HELD), 1)
    kernel.call("cell", 1)
    if scene.gpu_of("one") != meter.gpu:
        raise RuntimeError(
            "the kernel is on another GPU than the first; set CUDA_VISIBLE_DEVICES=0"
        )
    context = meter.watch(seconds)
    scene.hibernate("one")
    after = meter.watch(seconds)
    with_context, without = _mean(context), _mean(after)
    if with_context - without < 1:
        raise RuntimeError(
            f"the power did not fall ({with_context:.1f} W with our context, {without:.1f} W without); end other "
            "programs on this GPU, and turn the driver's persistence mode on"
        )
    for name, value in (
        ("idle, before there is a context", _mean(before)),
        ("idle, with a context", with_context),
        ("idle, after the last context has hibernated", without),
    ):
        yield Figure("idle-power", name, value, "W", None, len(after), 0.0)
    if (fell := _fell(after, (with_context + without) / 2)) is not None:
        yield Figure("idle-power", "hibernated to half of the fall", fell, "s", None, 1, 0.0)
    # All bytes are there again, and the kernel computes.
    if not kernel.call("equal"):
        raise RuntimeError("the kernel has bytes that differ after it has woken")


class _Meter:
    """Reads the power of a GPU."""

    def __init__(self, devices: Devices, gpu: str, clock: Clock) -> None:
        self.devices, self.gpu, self._clock = devices, gpu, clock

    def watch(self, seconds: float) -> list[EnergyReading]:
        """Return readings of a period."""
        pause = min(PAUSE, seconds * PAUSES)
        found = [self._read()]
        while found[-1].at - found[0].at < seconds:
            self._clock.check()
            time.sleep(pause)
            found.append(self._read())
        return found

    def _read(self) -> EnergyReading:
        self.devices.poll(self.gpu)
        reading = self.devices.energy.get(self.gpu)
        if reading is None or (reading.joules is None and reading.watts is None):
            raise RuntimeError("NVML has neither the energy nor the power of this GPU")
        return reading


def _mean(readings: list[EnergyReading]) -> float:
    """Return the mean power at the end of a period, in watts."""
    start = readings[-1].at - STEADY * (readings[-1].at - readings[0].at)
    steady = [reading for reading in readings if reading.at >= start]
    first, last = steady[0], steady[-1]
    if first.joules is not None and last.joules is not None and last.at > first.at:
        return (last.joules - first.joules) / (last.at - first.at)
    powers = [reading.watts for reading in steady if reading.watts is not None]
    return sum(powers) / len(powers)


def _fell(readings: list[EnergyReading], level: float) -> float | None:
    """Return the seconds from the first reading until the power is below a level; None: NVML has no power.

    The energy counter changes too seldom for this.
    """
    start = readings[0].at
    found = (r.at - start for r in readings if r.watts is not None and r.watts < level)
    return next(found, None)
