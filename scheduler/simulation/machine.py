# SPDX-License-Identifier: BSD-3-Clause
"""Virtual machines: GPUs on which kernels go through their steps in virtual time.

A ``Machine`` is a heap of events. Compute is shared as a fluid: between two changes (a burst begins or ends, a pace
changes), all speeds are constant, so only the next end is on the heap.

- ``Shared``: no scheduler; allocations that do not fit fail.
- ``Exclusive``: no scheduler; one kernel after another, each with a GPU of its own.

``node.py`` has the machine with the scheduler's core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

from .calibration import Calibration
from .outcome import Cells, Jobs, Outcome
from .trace import Kernel, Step

#: Seconds over which the fairness of GPU time is measured.
WINDOW = 60.0
#: Work that is less than this many seconds from its end has ended.
_NOTHING = 1e-9
_NO_STEPS: Iterator[Step] = iter(())


class Gpu:
    """One simulated GPU."""

    __slots__ = (
        "arriving",
        "delivered",
        "dirty",
        "index",
        "last",
        "leaving",
        "moving",
        "moving_since",
        "peak",
        "running",
        "total",
        "used",
        "uuid",
        "version",
        "wanting",
        "window_at",
    )

    def __init__(self, index: int, total: int) -> None:
        self.index = index
        self.uuid = f"GPU-{index:04d}"
        self.total = total
        self.used = 0
        self.peak = 0
        #: Kernels with work on it. A dictionary keeps their order.
        self.running: dict[Process, None] = {}
        self.last = 0.0
        self.delivered = 0.0
        self.version = 0
        self.dirty = False
        #: Pieces in flight in each direction, and for how long there were any.
        self.leaving = 0
        self.arriving = 0
        self.moving = 0.0
        self.moving_since = 0.0
        #: Kernels that wanted it in this window of fairness.
        self.wanting: dict[Process, None] = {}
        self.window_at = -1.0

    def take(self, size: int) -> None:
        """Add to the bytes in use; negative: free them."""
        self.used += size
        if self.used > self.peak:
            self.peak = self.used


class Process:
    """One kernel: its user and its program. ``node_client.Client`` adds the interposer."""

    __slots__ = (
        "allocated",
        "busy",
        "busy_rate",
        "cell_alone",
        "cell_at",
        "cell_work",
        "cells",
        "context",
        "delivered",
        "demand",
        "failed",
        "gap",
        "gap_since",
        "gpu",
        "number",
        "rate",
        "remaining",
        "spec",
        "speed",
        "walk",
        "wanted",
        "wanted_since",
        "wants",
        "window_work",
    )

    def __init__(self, number: int, spec: Kernel, gpu: Gpu) -> None:
        self.number = number
        self.spec = spec
        self.gpu = gpu
        self.walk = spec.walk()
        self.allocated = 0
        self.context = 0
        self.failed = False
        #: The open cell: when it began, and its seconds alone and GPU time so far.
        self.cell_at = -1.0
        self.cell_alone = 0.0
        self.cell_work = 0.0
        self.cells = 0
        #: The current GPU step: remaining seconds alone, the fraction of the GPU that it demands, the part of this that
        #: its pace leaves, and the resulting seconds of work per second.
        self.remaining = 0.0
        self.demand = 1.0
        self.speed = 1.0
        self.rate = 0.0
        self.delivered = 0.0
        #: Seconds for which its work was on the GPU, and by how much they grow in a second.
        self.busy = 0.0
        self.busy_rate = 0.0
        #: Whether it wants the GPU, since when it has got nothing of it, and the longest such time.
        self.wants = False
        self.gap_since = 0.0
        self.gap = 0.0
        #: In the window of fairness: seconds for which it wanted the GPU, and its GPU time before the window.
        self.wanted = 0.0
        self.wanted_since = 0.0
        self.window_work = 0.0


Callback = Callable[[Any], None]


class Machine:
    """GPUs, and the kernels that use them, without a scheduler.

    Parameters
    ----------
    costs
        The costs of its operations.
    memory
        Bytes of each GPU.
    gpus
        Number of GPUs.
    starving
        Seconds without GPU time after which a kernel counts as starved.
    """

    def __init__(self, costs: Calibration, memory: int, gpus: int, starving: float) -> None:
        self.costs = costs
        self.starving = starving
        self.now = 0.0
        self.gpus = [Gpu(index, memory) for index in range(gpus)]
        self.outcome = Outcome(gpus=gpus)
        self.alive = 0
        self._heap: list[tuple[float, int, Callback, Any]] = []
        self._serial = 0
        self._dirty: list[Gpu] = []

    # --- Time -------------------------------------------------------------------------------------

    def at(self, when: float, callback: Callback, argument: Any) -> None:
        """Schedule a callback. Callbacks of one time run in the order in which they were scheduled."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, callback, argument))

    def run(self, arrivals: list[tuple[Kernel, int]]) -> Outcome:
        """Start kernels, each on the GPU with that index, and run until all have left."""
        self.alive = len(arrivals)
        for number, (spec, index) in enumerate(arrivals, 1):
            self.at(spec.at, self._arrive, self.process(number, spec, self.gpus[index]))
        heap, dirty = self._heap, self._dirty
        while heap and self.alive:
            self.now, _, callback, argument = heappop(heap)
            callback(argument)
            if dirty:
                self._settle()
        return self._conclude()

    def _conclude(self) -> Outcome:
        outcome = self.outcome
        outcome.end = self.now
        for gpu in self.gpus:
            self._advance(gpu)
            outcome.delivered += gpu.delivered
            outcome.moving += gpu.moving
            outcome.peak = max(outcome.peak, gpu.peak / gpu.total)
        return outcome

    # --- Steps ------------------------------------------------------------------------------------

    def process(self, number: int, spec: Kernel, gpu: Gpu) -> Process:
        """Return the object for a kernel."""
        return Process(number, spec, gpu)

    def _arrive(self, process: Process) -> None:
        self._next(process)

    def _next(self, process: Process) -> None:
        """Go through the steps, up to the next one that takes time."""
        for step in process.walk:
            name = step[0]
            if name == "gpu":
                if not process.context and not self._open_context(process, step):
                    return
                process.remaining, process.demand = step[1], step[2]
                process.cell_alone += step[1]
                process.cell_work += step[1]
                self.outcome.asked += step[1] * step[2]
                self._want(process)
                self._submit(process)
                return
            if name == "cpu":
                process.cell_alone += step[1]
                self.at(self.now + step[1], self._next, process)
                self._turn_away(process)
                return
            if name == "think":
                self.at(self.now + step[1], self._next, process)
                self._turn_away(process)
                return
            if name == "cell":
                process.cells += 1
                process.cell_at, process.cell_alone, process.cell_work = self.now, 0.0, 0.0
                self._begin_cell(process)
            elif name == "end":
                self._end_cell(process)
                self._count_cell(process)
            elif name == "hint":
                self._hint(process, step[1])
            elif name == "allocate":
                if not process.context and not self._open_context(process, step):
                    return
                process.cell_alone += step[1] * self.costs.mapping
                if not self._allocate(process, step[1]):
                    return
            else:
                self._free(process, step[1])
        self._leave(process)

    def _count_cell(self, process: Process) -> None:
        cells = self.outcome.cells.setdefault(process.spec.label, Cells())
        # Sums of times differ in the last digits.
        cells.waits.append(max(0.0, self.now - process.cell_at - process.cell_alone))
        cells.work.append(process.cell_work)
        process.cell_at = -1.0

    def _fail(self, process: Process) -> None:
        """End a kernel that cannot get its memory."""
        process.failed = True
        process.walk = _NO_STEPS
        if process.cell_at >= 0:
            self._end_cell(process)
            process.cell_at = -1.0
        self.at(self.now, self._next, process)

    def _leave(self, process: Process) -> None:
        self.alive -= 1
        outcome, spec = self.outcome, process.spec
        outcome.kernels += 1
        outcome.failed += process.failed
        outcome.starved += process.gap > self.starving
        outcome.longest_gap = max(outcome.longest_gap, process.gap)
        if self.now > spec.at:
            pace = process.delivered / (self.now - spec.at)
            outcome.paces.setdefault(spec.label, []).append(pace)
        if spec.is_job() and not process.failed:
            jobs = outcome.jobs.setdefault(spec.label, Jobs())
            jobs.completions.append(self.now - spec.at)
            jobs.alone.append(spec.alone())
        self._drop(process)

    # --- Overridden by subclasses -----------------------------------------------------------------

    def _open_context(self, process: Process, step: Step) -> bool:
        """Create its context; return False if it must wait before this step, or cannot have a context."""
        if process.gpu.used + self.costs.context > process.gpu.total:
            self._fail(process)
            return False
        process.context = self.costs.context
        process.gpu.take(process.context)
        return True

    def _allocate(self, process: Process, size: int) -> bool:
        """Allocate; return False if the next step must wait."""
        gpu = process.gpu
        if gpu.used + size > gpu.total:
            self._fail(process)
            return False
        gpu.take(size)
        process.allocated += size
        self.at(self.now + size * self.costs.mapping, self._next, process)
        return False

    def _free(self, process: Process, size: int) -> None:
        process.allocated -= size
        process.gpu.take(-size)

    def _drop(self, process: Process) -> None:
        process.gpu.take(-process.allocated - process.context)

    def _begin_cell(self, process: Process) -> None:
        pass

    def _end_cell(self, process: Process) -> None:
        pass

    def _hint(self, process: Process, kind: Any) -> None:
        """Note that a user is about to run a cell, as the browser reports."""

    def _turn_away(self, process: Process) -> None:
        """Note that a kernel computes without the GPU now."""

    def _submit(self, process: Process) -> None:
        """Note that a kernel has work for the GPU."""
        self._start(process)

    def _done(self, process: Process) -> None:
        """Note that a kernel's work is done."""
        self._next(process)

    def _speed(self, process: Process) -> float:
        """Return the fraction of the GPU that a kernel may use."""
        return process.demand

    # --- Compute ----------------------------------------------------------------------------------

    def _want(self, process: Process) -> None:
        process.wants = True
        process.gap_since = process.wanted_since = self.now
        gpu = process.gpu
        gpu.wanting[process] = None
        if gpu.window_at < 0:
            gpu.window_at = self.now + WINDOW
            self.at(gpu.window_at, self._end_window, gpu)

    def _start(self, process: Process) -> None:
        """Put a kernel's work on the GPU."""
        gpu = process.gpu
        self._touch(gpu)
        gpu.running[process] = None
        process.speed = self._speed(process)
        self._close_gap(process)

    def _stop(self, process: Process) -> None:
        """Take a kernel's work off the GPU; the rest waits."""
        gpu = process.gpu
        self._touch(gpu)
        del gpu.running[process]
        process.rate = 0.0
        process.gap_since = self.now

    def _close_gap(self, process: Process) -> None:
        gap = self.now - process.gap_since
        if gap > process.gap:
            process.gap = gap

    def _touch(self, gpu: Gpu) -> None:
        self._advance(gpu)
        if not gpu.dirty:
            gpu.dirty = True
            self._dirty.append(gpu)

    def _advance(self, gpu: Gpu) -> None:
        passed = self.now - gpu.last
        if passed <= 0:
            return
        gpu.last = self.now
        for process in gpu.running:
            done = process.rate * passed
            process.remaining -= done
            done *= process.demand
            process.busy += process.busy_rate * passed
            process.delivered += done
            gpu.delivered += done

    def _settle(self) -> None:
        """Compute the speeds again where something changed, and find which kernel is done next."""
        dirty = self._dirty
        for gpu in dirty:
            gpu.dirty = False
            gpu.version += 1
            wanted = 0.0
            for process in gpu.running:
                wanted += process.speed
            scale = 1.0 / wanted if wanted > 1.0 else 1.0
            soonest = -1.0
            for process in gpu.running:
                speed, demand = process.speed, process.demand
                process.rate = rate = speed * scale / demand
                # Work that other kernels slow down stays on the GPU for longer. Work that its pace slows down does not.
                process.busy_rate = 1 - (1 - demand) * rate if speed >= demand else speed
                if rate > 0:
                    left = process.remaining / rate
                    if left < soonest or soonest < 0:
                        soonest = left
            if soonest >= 0:
                self.at(self.now + max(0.0, soonest), self._complete, (gpu, gpu.version))
        dirty.clear()

    def _complete(self, argument: tuple[Gpu, int]) -> None:
        gpu, version = argument
        if version != gpu.version:
            return
        self._touch(gpu)
        for process in [p for p in gpu.running if p.remaining <= _NOTHING + 1e-12 * self.now]:
            excess = process.remaining * process.demand
            process.delivered += excess
            gpu.delivered += excess
            process.remaining = 0.0
            del gpu.running[process]
            process.rate = 0.0
            process.wants = False
            process.wanted += self.now - process.wanted_since
            self._done(process)

    # --- Fairness ---------------------------------------------------------------------------------

    def _end_window(self, gpu: Gpu) -> None:
        """Compare the GPU time of the kernels that wanted the GPU for most of the window."""
        self._advance(gpu)
        had: dict[str, float] = {}
        share: dict[str, tuple[float, float]] = {}
        for process in list(gpu.wanting):
            spec = process.spec
            if process.wants:
                process.wanted += self.now - process.wanted_since
                process.wanted_since = self.now
            if process.wanted >= WINDOW / 2:
                part = process.delivered - process.window_work
                had[spec.user] = had.get(spec.user, 0.0) + part
                share[spec.user] = (spec.request, spec.weight)
            process.wanted = 0.0
            process.window_work = process.delivered
            if not process.wants:
                del gpu.wanting[process]
        if len(had) > 1:
            requested = all(request for request, _ in share.values())
            parts = [
                part / (share[user][0] if requested else share[user][1])
                for user, part in had.items()
            ]
            squares = sum(part * part for part in parts)
            index = sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0
            self.outcome.fairness += index * len(parts)
            self.outcome.fairness_weight += len(parts)
        if gpu.wanting:
            gpu.window_at = self.now + WINDOW
            self.at(gpu.window_at, self._end_window, gpu)
        else:
            gpu.window_at = -1.0


class Shared(Machine):
    """All kernels at once, as without a scheduler."""


class Exclusive(Machine):
    """One kernel after another, each with a GPU of its own; background kernels come last."""

    def __init__(self, costs: Calibration, memory: int, gpus: int, starving: float) -> None:
        super().__init__(costs, memory, gpus, starving)
        self._free_gpus = list(reversed(self.gpus))
        self._queue: list[tuple[bool, float, int, Process]] = []

    def _arrive(self, process: Process) -> None:
        spec = process.spec
        process.gap_since = self.now
        entry = (spec.priority == "background", spec.at, process.number, process)
        heappush(self._queue, entry)
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._free_gpus:
            process = heappop(self._queue)[-1]
            process.gpu = self._free_gpus.pop()
            self._close_gap(process)
            self._next(process)

    def _begin_cell(self, process: Process) -> None:
        if process.cells == 1:
            # The user has waited for the GPU before the first cell could run.
            process.cell_at -= process.gap

    def _drop(self, process: Process) -> None:
        super()._drop(process)
        self._free_gpus.append(process.gpu)
        self._admit()
