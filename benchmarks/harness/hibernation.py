# SPDX-License-Identifier: BSD-3-Clause
"""A machine whose kernels hibernate, with a time limit for all of its processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import Popen
from typing import Any

from ..programs.holder import end, torch_can
from ..programs.sleeper import Kernel
from .checkpoint import Watcher
from .machine import MIB, Machine, machine

#: On the simulated driver, all sizes are smaller by this factor.
SCALE = 128
#: Bytes of a context on an H200, and bytes that a checkpointed process keeps there.
CONTEXT, REST = 719 * MIB, 4 * MIB
#: Bytes of the simulated GPU. We count a context as 512 MiB, on a small GPU as a 64th of it: here that is scaled, too.
SIMULATED = 64 * 512 * MIB // SCALE


class Clock:
    """Ends all registered processes at a time limit, so that no wait for them exceeds it.

    Parameters
    ----------
    seconds
        From now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds
        self._processes: list[Popen[str]] = []
        self._timer = threading.Timer(seconds, self._kill)
        self._timer.daemon = True
        self._timer.start()

    def _kill(self) -> None:
        for process in list(self._processes):
            process.kill()

    def watch(self, process: Popen[str]) -> None:
        """Register a process."""
        self._processes.append(process)
        if self.left() <= 0:
            process.kill()

    def left(self) -> float:
        """Return the seconds until the time limit."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise if the time is over."""
        if self.left() <= 0:
            raise RuntimeError("the time is over")

    def close(self) -> None:
        """Cancel the time limit."""
        self._timer.cancel()


class Scene:
    """A machine for one part of the benchmark, with its processes and scheduler."""

    def __init__(self, here: Machine, clock: Clock) -> None:
        self.here, self.clock = here, clock
        self.simulated = here.driver.simulated
        self.torch = torch_can(self.simulated)
        self._processes: list[Popen[str]] = []
        self._pools: list[ThreadPoolExecutor] = []
        self.watcher = Watcher(here.bare_environ(), here.driver, self._started)
        if not self.watcher.able:
            raise RuntimeError("the driver cannot checkpoint a process (it is older than 570)")

    def _started(self, process: Popen[str]) -> None:
        self._processes.append(process)
        self.clock.watch(process)

    def scaled(self, size: float) -> int:
        """Return a size on this GPU, a multiple of 2 MiB."""
        return max(1, int(size) // (SCALE if self.simulated else 1) // (2 * MIB)) * 2 * MIB

    def start_scheduler(self, *flags: str) -> None:
        """Start the scheduler."""
        self.here.start_scheduler(*flags)
        assert self.here.scheduler is not None
        self.clock.watch(self.here.scheduler)
        while (found := self.status()["hibernation"])["able"] is None:
            self.clock.check()
            time.sleep(0.01)
        if not found["able"]:
            raise RuntimeError(f"nothing can be hibernated here: {found['text']}")

    def status(self) -> dict[str, Any]:
        """Return the scheduler's status."""
        found: dict[str, Any] = self.here.control("status")["status"]  # type: ignore[assignment]
        return found

    def kernel(self, name: str) -> Kernel:
        """Start a kernel."""
        return Kernel(self.here.client_environ(name), torch=self.torch, started=self._started)

    def bare(self) -> Kernel:
        """Start a kernel without sharing."""
        return Kernel(self.here.bare_environ(), torch=self.torch, started=self._started)

    def pool(self, threads: int) -> ThreadPoolExecutor:
        """Return threads that wait for processes."""
        self._pools.append(ThreadPoolExecutor(threads))
        return self._pools[-1]

    def used(self) -> int:
        """Return the used bytes of the GPU."""
        return int(self.watcher.call("memory")[1])

    def held(self, kernel: Kernel) -> int | None:
        """Return the bytes of the GPU that NVML lists for a kernel; None if it lists none."""
        found = self.watcher.call("held", kernel.process.pid)
        return None if found is None else int(found)

    def until(self, name: str, done: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until a group satisfies a condition."""
        while not done(self.here.group(name)):
            self.clock.check()
            time.sleep(0.001)

    def evict(self, name: str) -> None:
        """Evict all of a group's memory."""
        self.here.control("evict", group=f"bench-{name}")
        self.until(name, lambda group: all(gpu["resident"] == 0 for gpu in group["gpus"]))

    def gpu_of(self, name: str) -> str:
        """Return the GPU on which a group has, or had, its memory."""
        gpus: list[dict[str, Any]] = self.here.group(name)["gpus"]  # type: ignore[assignment]
        return str(max(gpus, key=lambda gpu: int(gpu["footprint"]))["uuid"])

    def hibernate(self, name: str) -> float:
        """Hibernate a group; return the seconds from the request to the end.

        Raises
        ------
        RuntimeError
            The group cannot hibernate.
        """
        start = time.monotonic()
        self.here.control("hibernate", group=f"bench-{name}")

        def done(group: dict[str, Any]) -> bool:
            found = group["hibernation"]
            if found is not None and found["code"] is not None:
                if found["code"] != "busy":
                    raise RuntimeError(f"not hibernated: {found['code']}: {found['text']}")
                # The request stands and is retried in some seconds; a repeated request is tried at once.
                self.here.control("hibernate", group=f"bench-{name}")
            return bool(group["state"] == "hibernated")

        self.until(name, done)
        return time.monotonic() - start

    def alone(self, kernel: Kernel) -> tuple[float, float]:
        """Let the driver alone checkpoint and restore a kernel; return the seconds of each, up to its first work."""
        pid = kernel.process.pid
        out = sum(self.watcher.step(step, pid) for step in ("Lock", "Checkpoint"))
        back = sum(self.watcher.step(step, pid) for step in ("Restore", "Unlock"))
        start, end = kernel.call("touch")
        return out, back + end - start

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        # Their threads wait for processes, and end when these do.
        for pool in self._pools:
            pool.shutdown()
        for process in self._processes:
            end(process)


@contextlib.contextmanager
def scene_of(clock: Clock, *, scheduler: bool = True, gpus: int = 1) -> Iterator[Scene]:
    """Set up a machine; ``gpus`` is the number of simulated GPUs."""
    environ = {
        "GPUSHARE_SIM_DEVICES": str(gpus),
        "GPUSHARE_SIM_MEMORY": str(SIMULATED),
        "GPUSHARE_SIM_CONTEXT": str(CONTEXT // SCALE),
        "GPUSHARE_SIM_CHECKPOINT_LEFT": str(REST // SCALE),
    }
    with machine(scheduler=False, whole=True, **environ) as here:
        scene = Scene(here, clock)
        try:
            if scheduler:
                scene.start_scheduler()
            yield scene
        finally:
            scene.close()
