# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's process, over real sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.client import user_name
from tests.support import fork_server
from tests.support.client import PATIENCE, FakeClient, Refused
from tests.support.scheduler import GIB, SCHEDULER, Scheduler, Start, can_hibernate, state, until

HEADER = struct.Struct("=IHH")
UNKNOWN_GPU = "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- Hibernation ----------------------------------------------------------------------------------


def test_a_process_that_cannot_be_checkpointed_continues(scheduler: Scheduler) -> None:
    """The client is this process, which the driver does not know."""
    until(lambda: can_hibernate(scheduler))
    with scheduler.client("a") as a, scheduler.control() as control:
        a.grow(GIB, context=64 << 20)
        a.run()
        a.end_burst("cell")
        control.request("hibernate", group="a")
        a.expect(ev.Revoke)
        a.release()
        assert a.evict().bytes == GIB
        park = a.expect(ev.Park)
        assert a.usage is not None
        a.send(ev.Parked(a.number, park.serial, "done", a.usage))
        told = a.expect(ev.Hibernated)
        assert (told.serial, told.done) == (park.serial, False)
        until(lambda: (state(scheduler, "a")["hibernation"] or {}).get("state") == "refused")
        assert state(scheduler, "a")["hibernation"]["text"]
        failed = [
            e for e in control.request("history")["events"] if e["kind"] == "hibernate_failed"
        ]
        assert len(failed) == 1
        a.run()


PASSES_IT_ON = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0), [b"x"], [connection.fileno()])
sys.stdin.close()
connection.detach()
socket.socket(fileno=1).recv(1)
"""


def test_a_reused_process_id_is_not_checkpointed(
    scheduler: Scheduler,
) -> None:
    """A client could pass its socket on, exit, and cause the checkpoint of another process with its id."""
    until(lambda: can_hibernate(scheduler))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", PASSES_IT_ON, str(scheduler.path)]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs)
        _, (passed,), _, _ = socket.recv_fds(ours, 1, 1)
        with (
            FakeClient(
                scheduler.path, "a", scheduler.gpu, connection=socket.socket(fileno=passed)
            ) as a,
            scheduler.control() as control,
        ):
            a.attach()
            a.grow(GIB, context=64 << 20)
            ours.send(b"x")
            assert process.wait(PATIENCE) == 0
            control.request("hibernate", group="a")
            until(lambda: (state(scheduler, "a")["hibernation"] or {}).get("state") == "refused")
            found = state(scheduler, "a")["hibernation"]
            assert (found["code"], found["text"]) == ("failed", "its process has ended")


def test_a_new_scheduler_takes_over_a_hibernated_client(scheduler: Scheduler) -> None:
    usage = ev.Usage(scheduler.gpu, GIB, 0, 0, 64 << 20, GIB)
    with FakeClient(scheduler.path, "a", scheduler.gpu) as a:
        a.usage = usage
        a.attach(reattach=True, hibernated=True)
        # This process is none that could be checkpointed, or restored.
        until(lambda: state(scheduler, "a")["state"] == "hibernated")
        found = state(scheduler, "a")
        assert found["hibernation"]["frees"] == 64 << 20
        assert found["gpus"][0]["context"] == 0
        a.send(ev.Wake(a.number, 5, "call", ev.Usage(scheduler.gpu, context=64 << 20)))
        answer = a.expect(ev.Awake)
        assert (answer.serial, answer.status) == (5, 46)
        assert "safe" in answer.text
        assert state(scheduler, "a")["state"] == "hibernated"


# --- Sharing --------------------------------------------------------------------------------------


def test_two_programs_that_fit_run_at_once(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b") as b:
        for client in (a, b):
            assert client.grow(3 * GIB).status in ("resident", "swapped")
            client.run()
        assert state(scheduler, "a")["state"] == "running"
        assert state(scheduler, "b")["state"] == "running"


def test_clients_are_notified_that_another_runs_beside_them(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b") as b:
        for client in (a, b):
            client.grow(3 * GIB)
            client.run()
        until(lambda: a.expect(ev.Contended).beside == 1)
        until(lambda: b.expect(ev.Contended).beside == 1)


def test_a_group_belongs_to_the_user_of_its_process(scheduler: Scheduler) -> None:
    with scheduler.client("a"):
        assert state(scheduler, "a")["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert user_name(2**32 - 2) == str(2**32 - 2)


def test_the_status_shows_what_delays_a_revocation(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        a.end_burst("cell")
        revoked = a.expect(ev.Revoke)
        a.send(ev.Meter(a.number, scheduler.gpu, 1.5, 7, time.monotonic()))
        a.send(ev.Stuck(a.number, revoked.lease, "spin", time.monotonic() - 0.3))
        until(lambda: "spin" in str(state(scheduler, "b")))


def test_two_programs_that_do_not_fit_take_turns_and_memory_moves(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b", name="b.ipynb") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b").get("state") == "waiting")
        waiting = state(scheduler, "b")
        assert waiting["position"] == 1
        assert waiting["reason"]["code"] == "needs_memory"
        assert waiting["reason"]["params"]["holder"] == "a"
        assert not b.has(ev.Grant)
        a.end_burst("cell")
        a.expect(ev.Revoke)
        a.release()
        order = a.evict()
        assert 3 * GIB < order.bytes < 6 * GIB
        b.take()
        until(lambda: state(scheduler, "b")["state"] == "running")
        assert state(scheduler, "b")["gpus"][0]["resident"] == 6 * GIB


def test_a_killed_holder_makes_room(scheduler: Scheduler) -> None:
    code = f"""
        import time
        from pathlib import Path
        from tests.support.client import FakeClient
        client = FakeClient(Path({str(scheduler.path)!r}), "a", {scheduler.gpu!r})
        client.attach()
        client.grow({6 * GIB})
        client.run()
        print("running", flush=True)
        time.sleep(60)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    with holder, scheduler.client("b") as b:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "running\n"
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b").get("state") == "waiting")
        holder.send_signal(signal.SIGKILL)
        b.take()
        assert state(scheduler, "a") == {}


