# SPDX-License-Identifier: BSD-3-Clause
"""What people asked for a notebook outlives the scheduler that they asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension import preferences as module
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.preferences import NONE, Preferences
from tests.support.client import FakeClient

GetStatus = Callable[[], Awaitable[dict[str, Any]]]

KEEP = {**NONE, "keep": True}


async def test_preferences_are_sent_to_the_next_scheduler(
    runtime: Path,
    kernel: Any,
    gpu: dict[str, Any],
    scheduler: AsyncControlClient,
    replace: Callable[[], Awaitable[None]],
    get_status: GetStatus,
    eventually: Any,
) -> None:
    preferences = {
        "priority": "background",
        "keep": True,
        "frozen": True,
        "memory": 1 << 40,
        "request": 0.25,
        "limit": 0.5,
        "weight": 2.0,
    }
    path = runtime / "s.sock"
    with FakeClient(path, kernel.id, gpu["uuid"]) as client:
        client.attach()
        await scheduler.request("adjust", group=kernel.id, **preferences, exclusive=True)
    await replace()
    with FakeClient(path, kernel.id, gpu["uuid"]) as client:
        client.attach()

        async def repeated() -> bool:
            (group,) = (await get_status())["groups"]
            return (
                preferences.items() <= group["preferences"].items()
                and not group["preferences"]["exclusive"]
            )

        await eventually(repeated)
    # And to the next one, to which only this server sends them.
    await replace()
    with FakeClient(path, kernel.id, gpu["uuid"]) as client:
        client.attach()
        await eventually(repeated)


async def test_preferences_end_with_the_kernel(
    runtime: Path,
    kernel: Any,
    gpu: dict[str, Any],
    scheduler: AsyncControlClient,
    extension: GpuShareExtension,
    replace: Callable[[], Awaitable[None]],
    sent: list[tuple[str, dict[str, Any]]],
    eventually: Any,
) -> None:
    path = runtime / "s.sock"
    with (
        FakeClient(path, kernel.id, gpu["uuid"]) as ours,
        FakeClient(path, "elsewhere", gpu["uuid"]) as other,
    ):
        for client in (ours, other):
            client.attach()
            await scheduler.request("adjust", group=client.group, keep=True)

        async def known() -> bool:
            return set(extension._preferences._preferences) == {kernel.id, "elsewhere"}

        await eventually(known)

    # An own kernel may be between two processes; preferences of others are sent by their servers.
    async def gone() -> bool:
        return set(extension._preferences._preferences) == {kernel.id}

    await eventually(gone)
    await kernel.manager.shutdown_kernel(kernel.id, now=True)

    async def forgotten() -> bool:
        return not extension._preferences._preferences

    await eventually(forgotten)
    sent.clear()
    await replace()
    assert not [op for op, _ in sent if op == "adjust"]


async def test_the_same_scheduler_is_not_sent_preferences_twice(
    runtime: Path,
    gpu: dict[str, Any],
    scheduler: AsyncControlClient,
    extension: GpuShareExtension,
    sent: list[tuple[str, dict[str, Any]]],
    eventually: Any,
) -> None:
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        await scheduler.request("adjust", group="first", keep=True)
        sent.clear()
        assert extension.host is not None
        lost = extension.host.client
        assert lost is not None
        await lost.close()
        # What is asked meanwhile is learnt, not undone.
        await scheduler.request("adjust", group="first", keep=False)

        async def learnt() -> bool:
            return not extension._preferences._preferences

        await eventually(learnt)
        assert len([op for op, _ in sent if op == "adjust"]) == 1, "the test's own"


def status(**preferences: dict[str, Any]) -> dict[str, Any]:
    return {
        "groups": [{"id": group, "preferences": wished} for group, wished in preferences.items()]
    }


def test_newer_preferences_are_not_overwritten() -> None:
    preferences = Preferences()
    for group in ("a", "b", "c"):
        preferences.note(group, {**KEEP, "exclusive": True})
    frozen = {**NONE, "frozen": True}
    told = status(a=frozen, b={**NONE, "exclusive": True}, d=KEEP)
    untold = preferences.untold(told)
    assert untold == {"b": KEEP, "c": KEEP}
    preferences.learn(told["groups"], but=untold)
    assert preferences.untold(status()) == {"a": frozen, "b": KEEP, "c": KEEP, "d": KEEP}


def test_the_number_of_preferences_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 3)
    preferences = Preferences()
    for group in "abacda":
        preferences.note(group, KEEP)
    preferences.note("e", NONE)
    assert list(preferences.untold(status())) == ["c", "d", "a"]
