# SPDX-License-Identifier: BSD-3-Clause
"""The hibernator as a service: its peers, its requests by pidfds, and its limits."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import StandIn, build_stand_in

PATIENCE = 60.0
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(driver: Path) -> Iterator[StandIn]:
    # Another user can reach the socket here, but not in the folders of pytest.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield StandIn(Path(folder), driver)


@pytest.fixture
def start(libraries: Path, stand_in: StandIn) -> Iterator[Start]:
    started = []

    def run(*arguments: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        path = stand_in.folder / "h.sock"
        path.unlink(missing_ok=True)
        process = subprocess.Popen(
            [
                *(*under, str(libraries / "gpushare-hibernator")),
                *("--driver", str(stand_in.library), "--listen", str(path), *arguments),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STAND_IN": str(stand_in.folder)},
        )
        started.append(process)
        wait_for(lambda: path.exists() or process.poll() is not None)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there, and that nothing really happens to."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def wait_for(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Peer:
    """A scheduler's side of a connection."""

    def __init__(self, stand_in: StandIn) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(stand_in.folder / "h.sock"))

    def ask(self, line: str, *descriptors: int) -> str:
        socket.send_fds(self.socket, [line.encode()], [*descriptors])
        return self.socket.recv(256).decode().strip()

    def about(self, line: str, pid: int) -> str:
        """Ask about a process."""
        pidfd = os.pidfd_open(pid)
        try:
            return self.ask(line, pidfd)
        finally:
            os.close(pidfd)


@pytest.fixture
def peer(start: Start, stand_in: StandIn) -> Iterator[Peer]:
    start()
    made = Peer(stand_in)
    with made.socket:
        yield made


def test_steps_on_a_pidfd_reach_the_driver(
    peer: Peer, stand_in: StandIn, other: subprocess.Popen[bytes]
) -> None:
    assert peer.ask("1 driver") == "1 0 CUDA_SUCCESS 13000"
    for line, answer in {
        "2 state -": "2 0 CUDA_SUCCESS running",
        "3 lock - 500": "3 0 CUDA_SUCCESS",
        "4 checkpoint -": "4 0 CUDA_SUCCESS",
        "5 state -": "5 0 CUDA_SUCCESS checkpointed",
        "6 restore -": "6 0 CUDA_SUCCESS",
        "7 unlock -": "7 0 CUDA_SUCCESS",
    }.items():
        assert peer.about(line, other.pid) == answer
    assert stand_in.calls(other.pid) == [
        *("state", "lock", "checkpoint", "state", "restore", "unlock")
    ]


def test_numbers_are_refused_and_so_is_what_is_no_pidfd(
    peer: Peer, stand_in: StandIn, other: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    invalid = "1 CUDA_ERROR_INVALID_VALUE"
    forged = tmp_path / "forged"
    forged.write_text(f"Pid:\t{other.pid}\n")
    mine = os.pidfd_open(other.pid)
    with forged.open() as file, contextlib.closing(socket.socket()) as network:
        assert peer.ask(f"1 state {other.pid}") == f"1 {invalid}"
        assert peer.ask(f"2 state {other.pid}", mine) == f"2 {invalid}"
        assert peer.ask("3 state -") == f"3 {invalid}"
        assert peer.ask("4 driver", mine) == f"4 {invalid}"
        # It is not clear which one is meant.
        assert peer.ask("5 state -", mine, mine) == f"5 {invalid}"
        folder = os.open(f"/proc/{other.pid}", os.O_RDONLY)
        for number, descriptor in enumerate((file.fileno(), network.fileno(), folder), 6):
            answer = peer.ask(f"{number} lock - 500", descriptor)
            assert answer == f"{number} 304 CUDA_ERROR_UNKNOWN gone"
        os.close(folder)
    os.close(mine)
    assert stand_in.calls(other.pid) == []


def test_a_process_that_has_ended_is_not_touched(peer: Peer, stand_in: StandIn) -> None:
    with subprocess.Popen(["sleep", "1000"]) as ended:
        pidfd = os.pidfd_open(ended.pid)
        ended.kill()
        # Its parent has not collected it yet.
        wait_for(lambda: ") Z" in Path(f"/proc/{ended.pid}/stat").read_text())
        assert peer.ask("1 lock - 500", pidfd) == "1 304 CUDA_ERROR_UNKNOWN gone"
    assert peer.ask("2 lock - 500", pidfd) == "2 304 CUDA_ERROR_UNKNOWN gone"
    os.close(pidfd)
    assert stand_in.calls(ended.pid) == []


def test_a_lock_of_a_process_that_ends_meanwhile_is_undone(peer: Peer, stand_in: StandIn) -> None:
    """Another process may have got its number before the driver used it."""
    stand_in.tell("lock", "hang")
    with subprocess.Popen(["sleep", "1000"]) as ended:
        pidfd = os.pidfd_open(ended.pid)
        socket.send_fds(peer.socket, [b"1 lock - 500"], [pidfd])
        os.close(pidfd)
        wait_for(lambda: stand_in.calls(ended.pid) == ["lock"])
        ended.kill()
    stand_in.let_go("lock")
    assert peer.socket.recv(256) == b"1 304 CUDA_ERROR_UNKNOWN gone\n"
    assert stand_in.calls(ended.pid) == ["lock", "unlock"]


def test_a_debugged_process_is_not_locked(peer: Peer, stand_in: StandIn) -> None:
    traced = "import ctypes, sys; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", traced], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert peer.about("1 lock - 500", process.pid) == "1 304 CUDA_ERROR_UNKNOWN debugger"
        # But its state can be asked for.
        assert peer.about("2 state -", process.pid) == "2 0 CUDA_SUCCESS running"


