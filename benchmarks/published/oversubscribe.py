# SPDX-License-Identifier: BSD-3-Clause
"""What managed memory costs with us and without, where it is more than the GPU has. On the simulated driver only.

Two cases: one process that holds twice the GPU and goes over all of it again and again; and two notebooks, each with
three quarters of the GPU, that take turns. Beside each, the same program with plain managed memory, which the driver
brings in fault by fault and pushes out by its own choice. The times are the model's (simulated-driver.md): what
they show is which bytes fault, and which cross the bus at the speed of copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...scheduler.gpu.drivers import find_driver
from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, machine

MIB = 1 << 20
#: Bytes of one buffer, and how often all of them are gone over.
BUFFER, PASSES = 8 * MIB, 4
#: Of the counters of the simulated driver (csrc/sim/counters.h), the first ones.
COUNTERS = (
    *("faulted", "prefetched", "stolen", "copied_in", "copied_out", "kernels"),
    *("injected", "page_locked", "page_lock_ns", "remote", "written_back"),
)


class Worker:
    """A process that holds buffers and fills all of them when it is told to."""

    def __init__(self, environ: Mapping[str, str], size: int, *, managed: bool) -> None:
        kind = "managed" if managed else "device"
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, kind, str(size)],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.before = self._read()

    def go_over(self) -> dict[str, float]:
        """Fill all buffers; return the seconds that took, and by how much the driver's counters grew."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        now = self._read()
        grown = {name: now[name] - self.before[name] for name in COUNTERS}
        self.before = now
        return {"seconds": now["seconds"], **grown}

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def run() -> Iterator[Figure]:
    """Measure both cases."""
    driver = find_driver(os.environ)
    if driver is not None and not driver.simulated:
        raise RuntimeError(
            "managed memory beyond the GPU's can hang a host, so it is measured on the simulated driver only; "
            "set GPUSHARE_SIM=1"
        )
    with machine() as here:
        total = _total(here)
        over = {**here.client_environ("one"), "GPUSHARE_OVERSUBSCRIBE": "1"}
        naive = _passes([(here.bare_environ(), True)], 2 * total)
        ours = _passes([(over, False)], 2 * total)
        yield from _figures("one process, twice the GPU", ours, naive, 2 * total)
        managed = [
            ({**here.client_environ(name), "GPUSHARE_BACKEND": "managed"}, False) for name in "ab"
        ]
        naive = _passes([(here.bare_environ(), True)] * 2, total * 3 // 4)
        ours = _passes(managed, total * 3 // 4)
        yield from _figures("two that alternate, 3/4 each", ours, naive, total * 3 // 4)


def _total(here: Machine) -> int:
    status = here.control("status")["status"]
    assert isinstance(status, dict)
    return int(status["gpus"][0]["total"])


def _passes(programs: list[tuple[dict[str, str], bool]], size: int) -> list[dict[str, float]]:
    """Let the programs go over their memory in turn; the first time does not count."""
    workers: list[Worker] = []
    try:
        for environ, managed in programs:
            workers.append(Worker(environ, size // BUFFER * BUFFER, managed=managed))
        for worker in workers:
            worker.go_over()
        return [worker.go_over() for _ in range(PASSES) for worker in workers]
    finally:
        for worker in workers:
            worker.close()


def _figures(
    case: str, ours: list[dict[str, float]], naive: list[dict[str, float]], size: int
) -> Iterator[Figure]:
    for name, unit, factor, target in (
        ("seconds", "s", 1.0, None),
        ("faulted", "MiB", MIB, 0.0),
        ("prefetched", "MiB", MIB, None),
        ("remote", "MiB", MIB, None),
    ):
        mine, theirs = ([one[name] / factor for one in found] for found in (ours, naive))
        what = f"a pass over {size // MIB} MiB" if name == "seconds" else f"{name} in it"
        yield Figure(
            "oversubscribe",
            f"{case}: {what}",
            statistics.median(mine),
            unit,
            statistics.median(theirs),
            len(mine),
            quartile_distance(mine),
            target,
        )


# --- The process ------------------------------------------------------------------------------------------------------


def _check(result: int, call: str) -> None:
    if result != 0:
        raise SystemExit(f"{call} failed with CUDA error {result}")


def _work(kind: str, size: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    cuda.cuMemAllocManaged.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    cuda.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]
    context = ctypes.c_void_p()
    _check(cuda.cuInit(0), "cuInit")
    _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    _check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    buffers: list[int] = []
    for _ in range(size // BUFFER):
        pointer = ctypes.c_uint64()
        if kind == "managed":
            result = cuda.cuMemAllocManaged(ctypes.byref(pointer), BUFFER, 1)
        else:
            result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), BUFFER)
        _check(result, "an allocation")
        buffers.append(pointer.value)
    end_cell: Any = getattr(ctypes.CDLL(None), "gpushare_cell_end", lambda _: None)
    _say(0.0)
    for number, _ in enumerate(sys.stdin):
        start = time.monotonic()
        for buffer in buffers:
            _check(cuda.cuMemsetD32_v2(buffer, number, BUFFER // 4), "cuMemsetD32")
        _check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
        seconds = time.monotonic() - start
        end_cell(b"")
        _say(seconds)


def _say(seconds: float) -> None:
    values = (ctypes.c_uint64 * len(COUNTERS))()
    driver = ctypes.CDLL(os.environ.get("GPUSHARE_DRIVER", "libcuda.so.1"))
    driver.gpushare_sim_counters(values, ctypes.c_size_t(ctypes.sizeof(values)))
    counters = dict(zip(COUNTERS, values, strict=True))
    print(json.dumps({"seconds": seconds, **counters}), flush=True)


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
