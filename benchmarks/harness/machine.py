# SPDX-License-Identifier: BSD-3-Clause
"""One GPU, a scheduler process, and probe processes (csrc/bench/probe.c) that share it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from ..._version import LIBRARIES
from ...kernel_provisioner.launch import Settings, client_environment, plain_environment
from ...scheduler.gpu.devices import Devices
from ...scheduler.gpu.drivers import Driver, find_driver
from ...scheduler.protocol.client import ControlClient

MIB = 1 << 20
#: On a real GPU: bytes of each of two programs that do not fit together, and the room for them, without their contexts.
REAL_SHARE, REAL_ROOM = 2048 * MIB, 3072 * MIB
REAL_CONTEXTS = 2 * 600 * MIB
PROBE = LIBRARIES / "bench" / "probe.so"
EMPTY = LIBRARIES / "bench" / "empty.so"
#: Runs the probe, a library, as a program.
_RUN = "import ctypes, sys; a = [w.encode() for w in sys.argv]; l = ctypes.CDLL(a[1].decode())\n" \
    "sys.exit(l.gpushare_probe(len(a) - 1, (ctypes.c_char_p * (len(a) - 1))(*a[1:])))"  # fmt: skip


def probe_command(*arguments: str) -> list[str]:
    """Return the command line of a probe."""
    return [sys.executable, "-c", _RUN, str(PROBE), str(EMPTY), *arguments]


class Probe:
    """A probe that carries out commands."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        #: When the last launch of the last ``loop`` returned, seconds.
        self.last_launch = 0.0
        self.process = subprocess.Popen(
            probe_command("serve"),
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if self.read() != "ready":
            raise RuntimeError("the probe did not start")

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def send(self, command: str) -> None:
        """Start a command; ``read`` gets its answer."""
        self._pipe(self.process.stdin).write(command + "\n")

    def read(self) -> str:
        """Return the next line of answer."""
        line = self._pipe(self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"the probe ended with status {self.process.wait()}")
        return line.strip()

    def call(self, command: str) -> str:
        """Carry out a command and return its answer."""
        self.send(command)
        return self.read()

    def times(self, command: str | None = None) -> list[float]:
        """Return the answer's times in seconds."""
        return [
            int(word) / 1e9
            for word in (self.read() if command is None else self.call(command)).split()
        ]

    def waits(self) -> list[tuple[float, float]]:
        """Return the answer to ``loop``: end of the launch before, and end, of each launch that had to wait."""
        found = []
        while not (line := self.read()).startswith("done"):
            before, after = line.split()
            found.append((int(before) / 1e9, int(after) / 1e9))
        self.last_launch = int(line.split()[2]) / 1e9
        return found

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                self._pipe(pipe).close()


def start_scheduler(socket: Path, environ: Mapping[str, str], *flags: str) -> subprocess.Popen[str]:
    """Start a scheduler, and return when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpushare.scheduler", "--socket", str(socket), *flags],
        env=dict(environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    await_scheduler(process)
    return process


class SchedulerProcess(Protocol):
    """A scheduler's process, however it was started."""

    stdout: IO[Any] | None

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self) -> int:
        """Wait for its end."""


def await_scheduler(process: SchedulerProcess) -> None:
    """Wait until a scheduler that was started is ready."""
    assert process.stdout is not None
    if "ready" not in process.stdout.readline():
        raise RuntimeError("the scheduler did not start")


