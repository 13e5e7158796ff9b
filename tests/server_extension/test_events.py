# SPDX-License-Identifier: BSD-3-Clause
"""Hints that something changed, and that neither they nor the panel count as activity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.control import AsyncControlClient
from jupyter_gpushare.server_extension.hints import SCHEMA_ID
from tests.scheduler.client import FakeClient

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]


async def next_hint(socket: Any) -> dict[str, Any]:
    while True:
        event = json.loads(await asyncio.wait_for(socket.read_message(), 20))
        if event["schema_id"] == SCHEMA_ID:
            return event  # type: ignore[no-any-return]


async def test_changes_are_pushed(
    runtime: Path, gpu: dict[str, Any], get_status: GetStatus, jp_ws_fetch: Fetch
) -> None:
    socket = await jp_ws_fetch("api", "events", "subscribe")
    before = (await get_status())["hint"]
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        hint = await next_hint(socket)
        assert hint["sequence"] > before
        while "join" not in hint["kinds"]:
            hint = await next_hint(socket)
        status = await get_status()
        assert status["hint"] >= hint["sequence"]
        assert [group["id"] for group in status["groups"]] == ["first"]
    while "leave" not in hint["kinds"]:
        hint = await next_hint(socket)
    assert (await get_status())["groups"] == []
    socket.close()


async def test_many_changes_make_few_hints(
    runtime: Path,
    gpu: dict[str, Any],
    scheduler: AsyncControlClient,
    get_status: GetStatus,
    jp_ws_fetch: Fetch,
) -> None:
    socket = await jp_ws_fetch("api", "events", "subscribe")
    loop = asyncio.get_running_loop()
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        start = loop.time()
        before = (await get_status())["hint"]
        for number in range(200):
            await scheduler.request("set", quantum=float(1 + number % 2))
        after, hint = before, {"sequence": before}
        while "settings" not in hint.get("kinds", []):
            hint = await next_hint(socket)
            assert hint["sequence"] > after
            after = hint["sequence"]
        await asyncio.sleep(0.3)
        hints = (await get_status())["hint"] - before
        # One every 0.1 s, however long the requests took.
        assert 1 <= hints <= 2 + (loop.time() - start) / 0.1
    socket.close()


async def test_nothing_is_pushed_while_nothing_changes(
    scheduler: AsyncControlClient, get_status: GetStatus
) -> None:
    await asyncio.sleep(0.3)
    before = (await get_status())["hint"]
    for _ in range(5):
        await get_status()
        await scheduler.request("status")
    await asyncio.sleep(0.3)
    assert (await get_status())["hint"] == before


async def test_watching_is_no_activity(
    kernel: Any,
    scheduler: AsyncControlClient,
    get_status: GetStatus,
    jp_fetch: Fetch,
    jp_ws_fetch: Fetch,
) -> None:
    async def activity() -> tuple[str, str]:
        server = json.loads((await jp_fetch("api", "status")).body)
        # The list of kernels says it of the kernel, but asking for it is activity of the server.
        model = kernel.manager.kernel_model(kernel.id)
        return server["last_activity"], model["last_activity"]

    before = await activity()
    socket = await jp_ws_fetch("api", "events", "subscribe")
    for _ in range(3):
        await get_status()
        await scheduler.request("set", quantum=2.0)
        await next_hint(socket)
    assert await activity() == before
    socket.close()
    await jp_fetch("api", "kernels")
    assert (await activity())[0] > before[0], "the reading would show activity"
