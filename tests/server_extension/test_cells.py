# SPDX-License-Identifier: BSD-3-Clause
"""The server sees when cells begin and end, in real kernels."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension import app
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.cells import Cells
from tests.server_extension.conftest import Kernel
from tests.support.client import FakeClient

FindCells = Callable[[str], Awaitable[list[tuple[str, str]]]]


@pytest.fixture
def encryption() -> str:
    """Return whether the channels to kernels are encrypted."""
    return "disabled"


@pytest.fixture
def jp_server_config(jp_server_config: Config, encryption: str) -> Config:
    """Configure the encryption, which older versions of jupyter_client lack."""
    if KernelManager.class_traits().get("transport_encryption"):
        jp_server_config.KernelManager.transport_encryption = encryption
    elif encryption != "disabled":
        pytest.skip("this jupyter_client does not encrypt")
    return jp_server_config


@pytest.fixture
def client(runtime: Path, gpu: dict[str, Any], kernel: Any) -> Iterator[FakeClient]:
    """Return a client of the kernel's group: the scheduler knows cells of its groups only."""
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()
        yield client


@pytest.mark.parametrize("encryption", ["disabled", "auto"])
async def test_a_cell_begins_and_ends(
    kernel: Any, client: FakeClient, cells: FindCells, eventually: Any, encryption: str
) -> None:
    encrypted = "curve_publickey" in kernel.client.get_connection_info()
    assert encrypted == (encryption == "auto")
    first = kernel.execute("1 + 1")
    await kernel.reply(first)
    second = kernel.execute("raise ValueError")
    await kernel.reply(second)

    async def seen() -> bool:
        return len(await cells(kernel.id)) >= 4

    await eventually(seen)
    assert await cells(kernel.id) == [
        ("begin", first),
        ("end", first),
        ("begin", second),
        ("end", second),
    ]


async def test_a_subshell_that_is_idle_does_not_end_the_cell(
    kernel: Any, client: FakeClient, cells: FindCells, eventually: Any
) -> None:
    subshell = await kernel.create_subshell()
    main = kernel.execute("import threading; go = threading.Event(); go.wait()")

    async def begun() -> bool:
        return ("begin", main) in await cells(kernel.id)

    await eventually(begun)
    side = kernel.execute("go.is_set()", subshell)
    await kernel.reply(side)

    async def side_ended() -> bool:
        return ("end", side) in await cells(kernel.id)

    await eventually(side_ended)
    assert ("end", main) not in await cells(kernel.id)
    await kernel.reply(kernel.execute("go.set()", subshell))
    await kernel.reply(main)

    async def main_ended() -> bool:
        return ("end", main) in await cells(kernel.id)

    await eventually(main_ended)


async def test_the_death_of_a_kernel_ends_its_cell(
    kernel: Any, client: FakeClient, cells: FindCells, eventually: Any
) -> None:
    message = kernel.execute("import time; time.sleep(600)")

    async def begun() -> bool:
        return ("begin", message) in await cells(kernel.id)

    await eventually(begun)
    os.kill(kernel.manager.get_kernel(kernel.id).provisioner.pid, signal.SIGKILL)

    async def ended() -> bool:
        return ("end", message) in await cells(kernel.id)

    await eventually(ended)
    # The server starts it again; its cells are seen as before.
    await kernel.client.wait_for_ready(timeout=60)
    message = kernel.execute("1 + 1")
    await kernel.reply(message)
    await eventually(ended)


async def test_a_kernel_that_joins_during_its_cell_counts_as_busy(
    kernel: Any, runtime: Path, gpu: dict[str, Any], cells: FindCells, eventually: Any
) -> None:
    message = kernel.execute("import threading; go = threading.Event(); go.wait()")
    subshell = await kernel.create_subshell()
    # The subshell answers when the cell has begun.
    await kernel.reply(kernel.execute("while 'go' not in globals(): pass", subshell))
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()

        async def begun() -> bool:
            return ("begin", message) in await cells(kernel.id)

        await eventually(begun)
        await kernel.reply(kernel.execute("go.set()", subshell))
        await kernel.reply(message)

        async def ended() -> bool:
            return ("end", message) in await cells(kernel.id)

        await eventually(ended)


async def test_cells_are_seen_after_a_restart(
    kernel: Any, client: FakeClient, cells: FindCells, eventually: Any
) -> None:
    await kernel.manager.restart_kernel(kernel.id)
    kernel.client.stop_channels()
    kernel.client = kernel.manager.get_kernel(kernel.id).client()
    kernel.client.start_channels()
    await kernel.client.wait_for_ready(timeout=60)
    message = kernel.execute("1 + 1")
    await kernel.reply(message)

    async def ended() -> bool:
        return ("end", message) in await cells(kernel.id)

    await eventually(ended)


