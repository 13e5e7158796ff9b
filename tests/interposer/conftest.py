# SPDX-License-Identifier: BSD-3-Clause
"""A real scheduler process, and real CUDA programs under the interposer over the simulated driver."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from jupyter_gpushare.kernel_provisioner.launch import Settings, client_environment
from jupyter_gpushare.scheduler.control import ControlClient
from jupyter_gpushare.scheduler.drivers import Driver, Libraries, find_driver

#: The GPU has 256 of them. Comparing bytes in Python is what takes the tests' time.
UNIT = 1 << 18
WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 45.0


class Program:
    """A worker process and the commands that it was given."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.replies: dict[int, dict[str, Any]] = {}
        self.arrived: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.errors: list[str] = []
        self.serial = 0
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        self._next(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.arrived.put(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            return self.arrived.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"no answer; standard error: {''.join(self.errors)}") from None

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, op: str, **parameters: Any) -> int:
        """Send a command and return its serial, for ``result``."""
        self.serial += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"serial": self.serial, "op": op, **parameters}) + "\n")
        self.process.stdin.flush()
        return self.serial

    def result(self, serial: int, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait for the answer to a command."""
        deadline = time.monotonic() + timeout
        while serial not in self.replies:
            reply = self._next(deadline - time.monotonic())
            self.replies[reply["serial"]] = reply
        return self.replies.pop(serial)

    def waits(self, serial: int, seconds: float = 0.3) -> bool:
        """Tell whether the command is still without an answer after that time."""
        with contextlib.suppress(TimeoutError):
            self.replies[serial] = self.result(serial, seconds)
        return serial not in self.replies

    def call(self, op: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        return self.result(self.start(op, **parameters))

    def filled(self, bytes: int, value: int) -> int:
        """Allocate, fill and return the address."""
        allocated = self.call("alloc", bytes=bytes)
        assert allocated["result"] == 0, self.errors
        assert (
            self.call("fill", pointer=allocated["pointer"], bytes=bytes, value=value)["result"] == 0
        )
        return int(allocated["pointer"])

    def holds(self, pointer: int, bytes: int, value: int) -> bool:
        """Tell whether the memory still has its contents."""
        return bool(self.call("check", pointer=pointer, bytes=bytes, value=value)["equal"])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class Machine:
    """One simulated GPU, a scheduler, and the programs that share it."""

    def __init__(self, folder: Path, **parameters: str) -> None:
        self.folder = folder
        self.socket = folder / "s" / "scheduler.sock"
        self.environ = {
            **os.environ,
            "GPUSHARE_SIM": "1",
            "GPUSHARE_SIM_NAME": f"test-{uuid.uuid4().hex[:12]}",
            "GPUSHARE_SIM_MEMORY": str(256 * UNIT),
            "GPUSHARE_SIM_BANDWIDTH": "1000000000",
            "GPUSHARE_SIM_CONTEXT": "1MiB",
            "GPUSHARE_SOCKET": str(self.socket),
            **parameters,
        }
        self.scheduler: subprocess.Popen[str] | None = None
        self.programs: list[Program] = []
        #: Other builds of our libraries, and what has to be preloaded before them.
        self.libraries: Path | None = None
        self.preload_first: tuple[str, ...] = ()

    def start_scheduler(self, *flags: str) -> None:
        self.scheduler = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyter_gpushare.scheduler",
                "--socket",
                str(self.socket),
                *flags,
            ],
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.scheduler.stdout is not None
        assert "ready" in self.scheduler.stdout.readline()

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()
        assert self.scheduler.stdout is not None
        self.scheduler.stdout.close()
        self.scheduler = None

    def environment(self, name: str, group: str | None = None, **environ: str) -> dict[str, str]:
        """Return the environment of a program that shares the GPU."""
        base = {**self.environ, **environ}
        driver, shims = find_driver(base), None
        if (folder := self.libraries) is not None:
            driver = Driver(folder / "sim/libcuda.so.1", folder / "sim/libnvidia-ml.so.1", True)
            names = ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")
            shims = Libraries(*(folder / library for library in names))
        assert driver is not None
        environment = client_environment(
            base,
            group=group or f"group-{name}",
            name=name,
            driver=driver,
            socket=self.socket,
            settings=Settings(),
            shims=shims,
        )
        environment["LD_PRELOAD"] = ":".join((*self.preload_first, environment["LD_PRELOAD"]))
        return environment

    def program(
        self, name: str, *, group: str | None = None, init: bool = True, **environ: str
    ) -> Program:
        """Start a program; with ``init``, it has a context when this returns."""
        program = Program(self.environment(name, group, **environ))
        self.programs.append(program)
        if init:
            assert program.call("init")["result"] == 0, program.errors
        return program

    def control(self, op: str, **parameters: Any) -> dict[str, Any]:
        with ControlClient(self.socket) as client:
            return client.request(op, **parameters)

    def group(self, name: str) -> dict[str, Any]:
        groups = self.control("status")["status"]["groups"]
        return next(group for group in groups if group["name"] == name)

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, self.control("status")
            time.sleep(0.01)

    def until_said(self, program: Program, text: str) -> None:
        """Wait for a line on the program's standard error."""
        deadline = time.monotonic() + PATIENCE
        while not any(text in line for line in program.errors):
            assert time.monotonic() < deadline, program.errors
            time.sleep(0.01)

    def close(self) -> None:
        for program in self.programs:
            program.close()
        if self.scheduler is not None:
            self.kill_scheduler()
        for segment in Path("/dev/shm").glob(f"*{self.environ['GPUSHARE_SIM_NAME']}*"):
            segment.unlink()


@pytest.fixture
def make_machine() -> Iterator[Callable[..., Machine]]:
    """Return a function that sets a machine up; keywords are environment variables of all its processes."""
    machines: list[Machine] = []

    def make(*flags: str, **parameters: str) -> Machine:
        # Not pytest's own folder: a socket's path may have 107 bytes.
        machine = Machine(Path(tempfile.mkdtemp(prefix="gs-")), **parameters)
        machines.append(machine)
        machine.start_scheduler(*flags)
        return machine

    yield make
    for machine in machines:
        machine.close()
        shutil.rmtree(machine.folder, ignore_errors=True)


@pytest.fixture
def machine(make_machine: Callable[..., Machine]) -> Machine:
    """Return a machine with a GPU of 256 MiB."""
    return make_machine()
