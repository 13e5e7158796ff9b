# SPDX-License-Identifier: BSD-3-Clause
"""Tickets and logins, over real sockets, at a scheduler for which this process's uid says nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.node import tickets
from jupyter_gpushare.scheduler.node.hub_login import Hub, LoginError
from jupyter_gpushare.scheduler.node.tickets import Ticket, Tickets
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.client import PATIENCE, FakeClient, Refused
from tests.support.fake_hub import FakeHub, Peer, hub, start_node
from tests.support.scheduler import Scheduler, Start, simulated, starting, until


@pytest.fixture(scope="module")
def the_hub() -> Iterator[FakeHub]:
    with hub() as running:
        yield running


@pytest.fixture(scope="module")
def the_node(tmp_path_factory: pytest.TempPathFactory, the_hub: FakeHub) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("node")
    with simulated(folder) as environ, starting(environ, folder) as start:
        yield start_node(start, folder, the_hub)


@pytest.fixture
def fake_hub(the_hub: FakeHub) -> Iterator[FakeHub]:
    yield the_hub
    the_hub.broken = False
    the_hub.answers.set()
    the_hub.asked.clear()


@pytest.fixture
def node(the_node: Scheduler, fake_hub: FakeHub) -> Iterator[Scheduler]:
    """A scheduler without tickets and clients."""
    yield the_node
    for token in ("ada-token", "ben-token"):
        with Peer(the_node.path, token=token) as peer:
            for server in ("", "one", "two"):
                peer.ok("tickets", server=server, groups=[])
    with Peer(the_node.path, token="admin-token") as admin:
        until(lambda: not admin.ok("status")["status"]["groups"])


def issue(node: Scheduler, token: str, *groups: str, server: str = "") -> list[str]:
    with Peer(node.path, token=token) as peer:
        return [str(peer.ok("ticket", group=group, server=server)["ticket"]) for group in groups]


def refused(client: FakeClient) -> Refused:
    with client, pytest.raises(Refused) as caught:
        client.attach()
    assert caught.value.code == errno.EACCES
    return caught.value


# --- Before the login -----------------------------------------------------------------------------


def test_a_client_without_a_ticket_gets_advice(node: Scheduler) -> None:
    assert "ticket" in refused(FakeClient(node.path, "k")).text
    with FakeClient(node.path, "k") as client, pytest.raises(Refused, match="ticket"):
        client.place("GPU-00000000-0000-0000-0000-000000000001")
    with Peer(node.path) as peer:
        assert peer.denied("status") == "login_required"
        assert peer.denied("set", quantum=1) == "login_required"
        who = peer.ok("whoami")
        assert (who["user"], who["needs"], who["tickets"]) == (None, "login", True)


def test_a_ticket_that_was_never_issued_is_refused(node: Scheduler) -> None:
    for text in ("0" * 64, "x", "é" * 60):
        assert "restart the kernel" in refused(FakeClient(node.path, "k", ticket=text)).text


@pytest.mark.parametrize("before", ["ticket", "whoami"])
def test_a_ticket_is_sent_first_and_once(node: Scheduler, before: str) -> None:
    (text,) = issue(node, "ada-token", "k")
    with Peer(node.path, ticket=text if before == "ticket" else "") as peer:
        peer.ok("whoami")
        peer.socket.sendall(protocol.ticket(text))
        with pytest.raises(ConnectionError):
            peer.frame()


# --- Tickets --------------------------------------------------------------------------------------


def test_a_ticket_identifies_one_user_and_one_kernel(node: Scheduler) -> None:
    text, other = issue(node, "ada-token", "kernel-a", "kernel-b")
    assert len(text) == 64
    assert text != other
    with FakeClient(node.path, "kernel-a", ticket=text) as client:
        assert client.place("GPU-00000000-0000-0000-0000-000000000001")
        client.attach()
        with Peer(node.path, token="admin-token") as admin:
            (group,) = admin.ok("status")["status"]["groups"]
            assert (group["id"], group["user"]) == ("kernel-a", "ada")
            assert group["clients"] == [{"pid": os.getpid(), "backend": "swap"}]
    assert "another kernel" in refused(FakeClient(node.path, "kernel-b", ticket=text)).text
    with FakeClient(node.path, "kernel-b", ticket=text) as client, pytest.raises(Refused):
        client.place("GPU-00000000-0000-0000-0000-000000000001")


def test_a_kernel_acts_for_itself_only(node: Scheduler) -> None:
    text, other = issue(node, "ada-token", "kernel-a", "kernel-b")
    with (
        FakeClient(node.path, "kernel-b", name="b.ipynb", ticket=other) as b,
        FakeClient(node.path, "kernel-a", name="a.ipynb", ticket=text) as a,
        Peer(node.path, ticket=text) as peer,
    ):
        b.attach()
        a.attach()
        assert peer.ok("whoami")["kernel"] == "kernel-a"
        for op, params in {
            "release": {},
            "evict": {},
            "adjust": {"frozen": True},
            "cancel": {},
            "cell": {"phase": "begin", "msg_id": "m", "at": 1.0},
            "queued": {"count": 3},
            "name": {"name": "mine.ipynb"},
            "notice": {"code": "mine"},
            "focus": {},
        }.items():
            assert peer.denied(op, group="kernel-b", **params) == "not_yours"
            peer.ok(op, group="kernel-a", **params)
        assert peer.denied("adjust", group="kernel-c", frozen=True, later=True) == "not_yours"
        # A kernel may not clear the focus of its user.
        assert peer.denied("focus", group="") == "not_yours"
        for name in ("b.ipynb", "kernel-"):
            answer = peer.ask("release", group=name)
            assert answer["ok"] is (name == "kernel-")
        for op in ("ticket", "tickets", "revoke"):
            assert peer.denied(op, group="kernel-a", server="", groups=[]) == "not_allowed"
        # Of the user's other kernels it sees everything, as the user does.
        assert {g["id"] for g in peer.ok("status")["status"]["groups"]} == {"kernel-a", "kernel-b"}


def test_a_new_ticket_replaces_the_last(node: Scheduler) -> None:
    first, second = issue(node, "ada-token", "k", "k")
    refused(FakeClient(node.path, "k", ticket=first))
    with FakeClient(node.path, "k", ticket=second) as client:
        client.attach()


def test_no_user_gets_a_ticket_for_a_kernel_of_another(node: Scheduler) -> None:
    (text,) = issue(node, "ada-token", "k")
    with Peer(node.path, token="ben-token") as ben, Peer(node.path, token="admin-token") as admin:
        for peer in (ben, admin):
            assert peer.denied("ticket", group="k") == "not_yours"
        assert ben.denied("revoke", group="k") == "not_yours"
        assert ben.ok("tickets", server="", groups=[])["revoked"] == []
    with FakeClient(node.path, "k", ticket=text) as client:
        client.attach()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "'group'"),
        ({"group": "é" * 32}, "63 bytes"),
        ({"group": "k", "server": 3}, "'server'"),
        ({"group": "k", "server": "s" * 256}, "'server'"),
    ],
)
def test_a_request_without_its_fields_is_refused(
    node: Scheduler, params: dict[str, object], sentence: str
) -> None:
    with Peer(node.path, token="ada-token") as peer:
        assert sentence in peer.ask("ticket", **params)["error"]


def test_a_revoked_ticket_is_refused(node: Scheduler) -> None:
    text, other = issue(node, "ada-token", "k", "other")
    with (
        FakeClient(node.path, "k", ticket=text) as client,
        Peer(node.path, ticket=text) as kernel,
        Peer(node.path, ticket=other) as neighbour,
        Peer(node.path, token="ada-token") as server,
    ):
        client.attach()
        kernel.ok("status")
        assert server.ok("revoke", group="k")["revoked"] is True
        assert server.ok("revoke", group="k")["revoked"] is False
        with pytest.raises(ConnectionError):
            kernel.ask("status")
        refused(FakeClient(node.path, "k", ticket=text))
        # What runs goes on: it uses the GPU whether it may ask for anything or not.
        client.run()
        neighbour.ok("status")


def test_a_server_revokes_tickets_of_kernels_that_ended_meanwhile(node: Scheduler) -> None:
    ended, going = issue(node, "ada-token", "ended", "going", server="one")
    (elsewhere,) = issue(node, "ada-token", "elsewhere", server="two")
    (bens,) = issue(node, "ben-token", "bens", server="one")
    with Peer(node.path, token="ada-token") as server:
        assert server.ok("tickets", server="one", groups=["going", "bens"])["revoked"] == ["ended"]
        answer = server.ok("tickets", server="one", groups=["going", "lost"])
        # Those of a scheduler that could not keep them.
        assert answer == {"revoked": [], "missing": ["lost"]}
        assert "'groups'" in server.ask("tickets", server="one")["error"]
    refused(FakeClient(node.path, "ended", ticket=ended))
    for group, text in {"going": going, "elsewhere": elsewhere, "bens": bens}.items():
        with FakeClient(node.path, group, ticket=text) as client:
            client.attach()


def test_tickets_survive_a_restart_of_the_scheduler(
    start: Start, tmp_path: Path, fake_hub: FakeHub
) -> None:
    first = start_node(start, tmp_path, fake_hub)
    text, gone = issue(first, "ada-token", "k", "gone")
    with Peer(first.path, token="ada-token") as peer:
        peer.ok("revoke", group="gone")
    file = tmp_path / "state" / tickets.FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for secret in (text, gone):
        assert secret not in file.read_text()
    # It does not even come to its end.
    first.kill()
    second = start_node(start, tmp_path, fake_hub)
    refused(FakeClient(second.path, "gone", ticket=gone))
    with Peer(second.path, token="ben-token") as ben:
        assert ben.denied("ticket", group="k") == "not_yours"
    with (
        FakeClient(second.path, "k", ticket=text) as client,
        Peer(second.path, ticket=text) as peer,
    ):
        client.attach()
        assert peer.ok("status")["status"]["groups"][0]["user"] == "ada"
        assert "course" in peer.ok("login", token="ada-token")["teams"]


def test_a_ticket_file_that_is_broken_is_put_aside(
    start: Start, tmp_path: Path, fake_hub: FakeHub
) -> None:
    file = tmp_path / "state" / tickets.FILE_NAME
    file.parent.mkdir(mode=0o700)
    file.write_text("{")
    node = start_node(start, tmp_path, fake_hub)
    assert "have to be restarted" in node.log
    assert file.with_name("tickets.json.bad").read_text() == "{"
    (text,) = issue(node, "ada-token", "k")
    with FakeClient(node.path, "k", ticket=text) as client:
        client.attach()


# --- The store by itself --------------------------------------------------------------------------


def ticket(user: str, kernel: str) -> Ticket:
    return Ticket(user, (), kernel, 1000, "", 1.0)


def test_the_number_of_tickets_of_a_user_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "MOST", 3)
    store = Tickets()
    texts = {k: store.issue(ticket("ada", k), living={"1"}) for k in ("1", "2", "3")}
    other = store.issue(ticket("ben", "b"))
    for kernel in ("4", "5"):
        texts[kernel] = store.issue(ticket("ada", kernel), living={"1"})
    # The oldest without a process went first.
    assert {k for k, text in texts.items() if store.find(text)} == {"1", "4", "5"}
    texts["6"] = store.issue(ticket("ada", "6"), living={"1", "4", "5"})
    assert {k for k, text in texts.items() if store.find(text)} == {"4", "5", "6"}
    assert store.find(other) == ticket("ben", "b")


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"version": 2, "tickets": []}',
        b'{"version": 1}',
        b'{"version": 1, "tickets": [3]}',
        b'{"version": 1, "tickets": [{"sha256": "00"}]}',
        json.dumps(
            {
                "version": 1,
                "tickets": [
                    {
                        "sha256": "00", "user": None, "teams": [], "kernel": "k", "uid": 0,
                        "server": "", "issued_at": 0,
                    }
                ],
            }
        ).encode(),
    ],
)  # fmt: skip
def test_the_scheduler_starts_with_any_ticket_file(tmp_path: Path, spoilt: bytes) -> None:
    file = tmp_path / tickets.FILE_NAME
    file.write_bytes(spoilt)
    store = Tickets(tmp_path)
    assert store.find("00") is None
    assert store.owner("k") is None
    assert file.with_name("tickets.json.bad").read_bytes() == spoilt


def test_a_ticket_file_that_others_may_write_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / tickets.FILE_NAME
    file.write_text('{"version": 1, "tickets": []}')
    file.chmod(0o666)
    Tickets(tmp_path)
    assert file.with_name("tickets.json.bad").exists()


@pytest.mark.asyncio
async def test_issued_tickets_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Tickets(tmp_path)
    await store.save()
    assert not list(tmp_path.iterdir())
    text = store.issue(ticket("ada", "k"))
    await store.save()
    assert Tickets(tmp_path).find(text) == ticket("ada", "k")
    assert not store.revoke("ben", "k")
    assert store.revoke("ada", "k")
    with monkeypatch.context() as patched:
        patched.setattr(tickets, "_replace", full)
        await store.save()
        assert "No space left" in caplog.text
    # With the next change, what failed is written too.
    another = store.issue(ticket("ada", "l"))
    await store.save()
    again = Tickets(tmp_path)
    assert again.find(text) is None
    assert again.find(another) is not None


def full(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- Logins ---------------------------------------------------------------------------------------


def test_the_hub_identifies_a_user(node: Scheduler) -> None:
    def who(token: str) -> tuple[object, ...]:
        with Peer(node.path) as peer:
            answer = peer.ok("login", token=token)
            seen = peer.ok("status")["status"]["viewer"]
            assert all(answer[key] == seen[key] for key in ("user", "admin", "reader"))
            return answer["user"], answer["teams"], answer["admin"], answer["reader"]

    assert who("ada-token") == ("ada", ["course"], False, False)
    assert who("admin-token") == ("dan", [], True, False)
    assert who("reader-token") == ("service:hub", [], False, True)
    # Neither the Hub's admin nor a scope of something else is ours.
    assert who("hub-admin-token") == ("cy", [], False, False)
    assert who("filtered-token") == ("eve", [], False, False)


def test_a_token_unknown_to_the_hub_is_refused(node: Scheduler, fake_hub: FakeHub) -> None:
    with Peer(node.path) as peer:
        for token in ("other", "nameless-token", "a\nb", "é", "x" * 2000):
            assert peer.denied("login", token=token) == "bad_token"
        assert "'token'" in peer.ask("login")["error"]
        assert peer.denied("status") == "login_required"
        fake_hub.broken = True
        assert peer.denied("login", token="ada-token") == "hub_unreachable"
        fake_hub.broken = False
        peer.ok("login", token="ada-token")
        # Each token is checked again each time: it may have been revoked.
        peer.ok("login", token="ada-token")
        assert fake_hub.asked.count("ada-token") == 3
    assert "a\nb" not in fake_hub.asked


def test_answers_keep_their_order_while_the_hub_is_slow(node: Scheduler, fake_hub: FakeHub) -> None:
    with Peer(node.path) as peer, Peer(node.path, token="ben-token") as other:
        fake_hub.answers.clear()
        peer.send("login", token="ada-token")
        for op in ("whoami", "status"):
            peer.send(op)
        until(lambda: "ada-token" in fake_hub.asked)
        # Only the client that asked waits for the Hub.
        other.ok("status")
        fake_hub.answers.set()
        assert peer.answer()["user"] == "ada"
        assert peer.answer()["needs"] == ""
        assert peer.answer()["status"]["viewer"]["user"] == "ada"


def test_a_client_that_disconnects_while_the_hub_is_slow_is_forgotten(
    node: Scheduler, fake_hub: FakeHub
) -> None:
    fake_hub.answers.clear()
    with Peer(node.path) as peer:
        peer.send("login", token="ada-token")
        until(lambda: "ada-token" in fake_hub.asked)
    fake_hub.answers.set()
    with Peer(node.path, token="ben-token") as other:
        other.ok("status")
    assert "Traceback" not in node.log


def test_an_unreachable_hub_is_named(start: Start, tmp_path: Path) -> None:
    with hub() as gone:
        pass
    node = start_node(start, tmp_path, gone)
    with Peer(node.path) as peer:
        answer = peer.ask("login", token="ada-token")
        assert answer["code"] == "hub_unreachable"
        assert gone.url in answer["error"]
        assert "hub_api_url" in answer["error"]


@pytest.mark.asyncio
async def test_without_the_hubs_client_no_user_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jupyterhub.services.auth", None)
    asked = Hub("http://127.0.0.1:1/hub/api")
    try:
        with pytest.raises(LoginError, match=r"jupyter-gpushare\[jupyterhub\]") as caught:
            await asked.login("ada-token", 1000)
        assert caught.value.code == "hub_unreachable"
    finally:
        asked.close()


@pytest.mark.asyncio
async def test_a_connection_closed_during_the_import_sends_no_request_to_the_hub(
    monkeypatch: pytest.MonkeyPatch, fake_hub: FakeHub
) -> None:
    from jupyterhub.services.auth import HubAuth

    imported = threading.Event()

    def slow(**options: Any) -> Any:
        assert imported.wait(PATIENCE)
        return HubAuth(**options)

    fake_hub.asked.clear()
    module = types.SimpleNamespace(HubAuth=slow)
    monkeypatch.setitem(sys.modules, "jupyterhub.services.auth", module)
    asked = Hub(fake_hub.url)
    try:
        given_up = asyncio.create_task(asked.login("ada-token", 1000))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        imported.set()
        assert (await asked.login("ben-token", 1000)).user == "ben"
        assert fake_hub.asked == ["ben-token"]
    finally:
        imported.set()
        asked.close()


def test_a_personal_scheduler_needs_neither_ticket_nor_token(scheduler: Scheduler) -> None:
    with Peer(scheduler.path, ticket="0" * 64) as peer:
        assert "one user" in peer.ask("ticket", group="k")["error"]
        assert "one user" in peer.ask("tickets", server="", groups=[])["error"]
        assert "one user" in peer.ask("revoke", group="k")["error"]
        assert "hub_api_url" in peer.ask("login", token="ada-token")["error"]
        assert peer.ok("status")["status"]["viewer"]["admin"] is True
    with FakeClient(scheduler.path, "k", ticket="0" * 64) as client:
        client.attach()
        client.run()