async def test_a_scheduler_started_later_is_sent_the_open_cell(
    kernel: Any, client: FakeClient, extension: GpuShareExtension, get_status: Any, eventually: Any
) -> None:
    message = kernel.execute("import time; time.sleep(600)")

    async def working() -> Any:
        groups = (await get_status())["groups"]
        return any(group["cell"] and group["cell"]["msg_id"] == message for group in groups)

    await eventually(working)
    status = await get_status()
    os.kill(status["scheduler"]["pid"], signal.SIGKILL)
    client.expect_closed()

    async def replaced() -> bool:
        found = (await get_status()).get("scheduler", status["scheduler"])
        return bool(found["pid"] != status["scheduler"]["pid"])

    await eventually(replaced)
    assert extension.host is not None
    assert client.usage is not None
    with FakeClient(extension.host.path, kernel.id, client.usage.gpu) as again:
        again.attach(reattach=True)
        await eventually(working)
    await kernel.manager.get_kernel(kernel.id).interrupt_kernel()


class TestMessageInterrupts:
    @pytest.fixture(autouse=True)
    def by_message(self, jp_environ: None, jp_data_dir: Path) -> None:
        """Make a kernelspec whose kernels are interrupted by messages, which no provisioner sees."""
        folder = jp_data_dir / "kernels" / "by-message"
        folder.mkdir(parents=True)
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "By message",
            "language": "python",
            "interrupt_mode": "message",
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    async def test_an_interrupt_ends_the_waits(
        self, runtime: Path, gpu: dict[str, Any], jp_serverapp: ServerApp, eventually: Any
    ) -> None:
        manager: Any = jp_serverapp.kernel_manager
        kernel_id = await manager.start_kernel(kernel_name="by-message")
        half = gpu["total"] * 3 // 4
        with (
            FakeClient(runtime / "s.sock", "other", gpu["uuid"]) as other,
            FakeClient(runtime / "s.sock", kernel_id, gpu["uuid"]) as waiter,
        ):
            other.attach()
            other.grow(half)
            other.run()
            waiter.attach()
            waiter.grow(half)
            waiter.request()
            await manager.get_kernel(kernel_id).interrupt_kernel()

            async def cancelled() -> bool:
                return waiter.has(ev.CancelWaits)

            await eventually(cancelled)
        await manager.shutdown_kernel(kernel_id, now=True)


