# SPDX-License-Identifier: BSD-3-Clause
"""Users by uid: the rules alone, and over real sockets of processes of several users."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import pwd
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.node import identity as identities
from jupyter_gpushare.scheduler.node import principals
from jupyter_gpushare.scheduler.node.identity import Identities
from jupyter_gpushare.scheduler.node.principals import (
    Identity,
    Known,
    Principal,
    groups_of,
    identify,
)
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.server import connection as connections
from jupyter_gpushare.scheduler.server.connection import Connection
from jupyter_gpushare.scheduler.server.options import Options
from jupyter_gpushare.scheduler.server.server import Server
from tests.support.client import FakeClient, Refused
from tests.support.fake_hub import Peer, connect, hub, start_node
from tests.support.scheduler import Scheduler, Start, until

#: Users that every Linux has.
DAEMON, NOBODY = 1, pwd.getpwnam("nobody").pw_uid
OWN = os.getuid()
#: No system has a user with it.
UNKNOWN = 2**31 - 7

as_root = pytest.mark.skipif(OWN != 0, reason="only root can become other users")


def name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


# --- The rules ------------------------------------------------------------------------------------


def test_a_personal_scheduler_serves_its_user_and_root() -> None:
    for uid in (0, OWN):
        known = identify(Identity(), uid)
        assert known.principal == Principal(name(uid), uid, admin=True)
    principal, why = identify(Identity(), UNKNOWN)
    assert principal is None
    assert f"uid {UNKNOWN}" in why
    assert "GPUSHARE_SOCKET" in why


def test_a_shared_uid_identifies_no_user() -> None:
    # Not even root's or the scheduler's own: root in a container is not root.
    rules = Identity(node=True, shared_uids=frozenset({0, OWN, DAEMON}))
    for uid in (0, OWN, DAEMON):
        principal, why = identify(rules, uid)
        assert principal is None
        assert "ticket" in why
        assert "Hub" not in why
    named = Identity(node=True, shared_uids=frozenset({OWN}), hub_api_url="http://localhost:1/api")
    assert "token of the Hub" in identify(named, OWN).why


def test_on_a_node_a_uid_is_a_user() -> None:
    rules = Identity(node=True)
    assert identify(rules, OWN).principal == Principal(name(OWN), OWN, admin=True)
    other = DAEMON if OWN != DAEMON else NOBODY
    found = identify(rules, other).principal
    assert found == Principal(name(other), other, teams=groups_of(other))
    # One that the system does not know is itself.
    assert identify(rules, UNKNOWN).principal == Principal(str(UNKNOWN), UNKNOWN)


def test_a_users_groups_are_teams() -> None:
    own = {grp.getgrgid(pwd.getpwuid(DAEMON).pw_gid).gr_name}
    own |= {group.gr_name for group in grp.getgrall() if name(DAEMON) in group.gr_mem}
    assert set(groups_of(DAEMON)) == own
    assert groups_of(UNKNOWN) == ()


def test_a_user_in_none_of_the_groups_is_refused_with_the_reason() -> None:
    group = groups_of(DAEMON)[0]
    rules = Identity(node=True, allowed_groups=("wheel-of-fortune", group))
    found = identify(rules, DAEMON).principal
    assert found is not None
    assert group in found.teams
    principal, why = identify(rules, UNKNOWN)
    assert principal is None
    assert "wheel-of-fortune" in why
    # It is not for administrators.
    assert identify(rules, OWN).principal is not None


@pytest.mark.asyncio
async def test_a_slow_directory_service_delays_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), []

    def slow(rules: Identity, uid: int) -> Known:
        asked.append(uid)
        assert answers.wait(60)
        return Known(Principal(str(uid), uid))

    monkeypatch.setattr(principals, "identify", slow)
    monkeypatch.setattr(identities, "MOST_UIDS", 2)
    known = Identities(Identity(node=True), {})
    assert known.recall(OWN) is not None
    assert known.recall(5) is None
    looking = asyncio.create_task(known.look_up(5))
    while not asked:
        await asyncio.sleep(0.001)
    assert not looking.done()
    answers.set()
    assert (await looking).principal == Principal("5", 5)
    # It is remembered, for a while.
    assert known.recall(5) == Known(Principal("5", 5))
    for uid in (6, 7):
        await known.look_up(uid)
    assert known.recall(5) is None
    monkeypatch.setattr(identities, "REMEMBER", 0.0)
    assert known.recall(7) is None
    known.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("seen", "pid"), [(0, 4711), (815, 815)])
async def test_the_user_of_a_process_comes_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch, seen: int, pid: int
) -> None:
    monkeypatch.setattr(connections, "peer_pid", lambda end: seen)
    core = Core(REGISTRY)
    server = Server(core, Devices(None), Options(Path("/s")))
    here, there = socket.socketpair()
    written: list[bytes] = []
    transport: Any = SimpleNamespace(
        get_extra_info=lambda name: here,
        write=written.append,
        is_closing=lambda: False,
        get_write_buffer_size=lambda: 0,
        resume_reading=lambda: None,
        pause_reading=lambda: None,
    )
    with here, there:
        connection = Connection(server)
        connection.connection_made(transport)
        connection.data_received(protocol.hello(ev.Attach(0, 4711, "k", "k", "managed")))
        (client,) = core.clients.values()
        assert client.pid == pid
        assert written
        connection.connection_lost(None)


# --- Processes of several users -------------------------------------------------------------------


def test_a_shared_own_uid_identifies_no_user(start: Start, tmp_path: Path) -> None:
    node = start_node(start, tmp_path, shared_uids=[OWN, 0])
    with Peer(node.path) as peer:
        assert peer.denied("status") == "login_required"
        assert peer.ok("whoami")["needs"] == "ticket"


@pytest.fixture
def node(start: Start, tmp_path: Path) -> Scheduler:
    """A scheduler that identifies users by uid."""
    return start_node(start, tmp_path, shared_uids=[])


@as_root
def test_each_user_controls_only_their_own_groups(node: Scheduler) -> None:
    daemons = FakeClient(node.path, "kd", name="d.ipynb", connection=connect(node.path, DAEMON))
    nobodys = FakeClient(node.path, "kn", name="n.ipynb", connection=connect(node.path, NOBODY))
    with (
        daemons,
        nobodys,
        Peer(node.path, uid=DAEMON) as daemon,
        Peer(node.path, uid=NOBODY) as nobody,
        Peer(node.path) as root,
    ):
        daemons.attach()
        nobodys.attach()
        assert daemon.ok("whoami")["user"] == name(DAEMON)
        users = {g["id"]: g["user"] for g in root.ok("status")["status"]["groups"]}
        assert users == {"kd": name(DAEMON), "kn": name(NOBODY)}
        # The process that connected, not the one that it states.
        pids = {g["clients"][0]["pid"] for g in root.ok("status")["status"]["groups"]}
        assert not pids & {0, os.getpid()}
        assert daemon.denied("release", group="kn") == "not_yours"
        assert "no group" in daemon.ask("release", group="n.ipynb")["error"]
        daemon.ok("release", group="d.ipynb")
        assert nobody.denied("set", quantum=1) == "not_allowed"
        assert root.ok("set", quantum=1)["settings"]["quantum"] == 1
        root.ok("release", group="n.ipynb")
        # An invalid ticket identifies no user, whatever the uid.
        with Peer(node.path, uid=DAEMON, ticket="0" * 64) as stranger:
            assert stranger.denied("status") == "login_required"
        with FakeClient(node.path, "kd") as roots:
            roots.attach()
            # A group stays its user's when a process of an administrator joins it.
            users = {g["id"]: g["user"] for g in root.ok("status")["status"]["groups"]}
            assert users == {"kd": name(DAEMON), "kn": name(NOBODY)}
        with FakeClient(node.path, "kn", connection=connect(node.path, DAEMON)) as thief:
            with pytest.raises(Refused) as caught:
                thief.attach()
            assert caught.value.code == errno.EACCES


@as_root
def test_a_refused_user_may_log_in_with_a_ticket(start: Start, tmp_path: Path) -> None:
    group = grp.getgrgid(pwd.getpwuid(DAEMON).pw_gid).gr_name
    with hub() as asked:
        node = start_node(start, tmp_path, asked, shared_uids=[], allowed_groups=[group])
        with Peer(node.path, uid=NOBODY) as nobody:
            assert nobody.denied("status") == "login_required"
            assert group in nobody.ask("status")["error"]
            nobody.ok("login", token="ada-token")
            text = nobody.ok("ticket", group="k")["ticket"]
            assert nobody.ok("status")["status"]["viewer"]["user"] == "ada"
        with Peer(node.path, uid=DAEMON) as daemon:
            daemon.ok("status")
        # To be let in by the ticket is not to be an administrator.
        end = connect(node.path, NOBODY)
        with FakeClient(node.path, "k", ticket=text, connection=end) as client:
            client.attach()
            with Peer(node.path) as root:
                (shown,) = root.ok("status")["status"]["groups"]
                assert shown["user"] == "ada"
        with Peer(node.path, uid=NOBODY, ticket=text) as peer:
            assert peer.denied("set", quantum=2) == "not_allowed"
            until(lambda: not peer.ok("status")["status"]["groups"])
        # With another uid it opens nothing, not even what that uid alone does.
        for uid in (DAEMON, OWN):
            end = connect(node.path, uid)
            with (
                FakeClient(node.path, "k", ticket=text, connection=end) as client,
                pytest.raises(Refused, match=f"issued to uid {NOBODY}"),
            ):
                client.attach()
            with Peer(node.path, uid=uid, ticket=text) as peer:
                assert peer.denied("status") == "login_required"