def test_clients_continue_under_a_new_scheduler(start: Start) -> None:
    first = start()
    with first.client("a") as a:
        a.grow(6 * GIB)
        a.run()
        first.kill()
        a.expect_closed()
        # Killed: its socket still exists, but does not answer.
        assert first.path.is_socket()
        second = start()
        with FakeClient(second.path, "a", second.gpu) as again, second.client("b") as b:
            again.usage, again.lease = a.usage, a.lease
            again.attach(reattach=True, leased=True, busy=True)
            assert state(second, "a")["state"] == "running"
            b.grow(6 * GIB)
            b.request()
            until(lambda: state(second, "b").get("state") == "waiting")
            again.end_burst("cell")
            assert again.expect(ev.Revoke).lease == a.lease
            again.release()
            again.evict()
            b.take()


# --- Bad peers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEADER.pack(8, 99, 0),
        HEADER.pack(8, protocol.GRANT, 0),
        HEADER.pack(0, protocol.HELLO, 0),
        HEADER.pack(protocol.MAX_REQUEST + 1, protocol.CONTROL, 0) + b" " * 100,
        HEADER.pack(2**32 - 1, protocol.HELLO, 0),
        HEADER.pack(12, protocol.HELLO, 0) + struct.pack("=I", protocol.VERSION),
        protocol.encode_event(ev.Attach(0, 1, "", "", "swap")),
        protocol.encode_event(ev.Request(0, 1)),
        protocol.encode_event(ev.Attach(0, 1, "x", "x", "swap")) * 2,
    ],
)
def test_a_malformed_stream_ends_its_own_connection_only(scheduler: Scheduler, data: bytes) -> None:
    with scheduler.client("good") as good, FakeClient(scheduler.path, "bad") as bad:
        good.grow(GIB)
        bad.send_raw(data)
        bad.expect_closed()
        good.run()
        assert state(scheduler, "good")["state"] == "running"
    until(lambda: "connection closed" in scheduler.log)
    assert len(scheduler.log.splitlines()) == 1


def test_a_frame_that_an_attached_client_may_not_send_ends_it(scheduler: Scheduler) -> None:
    with scheduler.client("good") as good, scheduler.client("bad") as bad:
        bad.send_raw(HEADER.pack(24 + 8, protocol.RELEASED, 0) + struct.pack("=QQII", 1, 0, 77, 0))
        bad.expect_closed()
        good.grow(GIB)
        good.run()
        until(lambda: state(scheduler, "bad") == {})


