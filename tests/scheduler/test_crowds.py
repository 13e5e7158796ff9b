# SPDX-License-Identifier: BSD-3-Clause
"""More connections at once than the scheduler can accept, or has descriptors for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.gpu.drivers import libraries
from jupyter_gpushare.scheduler.protocol import client as control
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import ControlClient, SchedulerUnreachable
from tests.support.client import PATIENCE, FakeClient
from tests.support.scheduler import Scheduler, Start, until


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    with contextlib.closing(Crowd(tmp_path / "s")) as found:
        yield found


class Crowd:
    """A scheduler that does not accept: so many connections wait that no other one has room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.waiting: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        with contextlib.suppress(BlockingIOError):
            while True:
                self.waiting.append(socket.socket(socket.AF_UNIX))
                self.waiting[-1].setblocking(False)
                self.waiting[-1].connect(str(path))

    def serve(self) -> None:
        """Accept all clients from now on, and answer the first request."""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        ends = []
        while True:
            end, _ = self.listener.accept()
            ends.append(end)
            end.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                if end.recv(1 << 16):
                    end.sendall(protocol.encode_json(protocol.REPLY, {"ok": True}))
                    break
        for end in ends:
            end.close()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(PATIENCE)
        for each in [*self.waiting, self.listener]:
            each.close()


def test_a_control_client_waits_for_a_free_connection(crowd: Crowd) -> None:
    threading.Timer(0.3, crowd.serve).start()
    with ControlClient(crowd.path, timeout=PATIENCE) as client:
        client.request("status")


async def test_an_asynchronous_client_waits_for_a_free_connection(crowd: Crowd) -> None:
    asyncio.get_running_loop().call_later(0.3, crowd.serve)
    async with AsyncControlClient(crowd.path, timeout=PATIENCE) as client:
        await client.request("status")


#: Asks as %gpushare does, from within a process under the interposer.
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.gpushare_control.restype = ctypes.c_int64
reply = ctypes.create_string_buffer(1 << 16)
print(library.gpushare_control(b"{}", reply, ctypes.c_size_t(len(reply))), reply.value.decode())
"""


def test_a_jupyter_kernel_waits_for_a_free_connection(crowd: Crowd) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASK, str(libraries().cuda)],
        env={**os.environ, "GPUSHARE_SOCKET": str(crowd.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as kernel:
        # Long enough for a first attempt, which fails, and much shorter than it waits.
        time.sleep(0.5)
        crowd.serve()
        assert kernel.communicate(timeout=PATIENCE)[0] == '11 {"ok":true}\n'


async def test_clients_wait_no_longer_than_their_limit(crowd: Crowd) -> None:
    begun = time.monotonic()
    with pytest.raises(SchedulerUnreachable, match="too many others"):
        ControlClient(crowd.path, timeout=0.2)
    with pytest.raises(SchedulerUnreachable, match="too many others"):
        await AsyncControlClient(crowd.path, timeout=0.2).connect()
    assert 0.4 <= time.monotonic() - begun < PATIENCE


def test_pauses_grow_and_end() -> None:
    begun = time.monotonic()
    pauses = []
    for pause in control.pauses_until(begun + 0.5):
        pauses.append(pause)
        time.sleep(pause)
    assert time.monotonic() - begun >= 0.5
    assert len(pauses) < 20
    assert pauses[0] <= control.FIRST_PAUSE


def test_requests_are_answered_during_a_storm_of_connections(scheduler: Scheduler) -> None:
    """Many more at once than wait to be accepted."""
    storm = [socket.socket(socket.AF_UNIX) for _ in range(700)]
    over = threading.Event()

    def rage() -> None:
        for each in storm:
            each.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                each.connect(str(scheduler.path))
        over.wait()

    thread = threading.Thread(target=rage)
    thread.start()
    try:
        for _ in range(10):
            with ControlClient(scheduler.path, timeout=PATIENCE) as client:
                assert client.request("whoami")["admin"]
    finally:
        over.set()
        thread.join()
        for each in storm:
            each.close()


# --- Descriptors ----------------------------------------------------------------------------------


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A soft limit such as many shells and servers have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_personal_scheduler_raises_its_limit_too(low_limit: int, start: Start) -> None:
    pid = start().process.pid
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (low_limit, low_limit)


def test_lack_of_file_descriptors_is_logged_once_and_clients_are_served_later(
    scheduler: Scheduler,
) -> None:
    pid = scheduler.process.pid
    with scheduler.client("before") as before:
        most = len(os.listdir(f"/proc/{pid}/fd")) + 4
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(64)]
        for each in crowd:
            each.connect(str(scheduler.path))
        until(lambda: "file descriptors" in scheduler.log)
        with FakeClient(scheduler.path, "late", scheduler_gpu(before)) as late:
            # A client that is already connected goes on, while asyncio tries again a few times.
            begun = time.monotonic()
            while time.monotonic() - begun < 2.5:
                before.run()
                before.end_burst()
                before.release("release")
            for each in crowd:
                each.close()
            late.attach()
            late.run()
    assert scheduler.log.count("file descriptors") == 1
    assert len(scheduler.log.splitlines()) == 1


def scheduler_gpu(client: FakeClient) -> str:
    assert client.usage is not None
    return client.usage.gpu
