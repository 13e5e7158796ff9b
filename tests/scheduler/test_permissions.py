# SPDX-License-Identifier: BSD-3-Clause
"""Permissions: the table, and users' requests over real sockets."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jupyter_gpushare.scheduler.node import permissions
from jupyter_gpushare.scheduler.node.permissions import OPERATIONS, Denied, Role
from jupyter_gpushare.scheduler.node.principals import Principal
from jupyter_gpushare.scheduler.server.requests import Requests
from jupyter_gpushare.scheduler.views.redaction import HIDDEN, OTHER
from tests.support.client import FakeClient, Refused
from tests.support.fake_hub import FakeHub, Peer, hub, start_node
from tests.support.scheduler import GIB, Scheduler, simulated, starting, until

# --- The table ------------------------------------------------------------------------------------


def test_every_operation_is_in_the_table_and_documented() -> None:
    there = set(Requests(mock.MagicMock())._operations)
    assert there <= OPERATIONS.keys()
    page = (Path(__file__).parents[2] / "docs" / "reference" / "control.md").read_text(
        encoding="utf-8"
    )
    assert there <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("operation", [*OPERATIONS, "of_a_later_release"])
def test_each_operation_follows_the_table(operation: str) -> None:
    role = OPERATIONS.get(operation, Role.ADMINS)
    may = {
        "stranger": role is Role.ANYBODY,
        "kernel": role in (Role.ANYBODY, Role.USERS, Role.OWNER),
        "user": role is not Role.ADMINS,
        "reader": role is not Role.ADMINS,
        "admin": True,
    }
    principals = {
        "stranger": None,
        "kernel": Principal("ada", 1, kernel="k"),
        "user": Principal("ada", 1),
        "reader": Principal("hub", 1, reader=True),
        "admin": Principal("root", 0, admin=True),
    }
    for kind, principal in principals.items():
        if may[kind]:
            permissions.check(principal, operation)
        else:
            with pytest.raises(Denied):
                permissions.check(principal, operation, "say who you are")


# --- Requests of users ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("node")
    asked: FakeHub
    with hub() as asked, simulated(folder) as environ, starting(environ, folder) as start:
        yield start_node(start, folder, asked)


@pytest.fixture
def ada(node: Scheduler) -> Iterator[Peer]:
    with Peer(node.path, token="ada-token") as peer:
        yield peer


@pytest.fixture
def ben(node: Scheduler) -> Iterator[Peer]:
    with Peer(node.path, token="ben-token") as peer:
        yield peer


@pytest.fixture
def admin(node: Scheduler) -> Iterator[Peer]:
    with Peer(node.path, token="admin-token") as peer:
        yield peer


@pytest.fixture
def reader(node: Scheduler) -> Iterator[Peer]:
    with Peer(node.path, token="reader-token") as peer:
        yield peer


@pytest.fixture
def kernel(node: Scheduler, ada: Peer, admin: Peer) -> Iterator[FakeClient]:
    """Ada's kernel."""
    text = ada.ok("ticket", group="kernel-of-ada")["ticket"]
    gpu = admin.ok("status")["status"]["gpus"][0]["uuid"]
    with FakeClient(node.path, "kernel-of-ada", gpu, name="secret.ipynb", ticket=text) as client:
        client.attach()
        yield client
    until(lambda: not admin.ok("status")["status"]["groups"])


ACTS: list[dict[str, Any]] = [
    {"op": "release"},
    {"op": "evict"},
    {"op": "adjust", "frozen": True},
    {"op": "adjust", "priority": "background", "later": True},
    {"op": "cancel"},
    {"op": "cell", "phase": "begin", "msg_id": "m", "at": 1.0},
    {"op": "queued", "count": 3},
    {"op": "name", "name": "stolen.ipynb"},
    {"op": "notice", "code": "x"},
    {"op": "focus"},
    {"op": "hint", "kind": "typing"},
    {"op": "hint", "kind": "ready"},
    {"op": "ticket"},
    {"op": "revoke"},
]


