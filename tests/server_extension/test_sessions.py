# SPDX-License-Identifier: BSD-3-Clause
"""Which documents use a kernel, as pages are told, and which kernels run without us."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension.app import CONTENTS, GpuShareExtension
from tests.server_extension.page import Page
from tests.support.client import FakeClient

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]


class Sessions:
    """The sessions API as JupyterLab uses it."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._ids: list[str] = []

    async def open(self, path: str, kind: str = "notebook", kernel_id: str | None = None) -> str:
        """Open a document with a new or existing kernel; return the kernel's id."""
        model = {
            "path": path,
            "name": path.rsplit("/", 1)[-1],
            "type": kind,
            "kernel": {"id": kernel_id} if kernel_id else {"name": "python3"},
        }
        made = await self._fetch("api", "sessions", method="POST", body=json.dumps(model))
        session = json.loads(made.body)
        self._ids.append(session["id"])
        return str(session["kernel"]["id"])

    async def rename(self, index: int, path: str) -> None:
        """Tell a session its document's new path."""
        body = json.dumps({"path": path, "name": path.rsplit("/", 1)[-1]})
        await self._fetch("api", "sessions", self._ids[index], method="PATCH", body=body)


@pytest.fixture
def sessions(extension: GpuShareExtension, jp_serverapp: ServerApp, jp_fetch: Fetch) -> Sessions:
    """Return the sessions of the server; their kernels end with it."""
    return Sessions(jp_fetch)


@pytest.fixture(autouse=True)
def no_kernel_is_left(
    extension: GpuShareExtension, jp_serverapp: ServerApp, jp_asyncio_loop: Any
) -> Iterator[None]:
    """End the kernels that a test started."""
    yield
    jp_asyncio_loop.run_until_complete(jp_serverapp.kernel_manager.shutdown_all(now=True))


