# SPDX-License-Identifier: BSD-3-Clause
"""The driver's own checkpoint of a process, with which evictions are compared, and the process that requests it."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

from ...scheduler.gpu.devices import Devices
from ...scheduler.gpu.drivers import Driver
from ..programs.holder import Holder, serve, torch_can
from .figures import Figure
from .machine import machine

GIB = 1 << 30
SIZE = 8 * GIB
#: Milliseconds for which the driver tries to lock a process.
PATIENCE_MS = 20_000


class _Arguments(ctypes.Structure):
    """CUcheckpointLockArgs and the like: 64 bytes, of which none but the first has to be set."""

    _fields_ = (("timeout_ms", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 31))


class Watching:
    """What the process can be told that looks at others: it holds nothing on the GPU."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._devices = Devices(None)
        self._gpu = ""

    def open(self, cuda: str, nvml: str) -> bool:
        """Load the driver; whether it can checkpoint a process."""
        self._cuda = ctypes.CDLL(cuda)
        self._devices = Devices(Path(nvml))
        found = self._devices.start()
        if not found:
            raise RuntimeError(f"NVML shows no GPU ({self._devices.state})")
        self._gpu = found[0].gpu
        return hasattr(self._cuda, "cuCheckpointProcessCheckpoint") and self._cuda.cuInit(0) == 0

    def step(self, name: str, pid: int) -> tuple[int, float]:
        """Lock, Checkpoint, Restore or Unlock a process; the driver's answer, and the seconds that it took."""
        arguments = _Arguments(timeout_ms=PATIENCE_MS if name == "Lock" else 0)
        start = time.monotonic()
        result = getattr(self._cuda, f"cuCheckpointProcess{name}")(pid, ctypes.byref(arguments))
        return result, time.monotonic() - start

    def memory(self) -> tuple[int, int]:
        """Bytes of the first GPU, and of them in use."""
        device = self._devices.read(self._gpu)
        if device is None:
            raise RuntimeError("NVML does not read the GPU's memory")
        return device.total, device.used

    def held(self, pid: int) -> int | None:
        """Bytes of the GPU that a process has by NVML's list; None if it is not in it."""
        return (self._devices.processes(self._gpu) or {}).get(pid)


class Watcher(Holder):
    """The parent's end of that process. Its environment is that of a program without us."""

    module = __name__

    def __init__(
        self,
        environ: Mapping[str, str],
        driver: Driver,
        started: Callable[[Popen[str]], None] = lambda _: None,
    ) -> None:
        super().__init__(environ, torch=False, started=started)
        #: Whether the driver can checkpoint a process (570 and newer).
        self.able: bool = self.call("open", str(driver.cuda), str(driver.nvml))

    def step(self, name: str, pid: int) -> float:
        """Take one step with a process; seconds.

        Raises
        ------
        RuntimeError
            If the driver refuses.
        """
        result, seconds = self.call("step", name, pid)
        if result != 0:
            raise RuntimeError(f"cuCheckpointProcess{name}: CUDA error {result}")
        return float(seconds)


def checkpoint_rates() -> Iterator[Figure]:
    """Time ``cuCheckpointProcessCheckpoint`` and ``...Restore`` (driver 570 and newer); nothing where there is none."""
    with machine(scheduler=False, whole=True) as here:
        if here.driver.simulated:
            return
        watcher = Watcher(here.bare_environ(), here.driver)
        try:
            if not watcher.able:
                return
            holder = Holder(here.bare_environ(), torch=torch_can(simulated=False))
            try:
                holder.call("hold", SIZE, GIB, 1)
                steps = ("Lock", "Checkpoint", "Restore", "Unlock")
                taken = {step: watcher.step(step, holder.process.pid) for step in steps}
            finally:
                holder.close()
        finally:
            watcher.close()
    for way, step in (("out", "Checkpoint"), ("back", "Restore")):
        yield Figure(
            "swap",
            f"the driver's checkpoint, {way}, 8 GiB",
            SIZE / taken[step] / 1e9,
            "GB/s",
            None,
            1,
            0.0,
        )


if __name__ == "__main__":
    sys.exit(serve(Watching()))