def as_nobody(stand_in: StandIn) -> str:
    """Whether another user is served, or the error that this user gets."""
    code = f"""if True:
        import os, socket
        os.setgid(65534)
        os.setuid(65534)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect({str(stand_in.folder / "h.sock")!r})
            peer.send(b"1 driver")
            print(len(peer.recv(256)) > 0)
        except OSError as error:
            print(type(error).__name__)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


REFUSED = ("False", "BrokenPipeError", "ConnectionResetError")


@ROOT
def test_only_its_own_user_is_served(start: Start, stand_in: StandIn) -> None:
    start()
    path = stand_in.folder / "h.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert as_nobody(stand_in) == "PermissionError"
    path.chmod(0o666)
    assert as_nobody(stand_in) in REFUSED
    # The scheduler may have a user of its own.
    start("65534")
    assert path.stat().st_mode & 0o777 == 0o600
    assert as_nobody(stand_in) == "True"
    with contextlib.closing(Peer(stand_in).socket) as root:
        assert root.recv(256) == b""


@ROOT
def test_the_log_names_the_capability_without_which_it_serves_no_other_user(
    start: Start, stand_in: StandIn
) -> None:
    without = ("setpriv", "--bounding-set=-all,+chown,+dac_override", "--inh-caps=-all")
    process = start("65534", under=without)
    assert as_nobody(stand_in) in REFUSED
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert re.search(r"refused a connection of uid 65534, pid \d+: .* lacks CAP_SYS_PTRACE", said)


@ROOT
def test_root_of_a_container_is_refused(start: Start, stand_in: StandIn) -> None:
    process = start()
    code = f"""if True:
        import socket
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect({str(stand_in.folder / "h.sock")!r})
        print(peer.recv(256))
    """
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip("no PID namespace can be made here")
    assert done.stdout == "b''\n", done.stderr
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert re.search(r"refused a connection of uid 0, pid \d+: only schedulers of uid 0", said)


@ROOT
def test_a_process_that_it_cannot_see_is_in_another_container(
    libraries: Path, stand_in: StandIn, other: subprocess.Popen[bytes]
) -> None:
    """The scheduler and the hibernator are in a container, and the process is outside of it."""
    code = """if True:
        import os, socket, subprocess, sys, time
        program, driver, path = sys.argv[1:]
        service = subprocess.Popen([program, "--driver", driver, "--listen", path])
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while peer.connect_ex(path) != 0:
            time.sleep(0.01)
        socket.send_fds(peer, [b"1 lock - 500"], [0])
        print(peer.recv(256).decode().strip())
        service.kill()
    """
    program, path = str(libraries / "gpushare-hibernator"), str(stand_in.folder / "h.sock")
    pidfd = os.pidfd_open(other.pid)
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code),
            *(program, str(stand_in.library), path),
        ],
        stdin=pidfd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "STAND_IN": str(stand_in.folder)},
    )
    os.close(pidfd)
    if "unshare" in done.stderr:
        pytest.skip("no PID namespace can be made here")
    assert done.stdout.strip() == "1 304 CUDA_ERROR_UNKNOWN container", done.stderr


@ROOT
def test_a_pid_that_is_used_again_is_not_touched(libraries: Path, stand_in: StandIn) -> None:
    code = """if True:
        import os, socket, subprocess, sys, time
        program, driver, path = sys.argv[1:]
        service = subprocess.Popen([program, "--driver", driver, "--listen", path])
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while peer.connect_ex(path) != 0:
            time.sleep(0.01)
        first = subprocess.Popen(["sleep", "1000"])
        pidfd = os.pidfd_open(first.pid)
        first.kill()
        first.wait()
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(first.pid - 1))
        second = subprocess.Popen(["sleep", "1000"])
        assert second.pid == first.pid, (second.pid, first.pid)
        socket.send_fds(peer, [b"1 lock - 500"], [pidfd])
        print(second.pid, peer.recv(256).decode().strip())
        service.kill()
        second.kill()
    """
    program, path = str(libraries / "gpushare-hibernator"), str(stand_in.folder / "h.sock")
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code),
            *(program, str(stand_in.library), path),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "STAND_IN": str(stand_in.folder)},
    )
    if "unshare" in done.stderr or "ns_last_pid" in done.stderr:
        pytest.skip("no PID namespace can be made here, or a pid cannot be chosen in it")
    pid, _, answer = done.stdout.strip().partition(" ")
    assert answer == "1 304 CUDA_ERROR_UNKNOWN gone", done.stderr
    assert stand_in.calls(int(pid)) == []


def test_it_has_no_network_and_executes_nothing(
    peer: Peer, stand_in: StandIn, other: subprocess.Popen[bytes]
) -> None:
    assert peer.about("1 checkpoint -", other.pid).startswith("1 401 ")
    assert (stand_in.folder / "confined").read_text() == "network=0 unix=1 execute=0"


def test_the_end_of_a_scheduler_harms_no_other(
    start: Start, stand_in: StandIn, other: subprocess.Popen[bytes]
) -> None:
    start()
    stand_in.tell("checkpoint", "hang")
    stand_in.put(other.pid, "locked")
    first, second = Peer(stand_in), Peer(stand_in)
    pidfd = os.pidfd_open(other.pid)
    socket.send_fds(first.socket, [b"1 checkpoint -"], [pidfd])
    os.close(pidfd)
    wait_for(lambda: stand_in.calls(other.pid) == ["checkpoint"])
    first.socket.close()
    assert second.ask("1 driver") == "1 0 CUDA_SUCCESS 13000"
    stand_in.let_go("checkpoint")
    wait_for(lambda: stand_in.state(other.pid) == "checkpointed")
    assert second.about("2 state -", other.pid) == "2 0 CUDA_SUCCESS checkpointed"
    second.socket.close()


def test_it_lets_steps_end_before_it_ends(
    start: Start, stand_in: StandIn, other: subprocess.Popen[bytes]
) -> None:
    process = start()
    stand_in.tell("lock", "hang")
    peer = Peer(stand_in)
    pidfd = os.pidfd_open(other.pid)
    socket.send_fds(peer.socket, [b"1 lock - 500"], [pidfd])
    os.close(pidfd)
    wait_for(lambda: stand_in.calls(other.pid) == ["lock"])
    process.terminate()
    stand_in.let_go("lock")
    assert peer.socket.recv(256) == b"1 0 CUDA_SUCCESS\n"
    assert process.wait(PATIENCE) == 0
    assert peer.socket.recv(256) == b""
    peer.socket.close()


def test_its_successor_takes_its_path_while_it_still_serves(
    libraries: Path, start: Start, stand_in: StandIn
) -> None:
    start()
    path = stand_in.folder / "h.sock"
    before = path.stat().st_ino
    first = Peer(stand_in)
    command = [str(libraries / "gpushare-hibernator"), "--driver", str(stand_in.library)]
    environ = {**os.environ, "STAND_IN": str(stand_in.folder)}
    with subprocess.Popen([*command, "--listen", str(path)], env=environ) as successor:
        wait_for(lambda: path.stat().st_ino != before)
        second = Peer(stand_in)
        assert first.ask("1 driver") == second.ask("1 driver") == "1 0 CUDA_SUCCESS 13000"
        successor.terminate()
    first.socket.close()
    second.socket.close()


def test_a_successor_that_cannot_start_leaves_the_path(
    libraries: Path, peer: Peer, stand_in: StandIn
) -> None:
    path = stand_in.folder / "h.sock"
    before = path.stat().st_ino
    command = [
        str(libraries / "gpushare-hibernator"),
        "--driver",
        "/nowhere",
        "--listen",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "the driver cannot be loaded" in done.stderr
    assert path.stat().st_ino == before
    second = Peer(stand_in)
    assert second.ask("1 driver") == "1 0 CUDA_SUCCESS 13000"
    second.socket.close()


@pytest.mark.parametrize("message", [b"", b"no number", b"1 " + b"x" * 300])
def test_a_connection_whose_request_cannot_be_answered_ends(
    start: Start, stand_in: StandIn, other: subprocess.Popen[bytes], message: bytes
) -> None:
    """Its scheduler would wait for the answer."""
    process = start()
    peer = Peer(stand_in)
    pidfd = os.pidfd_open(other.pid)
    socket.send_fds(peer.socket, [message], [pidfd])
    os.close(pidfd)
    assert peer.socket.recv(256) == b""
    peer.socket.close()
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            assert "pidfd" not in os.readlink(each)


def test_a_peer_that_does_not_read_keeps_no_other_waiting(peer: Peer, stand_in: StandIn) -> None:
    def ended() -> bool:
        try:
            peer.socket.send(b"1 driver")
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    while not ended():
        pass
    second = Peer(stand_in)
    # Its threads end one after the other.
    wait_for(lambda: second.ask("1 driver") == "1 0 CUDA_SUCCESS 13000")
    second.socket.close()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--listen", "relative.sock"), "--listen needs an absolute path"),
        (("--listen", "/nowhere/h.sock"), "cannot listen on /nowhere/h.sock: No such file"),
        (("--listen", "/tmp/h.sock", "root"), "usage: gpushare-hibernator"),
        (("--listen",), "usage: gpushare-hibernator"),
    ],
)
def test_a_service_that_cannot_start_gives_the_reason(
    libraries: Path, driver: Path, arguments: tuple[str, ...], why: str
) -> None:
    done = subprocess.run(
        [str(libraries / "gpushare-hibernator"), "--driver", str(driver), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode in (1, 2)
    assert why in done.stderr
