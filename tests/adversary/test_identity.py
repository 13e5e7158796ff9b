# SPDX-License-Identifier: BSD-3-Clause
"""One user poses as another, or acts on what is another's; the other notices nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.node.permissions import OPERATIONS, Role
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.client import (
    ControlClient,
    NotAdmitted,
    SchedulerUnreachable,
    read_ticket,
)
from tests.adversary.conftest import UNIT, Node, Program, works
from tests.support.client import PATIENCE, FakeClient, Refused
from tests.support.fake_hub import Peer, connect

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

#: Requests of a hostile user about a group of ben's.
REQUESTS = [
    ("release", {}),
    ("evict", {}),
    ("adjust", {"frozen": True}),
    ("adjust", {"memory": 1, "later": True}),
    ("cancel", {}),
    ("cell", {"phase": "end", "msg_id": "m", "at": 0.0}),
    ("name", {"name": "mine"}),
    ("notice", {"code": "mine", "params": {}}),
    ("focus", {}),
    ("ticket", {"server": ""}),
    ("revoke", {}),
]


@pytest.fixture
def running(node: Node) -> Iterator[FakeClient]:
    """Ben's kernel, at work."""
    with node.client("ben", name="secret.ipynb") as client:
        client.grow(UNIT)
        client.run()
        yield client
        # No other client has taken the GPU from it.
        assert not client.has(ev.Revoke)
        assert not client.has(ev.CancelWaits)
        assert not client.has(ev.EndBurst)
        found = node.group("ben", client.group)
        assert (found["state"], found["name"]) == ("running", "secret.ipynb")
        client.end_burst()
        client.release("release")
        works(client)


def test_no_user_joins_a_group_of_another(node: Node, running: FakeClient) -> None:
    for ticket in ("", node.ticket("ada", "own"), secrets.token_hex(32), "0" * 64, "'"):
        with (
            FakeClient(node.path, running.group, node.gpu, ticket=ticket) as posing,
            pytest.raises(Refused) as refused,
        ):
            posing.attach(reattach=True, leased=True)
        assert str(refused.value)
    with node.user("ada") as ada:
        assert ada.denied("ticket", group=running.group, server="") == "not_yours"


def test_a_ticket_is_valid_for_one_kernel(node: Node, running: FakeClient) -> None:
    """Also where both are of one user: a notebook does not act for another."""
    for name in ("ada", "ben"):
        ticket = node.ticket(name, f"{name}s-other")
        with (
            FakeClient(node.path, running.group, node.gpu, ticket=ticket) as posing,
            pytest.raises(Refused),
        ):
            posing.attach()
        with Peer(node.path, ticket=ticket) as peer:
            for op, params in REQUESTS:
                assert peer.denied(op, group=running.group, **params)


def test_no_user_acts_on_a_group_of_another(node: Node, running: FakeClient) -> None:
    with node.user("ada") as ada:
        for op, params in REQUESTS:
            assert ada.denied(op, group=running.group, **params), op
        # Nor by its name, or the beginning of its id, which ada is not to know.
        for word in ("secret.ipynb", running.group[:3]):
            assert not ada.ask("release", group=word)["ok"]
        for op, role in OPERATIONS.items():
            if role is Role.ADMINS:
                assert ada.denied(op) == "not_allowed", op


def test_a_revoked_ticket_is_refused(node: Node, running: FakeClient) -> None:
    with node.user("ada") as ada:
        ticket = str(ada.ok("ticket", group="short-lived", server="")["ticket"])
        with Peer(node.path, ticket=ticket) as early:
            early.ok("status")
            ada.ok("revoke", group="short-lived")
            # Earlier connections with it are closed, too.
            with pytest.raises((ConnectionError, AssertionError)):
                early.ok("status")
    with (
        FakeClient(node.path, "short-lived", node.gpu, ticket=ticket) as late,
        pytest.raises(Refused),
    ):
        late.attach()


def test_guessed_tickets_are_refused(node: Node, running: FakeClient) -> None:
    for _ in range(200):
        with (
            FakeClient(node.path, "x", node.gpu, ticket=secrets.token_hex(32)) as guess,
            pytest.raises((Refused, ConnectionError)),
        ):
            guess.attach()
    with Peer(node.path) as peer:
        for token in ("", "ada-token ", "ben", "../ben-token", "x" * 10_000):
            assert peer.denied("login", token=token) or token == ""
        assert peer.denied("status") == "login_required"


def test_an_authenticated_connection_cannot_change_its_user(
    node: Node, running: FakeClient
) -> None:
    with Peer(node.path, ticket=node.ticket("ada", "own")) as peer:
        peer.ok("status")
        with contextlib.suppress(ConnectionError):
            peer.socket.sendall(protocol.ticket(node.ticket("ben", "other")))
            with pytest.raises((ConnectionError, AssertionError)):
                peer.ok("status")


def test_the_visible_part_of_others_reveals_nothing(node: Node, running: FakeClient) -> None:
    with node.user("ada") as ada, node.user("ben") as ben:
        ada.ok("subscribe", since=0)
        ben.ok("cell", group=running.group, phase="begin", msg_id="secret-cell", at=1.0)
        ben.ok("notice", group=running.group, code="secret-code", params={"text": "secret"})
        seen = json.dumps([ada.ask("status"), ada.ask("history", since=0), ada.ask("explain")])
        assert "secret" not in seen
        assert running.group not in seen
        assert '"ben"' not in seen
        assert "secret" in json.dumps(ben.ask("status"))
        ben.ok("cell", group=running.group, phase="end", msg_id="secret-cell", at=2.0)


