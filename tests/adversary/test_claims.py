# SPDX-License-Identifier: BSD-3-Clause
"""A user reads the id of another's kernel in its command line, and tries to be first with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.node import tickets
from tests.support.client import FakeClient, Refused
from tests.support.fake_hub import FakeHub, Peer, connect, hub, start_node
from tests.support.scheduler import Scheduler, Start, simulated, starting, until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

ADA, BEN = 12345, 12346


@pytest.fixture
def people() -> Iterator[FakeHub]:
    with hub() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with simulated(tmp_path) as environ, starting(environ, tmp_path) as begin:
        yield begin


def node(start: Start, folder: Path, **settings: object) -> Scheduler:
    return start_node(start, folder, shared_uids=[], **settings)


def client(found: Scheduler, group: str, uid: int, ticket: str = "") -> FakeClient:
    return FakeClient(found.path, group, connection=connect(found.path, uid), ticket=ticket)


def refused(found: FakeClient) -> Refused:
    with found, pytest.raises(Refused) as caught:
        found.attach()
    assert caught.value.code == errno.EACCES
    return caught.value


def owns(found: Scheduler, uid: int, group: str) -> None:
    """Check that a user's kernel attaches under a group, and is the user's."""
    with client(found, group, uid) as kernel, Peer(found.path, uid=uid) as server:
        kernel.attach()
        (seen,) = server.ok("status")["status"]["groups"]
        assert (seen["id"], seen["user"]) == (group, str(uid))
    with Peer(found.path, uid=uid) as server:
        until(lambda: not server.ok("status")["status"]["groups"])


def test_a_kernel_id_is_claimed_before_the_kernel_starts(start: Start, tmp_path: Path) -> None:
    found = node(start, tmp_path)
    with Peer(found.path, uid=BEN) as server:
        assert server.ok("whoami")["claims"] is True
        server.ok("claim", group="kernel")
    assert "belongs to another user" in refused(client(found, "kernel", ADA)).text
    with Peer(found.path, uid=ADA) as ada:
        assert ada.denied("claim", group="kernel") == "not_yours"
        assert ada.denied("ticket", group="kernel") == "not_yours"
        assert ada.denied("revoke", group="kernel") == "not_yours"
    owns(found, BEN, "kernel")
    # The log says which process was refused.
    assert f"uid {ADA}, pid " in found.log


def test_a_claim_survives_a_restart_of_the_scheduler(start: Start, tmp_path: Path) -> None:
    first = node(start, tmp_path)
    with Peer(first.path, uid=BEN) as server:
        server.ok("claim", group="idle")
    # Nor does a group of the previous scheduler belong to the first user of its name at the next.
    with client(first, "busy", BEN) as kernel:
        kernel.attach()
        state = tmp_path / "state" / tickets.FILE_NAME
        until(lambda: "busy" in state.read_text())
        first.kill()
    second = node(start, tmp_path)
    for group in ("idle", "busy"):
        refused(client(second, group, ADA))
        owns(second, BEN, group)
    with Peer(second.path, uid=BEN) as server:
        server.ok("revoke", group="idle")
    third = node_after(second, start, tmp_path)
    with client(third, "idle", ADA) as kernel:
        kernel.attach()


def node_after(last: Scheduler, start: Start, folder: Path) -> Scheduler:
    last.close()
    return node(start, folder)


def test_an_administrator_does_not_claim_for_others(start: Start, tmp_path: Path) -> None:
    found = node(start, tmp_path)
    with Peer(found.path, uid=BEN) as ben, Peer(found.path) as root:
        ben.ok("claim", group="bens")
        assert root.denied("claim", group="bens") == "not_yours"
        root.ok("claim", group="roots")
        assert ben.denied("claim", group="roots") == "not_yours"
        assert "63 bytes" in ben.ask("claim", group="x" * 64)["error"]


# --- Tickets --------------------------------------------------------------------------------------


def test_a_stolen_ticket_is_useless_to_another_uid(start: Start, tmp_path: Path) -> None:
    found = node(start, tmp_path)
    with Peer(found.path, uid=BEN) as server:
        ticket = str(server.ok("ticket", group="kernel", server="")["ticket"])
    assert f"issued to uid {BEN}" in refused(client(found, "kernel", ADA, ticket)).text
    thief = connect(found.path, ADA)
    with FakeClient(found.path, "kernel", connection=thief, ticket=ticket), Peer(found.path):
        pass
    with client(found, "kernel", BEN, ticket) as kernel:
        kernel.attach()


def test_users_of_a_shared_uid_can_use_each_others_tickets(
    start: Start, tmp_path: Path, people: FakeHub
) -> None:
    """In a container, a server runs as one such uid and its kernel may run as another."""
    found = start_node(start, tmp_path, people, shared_uids=[ADA, BEN])
    with Peer(found.path, uid=BEN, token="ben-token") as server:
        ticket = str(server.ok("ticket", group="kernel", server="")["ticket"])
    refused(client(found, "kernel", ADA + 100, ticket))
    for uid in (ADA, BEN):
        with client(found, "kernel", uid, ticket) as kernel:
            kernel.attach()


def test_unused_tickets_expire(start: Start, tmp_path: Path, people: FakeHub) -> None:
    found = start_node(start, tmp_path, people, ticket_lifetime=1.0)
    state = tmp_path / "state" / tickets.FILE_NAME
    with Peer(found.path, token="ben-token") as ben:
        used = str(ben.ok("ticket", group="used", server="")["ticket"])
        with FakeClient(found.path, "used", ticket=used) as kernel:
            kernel.attach()
            for number in range(8):
                ben.ok("ticket", group=f"hoard-{number}", server="")
            assert "hoard-7" in state.read_text()
            until(lambda: '"kernel": "hoard' not in state.read_text())
            assert '"kernel": "used"' in state.read_text()
            # One whose process lives holds, however old it is.
            with FakeClient(found.path, "used", ticket=used) as again:
                again.attach()
