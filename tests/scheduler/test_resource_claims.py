# SPDX-License-Identifier: BSD-3-Clause
"""Claims of Kubernetes' pods: a pod's processes belong to its claim and not to their uid, and get what it states."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.kernel_provisioner import ticket
from jupyter_gpushare.scheduler.protocol import client
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import ControlClient, NotAdmitted
from tests.support.client import FakeClient
from tests.support.fake_hub import Peer, hub, start_node
from tests.support.scheduler import GIB, Scheduler, simulated, starting, until

ADA: dict[str, Any] = {
    "uid": "u-ada",
    "token": "token of ada",
    "user": "jhub/ada",
    "teams": ["jhub"],
    "priority": "background",
    "limit": 0.5,
    "weight": 2.0,
    "memory": GIB,
}


@pytest.fixture(scope="module")
def the_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("node")
    with hub() as asked, simulated(folder) as environ, starting(environ, folder) as start:
        yield start_node(start, folder, asked, shares={"user:ben": {"limit": 0.25}})


@pytest.fixture
def node(the_node: Scheduler) -> Iterator[Scheduler]:
    yield the_node
    with Peer(the_node.path, token="admin-token") as admin:
        for uid in admin.ok("prepared_claims")["claims"]:
            admin.ok("unprepare_claim", uid=uid)
        assert {*admin.ok("shares")["shares"]} == {"user:ben"}


@pytest.fixture
def admin(node: Scheduler) -> Iterator[Peer]:
    with Peer(node.path, token="admin-token") as peer:
        yield peer


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(ADA["token"] + "\n")
    monkeypatch.setenv("GPUSHARE_CLAIM_FILE", str(file))
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)


def share(admin: Peer, user: str) -> dict[str, Any] | None:
    found = admin.ok("shares")["shares"].get(f"user:{user}")
    return None if found is None else {n: found[n] for n in ("limit", "weight", "memory")}


def attempts(admin: Peer) -> int:
    """How often a claim was presented."""
    return sum(line["op"] == "present_claim" for line in admin.ok("audit")["audit"])


ENTITLED = {"limit": 0.5, "weight": 2.0, "memory": GIB}


def test_a_pod_is_its_claims_user_whatever_its_uid(admin: Peer, node: Scheduler) -> None:
    admin.ok("prepare_claim", **ADA)
    admin.ok("prepare_claim", **{**ADA, "uid": "u-ben", "token": "other", "user": "jhub/ben"})
    assert admin.ok("prepared_claims")["claims"] == ["u-ada", "u-ben"]
    for uid in (None, 0, 1234):
        with Peer(node.path, uid=uid) as pod:
            found = pod.ok("present_claim", token=ADA["token"])
            assert (found["user"], found["teams"], found["admin"]) == ("jhub/ada", ["jhub"], False)
            assert pod.ok("whoami")["tickets"]
    assert share(admin, "jhub/ada") == ENTITLED
    assert admin.ok("unprepare_claim", uid="u-ada") == {"prepared": True}
    assert admin.ok("unprepare_claim", uid="u-ada") == {"prepared": False}
    assert share(admin, "jhub/ada") is None
    with Peer(node.path) as pod:
        refused = pod.ask("present_claim", token=ADA["token"])
        assert refused["code"] == "unknown_claim"


def test_kernels_get_tickets_of_the_claims_user_and_its_class(
    admin: Peer, node: Scheduler, in_pod: None, tmp_path: Path
) -> None:
    admin.ok("prepare_claim", **ADA)
    path = ticket.obtain_here(node.path, "kernel-1")
    assert path is not None
    with FakeClient(node.path, "kernel-1", ticket=path.read_text().strip()) as kernel:
        kernel.attach()
        (group,) = admin.ok("status")["status"]["groups"]
        assert (group["user"], group["class"]) == ("jhub/ada", "background")
    ticket.give_back_here(node.path, "kernel-1", path)


def test_the_class_that_a_user_chose_stays(admin: Peer, node: Scheduler) -> None:
    admin.ok("prepare_claim", **ADA)
    with Peer(node.path) as pod:
        pod.ok("present_claim", token=ADA["token"])
        pod.ok("adjust", group="kernel-2", priority="interactive", later=True)
        pod.ok("ticket", group="kernel-2")
        kept = pod.ok("adjust", group="kernel-2", keep=False, later=True)["preferences"]
        assert kept["priority"] == "interactive"
        pod.ok("revoke", group="kernel-2")


def test_a_user_of_the_hub_gets_the_claims_entitlement_unless_it_is_set(
    admin: Peer, node: Scheduler
) -> None:
    admin.ok("prepare_claim", **ADA)
    for user, own in (("ada", ENTITLED), ("ben", None)):
        with Peer(node.path, token=f"{user}-token") as server:
            assert server.ok("present_claim", token=ADA["token"])["user"] == user
            assert server.ok("whoami")["user"] == user
        assert (share(admin, user) == own) is (user == "ada")
    admin.ok("entitle", whose="user:ada", limit=0.75)
    admin.ok("unprepare_claim", uid="u-ada")
    found = share(admin, "ada")
    assert found is not None
    assert found["limit"] == 0.75
    admin.ok("entitle", whose="user:ada")


def test_preparing_again_changes_what_differs(admin: Peer, node: Scheduler) -> None:
    admin.ok("prepare_claim", **ADA)
    admin.ok("prepare_claim", **ADA)
    admin.ok("prepare_claim", **{**ADA, "limit": 0.25, "token": "new"})
    found = share(admin, "jhub/ada")
    assert found is not None
    assert found["limit"] == 0.25
    with Peer(node.path) as pod:
        assert pod.ask("present_claim", token=ADA["token"])["code"] == "unknown_claim"
        pod.ok("present_claim", token="new")
    taken = admin.ask("prepare_claim", **{**ADA, "uid": "u-2", "token": "new"})
    assert "another claim has this token" in taken["error"]
    wrong = admin.ask("prepare_claim", **{**ADA, "weight": -1.0})
    assert "weight must be a number above 0" in wrong["error"]


async def test_clients_present_the_claim_and_report_what_is_wrong(
    admin: Peer, node: Scheduler, in_pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(client, "CLAIM_PATIENCE", 0.0)
        with pytest.raises(NotAdmitted, match="does not know the resource claim"):
            ControlClient(node.path)
        with pytest.raises(NotAdmitted, match="does not know the resource claim"):
            await AsyncControlClient(node.path).connect()

    def who() -> str:
        with ControlClient(node.path) as connected:
            return str(connected.request("whoami")["user"])

    # Clients wait for a new scheduler to know the claim.
    before = attempts(admin)
    waiting = asyncio.create_task(AsyncControlClient(node.path).connect())
    other = asyncio.create_task(asyncio.to_thread(who))
    await asyncio.to_thread(until, lambda: attempts(admin) >= before + 2)
    admin.ok("prepare_claim", **ADA)
    async with await waiting as connected:
        assert (await connected.request("whoami"))["user"] == "jhub/ada"
    assert await other == "jhub/ada"
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv("GPUSHARE_CLAIM_FILE", str(tmp_path / "empty"))
    with pytest.raises(NotAdmitted, match="is empty; restart the pod"):
        ControlClient(node.path)
    monkeypatch.setenv("GPUSHARE_CLAIM_FILE", str(tmp_path / "none"))
    with pytest.raises(NotAdmitted, match="No such file or directory; restart the pod"):
        ControlClient(node.path)
    with pytest.raises(NotAdmitted, match="restart the pod"):
        await AsyncControlClient(node.path).connect()


def test_the_audit_log_has_no_token(admin: Peer, node: Scheduler) -> None:
    admin.ok("prepare_claim", **ADA)
    with Peer(node.path) as pod:
        pod.ok("present_claim", token=ADA["token"])
    written = admin.ok("audit")["audit"]
    assert {"prepare_claim", "present_claim"} <= {line["op"] for line in written}
    assert ADA["token"] not in json.dumps(written)
