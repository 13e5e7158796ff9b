# SPDX-License-Identifier: BSD-3-Clause
"""What page-locked host memory costs a checkpoint, in small pages and in large ones: the driver alone, without us.

A process makes a file in memory as the pool's owner does, has its pages small or large (``MADV_COLLAPSE``, Linux 6.1),
and page-locks it. Another process has the driver checkpoint and restore it. A process that has locked nothing is
measured for comparison::

    gpushare bench hibernate --part pages --gib 24
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from subprocess import Popen
from typing import Any

from ..harness.checkpoint import Watcher
from ..harness.figures import Figure
from ..harness.machine import MIB, machine
from ..programs.holder import Holder, serve

#: Bytes of a large page, and of the part that is made large at once.
LARGE, PART = 2 * MIB, 16 * MIB
#: Of <sys/mman.h> and <linux/mman.h>: what Python does not name, or not in all of its versions.
PROT_NONE, MAP_FIXED, MADV_COLLAPSE = 0, 0x10, 25
#: How often each process is checkpointed.
ROUNDS = 3
#: By how much less is locked on the simulated driver.
SCALE = 128


class Locking:
    """What the process can be told that locks pages."""

    def __init__(self) -> None:
        self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        number, pointer, size = ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
        self._cuda.cuMemHostRegister_v2.argtypes = [pointer, size, number]
        self._libc = ctypes.CDLL(None, use_errno=True)
        integer = ctypes.c_int
        self._libc.mmap.argtypes = [pointer, size, integer, integer, integer, ctypes.c_long]
        self._libc.mmap.restype = pointer
        self._libc.madvise.argtypes = [pointer, size, integer]
        context = ctypes.c_void_p()
        for call, given in (
            ("cuInit", (0,)),
            ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
            ("cuCtxSetCurrent", (context,)),
        ):
            if result := getattr(self._cuda, call)(*given):
                raise RuntimeError(f"{call}: CUDA error {result}")

    def lock(self, size: int, large: bool) -> tuple[float, int]:
        """Page-lock ``size`` bytes; return the seconds, and the bytes that lack a requested large page."""
        file = os.memfd_create("pages")
        os.ftruncate(file, size)
        at = self._map(file, size)
        ctypes.memset(at, 1, size)
        refused = self._enlarge(at, size) if large else 0
        start = time.monotonic()
        if result := self._cuda.cuMemHostRegister_v2(at, size, 0):
            raise RuntimeError(f"cuMemHostRegister: CUDA error {result}")
        return time.monotonic() - start, refused

    def _map(self, file: int, size: int) -> int:
        """Map a file where its large pages would be whole."""
        reserved = self._mmap(
            None, size + LARGE, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1
        )
        at = -(-reserved // LARGE) * LARGE
        access = mmap.PROT_READ | mmap.PROT_WRITE
        return self._mmap(at, size, access, mmap.MAP_SHARED | MAP_FIXED, file)

    def _mmap(self, at: int | None, size: int, access: int, flags: int, file: int) -> int:
        found: int | None = self._libc.mmap(at, size, access, flags, file, 0)
        if found is None or found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return found

    def _enlarge(self, at: int, size: int) -> int:
        """Have large pages; how many bytes the kernel has none for."""
        refused = 0
        for part in range(at, at + size, PART):
            if self._libc.madvise(part, min(PART, at + size - part), MADV_COLLAPSE) != 0:
                if ctypes.get_errno() == errno.EINVAL:
                    return size
                refused += PART
        return refused


class LockingHolder(Holder):
    """The parent's end of it."""

    module = __name__


def pages(gib: float, started: Callable[[Popen[str]], None] = lambda _: None) -> Iterator[Figure]:
    """Time page-locking and checkpoints with ``gib`` GiB locked; ``started`` is called with each process.

    Raises
    ------
    RuntimeError
        If the driver cannot checkpoint a process, or refuses to.
    """
    with machine(scheduler=False, whole=True) as here:
        size = int(gib * (1 << 30)) // (SCALE if here.driver.simulated else 1) // LARGE * LARGE
        watcher = Watcher(here.bare_environ(), here.driver, started)
        try:
            if not watcher.able:
                raise RuntimeError("the driver cannot checkpoint a process (it is older than 570)")
            beside: dict[str, float] = {}
            for kind, large in (("nothing", None), ("4 KiB", False), ("2 MiB", True)):
                process = LockingHolder(here.bare_environ(), torch=False, started=started)
                try:
                    what = f"pages, {size / (1 << 30):.3g} GiB locked in pages of {kind}: "
                    if large is None:
                        what = "pages, nothing locked: "
                    else:
                        seconds, refused = process.call("lock", size, large)
                        if refused:
                            what = f"{what}({refused / size:.0%} refused by the kernel) "
                        rate = size / seconds / 1e9
                        yield Figure("hibernate", f"{what}page-lock", rate, "GB/s", None, 1, 0.0)
                    for way, taken in _times(watcher, process).items():
                        yield Figure(
                            "hibernate", f"{what}{way}", taken, "s", beside.setdefault(way, taken), ROUNDS, 0.0
                        )  # fmt: skip
                finally:
                    process.close()
        finally:
            watcher.close()


def _times(watcher: Watcher, process: Holder) -> dict[str, float]:
    """Return the seconds of the fastest checkpoint of a process, and of the fastest restore: the first ones prepare."""
    pid = process.process.pid
    found = [
        [
            sum(watcher.step(step, pid) for step in way)
            for way in (("Lock", "Checkpoint"), ("Restore", "Unlock"))
        ]
        for _ in range(ROUNDS)
    ]
    return {
        name: min(taken)
        for name, taken in zip(("checkpoint", "restore"), zip(*found, strict=True), strict=True)
    }


if __name__ == "__main__":
    sys.exit(serve(Locking()))