@pytest.mark.usefixtures("kernel")
def test_no_user_acts_on_a_group_of_another(
    ada: Peer, ben: Peer, reader: Peer, admin: Peer
) -> None:
    before = admin.ok("status")["status"]["groups"]
    for act in ACTS:
        for peer in (ben, reader):
            assert peer.denied(group="kernel-of-ada", **act) == "not_yours", act
    # What others are called is not to be found out by asking.
    for peer in (ben, reader):
        for text in ("secret.ipynb", "kernel-of"):
            assert "no group" in peer.ask("release", group=text)["error"]
    for peer in (ben, reader):
        assert peer.denied("focus", user="ada", group="") == "not_yours"
    # The refused requests have changed nothing.
    assert admin.ok("status")["status"]["groups"] == before
    for act in ACTS:
        ada.ok(group="kernel-of-ada", **act)
    ada.ok("adjust", group="stolen.ipynb", frozen=False, priority="auto")


@pytest.mark.usefixtures("kernel")
def test_no_user_joins_a_group_of_another(node: Scheduler, ben: Peer) -> None:
    text = ben.ok("ticket", group="kernel-of-ben")["ticket"]
    with FakeClient(node.path, "kernel-of-ada", ticket=text) as client:
        with pytest.raises(Refused) as caught:
            client.attach()
        assert caught.value.code == errno.EACCES
    with FakeClient(node.path, "kernel-of-ada", ticket=text) as client, pytest.raises(Refused):
        client.place("GPU-00000000-0000-0000-0000-000000000001")


def test_the_first_user_of_a_group_name_owns_it(ada: Peer, ben: Peer, admin: Peer) -> None:
    ada.ok("adjust", group="later-of-ada", keep=True, later=True)
    assert ben.denied("adjust", group="later-of-ada", keep=False, later=True) == "not_yours"
    # A preference that an administrator sets claims the group for no user.
    admin.ok("adjust", group="later-of-ben", keep=True, later=True)
    ben.ok("adjust", group="later-of-ben", keep=False, later=True)


@pytest.mark.usefixtures("kernel")
def test_groups_of_the_hub_are_teams(admin: Peer) -> None:
    def team() -> Any:
        (user,) = admin.ok("users")["users"]
        assert user["name"] == "ada"
        return user["team"]

    assert not team()
    admin.ok("entitle", whose="team:course", weight=2.0)
    assert team() == "team:course"
    admin.ok("entitle", whose="team:course")


def test_some_operations_are_for_administrators_only(
    node: Scheduler, tmp_path: Path, ada: Peer, ben: Peer, reader: Peer, admin: Peer
) -> None:
    file = tmp_path / "recording"
    asked: list[dict[str, Any]] = [
        {"op": "set", "quantum": 2.0},
        {"op": "entitle", "whose": "user:ada", "weight": 2.0},
        {"op": "record", "file": str(file), "seconds": 0},
        {"op": "recordings"},
    ]
    text = ada.ok("ticket", group="kernel-of-ada")["ticket"]
    with Peer(node.path, ticket=text) as kernel:
        for peer in (ada, ben, reader, kernel):
            for request in asked:
                assert peer.denied(**request) == "not_allowed"
    assert not file.exists()
    for request in asked:
        admin.ok(**request)
    until(file.exists)
    admin.ok("set", quantum="auto")
    admin.ok("entitle", whose="user:ada")


# --- What they see --------------------------------------------------------------------------------