def kill_scheduler(process: SchedulerProcess) -> None:
    """End a scheduler as kill -9 does."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


class Machine:
    """A GPU and its scheduler. The simulated one is the benchmark's own; a real one is as it is."""

    def __init__(self, environ: Mapping[str, str], *, whole: bool = False) -> None:
        self.whole = whole
        self.folder = Path(tempfile.mkdtemp(prefix="gs-"))
        self.socket = self.folder / "s" / "scheduler.sock"
        self.environ = {
            **plain_environment(environ),
            "GPUSHARE_SOCKET": str(self.socket),
            "GPUSHARE_SIM_NAME": f"bench-{uuid.uuid4().hex[:12]}",
            "GPUSHARE_SIM_MEMORY": environ.get("GPUSHARE_SIM_MEMORY", str(256 * MIB)),
            "GPUSHARE_SIM_CONTEXT": environ.get("GPUSHARE_SIM_CONTEXT", "1MiB"),
        }
        driver = find_driver(self.environ)
        if driver is None:
            self.environ["GPUSHARE_SIM"] = "1"
            driver = find_driver(self.environ)
        assert driver is not None
        self.driver: Driver = driver
        if not driver.simulated:
            # Oversubscribed managed memory can hang a host; benchmarks never use it on a real GPU.
            self.environ |= {"GPUSHARE_BACKEND": "swap", "GPUSHARE_FORBID_MANAGED": "1"}
        self.scheduler: subprocess.Popen[str] | None = None
        self._reserve: list[str] | None = None
        self.probes: list[Probe] = []

    @property
    def share(self) -> int:
        """Bytes of which one program's worth fits, but not two."""
        if not self.driver.simulated:
            return REAL_SHARE
        status = self.control("status")["status"]
        assert isinstance(status, dict)
        return int(status["gpus"][0]["total"]) * 3 // 4

    def all_but(self, size: int) -> list[str]:
        """Return the scheduler's flags with which only ``size`` bytes of the GPU are shared."""
        devices = Devices(self.driver.nvml)
        gpu = devices.start()[0]
        devices.stop()
        return ["--reserve", str(max(0, gpu.total - gpu.used - size))]

    def _reserved(self) -> list[str]:
        """Leave as little of a real GPU as the simulated one has, so that what is measured is the same.

        A scheduler that is started again leaves the same: by then, programs hold memory.
        """
        if self._reserve is None:
            real = not self.driver.simulated and not self.whole
            self._reserve = self.all_but(REAL_CONTEXTS + REAL_ROOM) if real else []
        return self._reserve

    def start_scheduler(self, *flags: str) -> None:
        """Start a scheduler of its own."""
        self.scheduler = start_scheduler(self.socket, self.environ, *self._reserved(), *flags)

    def kill_scheduler(self) -> None:
        """End the scheduler as kill -9 does."""
        if self.scheduler is not None:
            kill_scheduler(self.scheduler)
            self.scheduler = None

    def client_environ(self, name: str) -> dict[str, str]:
        """Return the environment of a client."""
        return client_environment(
            self.environ,
            group=f"bench-{name}",
            name=name,
            driver=self.driver,
            socket=self.socket,
            settings=Settings(),
        )

    def bare_environ(self) -> dict[str, str]:
        """Return the environment of a program that uses the same driver without us."""
        environ = dict(self.environ)
        if self.driver.simulated:
            environ["LD_LIBRARY_PATH"] = str(self.driver.cuda.parent)
        return environ

    def probe(self, name: str) -> Probe:
        """Start a probe as a client."""
        probe = Probe(self.client_environ(name))
        self.probes.append(probe)
        return probe

    def control(self, op: str, **parameters: object) -> dict[str, object]:
        """Ask the scheduler."""
        with ControlClient(self.socket) as client:
            return client.request(op, **parameters)

    def groups(self) -> list[dict[str, object]]:
        """Return every group's status."""
        status = self.control("status")["status"]
        assert isinstance(status, dict)
        found: list[dict[str, object]] = status["groups"]
        return found

    def group(self, name: str) -> dict[str, object]:
        """Return a group's status."""
        return next(group for group in self.groups() if group["name"] == name)

    def until_state(self, name: str, *states: str) -> None:
        """Wait until a group is in one of these states."""
        while self.group(name)["state"] not in states:
            pass

    def close(self) -> None:
        """End all that was started."""
        for probe in self.probes:
            probe.close()
        self.kill_scheduler()
        for segment in Path("/dev/shm").glob(f"*{self.environ['GPUSHARE_SIM_NAME']}*"):
            segment.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def machine(
    *flags: str, scheduler: bool = True, whole: bool = False, **environ: str
) -> Iterator[Machine]:
    """Set a machine up for a benchmark, with the scheduler's flags, and take it down.

    With ``whole``, all of a real GPU is shared, not only as much as the simulated one has.
    """
    made = Machine({**os.environ, **environ}, whole=whole)
    try:
        if scheduler:
            made.start_scheduler(*flags)
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def environment(here: Machine) -> Iterator[None]:
    """Give this process the environment of a server of the machine: the provisioner and the simulated NVML read it."""
    before = dict(os.environ)
    os.environ.update(here.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
