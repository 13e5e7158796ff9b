# SPDX-License-Identifier: BSD-3-Clause
"""Which cells an agent began: by connection, request and message; with real kernels and a real scheduler."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.session import Session
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.connection.base import (
    BaseKernelWebsocketConnection,
    serialize_msg_to_ws_v1,
)
from tornado.httputil import HTTPHeaders
from traitlets.config import Config

from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.origins import Origins
from tests.support.client import FakeClient

KERNEL = "7b4ff25f-8b08-4b4b-9b43-2c1a8e1f0c11"
BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0"}
#: How pages and jupyter_client name their sessions. Fixed, because they are in the names of tests.
PAGE, PYTHON = "d88aed8a-6f01-4fe2-a3ef-e30e0f17a502", "360c5a29-ac24ac53cf88b01681f8fc35"


def origins(*user_agents: str, extensions: tuple[str, ...] = ()) -> Origins:
    """Return the origins of a server with these extensions, started."""
    settings = {
        "kernel_websocket_connection_class": BaseKernelWebsocketConnection,
        "log_function": lambda handler: None,
    }
    server: Any = SimpleNamespace(
        web_app=SimpleNamespace(settings=settings),
        extension_manager=SimpleNamespace(extension_apps=dict.fromkeys(extensions)),
    )
    made = Origins(server, user_agents, logging.getLogger("test"))
    made.start()
    return made


def header(session: str, **more: Any) -> dict[str, Any]:
    return {"msg_id": "m1", "msg_type": "execute_request", "session": session, **more}


# --- Connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "headers", "agent"),
    [
        (PAGE, BROWSER, False),
        # jupyter-kernel-client's WebSockets; jupyter-mcp-server uses it for kernels of another server.
        (PYTHON, {"Origin": "http://localhost:8888"}, True),
        # VS Code's Jupyter extension: no User-Agent either.
        (PAGE, {}, False),
        # A program in Python that is not known, such as nbclient through a gateway.
        (PYTHON, {"User-Agent": "Python/3.11 aiohttp/3.9"}, False),
        (PAGE, {"User-Agent": "Jupyter Kernel Client"}, True),
        (PAGE, {"User-Agent": "Jupyter NbModel Client"}, True),
        (PAGE, {"User-Agent": "my-agent/2.1"}, True),
        (PAGE, {**BROWSER, "GpuShare-Class": "agent"}, True),
        (PYTHON, {"GpuShare-Class": "Interactive"}, False),
        (PYTHON, {"GpuShare-Class": "other"}, True),
    ],
)
def test_agents_are_recognised_by_their_connection(
    session: str, headers: dict[str, str], agent: bool
) -> None:
    found = origins("my-agent/")
    found.on_connect(KERNEL, session, HTTPHeaders(headers))
    assert found.is_agent(KERNEL, header(session)) is agent
    assert found.is_agent("another", header(session)) is False


# --- Messages -------------------------------------------------------------------------------------


def as_text(message: dict[str, Any]) -> str:
    return json.dumps({**message, "channel": "shell"}, default=str)


def as_bytes(message: dict[str, Any]) -> bytes:
    pack = Session().pack
    found: bytes = serialize_msg_to_ws_v1(message, "shell", pack)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("write", [as_text, as_bytes])
@pytest.mark.parametrize("stated", ["agent", "interactive"])
def test_a_message_can_state_its_class(write: Callable[..., Any], stated: str) -> None:
    found = origins()
    session = Session()
    headers = BROWSER if stated == "agent" else {}
    found.on_connect(KERNEL, session.session, HTTPHeaders(headers))
    metadata = {"gpushare": {"class": stated}}
    message = session.msg("execute_request", {"code": "1"}, metadata=metadata)
    found.on_message(write(message))
    assert found.is_agent(KERNEL, message["header"]) is (stated == "agent")
    again = session.msg("execute_request", {"code": "1"})
    found.on_message(write(again))
    assert found.is_agent(KERNEL, again["header"]) is (stated != "agent")


def test_a_header_can_state_the_class_without_the_server() -> None:
    stated = header("none", gpushare={"class": "agent"})
    assert origins().is_agent(KERNEL, stated) is True


@pytest.mark.parametrize(
    "message",
    [
        '"gpushare"',
        b'\x00"gpushare"',
        '{"gpushare": 1}',
        '{"header": [], "metadata": {"gpushare": 1}}',
        '{"header": {"msg_type": "execute_request"}, "metadata": {"gpushare": {"class": "agent"}}}',
        '{"header": {"msg_type": "execute_request", "msg_id": 1}, "metadata": {"gpushare": {"class": []}}}',
    ],
)
def test_invalid_messages_are_ignored(message: str | bytes) -> None:
    found = origins()
    found.on_message(message)
    assert found.is_agent(KERNEL, header(PAGE, gpushare="agent")) is False


# --- Cells that a part of the server sends --------------------------------------------------------


def request(headers: dict[str, str], method: str = "POST") -> Any:
    path = f"/user/ada/api/kernels/{KERNEL}/execute"
    return SimpleNamespace(path=path, method=method, headers=HTTPHeaders(headers))


@pytest.mark.parametrize("extension", ["jupyter_mcp_server", "jupyter_mcp_live"])
def test_the_cells_of_an_mcp_server_in_the_server_are_an_agents(extension: str) -> None:
    assert origins().is_agent(KERNEL, header("servers")) is False
    assert origins(extensions=(extension,)).is_agent(KERNEL, header("servers")) is True


def test_cells_that_pages_ask_the_server_to_run_are_a_persons() -> None:
    found = origins(extensions=("jupyter_mcp_server", "jupyter_server_nbmodel"))
    found.on_request(request(BROWSER), 202)
    found.on_request(request(BROWSER), 202)
    found.on_request(request(BROWSER), 404)
    found.on_request(request(BROWSER, "GET"), 200)
    told = [found.is_agent(KERNEL, header("servers")) for _ in range(3)]
    assert told == [False, False, True]


def test_a_request_to_run_a_cell_can_say_that_it_is_an_agents() -> None:
    found = origins()
    found.on_request(request({"GpuShare-Class": "agent"}), 202)
    assert found.is_agent(KERNEL, header("servers")) is True
    assert found.is_agent(KERNEL, header("servers")) is False
    found.on_request(request({"GpuShare-Class": "agent"}), 202)
    found.forget(KERNEL)
    assert found.is_agent(KERNEL, header("servers")) is False


def test_without_detection_no_cell_is_an_agents() -> None:
    found = origins(extensions=("jupyter_mcp_server",))
    found.stop()
    assert found.is_agent(KERNEL, header("servers")) is False


# --- All of it ------------------------------------------------------------------------------------


@pytest.fixture
def class_of(
    runtime: Any, gpu: dict[str, Any], extension: GpuShareExtension
) -> Callable[[str], Awaitable[Any]]:
    """Return a function that returns the class of a kernel's group."""

    async def find(kernel_id: str) -> Any:
        status = (await extension.request("status"))["status"]
        return next((g["class"] for g in status["groups"] if g["id"] == kernel_id), None)

    return find