def paths(group: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [(document["path"], document["type"]) for document in (group or {}).get("sessions", [])]


async def test_all_documents_of_a_kernel_and_their_renames_are_pushed(
    runtime: Path,
    gpu: dict[str, Any],
    sessions: Sessions,
    scheduler: AsyncControlClient,
    jp_fetch: Fetch,
    jp_ws_fetch: Fetch,
) -> None:
    kernel_id = await sessions.open("deep/train.ipynb")
    page = await Page(jp_fetch, "a").open(jp_ws_fetch)
    with (
        FakeClient(runtime / "s.sock", kernel_id, gpu["uuid"], name="deep/train.ipynb") as client,
        FakeClient(runtime / "s.sock", "elsewhere", gpu["uuid"]) as other,
    ):
        client.attach()
        other.attach()
        await page.hear_until(lambda _: page.group(kernel_id) and page.group("elsewhere"))
        assert paths(page.group("elsewhere")) == []
        assert paths(page.group(kernel_id)) == [("deep/train.ipynb", "notebook")]
        # No event says that these happen.
        await sessions.open("deep/train.ipynb-console", "console", kernel_id)
        await sessions.open("copy.ipynb", "notebook", kernel_id)
        await page.hear_until(lambda _: len(paths(page.group(kernel_id))) == 3)
        await sessions.rename(0, "deep/better.ipynb")
        await page.hear_until(
            lambda _: (
                paths(page.group(kernel_id))
                == [
                    ("deep/better.ipynb", "notebook"),
                    ("deep/train.ipynb-console", "console"),
                    ("copy.ipynb", "notebook"),
                ]
            )
        )
        # The scheduler names it in reasons and in other Labs.
        await page.hear_until(
            lambda _: (page.group(kernel_id) or {})["name"] == "deep/better.ipynb"
        )
        assert page.missed == []
    await page.close()


async def test_the_next_scheduler_gets_the_new_name_of_a_kernel(
    runtime: Path,
    gpu: dict[str, Any],
    sessions: Sessions,
    extension: GpuShareExtension,
    jp_serverapp: ServerApp,
    eventually: Callable[..., Awaitable[Any]],
) -> None:
    kernel_id = await sessions.open("train.ipynb")

    async def status() -> dict[str, Any]:
        return (await extension.request("status"))["status"]  # type: ignore[no-any-return]

    async def is_renamed() -> bool:
        return [group["name"] for group in (await status())["groups"]] == ["better.ipynb"]

    async def is_known() -> bool:
        return extension.documents._names == {kernel_id: "train.ipynb"}

    def process() -> FakeClient:
        """Return a session with the name under which the kernel was started."""
        return FakeClient(runtime / "s.sock", kernel_id, gpu["uuid"], name="train.ipynb")

    first = (await status())["scheduler"]["pid"]
    with process() as client:
        client.attach()
        # No page is open.
        await eventually(is_known)
        await sessions.rename(0, "better.ipynb")
        assert jp_serverapp.event_logger is not None
        renamed = {"action": "rename", "path": "better.ipynb"}
        jp_serverapp.event_logger.emit(schema_id=CONTENTS, data=renamed)
        await eventually(is_renamed)
    # It is restarted.
    with process() as client:
        client.attach()
        await eventually(is_renamed)
    os.kill(first, signal.SIGKILL)

    async def is_replaced() -> bool:
        return bool((await status())["scheduler"]["pid"] != first)

    await eventually(is_replaced)
    with process() as client:
        client.attach()
        await eventually(is_renamed)


async def test_another_kind_of_session_manager_does_not_hide_state_from_pages(
    sessions: Sessions,
    scheduler: AsyncControlClient,
    jp_serverapp: ServerApp,
    get_status: GetStatus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def list_sessions() -> Any:
        return [{"id": "1", "path": "a.ipynb", "kernel": None}]

    monkeypatch.setattr(jp_serverapp.session_manager, "list_sessions", list_sessions)
    assert (await get_status())["availability"]["code"] == "ok"


async def test_sessions_are_not_listed_for_each_delta(
    sessions: Sessions,
    jp_serverapp: ServerApp,
    scheduler: AsyncControlClient,
    jp_fetch: Fetch,
    jp_ws_fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = []
    manager: Any = jp_serverapp.session_manager
    list_sessions = manager.list_sessions

    async def counted() -> Any:
        listed.append(1)
        return await list_sessions()

    monkeypatch.setattr(manager, "list_sessions", counted)
    page = await Page(jp_fetch, "a").open(jp_ws_fetch)
    begun = page.state["time"]
    for quantum in range(2, 12):
        await scheduler.request("set", quantum=float(quantum))
        await page.hear_until(lambda state, q=quantum: state["settings"]["quantum"] == q)
    await page.ask()
    assert 1 <= len(listed) <= 2 + page.state["time"] - begun
    await page.close()


async def unshared(get_status: GetStatus) -> list[tuple[str, str, dict[str, Any]]]:
    found = (await get_status())["unshared"]
    return [(kernel["kernel_id"], kernel["code"], kernel["params"]) for kernel in found]


class TestUnshared:
    @pytest.fixture(autouse=True)
    def kernelspecs(self, jp_data_dir: Path, jp_environ: None) -> None:
        """Add kernelspecs that do as they say."""
        for name, metadata in {
            "out": {"gpushare": {"enabled": False}},
            "local": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}},
        }.items():
            folder = jp_data_dir / "kernels" / name
            folder.mkdir(parents=True)
            spec = {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": name,
                "language": "python",
                "metadata": metadata,
            }
            (folder / "kernel.json").write_text(json.dumps(spec))

    async def test_each_reason_has_its_code(
        self,
        jp_serverapp: ServerApp,
        scheduler: AsyncControlClient,
        sessions: Sessions,
        get_status: GetStatus,
        jp_fetch: Fetch,
        jp_ws_fetch: Fetch,
    ) -> None:
        shared = await sessions.open("shared.ipynb")
        page = await Page(jp_fetch, "a").open(jp_ws_fetch)
        manager: Any = jp_serverapp.kernel_manager
        out = await manager.start_kernel(kernel_name="out")
        local = await manager.start_kernel(kernel_name="local")
        await page.hear_until(lambda state: len(state["unshared"]) == 2)
        found = {kernel["kernel_id"]: kernel for kernel in page.state["unshared"]}
        assert shared not in found
        assert (found[out]["code"], found[out]["params"]) == ("opted_out", {})
        provisioner = {"provisioner": "local-provisioner"}
        assert (found[local]["code"], found[local]["params"]) == ("other_provisioner", provisioner)
        assert found[local]["sessions"] == []
        await sessions.open("plain.ipynb", kernel_id=local)

        def named(state: dict[str, Any]) -> Any:
            return [d["path"] for k in state["unshared"] for d in k["sessions"]] == ["plain.ipynb"]

        await page.hear_until(named)
        await manager.shutdown_kernel(local, now=True)
        await page.hear_until(lambda state: [k["code"] for k in state["unshared"]] == ["opted_out"])
        await page.close()


class TestFault:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.GpuShareProvisioner.library_dir = "/nowhere"
        return jp_server_config

    async def test_a_kernel_that_could_not_be_shared_is_listed(
        self, scheduler: AsyncControlClient, sessions: Sessions, get_status: GetStatus
    ) -> None:
        kernel_id = await sessions.open("a.ipynb")
        ((found, code, params),) = await unshared(get_status)
        assert (found, code) == (kernel_id, "started_without_interposer")
        assert "/nowhere/libgpushare.so is missing" in params["error"]


class TestAnotherDefault:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        chosen = {"default_provisioner_name": "local-provisioner"}
        jp_server_config.KernelProvisionerFactory = Config(chosen)
        return jp_server_config

    @pytest.fixture
    def before(self, jp_serverapp: ServerApp, jp_asyncio_loop: Any) -> str:
        """Start a kernel before the extension."""
        manager: Any = jp_serverapp.kernel_manager
        return str(jp_asyncio_loop.run_until_complete(manager.start_kernel()))

    @pytest.fixture(autouse=True)
    def no_kernel_is_left(self, before: str, no_kernel_is_left: None) -> None:
        pass

    async def test_kernels_of_another_provisioner_and_earlier_kernels_are_named(
        self, before: str, scheduler: AsyncControlClient, sessions: Sessions, get_status: GetStatus
    ) -> None:
        after = await sessions.open("a.ipynb")
        assert sorted(await unshared(get_status)) == sorted(
            [
                (before, "started_before", {}),
                (after, "other_provisioner", {"provisioner": "local-provisioner"}),
            ]
        )


class TestGateway:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Iterator[Config]:
        GatewayClient.clear_instance()
        # No server listens there.
        jp_server_config.GatewayClient.url = "http://127.0.0.1:9"
        yield jp_server_config
        GatewayClient.clear_instance()

    @pytest.fixture(autouse=True)
    def no_kernel_is_left(self) -> None:
        """List no kernels."""

    async def test_kernels_elsewhere_are_ignored(
        self, extension: GpuShareExtension, jp_fetch: Fetch
    ) -> None:
        response = await jp_fetch(
            "gpushare", "api", "status", params={"watch": "a", "timeline": "1"}
        )
        status = json.loads(response.body)
        assert status["availability"] == {
            "code": "remote_kernels",
            "params": {"url": "http://127.0.0.1:9"},
        }
        assert status["gpus"] == status["groups"] == status["unshared"] == status["notices"] == []
        assert status["timeline"] is status["settings"] is status["host"] is None
        assert extension.host is None
