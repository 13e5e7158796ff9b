# SPDX-License-Identifier: BSD-3-Clause
"""The server counts the cells that wait in real kernels."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.session import Session
from jupyter_server.serverapp import ServerApp
from tornado.websocket import WebSocketClientConnection

from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.queued import METHODS, STALE, QueuedCells
from tests.server_extension.conftest import PATIENCE, Kernel
from tests.support.client import FakeClient

Count = Callable[[], Awaitable[int]]
#: A cell that waits until another one, in a subshell, lets it end.
WAITS = "import threading; go = threading.Event(); go.wait()"


@pytest.fixture
def client(runtime: Path, gpu: dict[str, Any], kernel: Kernel) -> Iterator[FakeClient]:
    """Return a client of the kernel's group: the scheduler knows the cells of its groups only."""
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()
        yield client


@pytest.fixture
def count(kernel: Kernel, client: FakeClient, get_status: Any) -> Count:
    """Return the function that finds the number of queued cells in the status."""

    async def find() -> int:
        (group,) = (await get_status())["groups"]
        return int(group["queued"])

    return find


@pytest.fixture
def reaches(count: Count, eventually: Any) -> Callable[[int], Awaitable[None]]:
    """Return the function that waits until so many cells are queued."""

    async def wait(number: int) -> None:
        async def reached() -> bool:
            return await count() == number

        await eventually(reached)

    return wait


Reaches = Callable[[int], Awaitable[None]]


