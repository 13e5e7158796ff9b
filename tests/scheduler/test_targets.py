# SPDX-License-Identifier: BSD-3-Clause
"""A client's process is the one that connected, whatever the client says, even if its pid has been reused."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core.eligibility import PASSING
from jupyter_gpushare.scheduler.gpu import targets
from jupyter_gpushare.scheduler.gpu.targets import Peer, Target
from jupyter_gpushare.scheduler.protocol.client import peer_pid
from jupyter_gpushare.scheduler.protocol.processes import start_time
from tests.scheduler.stand_in import wait_for

#: A socket option that no Linux kernel has.
UNKNOWN = 9999

#: Connects, and leaves its connection to a child when it gets a signal.
CONNECTS = """
import os, signal, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
signal.sigwait({signal.SIGTERM})
if os.fork() > 0:
    os._exit(0)
peer.recv(1)
"""


@pytest.fixture(params=["SO_PEERPIDFD", "pidfd_open"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Linux kernel with SO_PEERPIDFD (6.5), and an older one."""
    if request.param == "pidfd_open":
        monkeypatch.setattr(targets, "SO_PEERPIDFD", UNKNOWN)
    return str(request.param)


Connect = Callable[[], tuple[subprocess.Popen[bytes], socket.socket]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Have processes connect to this one."""
    path = str(tmp_path / "s")
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def one() -> tuple[subprocess.Popen[bytes], socket.socket]:
            process = subprocess.Popen([sys.executable, "-S", "-c", CONNECTS, path])
            connection, _ = listener.accept()
            started.append((process, connection))
            return process, connection

        yield one
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for process, connection in started:
        connection.close()
        process.kill()
        process.wait()


def peer_of(connection: socket.socket, *, pid: int | None = None, namespace: int = 0) -> Peer:
    found = peer_pid(connection) if pid is None else pid
    return Peer(7, connection, found, start_time(found), namespace)


def named(peer: Peer) -> int | None:
    """The process that a pidfd of a peer names."""
    pidfd = peer.open()
    if pidfd is None:
        return None
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    os.close(pidfd)
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pid:"))


def test_a_pidfd_names_the_process_that_connected(connect: Connect, kernel: str) -> None:
    process, connection = connect()
    peer = peer_of(connection)
    assert named(peer) == process.pid
    assert not peer.has_ended()
    assert peer.refusal() is peer.refusal_by_service() is None
    assert (peer.key, str(peer)) == (process.pid, f"process {process.pid}")


async def test_a_connection_that_was_passed_on_names_no_other_process(
    connect: Connect, kernel: str
) -> None:
    process, connection = connect()
    peer = peer_of(connection)
    process.terminate()
    await wait_for(peer.has_ended)
    assert peer.refusal() == peer.refusal_by_service() == "failed"
    process.wait()
    assert peer.has_ended()
    assert peer.refusal() == peer.refusal_by_service() == "failed"
    # The child still has the connection.
    connection.send(b"x")


def test_a_number_that_is_used_again_names_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SO_PEERPIDFD", UNKNOWN)
    process, connection = connect()
    # Another process had this number when the client connected.
    peer = Peer(7, connection, process.pid, "1", 0)
    assert peer.has_ended()
    assert named(peer) is None
    assert peer.refusal() == peer.refusal_by_service() == "failed"


def test_a_process_that_is_not_visible_needs_a_new_kernel(connect: Connect, kernel: str) -> None:
    process, connection = connect()
    peer = peer_of(connection, pid=0)
    assert (peer.key, str(peer)) == (-7, "the process of client 7")
    assert not peer.has_ended()
    assert peer.refusal() == "container"
    if kernel == "SO_PEERPIDFD":
        assert named(peer) == process.pid
        assert peer.refusal_by_service() is None
    else:
        assert named(peer) is None
        assert peer.refusal_by_service() == "container"


def test_without_free_descriptors_nothing_counts_as_ended(connect: Connect, kernel: str) -> None:
    process, connection = connect()
    peer, plain = peer_of(connection), Target(process.pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        found = [(each.open(), each.has_ended()) for each in (peer, plain)]
        refusal = peer.refusal_by_service()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [(None, False)] * 2
    assert refusal == "descriptors"
    assert refusal in PASSING
    assert peer.refusal_by_service() is None


def test_what_a_client_states_gives_no_process_away(connect: Connect, kernel: str) -> None:
    process, connection = connect()
    for namespace in (1, os.stat("/proc/self/ns/pid").st_ino, 2**32 - 1):
        peer = peer_of(connection, namespace=namespace)
        assert named(peer) == process.pid
        assert peer.refusal() is None


def test_an_old_build_of_python_counts_as_an_old_kernel(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SO_PEERPIDFD", UNKNOWN)
    monkeypatch.delattr(os, "pidfd_open")
    _, connection = connect()
    peer = peer_of(connection)
    assert peer.open() is None
    assert peer.refusal_by_service() == "container"
    assert peer.refusal() is None