async def test_the_cells_of_a_kernel_with_threads_end_one_by_one(
    jp_environ: None,
    jp_data_dir: Path,
    jp_serverapp: ServerApp,
    runtime: Path,
    gpu: dict[str, Any],
    cells: FindCells,
    eventually: Any,
    get_status: Any,
) -> None:
    folder = jp_data_dir / "kernels" / "threaded"
    folder.mkdir(parents=True)
    spec = {
        "argv": [
            sys.executable,
            str(Path(__file__).with_name("threaded_kernel.py")),
            "{connection_file}",
        ],
        "display_name": "Threaded",
        "language": "test",
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    kernel = Kernel(jp_serverapp)
    await kernel.start("threaded")
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()
        # The end of a cell seems lost when a later one ends. That it comes all the same shows that cells overlap.
        first = kernel.execute("wait first")
        await kernel.reply(kernel.execute("set third"))

        async def first_ended() -> bool:
            return ("end", first) in await cells(kernel.id)

        await eventually(first_ended)
        await kernel.reply(kernel.execute("set first"))
        await kernel.reply(first)
        long = kernel.execute("wait second")
        for _ in range(2):
            short = kernel.execute("set third")
            await kernel.reply(short)

            async def short_ended(short: str = short) -> bool:
                return ("end", short) in await cells(kernel.id)

            await eventually(short_ended)
            assert ("end", long) not in await cells(kernel.id)
        (group,) = (await get_status())["groups"]
        assert (group["cell"]["msg_id"], group["queued"]) == (long, 0)
        await kernel.reply(kernel.execute("set second"))
        await kernel.reply(long)

        async def long_ended() -> bool:
            return ("end", long) in await cells(kernel.id)

        await eventually(long_ended)
    await kernel.stop()


def told_by(*statuses: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what is told of cells in one shell."""
    told: list[tuple[str, str]] = []
    cells = Cells(lambda phase, message, at, agent: told.append((phase, message)))
    for state, message in statuses:
        cells.status(state, {"msg_type": "execute_request", "msg_id": message}, 0.0)
    return told


def test_a_lost_end_of_a_cell_is_inferred() -> None:
    assert told_by(("busy", "a"), ("busy", "b"), ("idle", "b"), ("busy", "c")) == [
        ("begin", "a"),
        ("begin", "b"),
        ("end", "a"),
        ("end", "b"),
        ("begin", "c"),
    ]


def test_cells_may_overlap() -> None:
    """Some kernels run cells side by side, in threads or as coroutines, without subshells."""
    assert told_by(("busy", "a"), ("busy", "b"), ("idle", "a"), ("idle", "b")) == [
        ("begin", "a"),
        ("begin", "b"),
        ("end", "a"),
        ("end", "b"),
    ]


def test_a_kernel_whose_cells_overlap_is_recognised() -> None:
    # The end of the first one seems lost when the second one ends, and comes later.
    first = (("busy", "a"), ("busy", "b"), ("idle", "b"), ("idle", "a"))
    then = (("busy", "c"), ("busy", "d"), ("idle", "d"), ("busy", "e"), ("idle", "c"))
    assert told_by(*first, *then)[4:] == [
        ("begin", "c"),
        ("begin", "d"),
        ("end", "d"),
        ("begin", "e"),
        ("end", "c"),
    ]


def test_other_requests_do_not_count_as_cells() -> None:
    told: list[str] = []
    cells = Cells(lambda phase, message, at, agent: told.append(phase))
    cells.status("busy", {"msg_type": "kernel_info_request", "msg_id": "a"}, 0.0)
    cells.status("busy", {}, 0.0)
    cells.lasting("a")
    assert told == []


def test_only_a_long_callback_counts_as_a_cell() -> None:
    told: list[tuple[str, str, float]] = []
    cells = Cells(lambda phase, message, at, agent: told.append((phase, message, at)))
    cells.status("busy", {"msg_type": "comm_msg", "msg_id": "a"}, 1.0)
    cells.announce()
    cells.status("idle", {"msg_type": "comm_msg", "msg_id": "a"}, 2.0)
    cells.lasting("a")
    assert told == []
    cells.status("busy", {"msg_type": "complete_request", "msg_id": "b"}, 3.0)
    cells.lasting("b")
    cells.status("idle", {"msg_type": "complete_request", "msg_id": "b"}, 4.0)
    assert told == [("begin", "b", 3.0), ("end", "b", 4.0)]


def test_a_callback_during_a_cell_does_not_end_the_cell() -> None:
    told: list[tuple[str, str]] = []
    cells = Cells(lambda phase, message, at, agent: told.append((phase, message)))
    cells.status("busy", {"msg_type": "execute_request", "msg_id": "a"}, 0.0)
    cells.status("busy", {"msg_type": "comm_msg", "msg_id": "b"}, 1.0)
    cells.lasting("b")
    cells.status("idle", {"msg_type": "comm_msg", "msg_id": "b"}, 2.0)
    cells.status("idle", {"msg_type": "execute_request", "msg_id": "a"}, 3.0)
    assert told == [("begin", "a"), ("begin", "b"), ("end", "b"), ("end", "a")]


async def test_a_long_callback_of_a_widget_counts_as_a_cell(
    kernel: Any, client: FakeClient, cells: FindCells, eventually: Any
) -> None:
    setup = """
import threading
go = threading.Event()
def opened(comm, message):
    comm.on_msg(lambda message: go.wait())
get_ipython().kernel.comm_manager.register_target("test", opened)
"""
    await kernel.reply(kernel.execute(setup))
    subshell = await kernel.create_subshell()
    session, channel = kernel.client.session, kernel.client.shell_channel
    channel.send(session.msg("comm_open", {"comm_id": "c", "target_name": "test", "data": {}}))
    message = session.msg("comm_msg", {"comm_id": "c", "data": {}})
    channel.send(message)

    async def begun() -> bool:
        return ("begin", message["header"]["msg_id"]) in await cells(kernel.id)

    await eventually(begun)
    await kernel.reply(kernel.execute("go.set()", subshell))

    async def ended() -> bool:
        return ("end", message["header"]["msg_id"]) in await cells(kernel.id)

    await eventually(ended)


class TestActivity:
    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app, "ACTIVITY_PERIOD", 0.05)

    async def test_a_kernel_that_waits_for_the_gpu_is_not_culled(
        self,
        jp_serverapp: ServerApp,
        runtime: Path,
        gpu: dict[str, Any],
        kernel: Any,
        client: FakeClient,
        eventually: Any,
    ) -> None:
        found = jp_serverapp.kernel_manager.get_kernel(kernel.id)
        subshell = await kernel.create_subshell()
        cell = kernel.execute("import threading; go = threading.Event(); go.wait()")
        with FakeClient(runtime / "s.sock", "other", gpu["uuid"]) as other:
            other.attach()
            other.grow(gpu["total"] * 3 // 4)
            other.run()
            client.grow(gpu["total"] * 3 // 4)
            client.request()
            # The server considers the kernel idle, although its cell is still running.
            await kernel.reply(kernel.execute("1", subshell))

            async def idle() -> bool:
                return bool(found.execution_state == "idle")

            await eventually(idle)
            long_ago = datetime(2001, 1, 1, tzinfo=timezone.utc)
            found.last_activity = long_ago

            async def active() -> bool:
                times = jp_serverapp.web_app.settings["last_activity_times"]
                return found.last_activity > long_ago and "jupyter_gpushare" in times

            await eventually(active)
        kernel.execute("go.set()", subshell)
        await kernel.reply(cell)

    async def test_a_kernel_that_waits_with_a_reservation_is_not_culled(
        self,
        jp_serverapp: ServerApp,
        runtime: Path,
        gpu: dict[str, Any],
        kernel: Any,
        client: FakeClient,
        scheduler: AsyncControlClient,
        eventually: Any,
    ) -> None:
        found = jp_serverapp.kernel_manager.get_kernel(kernel.id)
        with FakeClient(runtime / "s.sock", "other", gpu["uuid"]) as other:
            other.attach()
            other.grow(gpu["total"] * 3 // 4)
            other.run()
            client.grow(gpu["total"] * 3 // 4)
            await scheduler.request("reserve", group=kernel.id)
            long_ago = datetime(2001, 1, 1, tzinfo=timezone.utc)
            found.last_activity = long_ago

            async def active() -> bool:
                return bool(found.last_activity > long_ago)

            await eventually(active)

    async def test_a_hibernated_kernel_is_idle_unless_its_cell_waits_to_wake(
        self,
        jp_serverapp: ServerApp,
        extension: GpuShareExtension,
        runtime: Path,
        gpu: dict[str, Any],
        kernel: Any,
        scheduler: AsyncControlClient,
        eventually: Any,
    ) -> None:
        kernels = jp_serverapp.kernel_manager
        kernels.cull_idle_timeout, kernels.cull_busy = 3600, True
        found = kernels.get_kernel(kernel.id)
        long_ago = datetime(2001, 1, 1, tzinfo=timezone.utc)

        async def is_in(state: str) -> bool:
            groups = (await scheduler.request("status"))["status"]["groups"]
            return state in [group["state"] for group in groups if group["id"] == kernel.id]

        async def is_running() -> bool:
            assert extension._watcher is not None
            return kernel.id in extension._watcher.running()

        with (
            FakeClient(runtime / "s.sock", "other", gpu["uuid"]) as other,
            FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client,
        ):
            other.attach()
            other.grow(gpu["total"] * 3 // 4)
            other.run()
            # It needs more to wake than there is beside the other one.
            client.usage = ev.Usage(gpu["uuid"], unevictable=gpu["total"] // 2, context=1)
            client.attach(reattach=True, hibernated=True)
            await eventually(lambda: is_in("hibernated"))
            subshell = await kernel.create_subshell()
            cell = kernel.execute("import threading; go = threading.Event(); go.wait()")
            await eventually(is_running)
            client.send(ev.Wake(client.number, 1, "call", client.usage))
            await eventually(lambda: is_in("waking"))
            found.last_activity = long_ago

            async def is_active() -> bool:
                return bool(found.last_activity > long_ago)

            await eventually(is_active)
            await kernels.cull_kernel_if_idle(kernel.id)
            assert kernel.id in kernels

            # It is interrupted, and stays hibernated.
            await scheduler.request("cancel", group=kernel.id)
            await eventually(lambda: is_in("hibernated"))
            kernel.execute("go.set()", subshell)
            await kernel.reply(cell)

            async def is_culled() -> bool:
                # The reports of the end of its cell may still be on their way, and count as activity.
                found.last_activity = long_ago
                await extension.keep_waiting_kernels()
                await kernels.cull_kernel_if_idle(kernel.id)
                return kernel.id not in kernels

            await eventually(is_culled)
