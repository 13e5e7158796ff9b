# SPDX-License-Identifier: BSD-3-Clause
"""A program that computes for given times on the GPU: the child of the benchmarks of policies.

Work is counted in portions of about a millisecond of GPU time, so that it is the same work whoever else is on the GPU:
products of matrices by PyTorch where that is installed and the GPU is real, else kernels of the simulated driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..harness.machine import EMPTY
from ..published import training
from .holder import Commands, Holder, main

#: Seconds of GPU time of one portion.
PORTION = 0.001
#: Portions that are submitted before a job waits for them; those of a simulated training step.
AHEAD, STEP = 50, 10
#: Training steps that are submitted before the loss is looked at.
STEPS_AHEAD = 5
WIDTH = 4096
#: Seconds after which the GPU's clock has come down to what its power allows for long.
WARM = 3.0
#: Widths of a product that is to take a given time are multiples of this; the search takes this number of rounds, of
#: this number of products.
GRAIN, ROUNDS, PRODUCTS = 128, 3, 10
#: The simulated GPU's kernels take as long as a portion.
KERNEL_NS = str(round(PORTION * 1e9))


class SimulatedWork:
    """Kernels that do nothing, for as long as the simulated GPU is told that its kernels take."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoad", ctypes.byref(module), str(EMPTY).encode())
        call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"empty")

    def calibrate(self) -> int:
        """Return the number of kernels in a portion."""
        return 1

    def submit(self, count: int) -> None:
        """Launch this number of kernels."""
        for _ in range(count):
            self._call("cuLaunchKernel", self._kernel, *[1] * 6, 0, None, None, None)

    def wait(self) -> None:
        """Wait for all of them."""
        self._call("cuCtxSynchronize")

    def step(self, batch: int) -> Callable[[], None]:
        """Return a training step; its length is always the same."""
        return lambda: self.submit(STEP)

    def fit(self, seconds: float) -> int:
        """Return the size of a kernel that takes this time: its nanoseconds."""
        return round(seconds * 1e9)

    def resize(self, size: int) -> None:
        """Take kernels of that size from now on."""
        driver = ctypes.CDLL(os.environ.get("GPUSHARE_DRIVER", "libcuda.so.1"))
        driver.gpushare_sim_duration(ctypes.c_uint64(size))

    def mark(self) -> ctypes.c_void_p:
        """Mark the end of what was submitted so far."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", event, None)
        return event

    def reached(self, mark: ctypes.c_void_p) -> None:
        """Wait for a mark."""
        self._call("cuEventSynchronize", mark)

    def between(self, first: ctypes.c_void_p, mark: ctypes.c_void_p) -> float:
        """Wait for a mark and give it up; the seconds on the GPU since the first."""
        self.reached(mark)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), first, mark)
        self._call("cuEventDestroy_v2", mark)
        return milliseconds.value / 1e3


class TorchWork:
    """Products of matrices."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._matrix = torch.rand(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        self._product = torch.empty_like(self._matrix)
        self.submit(AHEAD)
        self.wait()

    def calibrate(self) -> int:
        """Return the number of products in a portion, once the GPU is as warm as it will be."""
        count, taken, until = 20 * AHEAD, 0.0, time.perf_counter() + WARM
        while taken == 0.0 or time.perf_counter() < until:
            begun = time.perf_counter()
            self.submit(count)
            self.wait()
            taken = time.perf_counter() - begun
        return max(1, round(PORTION * count / taken))

    def submit(self, count: int) -> None:
        """Submit this number of products."""
        for _ in range(count):
            self._torch.matmul(self._matrix, self._matrix, out=self._product)

    def wait(self) -> None:
        """Wait for all of them."""
        self._torch.cuda.synchronize()

    def step(self, batch: int) -> Callable[[], None]:
        """Return the step of a small GPT."""
        return training._transformer(self._torch, self._torch.device("cuda"), batch)

    def fit(self, seconds: float) -> int:
        """Return the size of a kernel that takes about this time: the width of its matrices."""
        width = WIDTH
        for _ in range(ROUNDS):
            self.resize(width)
            self.submit(PRODUCTS)
            self.wait()
            start = time.perf_counter()
            self.submit(PRODUCTS)
            self.wait()
            taken = (time.perf_counter() - start) / PRODUCTS
            width = max(1, round(width * (seconds / taken) ** (1 / 3) / GRAIN)) * GRAIN
        return width

    def resize(self, size: int) -> None:
        """Take kernels of that size from now on.

        Of zeros, which take little power: else the clock would rise where others leave the GPU idle, and the same work
        be less time. Of single precision, which takes long in little memory.
        """
        self._matrix = self._product = None
        self._torch.cuda.empty_cache()
        self._matrix = self._torch.zeros(size, size, device="cuda")
        self._product = self._torch.empty_like(self._matrix)

    def mark(self) -> Any:
        """Mark the end of what was submitted so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: Any) -> None:
        """Wait for a mark."""
        mark.synchronize()

    def between(self, first: Any, mark: Any) -> float:
        """Wait for a mark; the seconds on the GPU since the first."""
        self.reached(mark)
        return float(first.elapsed_time(mark)) / 1e3


class Jobs(Commands):
    """What the program can be told."""

    def __init__(self, torch: bool) -> None:
        super().__init__(torch)
        memory: Any = self.memory
        self._work = TorchWork(memory.torch) if torch else SimulatedWork(memory.call)
        self._prepare: Callable[[], None] = (lambda: None) if torch else self._current
        self._portion = 1
        self._step: Callable[[], None] | None = None
        self._trained = (0, 0.0)
        self._moving = threading.Event()

    def _current(self) -> None:
        memory: Any = self.memory
        memory.call("cuCtxSetCurrent", memory.context)  # of this thread

    @contextlib.contextmanager
    def _cell(self) -> Iterator[None]:
        self.cell("begin")
        try:
            yield
        finally:
            self.cell("end")

    def cell(self, phase: str) -> None:
        """Tell the interposer, where there is one, that a cell begins or ends."""
        if hasattr(self.ours, f"gpushare_cell_{phase}"):
            getattr(self.ours, f"gpushare_cell_{phase}")(None)

    def calibrate(self) -> int:
        """Return the work that makes a portion on this GPU while no other program uses it."""
        return self._work.calibrate()

    def portion(self, amount: int) -> None:
        """Take a portion to be that much."""
        self._portion = amount

    def _compute(self, portions: int) -> None:
        for start in range(0, portions, AHEAD):
            self._work.submit(min(AHEAD, portions - start) * self._portion)
            self._work.wait()

    def burst(self, portions: int) -> float:
        """Compute; seconds from before the first submission until it is done."""
        start = time.monotonic()
        self._compute(portions)
        return time.monotonic() - start

    def train(self, batch: int) -> None:
        """Begin to train with batches of this size; return after the first steps."""
        if self._step is None:
            self._step = self._work.step(batch)
        step = self._step
        self._stop.clear()
        self._moving.clear()

        def run() -> None:
            self._prepare()
            count, start = -STEPS_AHEAD, 0.0
            while count <= 0 or not self._stop.is_set():
                for _ in range(STEPS_AHEAD):
                    step()
                self._work.wait()
                count += STEPS_AHEAD
                if count == 0:
                    start = time.monotonic()
                    self._moving.set()
            self._trained = (count, time.monotonic() - start)

        self._worker = threading.Thread(target=run)
        self._worker.start()
        self._moving.wait()

    def trained(self) -> float:
        """End that; steps a second."""
        self._stop.set()
        assert self._worker is not None
        self._worker.join()
        count, seconds = self._trained
        return count / seconds

    def turns(self, count: int, portions: int, pause: float) -> tuple[float, float]:
        """Alternately compute with all memory and pause; return when this began and ended."""
        start = time.monotonic()
        for _ in range(count):
            self.memory.add()
            self._compute(portions)
            time.sleep(pause)
        return start, time.monotonic()

    def fit(self, seconds: float) -> int:
        """Return the size of a CUDA kernel that takes about this time while no other program uses the GPU."""
        return self._work.fit(seconds)

    def resize(self, size: int) -> None:
        """Take kernels to be of that size, and run one."""
        self._work.resize(size)
        self._work.submit(1)
        self._work.wait()

    def kernels(self, seconds: float, ahead: int) -> tuple[float, float, list[float]]:
        """Run kernels, submitting ``ahead`` of them in advance; return the begin, the end, and each kernel's end."""
        first = self._work.mark()
        self._work.reached(first)
        begun = time.monotonic()
        pending: deque[Any] = deque()
        ends = []
        while time.monotonic() < begun + seconds:
            self._work.submit(1)
            pending.append(self._work.mark())
            if len(pending) > ahead:
                ends.append(begun + self._work.between(first, pending.popleft()))
        ends += [begun + self._work.between(first, mark) for mark in pending]
        return begun, begun + seconds, ends

    def cells(self, count: int, portions: int) -> list[tuple[float, float]]:
        """Run cells one after the other; return when each began and ended."""
        ran = []
        for _ in range(count):
            start = time.monotonic()
            with self._cell():
                self.memory.add()
                self._compute(portions)
            ran.append((start, time.monotonic()))
        return ran


class Job(Holder):
    """The parent's end of one."""

    module = __name__

    def __init__(self, environ: Mapping[str, str], *, torch: bool, portion: int = 1) -> None:
        super().__init__(environ, torch=torch)
        self.call("portion", portion)


def calibrated(environ: Mapping[str, str], torch: bool) -> int:
    """Return what makes a portion, the same for all jobs of a benchmark."""
    job = Job(environ, torch=torch)
    try:
        return int(job.call("calibrate"))
    finally:
        job.close()


def interval(
    pairs: Sequence[Any], figure: Callable[[Sequence[Any]], float], resamples: int = 1000
) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of a figure of pairs."""
    draw = random.Random(0)
    found = sorted(figure(draw.choices(pairs, k=len(pairs))) for _ in range(resamples))
    return found[int(0.025 * resamples)], found[int(0.975 * resamples)]


if __name__ == "__main__":
    sys.exit(main(Jobs))
