# SPDX-License-Identifier: BSD-3-Clause
"""Reservations over REST and with the Python clients, with processes that take what they are granted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpushare
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.server_extension.reservations import ReservationWaiters
from tests.support.client import FakeClient

Fetch = Callable[..., Awaitable[Any]]


@pytest.fixture
def notebook(runtime: Path, gpu: dict[str, Any], holder: FakeClient) -> Iterator[FakeClient]:
    """Return a notebook of the same size that is idle."""
    with FakeClient(runtime / "s.sock", "second", gpu["uuid"], name="plots.ipynb") as client:
        client.attach()
        client.grow(gpu["total"] * 3 // 4)
        yield client


def hand_over(holder: FakeClient, notebook: FakeClient) -> None:
    """The holder makes way, and the other notebook is granted a lease that it did not ask for."""
    holder.end_burst("cell")
    holder.expect(ev.Revoke)
    holder.release()
    holder.evict()
    notebook.take()


async def fetched(fetch: Fetch, method: str, path: str, body: Any = None, **params: str) -> Any:
    content = None if body is None else json.dumps(body)
    found = await fetch(
        "gpushare/api", path, method=method, body=content, params=params, raise_error=False
    )
    return found.code, json.loads(found.body)


async def test_over_rest(holder: FakeClient, notebook: FakeClient, jp_fetch: Fetch) -> None:
    code, found = await fetched(jp_fetch, "POST", "reservations", {"group": "plots.ipynb"})
    assert (code, found["group"], found["state"]) == (200, "second", "waiting")
    assert found["reservation"]["state"] == "waiting"
    # The answer comes at once, unless the program wants to wait.
    _, found = await fetched(jp_fetch, "GET", "reservations/second")
    assert found["reservation"]["state"] == "waiting"
    waits = asyncio.ensure_future(fetched(jp_fetch, "GET", "reservations/second", wait="60"))
    await asyncio.to_thread(hand_over, holder, notebook)
    notebook.end_burst()
    _, found = await waits
    assert found["reservation"]["state"] == "ready"
    assert 0 < found["reservation"]["until_in"] <= 60
    _, found = await fetched(jp_fetch, "DELETE", "reservations/second")
    assert found["reservation"] is None
    for method, path, body, params, status, text in (
        ("POST", "reservations", {"group": "nobody"}, {}, 404, "no group"),
        ("GET", "reservations/nobody", None, {}, 404, "no group"),
        ("GET", "reservations/second", None, {"wait": "long"}, 400, "'wait' must be"),
        ("GET", "reservations/second", None, {"wait": "301"}, 400, "'wait' must be"),
        ("DELETE", "reservations/nobody", None, {}, 404, "no group"),
    ):
        code, found = await fetched(jp_fetch, method, path, body, **params)
        assert (code, text in found["message"]) == (status, True), found


async def test_a_program_reserves_without_blocking(
    server: tuple[str, str], holder: FakeClient, notebook: FakeClient
) -> None:
    async with jupyter_gpushare.AsyncClient(*server, timeout=2.0) as client:
        reservation = await client.run_when("plots.ipynb")
        assert (reservation.state, reservation.ready) == ("waiting", False)
        assert (await client.wait_ready("second", timeout=0)).state == "waiting"
        waits = asyncio.ensure_future(client.wait_ready("second", timeout=60))
        await asyncio.to_thread(hand_over, holder, notebook)
        notebook.end_burst()
        assert (await waits).ready
        # The notebook uses it.
        notebook.send(ev.Burst(notebook.number, "begin", "none", time.monotonic()))
        while (await client.wait_ready("second", timeout=0)).state == "ready":
            pass
        assert (await client.wait_ready("second")).group_state == "running"
        assert (await client.run_when("second")).ready


async def test_the_blocking_client_cancels(
    server: tuple[str, str], holder: FakeClient, notebook: FakeClient
) -> None:
    def use() -> None:
        client = jupyter_gpushare.Client(*server)
        assert client.run_when("second").state == "waiting"
        assert client.wait_ready("second", timeout=0.1).state == "waiting"
        assert client.cancel("second").state is None
        assert not client.wait_ready("second").ready

    await asyncio.to_thread(use)


async def test_a_change_before_the_wait_is_not_missed() -> None:
    asked = 0

    async def ask(group: str) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 2:
            # It becomes ready while the answer is on its way.
            waiters.changed("g", "ready")
        return {"group": "g", "reservation": {"state": "waiting" if asked < 3 else "ready"}}

    waiters = ReservationWaiters(ask)
    found = await asyncio.wait_for(waiters.wait("name", 1e6), 4.0)
    assert found["reservation"]["state"] == "ready"
    waiters.changed("g", "ready")