def test_users_see_their_own_groups_and_only_figures_of_others(
    kernel: FakeClient, ada: Peer, ben: Peer, reader: Peer, admin: Peer
) -> None:
    kernel.grow(6 * GIB)
    kernel.run()
    ada.ok("cell", group="kernel-of-ada", phase="begin", msg_id="secret-cell", at=1.0)
    full = admin.ok("status")["status"]["groups"]
    assert [g["id"] for g in full] == ["kernel-of-ada"]
    for peer in (ada, reader):
        (own,) = peer.ok("status")["status"]["groups"]
        assert (own["name"], own["cell"]["msg_id"]) == ("secret.ipynb", "secret-cell")
        (shown,) = peer.ok("explain", group="kernel-of-ada")["explanation"]["groups"]
        assert shown["name"] == "secret.ipynb"
    status = ben.ok("status", timeline=0)["status"]
    (hidden,) = status["groups"]
    assert hidden["id"].startswith(HIDDEN)
    assert (hidden["name"], hidden["user"], hidden["clients"][0]["pid"]) == (OTHER, OTHER, 0)
    assert hidden["gpus"][0]["footprint"] == 6 * GIB
    (span,) = [s for s in status["timeline"]["spans"] if s["end"] is None]
    assert (span["group"], span["name"], span["kind"]) == (hidden["id"], OTHER, "burst")
    (told,) = ben.ok("explain", group=hidden["id"])["explanation"]["groups"]
    assert (told["group"], told["name"]) == (hidden["id"], OTHER)
    history = ben.ok("history")["events"]
    for text in map(json.dumps, (status, history, told)):
        for secret in ("kernel-of-ada", "secret"):
            assert secret not in text
    assert {"join", "grant", "cell"} <= {e["kind"] for e in history if e["group"] == hidden["id"]}
    # An id that was never shown belongs to no group.
    assert f"{HIDDEN}999" in ben.ask("explain", group=f"{HIDDEN}999")["error"]


def test_subscribers_are_sent_only_what_they_may_see(
    node: Scheduler, ada: Peer, ben: Peer, admin: Peer
) -> None:
    peers = {"ada": ada, "ben": ben, "dan": admin}
    for peer in peers.values():
        peer.ok("subscribe")
    text = ada.ok("ticket", group="kernel-of-ada")["ticket"]
    with FakeClient(node.path, "kernel-of-ada", name="secret.ipynb", ticket=text) as client:
        client.attach()
        joined = {user: next_of(peer, "join") for user, peer in peers.items()}
        ada.send("notice", group="kernel-of-ada", code="mine", params={"file": "/home/ada/x"})
        noticed = {user: next_of(peer, "notice") for user, peer in peers.items()}
    left = {user: next_of(peer, "leave") for user, peer in peers.items()}
    assert joined["ada"] == joined["dan"]
    assert (joined["ada"]["group"], joined["ada"]["user"]) == ("kernel-of-ada", "ada")
    assert noticed["ada"]["params"] == {"file": "/home/ada/x"}
    for events in (joined, noticed, left):
        # The same event, to all.
        assert len({event["sequence"] for event in events.values()}) == 1
        assert events["ben"]["group"] == joined["ben"]["group"]
        assert (events["ben"]["name"], events["ben"]["user"]) == (OTHER, OTHER)
        for secret in ("ada", "secret", "mine"):
            assert secret not in json.dumps(events["ben"])


def next_of(peer: Peer, kind: str) -> dict[str, Any]:
    """Wait for the next event of a kind."""
    while True:
        answer = peer.answer()
        if answer.get("kind") == kind:
            return answer


def test_users_see_only_their_own_entitlements(ada: Peer, ben: Peer, admin: Peer) -> None:
    admin.ok("entitle", whose="user:ada", request=0.5)
    admin.ok("entitle", whose="team:course", limit=0.75, members=["cy"])
    # Which of the Hub's groups she is in, the Hub says.
    assert {"user:ada", "team:course"} <= ada.ok("shares")["shares"].keys()
    shown = ben.ok("shares")["shares"]
    assert all(whose.partition(":")[2].startswith(HIDDEN) for whose in shown)
    assert sorted(share["request"] for share in shown.values()) == [0.0, 0.5]
    for whose in ("user:ada", "team:course"):
        admin.ok("entitle", whose=whose)
