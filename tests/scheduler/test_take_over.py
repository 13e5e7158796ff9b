# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler that stands by takes over from the running one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from jupyter_gpushare.scheduler.server import alive
from jupyter_gpushare.scheduler.server.locks import Locks, TakenError
from tests.support import fork_server
from tests.support.client import PATIENCE, FakeClient
from tests.support.scheduler import GIB, SCHEDULER, Scheduler, Start, state, until
from tests.support.stopping import stop


class StandBy:
    """A scheduler's process that stands by."""

    def __init__(self, environ: dict[str, str], log: Path, *arguments: str) -> None:
        with log.open("ab") as stderr:
            self.process = fork_server.popen(
                ["-m", "jupyter_gpushare.scheduler", "--stand-by", *arguments],
                environ=environ,
                modules=SCHEDULER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def says(self, word: bytes) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == word + b"\n"

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


Begin = Callable[..., StandBy]


@pytest.fixture
def stand_by(environ: dict[str, str], tmp_path: Path) -> Iterator[Begin]:
    """Start schedulers that stand by, and return when they do."""
    started = []

    def begin(*arguments: str, word: bytes = b"standing by", **changes: str) -> StandBy:
        found = StandBy({**environ, **changes}, tmp_path / "stand-by.log", *arguments)
        started.append(found)
        found.says(word)
        return found

    yield begin
    for each in started:
        each.close()


def owner(path: Path) -> int:
    return int(path.with_name(path.name + ".lock").read_text().split()[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_scheduler_that_stands_by_takes_over(
    scheduler: Scheduler, stand_by: Begin, number: signal.Signals
) -> None:
    with scheduler.client("a") as a:
        a.grow(6 * GIB)
        a.run()
        gpu = scheduler.gpu
        second = stand_by()
        before = scheduler.path.stat()
        scheduler.process.send_signal(number)
        a.expect_closed()
        # The socket never closes: the connection waits until the next scheduler serves.
        with FakeClient(scheduler.path, "a", gpu) as again:
            again.usage, again.lease = a.usage, a.lease
            again.attach(reattach=True, leased=True, busy=True)
            assert owner(scheduler.path) == second.process.pid
            assert scheduler.path.stat().st_ino == before.st_ino
            assert state(scheduler, "a")["state"] == "running"
    second.says(b"ready")


def test_connections_during_a_take_over_wait_and_are_answered(
    scheduler: Scheduler, stand_by: Begin
) -> None:
    """Many programs connect while no scheduler serves. No connection is refused, and all are answered later."""
    second = stand_by()
    stop(second.process.pid)
    assert scheduler.close() == 0
    waiting = []
    for _ in range(60):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(scheduler.path))
        waiting.append(connection)
    second.process.send_signal(signal.SIGCONT)
    for connection in waiting:
        with connection:
            connection.sendall(alive._HEADER.pack(24, 64, 0) + alive._REQUEST)
            connection.settimeout(PATIENCE)
            assert connection.recv(1)


def test_two_that_stand_by_take_over_one_after_the_other(
    scheduler: Scheduler, stand_by: Begin
) -> None:
    path, both = scheduler.path, [stand_by(), stand_by()]
    scheduler.process.terminate()
    until(lambda: owner(path) in [each.process.pid for each in both])
    both.sort(key=lambda each: each.process.pid != owner(path))
    first, second = both
    first.says(b"ready")
    second.says(b"standing by")
    first.process.terminate()
    second.says(b"ready")
    assert owner(path) == second.process.pid


def test_a_stale_socket_is_not_served(scheduler: Scheduler, start: Start, stand_by: Begin) -> None:
    """A scheduler was stopped while it stood by, and others served meanwhile, on another socket."""
    late = stand_by()
    stop(late.process.pid)
    scheduler.process.send_signal(signal.SIGKILL)
    scheduler.close()
    between = start()
    between.kill()
    late.process.send_signal(signal.SIGCONT)
    late.says(b"ready")
    with ControlClient(scheduler.path, timeout=PATIENCE) as control:
        assert control.request("status")["status"]["gpus"]


def test_one_that_stands_by_can_be_ended(scheduler: Scheduler, stand_by: Begin) -> None:
    second = stand_by()
    second.process.terminate()
    assert second.process.wait(PATIENCE) == 0
    assert scheduler.close() == 0
    assert not scheduler.path.exists()


def test_one_that_stands_by_alone_serves(stand_by: Begin) -> None:
    stand_by(word=b"ready")


def test_a_scheduler_that_does_not_pass_its_socket_on_is_replaced(
    environ: dict[str, str], tmp_path: Path, stand_by: Begin
) -> None:
    """An earlier release refuses the request. The next scheduler makes a new socket when it has ended."""
    path = Path(environ["GPUSHARE_SOCKET"])
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o700)
    locks = Locks([path])
    locks.take()
    refusal = json.dumps({"ok": False, "error": "unknown request 'stand_by'"}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            connection.sendall(alive._HEADER.pack(8 + len(refusal), 65, 0) + refusal)
            held.append(connection)

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        second = stand_by()
        thread.join(PATIENCE)
    path.unlink()
    locks.release()
    held[0].close()
    second.says(b"ready")


def test_a_hung_scheduler_that_is_killed_is_replaced(scheduler: Scheduler, stand_by: Begin) -> None:
    second = stand_by()
    stop(scheduler.process.pid)
    scheduler.process.send_signal(signal.SIGKILL)
    second.says(b"ready")


def test_probes_are_answered_by_a_process_that_stands_by(
    scheduler: Scheduler, stand_by: Begin, tmp_path: Path
) -> None:
    """They are about this process, although another one serves the socket of the node."""
    probe = os.fsencode(tmp_path / "alive")
    second = stand_by(GPUSHARE_ALIVE_SOCKET=os.fsdecode(probe))
    assert alive.answers(probe) == ""
    scheduler.process.terminate()
    second.says(b"ready")
    assert alive.answers(probe) == ""
    second.process.kill()
    second.process.wait(PATIENCE)
    assert "refused" in alive.answers(probe)


def test_preferences_outlive_a_take_over(scheduler: Scheduler, stand_by: Begin) -> None:
    with scheduler.client("a") as a, scheduler.control() as control:
        control.request("adjust", group="a", priority="background")
        second = stand_by()
        scheduler.process.terminate()
        a.expect_closed()
        with FakeClient(scheduler.path, "a", None) as again:
            again.attach(reattach=True)
            assert state(scheduler, "a")["preferences"]["priority"] == "background"
    second.says(b"ready")


def test_locks_name_their_last_owner(tmp_path: Path) -> None:
    first, second = Locks([tmp_path / "a", tmp_path / "b"]), Locks([tmp_path / "a", tmp_path / "b"])
    first.take()
    with pytest.raises(TakenError, match=f"pid {os.getpid()}"):
        second.take()
    first.release()
    assert second.try_to_take()
    assert second.predecessor == first.token
    second.release()


# --- A service ------------------------------------------------------------------------------------


@pytest.fixture
def service(environ: dict[str, str], tmp_path: Path) -> Iterator[Service]:
    made = Service(environ, tmp_path)
    yield made
    made.close()


class Service:
    """What systemd does for a node's scheduler: its socket, and messages about its state."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.path = folder / "run" / "scheduler.sock"
        self.path.parent.mkdir(mode=0o755)
        self.config = folder / "config.json"
        self.write(state_dir=str(folder / "state"))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.news.settimeout(PATIENCE)
        self.news.bind(str(folder / "notify"))
        self.log = folder / "log"
        self.environ = {
            **environ,
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": "3000000",
            "LISTEN_FDS": "1",
        }
        self.main: subprocess.Popen[bytes] | None = None

    def write(self, **settings: object) -> None:
        self.config.write_text(json.dumps({"NodeScheduler": settings}))

    def start(self) -> None:
        arguments = ("-m", "jupyter_gpushare.scheduler", "--config", str(self.config))
        with self.log.open("ab") as log:
            self.main = subprocess.Popen(
                # The shell's process becomes the scheduler's.
                ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", sys.executable, *arguments],
                env=self.environ,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(3,),
                preexec_fn=lambda: os.dup2(self.listener.fileno(), 3),
            )
        assert self.hears() == "READY=1"

    def hears(self) -> str:
        """Return the next message except those of the watchdog."""
        while (said := self.news.recv(1 << 12).decode()) == "WATCHDOG=1":
            pass
        return said

    def scheduler(self) -> int:
        with ControlClient(self.path, timeout=PATIENCE) as control:
            return int(control.request("status")["status"]["scheduler"]["pid"])

    def close(self) -> None:
        process = self.scheduler()
        os.kill(process, signal.SIGTERM)
        assert self.hears() == "STOPPING=1"
        self.listener.close()
        self.news.close()
        assert self.main is not None
        self.main.wait(PATIENCE)


def test_a_service_starts_its_successor(service: Service) -> None:
    service.start()
    assert service.main is not None
    service.main.send_signal(signal.SIGUSR2)
    said = service.hears()
    assert said.startswith("MAINPID=")
    # The successor sends this, which systemd accepts from the main process.
    assert service.hears() == "READY=1"
    assert service.main.wait(PATIENCE) == 0
    successor = int(said.removeprefix("MAINPID="))
    assert service.scheduler() == successor
    # So does the successor's successor.
    os.kill(successor, signal.SIGUSR2)
    assert service.hears() != said
    assert service.hears() == "READY=1"
    until(lambda: service.scheduler() != successor)
    assert service.log.read_text() == ""


def test_a_service_continues_if_its_successor_does_not_start(service: Service) -> None:
    service.start()
    assert service.main is not None
    before = service.config.read_text()
    service.write(quantum="sometimes")
    service.main.send_signal(signal.SIGUSR2)
    until(lambda: "this one continues" in service.log.read_text())
    assert service.scheduler() == service.main.pid
    service.config.write_text(before)
