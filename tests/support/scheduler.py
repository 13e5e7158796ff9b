# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support import fork_server
from tests.support.client import PATIENCE, FakeClient
from tests.support.environment import inherited

GIB = 1 << 30
#: What a scheduler imports.
SCHEDULER = (
    *(
        f"jupyter_gpushare.scheduler.{name}"
        for name in (
            "__main__",
            "gpu.checkpoint_helper",
            "gpu.devices",
            "node.config",
            "node.principals",
            "observability.recording",
            "server.options",
            "server.requests",
            "server.server",
        )
    ),
    "encodings.ascii",
    "pynvml",
)


class Scheduler:
    """A scheduler's process."""

    def __init__(self, environ: dict[str, str], log: Path, *arguments: str) -> None:
        self.path = Path(environ["GPUSHARE_SOCKET"])
        self._log = log
        with log.open("ab") as stderr:
            self.process = fork_server.popen(
                ["-m", "jupyter_gpushare.scheduler", *arguments],
                environ=environ,
                modules=SCHEDULER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            self.close()
            pytest.fail(f"the scheduler did not start: {self.log}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def gpu(self) -> str:
        with self.control() as control:
            return str(control.request("status")["status"]["gpus"][0]["uuid"])

    def control(self) -> ControlClient:
        return ControlClient(self.path, timeout=PATIENCE)

    def client(self, group: str, **options: str) -> FakeClient:
        """A client on the GPU, attached."""
        client = FakeClient(self.path, group, self.gpu, **options)  # type: ignore[arg-type]
        client.attach()
        return client

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> int:
        """End it, unless it has ended, and return its status."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        return status


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a scheduler with a simulated GPU of 8 GiB, and a socket, of its own."""
    with simulated(tmp_path) as environ:
        yield environ


@contextlib.contextmanager
def simulated(folder: Path) -> Iterator[dict[str, str]]:
    """The same, in a folder."""
    name = f"scheduler-test-{uuid.uuid4().hex[:12]}"
    yield {
        **inherited(),
        "GPUSHARE_SIM": "1",
        "GPUSHARE_SIM_NAME": name,
        "GPUSHARE_SIM_MEMORY": "8GiB",
        "GPUSHARE_SOCKET": str(folder / "gpushare" / "s.sock"),
    }
    Path(f"/dev/shm/gpushare-sim-{name}").unlink(missing_ok=True)


Start = Callable[..., Scheduler]


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start schedulers that end with the test."""
    with starting(environ, tmp_path) as begin:
        yield begin


@contextlib.contextmanager
def starting(environ: dict[str, str], folder: Path) -> Iterator[Start]:
    """The same, until the end of the context."""
    started = []

    def begin(*arguments: str, **changes: str) -> Scheduler:
        scheduler = Scheduler({**environ, **changes}, folder / "log", *arguments)
        started.append(scheduler)
        return scheduler

    try:
        yield begin
    finally:
        for scheduler in started:
            scheduler.close()


@pytest.fixture
def scheduler(start: Start) -> Scheduler:
    return start()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, not for ever."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def state(scheduler: Scheduler, group: str) -> dict[str, Any]:
    with scheduler.control() as control:
        groups = control.request("status")["status"]["groups"]
    found: dict[str, Any] = next((one for one in groups if one["id"] == group), {})
    return found


def can_hibernate(scheduler: Scheduler) -> bool:
    """Whether the simulated driver has said that it can checkpoint."""
    with scheduler.control() as control:
        return bool(control.request("status")["status"]["hibernation"]["able"])