class Page:
    """A page of a browser: a websocket to a kernel."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self.socket = socket
        self.session = Session()

    async def execute(self, code: str, *, stop: bool = True, subshell: str | None = None) -> str:
        content = {"code": code, "silent": False, "store_history": True, "stop_on_error": stop}
        message = self.session.msg("execute_request", content)
        message["header"]["subshell_id"] = subshell
        message["channel"] = "shell"
        await self.socket.write_message(json.dumps(message, default=str))
        return str(message["header"]["msg_id"])

    async def close(self) -> None:
        self.socket.close()
        while await asyncio.wait_for(self.socket.read_message(), PATIENCE) is not None:
            pass


@pytest.fixture
def pages(
    jp_ws_fetch: Any, kernel: Kernel, jp_asyncio_loop: Any
) -> Iterator[Callable[[], Awaitable[Page]]]:
    """Return the function that opens a page."""
    opened: list[Page] = []

    async def open_page() -> Page:
        page = Page(await jp_ws_fetch("api", "kernels", kernel.id, "channels"))
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        jp_asyncio_loop.run_until_complete(page.close())


# --- Real kernels: each test starts one, so it has several parts ------------------------------------------


async def test_cells_of_all_clients_are_counted(
    pages: Callable[[], Awaitable[Page]],
    kernel: Kernel,
    reaches: Reaches,
    jp_serverapp: ServerApp,
) -> None:
    subshell = await kernel.create_subshell()
    first, second = await pages(), await pages()
    # Run All.
    await first.execute(WAITS)
    for number in range(20):
        await first.execute("go.clear(); go.wait()" if number == 10 else str(number))
    await reaches(20)
    await kernel.reply(kernel.execute("go.set()", subshell))
    # Cells 0 to 10 have begun, and the last of them waits.
    await reaches(9)
    # Another page, a program in this server, and one in a thread of it.
    for _ in range(3):
        await second.execute("2")
        kernel.execute("3")
    await reaches(15)
    client = jp_serverapp.kernel_manager.get_kernel(kernel.id).blocking_client()
    client.start_channels()
    thread = threading.Thread(target=lambda: [client.execute("4") for _ in range(3)])
    thread.start()
    await reaches(18)
    thread.join()
    # The kernel runs the cells that it has received, although the page is gone.
    first.socket.close()
    await kernel.reply(kernel.execute("go.set()", subshell))
    await reaches(0)
    client.stop_channels()


async def test_each_subshell_has_its_own_queue(kernel: Kernel, reaches: Reaches) -> None:
    one, two = await kernel.create_subshell(), await kernel.create_subshell()
    kernel.execute(WAITS)
    kernel.execute("1")
    await reaches(1)
    kernel.execute("go.wait()", one)
    kernel.execute("2", one)
    kernel.execute("3", one)
    await reaches(3)
    await kernel.reply(kernel.execute("4", two))
    await reaches(3)
    await kernel.reply(kernel.execute("go.set()", two))
    await reaches(0)


async def test_aborted_cells_do_not_count(
    pages: Callable[[], Awaitable[Page]],
    kernel: Kernel,
    reaches: Reaches,
    jp_serverapp: ServerApp,
) -> None:
    subshell, page = await kernel.create_subshell(), await pages()

    async def run_all() -> None:
        await page.execute(WAITS + "\nraise ValueError")
        for _ in range(5):
            await page.execute("never = True")
        await reaches(5)

    await run_all()
    await kernel.reply(kernel.execute("go.set()", subshell))
    await reaches(0)
    await run_all()
    await jp_serverapp.kernel_manager.get_kernel(kernel.id).interrupt_kernel()
    await reaches(0)
    reply = await kernel.reply(kernel.execute("assert 'never' not in globals()"))
    assert reply["status"] == "ok"


async def test_a_new_process_has_no_queued_cells(
    pages: Callable[[], Awaitable[Page]],
    kernel: Kernel,
    reaches: Reaches,
    cells: Callable[[str], Awaitable[list[tuple[str, str]]]],
    eventually: Any,
) -> None:
    async def run_all() -> None:
        page = await pages()
        await page.execute("import time; time.sleep(600)")
        for _ in range(5):
            await page.execute("1")
        await reaches(5)

    await run_all()
    await kernel.manager.restart_kernel(kernel.id)
    await reaches(0)

    async def watched() -> bool:
        """Whether the server receives the reports of the new process."""
        cell = kernel.execute("1")
        await kernel.reply(cell)
        return ("end", cell) in await cells(kernel.id)

    await eventually(watched)
    await run_all()
    os.kill(kernel.manager.get_kernel(kernel.id).provisioner.pid, signal.SIGKILL)
    await reaches(0)


async def test_a_new_scheduler_receives_the_number(
    pages: Callable[[], Awaitable[Page]],
    kernel: Kernel,
    client: FakeClient,
    reaches: Reaches,
    replace: Callable[[], Awaitable[None]],
    extension: GpuShareExtension,
) -> None:
    page = await pages()
    await page.execute("import time; time.sleep(600)")
    await page.execute("1")
    await reaches(1)
    await replace()
    client.expect_closed()
    assert extension.host is not None
    assert client.usage is not None
    with FakeClient(extension.host.path, kernel.id, client.usage.gpu) as again:
        again.attach(reattach=True)
        await reaches(1)
    await kernel.manager.get_kernel(kernel.id).interrupt_kernel()


async def test_cells_that_were_sent_at_once_after_the_start_are_counted(
    jp_serverapp: ServerApp, runtime: Path, gpu: dict[str, Any], get_status: Any, eventually: Any
) -> None:
    kernel = Kernel(jp_serverapp)
    kernel.id = await kernel.manager.start_kernel(kernel_name="python3")
    kernel.client = kernel.manager.get_kernel(kernel.id).client()
    kernel.client.start_channels()
    kernel.execute("import time; time.sleep(600)")
    kernel.execute("1")
    with FakeClient(runtime / "s.sock", kernel.id, gpu["uuid"]) as client:
        client.attach()

        async def queued() -> bool:
            (group,) = (await get_status())["groups"]
            return bool(group["cell"]) and group["queued"] == 1

        await eventually(queued)
    await kernel.stop()


async def test_packages_with_a_queue_are_asked_and_changes_are_reported_once(
    extension: GpuShareExtension,
    kernel: Kernel,
    client: FakeClient,
    reaches: Reaches,
    cells: Callable[[str], Awaitable[list[tuple[str, str]]]],
    sent: list[tuple[str, dict[str, Any]]],
    eventually: Any,
) -> None:
    left = {kernel.id: 3}

    def broken(kernel_id: str) -> int:
        raise AttributeError(kernel_id)

    extension.queue_sources += [broken, lambda kernel_id: left[kernel_id]]
    await kernel.reply(kernel.execute("1"))
    await reaches(3)
    # It drops its queue, and sends nothing.
    left[kernel.id] = 0
    await reaches(0)

    long = kernel.execute("import time; time.sleep(600)")

    async def begun() -> bool:
        return ("begin", long) in await cells(kernel.id)

    # Until then, it is a queued cell itself.
    await eventually(begun)
    await reaches(0)
    sent.clear()
    for _ in range(100):
        kernel.execute("1")
    await reaches(100)
    assert [params["count"] for op, params in sent if op == "queued"] == [100]

    found: Any = kernel.manager.get_kernel(kernel.id)
    watcher = extension._watcher
    assert watcher is not None
    assert set(METHODS) <= vars(found).keys()
    watcher.stop()
    assert not set(METHODS) & vars(found).keys()
    assert kernel.manager.kernel_manager_factory != watcher._create_kernel
    watcher.start()
    await found.interrupt_kernel()


# --- Counting -----------------------------------------------------------------------------------------


def counted() -> QueuedCells:
    return QueuedCells(lambda: None)


def test_a_later_request_removes_those_before_it() -> None:
    """The report of a begin may be lost."""
    queued = counted()
    for number in range(5):
        queued.sent(1, f"a{number}", "", 0.0)
    queued.sent(1, "in-a-subshell", "s", 0.0)
    queued.sent(2, "of-another-client", "", 0.0)
    queued.status("busy", "a2")
    assert queued.count == 4
    queued.status("idle", "a3")
    queued.status("busy", "unknown")
    assert queued.count == 4
    queued.status("busy", "a4")
    assert queued.count == 2


def test_a_request_waits_for_one_whose_begin_only_the_scheduler_knows() -> None:
    queued = counted()
    queued.sent(1, "a", "", 100.0)
    queued.sent(1, "b", "", 100.0)
    queued.status("busy", "a")
    for now in (105.0, 130.0):
        queued.drop_stale(now, lambda shell: False)
    assert queued.count == 1
    queued.status("idle", "a")
    queued.drop_stale(130.0 + STALE, lambda shell: False)
    assert queued.count == 0


def test_a_request_is_dropped_if_its_shell_works_on_nothing() -> None:
    queued = counted()
    queued.sent(1, "a", "", 100.0)
    queued.sent(1, "b", "gone", 100.0)
    for now in (105.0, 110.0, 200.0):
        queued.drop_stale(now, lambda shell: shell == "")
    assert queued.count == 1
    queued.drop_stale(200.0 + STALE - 1, lambda shell: False)
    assert queued.count == 1
    queued.drop_stale(200.0 + STALE, lambda shell: False)
    assert queued.count == 0