@pytest.mark.parametrize("action", ["interrupt", "restart"])
async def test_requests_of_cells_that_do_not_begin_any_more_are_forgotten(
    kernel: Any,
    jp_serverapp: ServerApp,
    extension: GpuShareExtension,
    eventually: Any,
    action: str,
) -> None:
    """Otherwise, the next cell would count as that of the person or agent whose cell was dropped."""
    found = extension._origins
    assert found is not None
    dropped = SimpleNamespace(
        path=f"/api/kernels/{kernel.id}/execute",
        method="POST",
        headers=HTTPHeaders({"GpuShare-Class": "agent"}),
    )
    found.on_request(dropped, 202)
    await getattr(jp_serverapp.kernel_manager, f"{action}_kernel")(kernel.id)

    async def forgotten() -> bool:
        return kernel.id not in found._requests

    await eventually(forgotten)


async def run_over_websocket(
    connect: Any, kernel_id: str, headers: dict[str, str], metadata: dict[str, Any] | None = None
) -> None:
    """Run a cell as a client of the server does."""
    session = Session()
    socket = await connect(
        "api", "kernels", kernel_id, "channels", params={"session_id": session.session},
        headers=headers,
    )  # fmt: skip
    message = session.msg("execute_request", {"code": "1 + 1"}, metadata=metadata)
    await socket.write_message(json.dumps({**message, "channel": "shell"}, default=str))
    while True:
        reply = json.loads(await asyncio.wait_for(socket.read_message(), 60))
        if (
            reply["msg_type"] == "execute_reply"
            and reply["parent_header"]["msg_id"] == message["msg_id"]
        ):
            break
    socket.close()
    while await asyncio.wait_for(socket.read_message(), 60) is not None:
        pass  # until the server has closed it, too


async def test_the_class_follows_whether_an_agent_or_a_person_ran_the_last_cell(
    kernel: Any,
    runtime: Any,
    gpu: dict[str, Any],
    jp_ws_fetch: Any,
    class_of: Callable[[str], Awaitable[Any]],
    eventually: Any,
) -> None:
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()
        for headers, metadata, expected in (
            ({"User-Agent": "Jupyter Kernel Client"}, None, "agent"),
            (BROWSER, None, "interactive"),
            ({**BROWSER, "GpuShare-Class": "agent"}, None, "agent"),
            (BROWSER, {"gpushare": {"class": "interactive"}}, "interactive"),
            (BROWSER, {"gpushare": {"class": "agent"}}, "agent"),
        ):
            await run_over_websocket(jp_ws_fetch, kernel.id, headers, metadata)

            async def changed(expected: str = expected) -> bool:
                found: bool = await class_of(kernel.id) == expected
                return found

            await eventually(changed)


async def test_the_real_kernel_client_is_recognised(
    kernel: Any,
    runtime: Any,
    gpu: dict[str, Any],
    jp_serverapp: ServerApp,
    jp_ws_fetch: Any,
    jp_http_port: int,
    class_of: Callable[[str], Awaitable[Any]],
    eventually: Any,
) -> None:
    """The package that jupyter-mcp-server, outside of the Jupyter server, and others run cells with."""
    package = pytest.importorskip("jupyter_kernel_client")

    def run() -> None:
        url = f"http://127.0.0.1:{jp_http_port}{jp_serverapp.base_url}".rstrip("/")
        token = jp_serverapp.identity_provider.token
        with package.JupyterKernelClient(
            server_url=url, token=token, kernel_id=kernel.id
        ) as client:
            client.execute("1 + 1")

    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()
        await asyncio.to_thread(run)

        async def is_agent() -> bool:
            found: bool = await class_of(kernel.id) == "agent"
            return found

        await eventually(is_agent)


class TestOff:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.GpuShare.detect_agents = False
        return jp_server_config

    async def test_detection_can_be_switched_off(
        self, jp_serverapp: ServerApp, extension: GpuShareExtension
    ) -> None:
        made = jp_serverapp.web_app.settings["kernel_websocket_connection_class"]
        assert made is jp_serverapp.kernel_websocket_connection_class
        assert extension.host is not None
