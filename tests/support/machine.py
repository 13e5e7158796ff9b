# SPDX-License-Identifier: BSD-3-Clause
"""A real scheduler process, and real CUDA programs under the interposer over the simulated driver."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import pytest

from jupyter_gpushare.kernel_provisioner.launch import Settings, client_environment
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries, find_driver
from jupyter_gpushare.scheduler.memory.pool import Pool
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support import fork_server
from tests.support.scheduler import SCHEDULER

#: The GPU has 256 of them. Comparing bytes in Python is what takes the tests' time.
UNIT = 1 << 18
WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 60.0

E = TypeVar("E")


class Program:
    """A worker process and the commands that it was given."""

    def __init__(self, environ: dict[str, str]) -> None:
        # No pipe: all that it wrote before its answer is there, without a thread that reads it.
        self._standard_error = os.memfd_create("standard error")
        self._last_words: list[str] | None = None
        self.process = fork_server.popen(
            [str(WORKER)],
            environ=environ,
            modules=["ctypes", "json", "queue", "resource", "threading", "typing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._standard_error,
            text=True,
        )
        self.replies: dict[int, dict[str, Any]] = {}
        self.arrived: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.serial = 0
        threading.Thread(target=self._read, daemon=True).start()
        self._next(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # close() has closed it
            for line in self.process.stdout:
                self.arrived.put(json.loads(line))

    @property
    def errors(self) -> list[str]:
        """The lines on its standard error."""
        if self._last_words is not None:
            return self._last_words
        size = os.fstat(self._standard_error).st_size
        return os.pread(self._standard_error, size, 0).decode().splitlines(keepends=True)

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            return self.arrived.get(timeout=max(0.0, timeout))
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

    def has(self, serial: int) -> bool:
        """Tell whether the command was answered."""
        return not self.waits(serial, 0.01)

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
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        if self._last_words is None:
            self._last_words = self.errors
            os.close(self._standard_error)


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
        self.scheduler: fork_server.Process | None = None
        self.programs: list[Program] = []
        #: Other builds of our libraries, and what has to be preloaded before them.
        self.libraries: Path | None = None
        #: Where Python finds the scheduler's package; None: where this process finds it.
        self.scheduler_folder: Path | None = None
        self.preload_first: tuple[str, ...] = ()

    def start_scheduler(self, *flags: str, word: str = "ready") -> None:
        """Start a scheduler, and return when it has printed a word."""
        arguments = ["-m", "jupyter_gpushare.scheduler", "--socket", str(self.socket), *flags]
        if self.scheduler_folder is None:
            self.scheduler = fork_server.popen(
                arguments,
                environ=self.environ,
                modules=SCHEDULER,
                stdout=subprocess.PIPE,
                text=True,
            )
        else:
            self.scheduler = subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environ,
                cwd=self.scheduler_folder,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.scheduler.stdout is not None
        assert word in self.scheduler.stdout.readline()

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
        with ControlClient(self.socket, timeout=PATIENCE) as client:
            return client.request(op, **parameters)

    def group(self, name: str) -> dict[str, Any]:
        groups = self.control("status")["status"]["groups"]
        return next(group for group in groups if group["name"] == name)

    def resident(self, name: str) -> int:
        """Return how many bytes of a group are on the GPU."""
        return int(self.group(name)["gpus"][0]["resident"])

    def evict(self, name: str) -> None:
        self.control("evict", group=name)
        self.until(lambda: self.resident(name) == 0)

    def hibernate(self, name: str) -> None:
        self.control("hibernate", group=name)
        self.until(lambda: self.group(name)["state"] == "hibernated")

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() >= deadline:
                pytest.fail(json.dumps(self.control("status"), indent=1))
            time.sleep(0.01)

    def until_able(self) -> None:
        """Wait until programs can hibernate. Until then, requests that depend on this are refused."""
        self.until(lambda: self.control("status")["status"]["hibernation"]["able"] is True)

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
        # Not pytest's own folder: a socket's path can have at most 107 bytes.
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


class Script:
    """A scheduler that does what the test says, and promises whatever is asked for."""

    def __init__(self, machine: Machine, *, pool: Pool | None = None, welcome: bytes = b"") -> None:
        machine.socket.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(machine.socket))
        self.listener.listen()
        self.pool = pool
        self.welcome = welcome or protocol.welcome(1, 0, 0.02, 0)
        self.events: SimpleQueue[ev.Event] = SimpleQueue()
        self.connection: socket.socket | None = None
        #: The client that connected last. It may not have sent its HELLO yet.
        self.accepted: socket.socket | None = None
        self.accepting = threading.Lock()
        self.closed = False
        self.gpu = ""
        #: The PID namespace that the client stated last.
        self.pid_namespace = 0
        #: The answer to growth; None: the test gives it.
        self.growth: ev.Growth | None = "swapped"
        self.lease = 0
        self.sending = threading.Lock()
        #: While it is not set, the scheduler reads nothing, as if it were stopped.
        self.reading = threading.Event()
        self.reading.set()
        self.serving = threading.Thread(target=self._serve, daemon=True)
        self.serving.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                with self.accepting:
                    if self.closed:
                        return
                    self.accepted = connection
                self._listen(connection)

    def _listen(self, connection: socket.socket) -> None:
        reader = protocol.FrameReader()
        while data := connection.recv(65536):
            self.reading.wait()
            for frame in reader.feed(data):
                if frame.type == protocol.HELLO:
                    attach = protocol.decode_hello(1, frame.body)
                    self.pid_namespace = protocol.pid_namespace(frame.body)
                    self._welcome(connection, attach)
                    self.connection = connection
                    self.events.put(attach)
                    continue
                event = protocol.decode(1, "group", frame)
                if isinstance(event, ev.Grow):
                    self.gpu = event.least.gpu
                    if self.growth is not None:
                        self.send(protocol.grown(event.serial, self.growth, event.most))
                self.events.put(event)

    def _welcome(self, connection: socket.socket, attach: ev.Attach) -> None:
        if self.pool is None:
            connection.sendall(self.welcome)
            return
        slot = self.pool.lend(attach.pid, again=attach.reattach)
        data = protocol.welcome(1, 0, 0.02, 0, slot)
        socket.send_fds(connection, [data], [self.pool.descriptor])

    def send(self, *frames: bytes) -> None:
        """All of them at once."""
        assert self.connection is not None
        with self.sending:
            self.connection.sendall(b"".join(frames))

    def next(self, kind: type[E], timeout: float = PATIENCE) -> E:
        """Return the next event of that kind, whatever comes before it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError(kind.__name__) from None
            if isinstance(event, kind):
                return event

    def grant(self, *rooms: int, filling: bool = True) -> list[bytes]:
        """Return the frames of a new lease."""
        self.lease += 1
        frames = [protocol.grant(self.lease, filling=filling)]
        return frames + [protocol.room(self.lease, self.gpu, room) for room in rooms]

    def disconnect(self) -> None:
        assert self.connection is not None
        self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.reading.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        with self.accepting, contextlib.suppress(OSError):
            self.closed = True
            if self.accepted is not None:
                self.accepted.shutdown(socket.SHUT_RDWR)
        self.serving.join()
        self.listener.close()


Scripted = tuple[Script, Program, Program]


@pytest.fixture
def make_script(make_machine: Callable[..., Machine]) -> Iterator[Callable[..., Scripted]]:
    """Return a function that gives a scripted scheduler, its client and a program that sees the GPU as it is."""
    scripts: list[Script] = []

    def make(pool: Pool | None = None, **environ: str) -> Scripted:
        machine = make_machine(**environ)
        machine.kill_scheduler()
        script = Script(machine, pool=pool)
        scripts.append(script)
        return script, machine.program("a"), machine.program("plain", GPUSHARE_DISABLE="1")

    yield make
    for script in scripts:
        script.close()
