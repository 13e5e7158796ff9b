# SPDX-License-Identifier: BSD-3-Clause
"""Hosts: what keeps a scheduler running for as long as a Jupyter server does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.protocol import supervisor
from jupyter_gpushare.scheduler.protocol.client import ControlError, SchedulerUnreachable
from jupyter_gpushare.scheduler.protocol.supervisor import SchedulerHost
from tests.support.client import PATIENCE
from tests.support.fake_hub import FakeHub, start_node
from tests.support.fake_hub import hub as hub_running
from tests.support.scheduler import GIB, Scheduler, Start
from tests.support.schedulers import forked_schedulers
from tests.support.stopping import stop

__all__ = ["forked_schedulers"]

Host = Callable[..., Awaitable[SchedulerHost]]


@pytest.fixture
async def host(environ: dict[str, str]) -> AsyncIterator[Host]:
    """Start hosts that stop with the test."""
    started = []

    async def begin(**options: object) -> SchedulerHost:
        one = SchedulerHost(environ=environ, **options)  # type: ignore[arg-type]
        started.append(one)
        await one.start()
        await one.connected(PATIENCE)
        return one

    yield begin
    for one in started:
        await one.stop()


async def pid(host: SchedulerHost) -> int:
    return int((await host.request("status"))["status"]["scheduler"]["pid"])


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE)


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_host_starts_a_scheduler_and_stops_it(host: Host) -> None:
    one = await host()
    assert one.state == "hosting"
    scheduler = await pid(one)
    await one.stop()
    assert one.state == "stopped"
    assert gone(scheduler)
    assert not one.path.exists()
    with pytest.raises(SchedulerUnreachable):
        await one.connected(0.01)


async def test_two_hosts_share_one_scheduler_and_the_second_takes_over(host: Host) -> None:
    first, second = await asyncio.gather(host(), host())
    assert await pid(first) == await pid(second)
    hosting, attached = (first, second) if first.state == "hosting" else (second, first)
    assert (hosting.state, attached.state) == ("hosting", "attached")
    scheduler = await pid(hosting)
    await hosting.stop()
    # The request waits for the new scheduler; clients do not see the gap.
    assert await pid(attached) != scheduler
    await until(lambda: attached.state == "hosting")
    assert gone(scheduler)


async def test_another_host_takes_over_without_a_gap(host: Host) -> None:
    """Its scheduler stands by before the first one ends, so the socket stays."""
    first = await host()
    second = await host()
    await until(lambda: second.state == "attached")
    scheduler, before = await pid(first), first.path.stat().st_ino
    await first.stop()
    assert await pid(second) != scheduler
    await until(lambda: second.state == "hosting")
    assert second.path.stat().st_ino == before
    third = await host()
    await second.stop()
    await until(lambda: third.state == "hosting")
    assert third.path.stat().st_ino == before


async def test_a_host_that_is_killed_is_replaced_without_a_gap(host: Host) -> None:
    """The scheduler sees its end, and asks the other host."""
    first, second = await host(), await host()
    before = first.path.stat().st_ino
    child = first._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()
    await until(lambda: second.state == "hosting" or first.state == "attached")
    await second.connected(PATIENCE)
    assert second.path.stat().st_ino == before


async def test_a_scheduler_that_dies_is_replaced(host: Host) -> None:
    seen: list[str] = []
    one = await host(
        on_connect=lambda client: seen.append("connect"),
        on_disconnect=lambda: seen.append("disconnect"),
    )
    for _ in range(2):
        scheduler = await pid(one)
        os.kill(scheduler, signal.SIGKILL)
        await until(lambda: seen[-1] == "disconnect")
        await one.connected(PATIENCE)
        assert await pid(one) != scheduler
        assert one.state == "hosting"
    assert seen == ["connect", "disconnect"] * 2 + ["connect"]


async def test_a_scheduler_that_hangs_is_replaced_within_20_s(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    assert supervisor.MOST_MISSING * (supervisor.LOOK_PAUSE + supervisor.ANSWER_TIMEOUT) < 20
    one, other = await host(), await host()
    scheduler = await pid(one)
    stop(scheduler)
    await until(lambda: gone(scheduler))
    for each in (one, other):
        await each.connected(PATIENCE)
    assert await pid(one) == await pid(other) != scheduler
    # Whichever is faster.
    assert sorted([one.state, other.state]) == ["attached", "hosting"]
    assert f"the scheduler (pid {scheduler}) is not responding; replacing it" in caplog.text


async def test_a_scheduler_that_is_slow_for_a_moment_is_kept(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer is late."""
    monkeypatch.setattr("jupyter_gpushare.scheduler.protocol.supervisor.LOOK_PAUSE", 0.05)
    monkeypatch.setattr("jupyter_gpushare.scheduler.protocol.supervisor.ANSWER_TIMEOUT", 1.0)
    one = await host()
    scheduler = await pid(one)
    late = asyncio.Event()
    request, looks = one.client.request, []  # type: ignore[union-attr]

    async def slow(op: str, **params: object) -> dict[str, object]:
        looks.append(op)
        if len(looks) == 1:
            await late.wait()
        return await request(op, **params)

    monkeypatch.setattr(one.client, "request", slow)
    await until(lambda: len(looks) > 3)
    assert await pid(one) == scheduler


