# SPDX-License-Identifier: BSD-3-Clause
"""A server of one of a Hub's users, on a node whose scheduler serves them all."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.kernel_provisioner import provisioner, ticket
from jupyter_gpushare.scheduler.protocol.address import Access, bind
from jupyter_gpushare.server_extension.app import GpuShareExtension
from tests.support.client import FakeClient
from tests.support.fake_hub import FakeHub, Peer
from tests.support.fake_hub import hub as hub_running
from tests.support.node import Node

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]

CUDA = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with hub_running() as running:
        yield running


@pytest.fixture
def node(runtime: Path, environment: None, hub: FakeHub) -> Iterator[Node]:
    """The scheduler, which does not run yet; its socket is there, as systemd sees to."""
    found = Node(runtime, hub)
    bind(found.path, Access(0o666)).close()
    yield found
    found.stop()


@pytest.fixture
def token() -> str:
    return "ada-token"


@pytest.fixture(autouse=True)
def _in_a_hub(
    node: Node, token: str, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    monkeypatch.setattr(ticket, "holder", ticket.Holder())
    # However busy the machine is: the ticket is there before the kernel is.
    monkeypatch.setattr(provisioner, "TICKET_TIMEOUT", 60.0)
    yield
    ticket.held.clear()
    assert not ticket.channels


@pytest.fixture
def served(
    node: Node, hub: FakeHub, extension: GpuShareExtension, jp_asyncio_loop: Any
) -> GpuShareExtension:
    """The extension, attached. What the Hub was asked before is forgotten: a first login may be repeated."""
    node.start()
    assert extension.host is not None
    jp_asyncio_loop.run_until_complete(extension.host.connected())
    hub.asked.clear()
    return extension


async def test_a_server_waits_for_the_nodes_scheduler_and_does_not_take_its_place(
    node: Node,
    extension: GpuShareExtension,
    get_status: GetStatus,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def said() -> Any:
        availability = (await get_status())["availability"]
        assert availability["code"] in ("starting", "scheduler_unreachable")
        return availability["params"].get("error")

    assert "This is the node's scheduler" in await eventually(said)
    node.start()

    async def shared() -> bool:
        return bool((await get_status())["availability"]["code"] == "ok")

    await eventually(shared)
    assert extension.host is not None
    assert (extension.host.state, extension.user) == ("attached", "ada")
    # When it goes away, too.
    node.stop(signal.SIGKILL)
    await eventually(said)
    node.start()
    await eventually(shared)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_server_without_a_login_gets_advice(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    extension: GpuShareExtension,
    get_status: GetStatus,
    eventually: Any,
) -> None:
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    node.start()

    async def said() -> bool:
        availability = (await get_status())["availability"]
        return "several users share uid" in availability["params"].get("error", "")

    await eventually(said)


async def test_administrators_operations_are_not_offered_to_users(
    served: GpuShareExtension, jp_fetch: Fetch, get_status: GetStatus
) -> None:
    assert (await get_status())["may"] == {"adjust": True, "settings": False}
    for path, method, body in (
        ("settings", "POST", {"quantum": 1}),
        ("shares", "PUT", {"user:ada": {"limit": 0.5}}),
    ):
        response = await jp_fetch(
            f"gpushare/api/{path}", method=method, body=json.dumps(body), raise_error=False
        )
        assert response.code == 403
        assert "administrators" in json.loads(response.body)["message"]


class TestAdministrator:
    @pytest.fixture
    def token(self) -> str:
        return "admin-token"

    async def test_administrators_operations_are_offered_to_administrators(
        self, served: GpuShareExtension, jp_fetch: Fetch, get_status: GetStatus
    ) -> None:
        assert (await get_status())["may"] == {"adjust": True, "settings": True}
        response = await jp_fetch(
            "gpushare/api/settings", method="POST", body=json.dumps({"quantum": 1})
        )
        assert json.loads(response.body)["settings"]["quantum"] == 1


class TestShares:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.GpuShare = Config({"shares": {"user:ada": {"limit": 0.5}}})
        return jp_server_config

    async def test_entitlements_of_a_server_do_not_apply_on_a_node(
        self,
        served: GpuShareExtension,
        node: Node,
        eventually: Any,
        caplog: pytest.LogCaptureFixture,
        get_status: GetStatus,
    ) -> None:
        async def said() -> bool:
            await get_status()
            return "c.GpuShare.shares is ignored" in caplog.text

        await eventually(said)
        with Peer(node.path, token="admin-token") as peer:
            assert "user:ada" not in peer.ok("shares")["shares"]
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_notebook_in_front_is_the_hubs_users(
    served: GpuShareExtension, kernel: Any, jp_fetch: Fetch, sent: Any, eventually: Any
) -> None:
    body = json.dumps({"page": "a", "kernel_id": kernel.id})
    await jp_fetch("gpushare/api/focus", method="POST", body=body)

    async def told() -> bool:
        return ("focus", {"user": "ada", "group": kernel.id}) in sent

    await eventually(told)


async def test_kernels_get_tickets_over_the_connection_that_logged_in(
    served: GpuShareExtension,
    kernel: Any,
    node: Node,
    hub: FakeHub,
    jp_serverapp: ServerApp,
    eventually: Any,
) -> None:
    path = ticket.ticket_path(kernel.id)
    assert path.exists()
    assert node.tickets() == {kernel.id}
    reply = await kernel.reply(kernel.execute(CUDA))
    assert reply["status"] == "ok"
    assert node.user_of(kernel.id) == "ada"
    await kernel.manager.shutdown_kernel(kernel.id, now=True)
    assert not path.exists()
    assert not node.tickets()
    # No other connection had to log in.
    assert "ada-token" not in hub.asked


async def test_a_kernel_that_ended_unreported_loses_its_ticket(
    node: Node, extension: GpuShareExtension, eventually: Any
) -> None:
    node.start()
    with Peer(node.path, token="ada-token") as peer:
        peer.ok("ticket", group="dead", server="/user/ada/")
        peer.ok("ticket", group="elsewhere", server="/user/ada/other/")

    async def revoked() -> bool:
        return node.tickets() == {"elsewhere"}

    await eventually(revoked)


async def test_a_ticket_that_the_scheduler_lost_is_replaced(
    served: GpuShareExtension, kernel: Any, node: Node, eventually: Any
) -> None:
    assert (await kernel.reply(kernel.execute(CUDA)))["status"] == "ok"
    path = ticket.ticket_path(kernel.id)
    before = path.read_text()
    node.stop(signal.SIGKILL)
    (node.state / "tickets.json").unlink()
    node.start()

    async def back() -> bool:
        return node.user_of(kernel.id) == "ada"

    await eventually(back)
    assert path.read_text() != before


async def test_nothing_is_remembered_about_other_users(
    served: GpuShareExtension, kernel: Any, node: Node, get_status: GetStatus, eventually: Any
) -> None:
    with Peer(node.path, token="ben-token") as ben:
        text = ben.ok("ticket", group="bens")["ticket"]
        gpu = (await get_status())["gpus"][0]["uuid"]
        with FakeClient(node.path, "bens", gpu, name="secret.ipynb", ticket=text) as client:
            client.attach()
            ben.ok("adjust", group="bens", keep=True)

            async def seen() -> Any:
                groups = (await get_status())["groups"]
                return [group for group in groups if group["preferences"]["keep"]]

            (group,) = await eventually(seen)
            assert (group["id"] != "bens", group["sessions"]) == (True, [])
            assert "secret" not in json.dumps(await get_status())
            await served.request("adjust", group=kernel.id, keep=True, later=True)

            async def noted() -> bool:
                return kernel.id in served._preferences._preferences

            await eventually(noted)
            assert set(served._preferences._preferences) == {kernel.id}