@root_only
def test_the_user_of_a_process_comes_from_the_operating_system(
    node: Node, running: FakeClient
) -> None:
    """A process with its own uid is identified by that uid, whatever it states."""
    with (
        FakeClient(node.path, running.group, node.gpu, connection=connect(node.path, 12345)) as one,
        pytest.raises(Refused),
    ):
        one.attach()
    with Peer(node.path, uid=12345) as peer:
        assert peer.ok("status")["status"]["viewer"]["user"] == "12345"
        assert peer.denied("set", quantum=1.0) == "not_allowed"


# --- Places -----------------------------------------------------------------------------------------

#: Serves a socket as another user, and answers "ok" to all requests.
IMPOSTOR = """
import os, socket, sys
os.chdir(sys.argv[1]); os.setgroups([]); os.setgid(12345); os.setuid(12345)
listener = socket.socket(socket.AF_UNIX); listener.bind("s.sock"); listener.listen()
print("listens", flush=True)
while True:
    end, _ = listener.accept()
    print(len(end.recv(1 << 16)), flush=True)
"""


@root_only
def test_no_user_can_impersonate_the_scheduler(tmp_path: Path) -> None:
    """Not a byte is sent to another user's socket in the scheduler's place."""
    place = tmp_path / "run"
    place.mkdir()
    os.chown(place, 12345, 12345)
    with Program(IMPOSTOR, str(place)) as impostor:
        with pytest.raises(SchedulerUnreachable, match="another user"):
            ControlClient(place / "s.sock", timeout=PATIENCE)
        assert impostor.said() == "0"
        # Nor through a link of one's own.
        link = tmp_path / "scheduler.sock"
        link.symlink_to(place / "s.sock")
        with pytest.raises(SchedulerUnreachable, match="another user"):
            ControlClient(link, timeout=PATIENCE)


def start(folder: Path, socket_path: Path, environ: dict[str, str]) -> tuple[int, str]:
    config = folder / "config.json"
    settings = {"socket": str(socket_path), "state_dir": str(folder / "state")}
    config.write_text(json.dumps({"NodeScheduler": settings}))
    config.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.scheduler", "--config", str(config)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_file_in_place_of_the_socket_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    environ = {"GPUSHARE_SIM": "1", "GPUSHARE_SIM_NAME": f"adversary-{os.getpid()}"}
    run = tmp_path / "run"
    run.mkdir(mode=0o755)
    precious = tmp_path / "precious"
    precious.write_text("data")
    path = run / "s.sock"
    path.symlink_to(precious)
    status, said = start(tmp_path, path, environ)
    assert status == 2, said
    assert precious.read_text() == "data"
    path.unlink()
    # Its lock is not followed either.
    lock = run / "s.sock.lock"
    lock.symlink_to(precious)
    status, said = start(tmp_path, path, environ)
    assert status == 2, said
    assert precious.read_text() == "data"
    lock.unlink()
    # A folder in which others could replace the socket.
    run.chmod(0o777)
    status, said = start(tmp_path, path, environ)
    assert status == 2
    assert str(run) in said
    assert stat.S_IMODE(run.stat().st_mode) == 0o777
    Path(f"/dev/shm/gpushare-sim-{environ['GPUSHARE_SIM_NAME']}").unlink(missing_ok=True)


def test_a_ticket_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket"
    ticket.write_text("a" * 64)
    environ = {"GPUSHARE_TICKET_FILE": str(ticket)}
    for mode in (0o644, 0o640, 0o620, 0o602):
        ticket.chmod(mode)
        with pytest.raises(NotAdmitted, match="mode 0600"):
            read_ticket(environ)
    ticket.chmod(0o600)
    assert read_ticket(environ) == "a" * 64
    link = tmp_path / "link"
    link.symlink_to(ticket)
    with pytest.raises(NotAdmitted):
        read_ticket({"GPUSHARE_TICKET_FILE": str(link)})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(NotAdmitted):
        read_ticket({"GPUSHARE_TICKET_FILE": str(pipe)})


def test_stored_state_is_unreadable_to_others_and_has_no_tickets(node: Node) -> None:
    ticket = node.ticket("ada", "kept")
    state = node.path.parents[1] / "state"
    (found,) = [file for file in state.iterdir() if file.name.startswith("tickets")]
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert ticket not in found.read_text()


def test_an_inherited_connection_is_not_enough(node: Node) -> None:
    """A descriptor that is passed on only identifies the user that connected it."""
    with connect(node.path) as end, socket.socket(fileno=os.dup(end.fileno())) as copy:
        copy.settimeout(PATIENCE)
        request = {"op": "status", "protocol": protocol.CONTROL_VERSION}
        copy.sendall(protocol.encode_json(protocol.CONTROL, request))
        (frame,) = protocol.FrameReader(from_scheduler=True).feed(copy.recv(1 << 16))
        assert protocol.decode_json(frame.body)["code"] == "login_required"