async def test_a_failing_callback_does_not_stop_the_host(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(client: object) -> None:
        raise RuntimeError("of the test")

    one = await host(on_connect=fail)
    assert await pid(one) > 0
    assert "of the test" in caplog.text


async def test_a_host_does_not_stop_a_scheduler_that_it_did_not_start(
    scheduler: Scheduler, host: Host
) -> None:
    one = await host()
    assert one.state == "attached"
    assert await pid(one) == scheduler.process.pid
    await one.stop()
    assert scheduler.process.poll() is None


async def test_arguments_reach_the_scheduler(host: Host) -> None:
    one = await host(arguments=("--reserve", "1G"))
    status = (await one.request("status"))["status"]
    assert status["gpus"][0]["reserve"] == GIB


async def test_a_refusal_is_passed_on_at_once(host: Host) -> None:
    one = await host()
    with pytest.raises(ControlError, match="dance"):
        await one.request("dance")


async def test_an_unusable_path_is_reported(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    one = SchedulerHost(file, environ=environ)
    await one.start()
    try:
        await until(lambda: "is not a socket" in one.trouble)
        with pytest.raises(SchedulerUnreachable):
            await one.connected(0.01)
        assert one.state == "connecting"
    finally:
        await one.stop()


async def test_a_scheduler_that_is_starting_is_waited_for(environ: dict[str, str]) -> None:
    one = SchedulerHost(environ=environ)
    await one.start()
    try:
        while one.client is None:
            assert one.trouble == ""
            await asyncio.sleep(0.01)
    finally:
        await one.stop()


# --- Where a node's scheduler serves others, too --------------------------------------------------


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with hub_running() as running:
        yield running


async def test_a_host_logs_in_and_has_its_user(
    start: Start, tmp_path: Path, hub: FakeHub, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    node = start_node(start, tmp_path, hub)
    one = await host(start=False)
    assert (one.state, one.me["user"], one.me["admin"]) == ("attached", "ada", False)
    # To the next one, too; where the Hub is slow to answer, more than once.
    asked = len(hub.asked)
    node.kill()
    await until(lambda: one.state == "connecting")
    assert "no scheduler is running" in one.trouble or not one.trouble
    start_node(start, tmp_path, hub)
    await one.connected(PATIENCE)
    assert one.me["user"] == "ada"
    assert 0 < asked < len(hub.asked)


async def test_a_host_that_may_not_log_in_waits_and_reports_why(
    start: Start,
    tmp_path: Path,
    hub: FakeHub,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_node(start, tmp_path, hub)
    one = SchedulerHost(environ=environ)
    await one.start()
    try:
        await until(lambda: "several users share uid" in one.trouble)
        assert one.state == "connecting"
        # A Hub that does not answer is different from an unknown token.
        hub.broken = True
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
        await until(lambda: "Hub" in one.trouble and "uid" not in one.trouble)
        hub.broken = False
        await one.connected(PATIENCE)
        assert one.me["user"] == "ada"
    finally:
        await one.stop()


async def test_a_host_that_may_not_start_a_scheduler_waits_quietly(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    own = []
    one = SchedulerHost(environ=environ, start=lambda: bool(own))
    await one.start()
    try:
        await until(lambda: "no scheduler is running" in one.trouble)
        await asyncio.sleep(0.1)
        assert not one.path.exists()
        assert not caplog.records
        # What it may do may change while it waits.
        own.append(True)
        await one.connected(PATIENCE)
        assert one.state == "hosting"
    finally:
        await one.stop()
