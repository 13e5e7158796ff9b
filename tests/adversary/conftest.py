# SPDX-License-Identifier: BSD-3-Clause
"""A node's scheduler, a hostile user (ada), and a user who only wants to work (ben)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.support.client import PATIENCE, FakeClient
from tests.support.fake_hub import FakeHub, Peer, hub, start_node
from tests.support.scheduler import Scheduler

#: Host memory for what may have to move is taken for real, so this is not much.
UNIT = 128 << 20
#: The GPU's memory.
TOTAL = 8 * UNIT


class Node:
    """A node's scheduler with one GPU of eight units, and tickets for its users."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.path = scheduler.path
        self.pid = scheduler.process.pid
        with self.user("ben") as ben:
            self.gpu = str(ben.ok("status")["status"]["gpus"][0]["uuid"])
        self._numbers = 0

    def user(self, name: str) -> Peer:
        """A Jupyter server's connection."""
        return Peer(self.path, token=f"{name}-token")

    def ticket(self, name: str, group: str) -> str:
        with self.user(name) as server:
            return str(server.ok("ticket", group=group, server="")["ticket"])

    def client(self, user: str, group: str = "", **options: Any) -> FakeClient:
        """A kernel's connection, attached."""
        if not group:
            self._numbers += 1
            group = f"{user}-{self._numbers}"
        client = FakeClient(self.path, group, self.gpu, ticket=self.ticket(user, group), **options)
        client.attach()
        return client

    def process(self, name: str, code: str, *words: str) -> Program:
        """A process that holds a connection of its own."""
        self._numbers += 1
        group = f"{name}-{self._numbers}"
        return Program(code, str(self.path), group, self.gpu, self.ticket(name, group), *words)

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return 1024 * next(int(x.split()[1]) for x in status.splitlines() if x.startswith(field))

    def group(self, name: str, group: str) -> dict[str, Any]:
        """What a user sees of a group of theirs."""
        with self.user(name) as server:
            groups = server.ok("status")["status"]["groups"]
        return next(g for g in groups if g["id"] == group)


class Program:
    """A process that does what is wrong until it is ended."""

    def __init__(self, code: str, *words: str) -> None:
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said()

    def said(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "it ended"
        return line

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait(PATIENCE)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def works(client: FakeClient, times: int = 3) -> None:
    """Have a client that only wants to work get the GPU and release it, several times."""
    for _ in range(times):
        client.run()
        client.end_burst()
        client.release("release")


@contextlib.contextmanager
def obeying(client: FakeClient) -> Iterator[None]:
    """Have a client move out whatever it is told to, by itself."""
    over = threading.Event()

    def obey() -> None:
        while not over.wait(0.005):
            if client.has(ev.Evict):
                client.evict()

    thread = threading.Thread(target=obey)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


Begin = Callable[..., Node]


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    """Start schedulers that end with the module."""
    started: list[Scheduler] = []
    places: list[str] = []
    with contextlib.ExitStack() as stack:
        people: FakeHub = stack.enter_context(hub())

        def start(**settings: Any) -> Node:
            folder = tmp_path_factory.mktemp("node")
            name = f"adversary-test-{uuid.uuid4().hex[:12]}"
            places.append(name)
            environ = {
                **{n: v for n, v in os.environ.items() if not n.startswith("GPUSHARE_")},
                "GPUSHARE_SIM": "1",
                "GPUSHARE_SIM_NAME": name,
                "GPUSHARE_SIM_MEMORY": str(TOTAL),
                "GPUSHARE_SOCKET": str(folder / "gpushare" / "s.sock"),
            }

            def run(*arguments: str) -> Scheduler:
                started.append(Scheduler(environ, folder / "log", *arguments))
                return started[-1]

            return Node(start_node(run, folder, people, **settings))

        yield start
        for scheduler in started:
            scheduler.close()
    for name in places:
        Path(f"/dev/shm/gpushare-sim-{name}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def shared_node(begin: Begin) -> Node:
    """A scheduler for all tests of a module: each leaves it as it was."""
    return begin()


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The same, which has survived and holds nothing of the test afterwards."""
    yield shared_node
    assert shared_node.scheduler.process.poll() is None, shared_node.scheduler.log
    with shared_node.user("ben") as ben:
        until(lambda: not ben.ok("status")["status"]["groups"])


@pytest.fixture
def ben(node: Node) -> Iterator[FakeClient]:
    """A user who only wants to work."""
    with node.client("ben") as client:
        client.grow(UNIT)
        yield client
