# SPDX-License-Identifier: BSD-3-Clause
"""A real jupyter_server with the extension, a real scheduler, and the simulated driver."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import HTTPClientError
from traitlets.config import Config

from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension.app import GpuShareExtension
from tests.server_extension.documented import check
from tests.support.client import FakeClient
from tests.support.environment import inherited
from tests.support.kernels import forked_kernels
from tests.support.schedulers import forked_schedulers

__all__ = ["forked_kernels", "forked_schedulers"]

#: Bound of every wait: long, because it is only reached where something is wrong.
PATIENCE = 60.0

Fetch = Callable[..., Awaitable[Any]]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Any:
    """Run coroutine tests on the loop of pytest-jupyter's server, not on one of pytest-asyncio's."""
    if not (collector.funcnamefilter(name) and inspect.iscoroutinefunction(obj)):
        return None
    test = on_server_loop(obj)
    # pytest looks the function up again when it runs it.
    setattr(collector.obj, name, test)
    return list(collector._genfunctions(name, test))


def on_server_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the test as an ordinary function."""
    signature = inspect.signature(test)
    loop = inspect.Parameter("jp_asyncio_loop", inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(test)
    def run(*arguments: Any, jp_asyncio_loop: Any, **fixtures: Any) -> None:
        jp_asyncio_loop.run_until_complete(test(*arguments, **fixtures))

    parameters = [*signature.parameters.values(), loop]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    yield folder
    shutil.rmtree(folder)
    Path("/dev/shm", f"gpushare-sim-{folder.name}").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def environment(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a simulated GPU and a scheduler of its own."""
    for name in os.environ.keys() - inherited().keys():
        monkeypatch.delenv(name)
    monkeypatch.delenv("JUPYTER_DEFAULT_PROVISIONER_NAME", raising=False)
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    monkeypatch.setenv("GPUSHARE_SIM_NAME", runtime.name)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(runtime / "s.sock"))
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def jp_server_config() -> Config:
    """Enable the extension."""
    return Config({"ServerApp": {"jpserver_extensions": {"jupyter_gpushare": True}}})


@pytest.fixture
def extension(jp_serverapp: ServerApp, jp_asyncio_loop: Any) -> Iterator[GpuShareExtension]:
    """Return the extension, started."""
    app = jp_serverapp.extension_manager.extension_apps["jupyter_gpushare"]
    (extension,) = app
    assert isinstance(extension, GpuShareExtension)
    jp_asyncio_loop.run_until_complete(extension._start_jupyter_server_extension(jp_serverapp))
    yield extension
    jp_asyncio_loop.run_until_complete(extension.stop_extension())


@pytest.fixture
def scheduler(extension: GpuShareExtension, jp_asyncio_loop: Any) -> Iterator[AsyncControlClient]:
    """Return a connection of the test's own to the scheduler that the extension hosts."""
    assert extension.host is not None, extension.obstacle
    jp_asyncio_loop.run_until_complete(extension.host.connected())
    client = AsyncControlClient(extension.host.path)
    jp_asyncio_loop.run_until_complete(client.connect())
    yield client
    jp_asyncio_loop.run_until_complete(client.close())


@pytest.fixture
def gpu(scheduler: AsyncControlClient, jp_asyncio_loop: Any) -> dict[str, Any]:
    """Return what the scheduler says of the simulated GPU."""
    status = jp_asyncio_loop.run_until_complete(scheduler.request("status"))["status"]
    return status["gpus"][0]  # type: ignore[no-any-return]


@pytest.fixture
def holder(runtime: Path, gpu: dict[str, Any]) -> Iterator[FakeClient]:
    """Return a notebook that holds three quarters of the GPU."""
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"], name="train.ipynb") as client:
        client.attach()
        client.grow(gpu["total"] * 3 // 4)
        client.run()
        yield client


@pytest.fixture
def server(
    http_server: Any, jp_serverapp: ServerApp, jp_http_port: int, jp_base_url: str
) -> tuple[str, str]:
    """Return the URL of the Jupyter server and its token."""
    return f"http://127.0.0.1:{jp_http_port}{jp_base_url}", jp_serverapp.identity_provider.token


@pytest.fixture
def jp_fetch(jp_fetch: Fetch) -> Fetch:
    """Fetch as pytest-jupyter does, and compare each answer of the extension with the OpenAPI document."""

    async def fetch(*parts: str, **options: Any) -> Any:
        path = "/" + "/".join(part.strip("/") for part in parts)
        try:
            response = await jp_fetch(*parts, **options)
        except HTTPClientError as error:
            if path.startswith("/gpushare/api/") and error.response is not None:
                check(options.get("method", "GET"), path, error.code, error.response.body)
            raise
        if path.startswith("/gpushare/api/"):
            check(options.get("method", "GET"), path, response.code, response.body)
        return response

    return fetch


@pytest.fixture
def get_status(jp_fetch: Fetch) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Return the function that gets the status as a browser would."""

    async def get() -> dict[str, Any]:
        response = await jp_fetch("gpushare", "api", "status")
        assert response.code == 200
        return json.loads(response.body)  # type: ignore[no-any-return]

    return get


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Note operation and parameters of what this process asks of schedulers and they do."""
    noted = []
    request = AsyncControlClient.request

    async def note(client: AsyncControlClient, op: str, **params: Any) -> dict[str, Any]:
        reply = await request(client, op, **params)
        noted.append((op, params))
        return reply

    monkeypatch.setattr(AsyncControlClient, "request", note)
    return noted


@pytest.fixture
def replace(
    get_status: Callable[[], Awaitable[dict[str, Any]]], eventually: Any
) -> Callable[[], Awaitable[None]]:
    """Return the function that kills the scheduler and waits for the next."""

    async def kill() -> None:
        before = (await get_status())["scheduler"]["pid"]
        os.kill(before, signal.SIGKILL)

        async def replaced() -> bool:
            status = await get_status()
            return bool(status.get("scheduler", {}).get("pid", before) != before)

        await eventually(replaced)

    return kill


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """Return the function that waits until something is true, and returns it."""

    async def wait(probe: Callable[[], Awaitable[Any]]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := await probe()):
            assert time.monotonic() < deadline, "it did not happen in time"
            await asyncio.sleep(0.02)
        return found

    return wait


@pytest.fixture
def cells(scheduler: AsyncControlClient) -> Callable[[str], Awaitable[list[tuple[str, str]]]]:
    """Return the function that lists phase and message id of a group's cells so far."""

    async def find(group: str) -> list[tuple[str, str]]:
        events = (await scheduler.request("history"))["events"]
        return [
            (event["phase"], event["msg_id"])
            for event in events
            if event["kind"] == "cell" and event["group"] == group
        ]

    return find


@pytest.fixture
def kernel(
    jp_serverapp: ServerApp, extension: GpuShareExtension, jp_asyncio_loop: Any
) -> Iterator[Kernel]:
    """Return a real Python kernel of the server's."""
    found = Kernel(jp_serverapp)
    jp_asyncio_loop.run_until_complete(found.start())
    yield found
    jp_asyncio_loop.run_until_complete(found.stop())


class Kernel:
    """A kernel of the server's, and a client that runs cells in it."""

    def __init__(self, app: ServerApp) -> None:
        self.manager: Any = app.kernel_manager
        self.id = ""
        self.client: Any = None
        #: Replies that are not awaited yet: subshells answer in any order.
        self._replies: dict[str, dict[str, Any]] = {}

    async def start(self, name: str = "python3") -> None:
        """Start it and wait until it answers."""
        self.id = await self.manager.start_kernel(kernel_name=name)
        self.client = self.manager.get_kernel(self.id).client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=PATIENCE)

    async def stop(self) -> None:
        """Shut it down."""
        self.client.stop_channels()
        if self.id in self.manager:
            await self.manager.shutdown_kernel(self.id, now=True)

    def execute(self, code: str, subshell: str | None = None) -> str:
        """Send an execute request and return its id."""
        message = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": False,
                "user_expressions": {},
                "allow_stdin": False,
                # Else ipykernel would abort what it is sent at once after one that fails.
                "stop_on_error": False,
            },
        )
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    async def reply(self, message_id: str) -> dict[str, Any]:
        """Wait for the reply to a request."""
        while message_id not in self._replies:
            reply = await self.client.get_shell_msg(timeout=PATIENCE)
            self._replies[reply["parent_header"].get("msg_id", "")] = reply["content"]
        return self._replies.pop(message_id)

    async def create_subshell(self) -> str:
        """Make a subshell and return its id."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        reply = await self.client.get_control_msg(timeout=PATIENCE)
        return str(reply["content"]["subshell_id"])