def test_a_truncated_frame_is_no_event(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a:
        a.send_raw(protocol.encode_event(ev.Request(0, 1))[:-1])
    until(lambda: "in the middle of a frame" in scheduler.log)
    with scheduler.client("b") as b:
        b.grow(GIB)
        b.run()


def test_a_frame_in_pieces_is_one(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a:
        a.grow(GIB)
        for byte in protocol.encode_event(ev.Request(0, 1)):
            a.send_raw(bytes([byte]))
        a.take()


def test_another_version_is_refused_with_both_named(scheduler: Scheduler) -> None:
    with FakeClient(scheduler.path, "a") as client:
        client.send_raw(
            protocol.hello(ev.Attach(0, 1, "a", "a", "swap"), version=protocol.VERSION + 1)
        )
        with pytest.raises(Refused) as caught:
            client.expect_welcome()
        assert caught.value.code == errno.EPROTO
        assert f"protocol {protocol.VERSION + 1}" in caught.value.text
        assert f"protocol {protocol.VERSION}" in caught.value.text
        client.expect_closed()
    # A client keeps trying; the log reports its process once.
    with FakeClient(scheduler.path, "a") as client:
        client.send_raw(
            protocol.hello(ev.Attach(0, 1, "a", "a", "swap"), version=protocol.VERSION + 1)
        )
        with pytest.raises(Refused):
            client.expect_welcome()
    assert scheduler.log.count(f"protocol {protocol.VERSION + 1}") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(start: Start) -> None:
    with tempfile.TemporaryDirectory() as folder:
        refuses_another_user(start(GPUSHARE_SOCKET=f"{folder}/s.sock"))


def refuses_another_user(scheduler: Scheduler) -> None:
    # By its mode the socket is closed to them; this is about the check behind it.
    scheduler.path.chmod(0o666)
    scheduler.path.parent.chmod(0o755)
    code = f"""
        import os
        from pathlib import Path
        from tests.support.client import FakeClient, Refused
        os.setgid(65534)
        os.setuid(65534)
        client = FakeClient(Path({str(scheduler.path)!r}), "a")
        try:
            # A client is refused before it logs in.
            client.expect_welcome()
        except Refused as refused:
            print(refused.code, refused.text)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{errno.EACCES} ")
    assert "uid 65534" in done.stdout


def test_an_unknown_gpu_is_refused(scheduler: Scheduler) -> None:
    with FakeClient(scheduler.path, "a", UNKNOWN_GPU) as client:
        with pytest.raises(Refused) as caught:
            client.attach()
        assert caught.value.code == errno.ENODEV
        assert UNKNOWN_GPU in caught.value.text


def test_repeated_refusals_of_a_process_are_logged_once(scheduler: Scheduler) -> None:
    for _ in range(20):
        with FakeClient(scheduler.path, "a", UNKNOWN_GPU) as client, pytest.raises(Refused):
            client.attach()
    assert scheduler.log.count(f"cannot share {UNKNOWN_GPU}") == 1


def test_growth_on_an_unknown_gpu_is_refused(scheduler: Scheduler) -> None:
    with FakeClient(scheduler.path, "a") as client:
        client.attach()
        client.send(ev.Grow(0, 1, ev.Usage(UNKNOWN_GPU, GIB), GIB))
        with pytest.raises(Refused) as caught:
            client.expect_welcome()
        assert caught.value.code == errno.ENODEV


def test_requests_of_a_peer_wait_until_it_reads_its_answers(
    scheduler: Scheduler,
) -> None:
    with scheduler.client("good") as good, FakeClient(scheduler.path, "slow") as slow:
        good.grow(GIB)
        with scheduler.control() as control:
            for _ in range(50):
                control.request("notice", group="x", code="y", params={"text": "z" * 4000})
        question = protocol.encode_json(
            protocol.CONTROL, {"op": "status", "protocol": protocol.CONTROL_VERSION}
        )
        # Its answers would be more than 500 MiB.
        data = memoryview(question * 3000)
        slow.socket.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(data):
                sent += slow.socket.send(data[sent:])
        good.run()
        good.end_burst()
        slow.socket.settimeout(PATIENCE)
        answers = 0
        reader = protocol.FrameReader(from_scheduler=True)
        while answers < sent // len(question):
            answers += sum(
                frame.type == protocol.REPLY for frame in reader.feed(slow.socket.recv(1 << 18))
            )
    assert resident(scheduler.process.pid) < 300 << 20


def resident(pid: int) -> int:
    """The most bytes of memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def test_a_subscriber_that_does_not_read_is_dropped(scheduler: Scheduler) -> None:
    with FakeClient(scheduler.path, "slow") as slow, scheduler.control() as control:
        slow.send_raw(
            protocol.encode_json(
                protocol.CONTROL,
                {"op": "subscribe", "protocol": protocol.CONTROL_VERSION, "since": None},
            )
        )
        until(
            lambda: (
                control.request("notice", group="x", code="y", params={"text": "z" * 4000}) is None
                or "does not read" in scheduler.log
            )
        )
        slow.expect_closed()
    assert "does not read" in scheduler.log


# --- The process ----------------------------------------------------------------------------------


def test_the_socket_is_private(scheduler: Scheduler) -> None:
    assert stat.S_IMODE(scheduler.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(scheduler.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_scheduler_cleanly(scheduler: Scheduler, number: signal.Signals) -> None:
    with scheduler.client("a") as a:
        scheduler.process.send_signal(number)
        a.expect_closed()
    assert scheduler.process.wait(PATIENCE) == 0
    assert not scheduler.path.exists()
    assert scheduler.log == ""


def run_scheduler(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        ["-m", "jupyter_gpushare.scheduler", *arguments],
        environ=environ,
        modules=SCHEDULER,
        timeout=PATIENCE,
    )


def test_a_second_scheduler_exits_at_once(scheduler: Scheduler, environ: dict[str, str]) -> None:
    done = run_scheduler(environ)
    assert done.returncode == 75
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"pid {scheduler.process.pid}" in done.stderr
    with scheduler.client("a") as a:
        a.grow(GIB)
        a.run()


def test_the_scheduler_exits_with_its_parent(start: Start) -> None:
    scheduler = start("--parent-pipe")
    assert scheduler.process.stdin is not None
    scheduler.process.stdin.close()
    assert scheduler.process.wait(PATIENCE) == 0
    assert not scheduler.path.exists()


def test_without_nvml_the_scheduler_runs_and_reports_it(start: Start, tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.touch()
    scheduler = start(GPUSHARE_SIM="", GPUSHARE_NVML=str(broken), GPUSHARE_DRIVER=str(broken))
    with scheduler.control() as control:
        assert control.request("status")["status"]["gpus"] == []
    with (
        FakeClient(scheduler.path, "a", UNKNOWN_GPU) as client,
        pytest.raises(Refused, match="found no GPUs"),
    ):
        client.attach()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--socket", "{tmp}/file"], "not a socket"),
        (["--socket", "{tmp}/" + "x" * 108], "GPUSHARE_SOCKET"),
        (["--socket", "{tmp}/file/s.sock"], "folder"),
        (["--quantum", "0"], "quantum"),
        (["--quantum", "1e9"], "quantum"),
        (["--host-memory", "much"], "size"),
        (["--reserve", "-1"], "size"),
        (["--anti-thrash", "maybe"], "maybe"),
    ],
)
def test_an_impossible_setting_is_reported_in_one_line(
    environ: dict[str, str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").touch()
    done = run_scheduler(environ, *(word.replace("{tmp}", str(tmp_path)) for word in arguments))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line


def test_settings_come_from_the_command_line(start: Start) -> None:
    scheduler = start(
        *("--quantum", "5", "--anti-thrash", "off", "--reserve", "1G", "--host-memory", "64M")
    )
    with scheduler.control() as control:
        status = control.request("status")["status"]
    chosen = {"quantum": 5.0, "anti_thrash": "off", "policy": "burst"}
    assert chosen.items() <= status["settings"].items()
    assert status["gpus"][0]["reserve"] == GIB
    assert status["host"]["budget"] == 64 << 20


def test_the_first_frame_may_come_with_the_second(scheduler: Scheduler) -> None:
    with FakeClient(scheduler.path, "a", scheduler.gpu) as client:
        assert client.usage is not None
        hello = protocol.encode_event(ev.Attach(0, 1, "a", "a", "swap", usages=(client.usage,)))
        client.send_raw(hello + protocol.encode_event(ev.Request(0, 1)))
        client.expect_welcome()
        client.expect(ev.Grant)
