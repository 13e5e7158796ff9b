# SPDX-License-Identifier: BSD-3-Clause
"""Open pages are sent changes; other pages are not, and cost nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_events import EventLogger
from jupyter_server.serverapp import ServerApp

from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension import feed as feeds
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.feed import SCHEMA, SCHEMA_ID, Feed
from tests.server_extension.page import Page, settled
from tests.support.client import FakeClient

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]
Open = Callable[..., Awaitable[Page]]


@pytest.fixture
def open_page(
    scheduler: AsyncControlClient, jp_fetch: Fetch, jp_ws_fetch: Fetch, jp_asyncio_loop: Any
) -> Iterator[Open]:
    """Return the function that opens a page."""
    pages = []

    async def open_one(name: str = "a", timeline: bool = False) -> Page:
        pages.append(Page(jp_fetch, name, timeline))
        return await pages[-1].open(jp_ws_fetch)

    yield open_one
    for page in pages:
        jp_asyncio_loop.run_until_complete(page.close())


@pytest.fixture
def asked(
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
    jp_asyncio_loop: Any,
) -> Counter[str]:
    """Count what the server asks of the scheduler, once it has learnt what it has to."""

    async def learnt() -> bool:
        return extension._told is not None

    jp_asyncio_loop.run_until_complete(eventually(learnt))
    counts: Counter[str] = Counter()
    assert extension.host is not None
    client: Any = extension.host.client
    request = client.request

    async def counted(op: str, **params: Any) -> Any:
        counts[op] += 1
        return await request(op, **params)

    monkeypatch.setattr(client, "request", counted)
    return counts


@pytest.fixture
def rest(extension: GpuShareExtension, eventually: Any) -> Callable[[], Awaitable[None]]:
    """Return a function that waits until the server has noticed that no page is open."""

    async def wait() -> None:
        async def rests() -> bool:
            return extension.feed._task is None

        await eventually(rests)

    return wait


@pytest.fixture
def emitted(jp_serverapp: ServerApp, extension: GpuShareExtension) -> list[dict[str, Any]]:
    """Return what the server emits."""
    found = []

    async def listen(logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        found.append(data)

    assert jp_serverapp.event_logger is not None
    jp_serverapp.event_logger.add_listener(schema_id=SCHEMA_ID, listener=listen)
    return found


async def test_a_page_has_the_state_of_the_server(
    runtime: Path, gpu: dict[str, Any], open_page: Open, get_status: GetStatus
) -> None:
    page = await open_page()
    most = gpu["total"] * 3 // 4
    with (
        FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as first,
        FakeClient(runtime / "s.sock", "second", gpu["uuid"]) as second,
    ):
        for client in (first, second):
            client.attach()
            client.grow(most)
        first.run()
        second.request()
        await page.hear_until(lambda _: (page.group("second") or {}).get("state") == "waiting")
        first.release()
        first.evict()
        second.take()
        await page.hear_until(lambda _: (page.group("second") or {}).get("state") == "running")
        status = await get_status()
        assert page.state["stream"] == status["stream"]

        async def same() -> bool:
            return settled(page.state) == settled(await get_status())

        # What the driver says of the memory comes a little later.
        while not await same():
            await page.hear()
    await page.hear_until(lambda state: state["groups"] == [])
    assert page.missed == []


async def test_two_pages_receive_the_same_although_they_started_at_different_times(
    scheduler: AsyncControlClient, open_page: Open
) -> None:
    one = await open_page("one")
    await scheduler.request("set", quantum=3.0)
    two = await open_page("two")
    await scheduler.request("set", quantum=4.0)
    for page in (one, two):
        await page.hear_until(lambda state: state["settings"]["quantum"] == 4.0)
        assert page.missed == []
    assert settled(one.state) == settled(two.state)


async def test_many_changes_make_few_deltas(scheduler: AsyncControlClient, open_page: Open) -> None:
    page = await open_page()
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(200):
        await scheduler.request("set", quantum=float(2 + number % 2))
    await scheduler.request("set", quantum=9.0)
    await page.hear_until(lambda state: state["settings"]["quantum"] == 9.0)
    # One every 0.1 s, however long the requests took.
    assert 1 <= len(page.heard) <= 2 + (loop.time() - start) / 0.1
    assert page.missed == []


async def test_without_a_page_nothing_is_requested_or_sent(
    scheduler: AsyncControlClient,
    get_status: GetStatus,
    jp_fetch: Fetch,
    open_page: Open,
    asked: Counter[str],
    emitted: list[dict[str, Any]],
    rest: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.05)
    await get_status()
    assert asked.pop("status") == 1, "to answer"
    await scheduler.request("set", quantum=3.0)
    await asyncio.sleep(0.3)
    assert not asked
    page = await open_page()
    await scheduler.request("set", quantum=4.0)
    await page.hear_until(lambda state: state["settings"]["quantum"] == 4.0)
    assert asked["status"] > 1
    ended = await jp_fetch("gpushare", "api", "watchers", "a", method="DELETE")
    assert ended.code == 204
    await rest()
    asked.clear()
    emitted.clear()
    await scheduler.request("set", quantum=5.0)
    await asyncio.sleep(0.3)
    assert not asked
    assert emitted == []


async def test_a_page_that_does_not_come_back_is_forgotten(
    open_page: Open,
    scheduler: AsyncControlClient,
    rest: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as soon:
        soon.setattr(feeds, "REGISTRATION", 0.3)
        sleeper = await open_page("sleeper")
    await rest()
    await scheduler.request("set", quantum=3.0)
    other = await open_page("other")
    await scheduler.request("set", quantum=4.0)
    await other.hear_until(lambda state: state["settings"]["quantum"] == 4.0)
    assert other.missed == []
    # It has missed changes while no page was open, and notices that.
    while sleeper.heard[-1:] != other.heard[-1:]:
        await sleeper.hear()
    assert sleeper.missed


async def test_an_unchanged_state_is_confirmed_regularly(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.05)
    monkeypatch.setattr(feeds, "BEAT", 0.4)
    page = await open_page()
    for _ in range(8):
        await page.hear()
    # A number comes again while nothing has changed, and nothing is fetched for it.
    assert len(set(page.heard)) < len(page.heard)
    assert page.missed == []


async def test_changes_without_an_event_are_noticed(open_page: Open) -> None:
    page = await open_page()
    KernelProvisionerFactory.instance().default_provisioner_name = "local-provisioner"
    await page.hear_until(lambda state: state["availability"]["code"] == "provisioner_not_default")
    assert page.missed == []


async def test_expensive_deltas_are_sent_less_often(
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    open_page: Open,
    emitted: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = await open_page()
    loop, source = asyncio.get_running_loop(), extension.feed._source
    begun: list[float] = []

    async def costly(timeline: int | None) -> dict[str, Any]:
        begun.append(loop.time())
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return await source(timeline)

    monkeypatch.setattr(extension.feed, "_source", costly)
    await scheduler.request("set", quantum=3.0)
    for quantum in (4.0, 5.0):
        await page.hear_until(lambda state, q=quantum: state["settings"]["quantum"] == q - 1)
        await scheduler.request("set", quantum=quantum)
    await page.hear_until(lambda state: state["settings"]["quantum"] == 5.0)
    assert len(begun) >= 3
    assert all(later - one >= 20 * 0.05 for one, later in pairwise(begun))


async def test_the_death_of_a_scheduler_and_its_successor_are_sent(
    runtime: Path,
    gpu: dict[str, Any],
    open_page: Open,
    get_status: GetStatus,
) -> None:
    page = await open_page(timeline=True)
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        await page.hear_until(lambda _: page.group("first"))
        os.kill(page.state["scheduler"]["pid"], signal.SIGKILL)
        client.expect_closed()
    # More than a delta can say: the page hears that it has missed something, until it asks.
    while (await get_status())["availability"]["code"] != "ok" or not page.missed:
        await page.hear()
    await page.ask()
    assert page.state["availability"]["code"] == "ok"
    assert page.state["groups"] == []
    assert page.state["gpus"]
    page.missed.clear()
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        await page.hear_until(lambda _: page.group("first"))
    assert len(page.missed) <= 1, "the last word of the old one may come after the answer"


async def test_the_timeline_continues_in_deltas(
    runtime: Path, gpu: dict[str, Any], open_page: Open, jp_fetch: Fetch
) -> None:
    plain = await open_page("plain")
    assert plain.state["timeline"] is None
    with FakeClient(runtime / "s.sock", "first", gpu["uuid"]) as client:
        client.attach()
        client.run()
        page = await open_page(timeline=True)
        (span,) = page.state["timeline"]["spans"]
        assert (span["group"], span["kind"], span["end"]) == ("first", "burst", None)
        client.end_burst()

        def ended(state: dict[str, Any]) -> bool:
            return state["timeline"]["spans"][0]["end"] is not None

        await page.hear_until(ended)
        client.release()
        client.run()
        await page.hear_until(lambda state: len(state["timeline"]["spans"]) == 2)
        response = await jp_fetch("gpushare", "api", "status", params={"timeline": "1"})
        assert page.state["timeline"]["spans"] == json.loads(response.body)["timeline"]["spans"]
        assert page.missed == []


class Ticker:
    """A source whose timeline gets a sample at each query."""

    def __init__(self) -> None:
        self.count = 0
        self.fail = False
        self.silent = False

    async def state(self, timeline: int | None) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.fail:
            self.fail = False
            raise RuntimeError("a fault of ours")
        self.count += 1
        samples = [[float(n), "g", n] for n in range(timeline or 0, self.count)]
        news = {"version": self.count, "start": 0.0, "spans": [], "samples": samples}
        return {
            "time": float(self.count),
            "availability": {"code": "ok", "params": {}},
            "host": None,
            "settings": None,
            "hibernation": None,
            "notices": [],
            "unshared": [],
            "gpus": [],
            "groups": [],
            "timeline": None if timeline is None or self.silent else news,
        }


@pytest.fixture
def bus() -> EventLogger:
    """Return an event bus of its own."""
    events = EventLogger()
    events.register_event_schema(SCHEMA)
    return events


async def test_each_sample_is_sent_once_whenever_a_page_asks(
    bus: EventLogger,
    monkeypatch: pytest.MonkeyPatch,
    jp_serverapp: ServerApp,
    eventually: Any,
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.001)
    monkeypatch.setattr(feeds, "GATHER", 0.0)
    monkeypatch.setattr(feeds, "INTERVAL", 0.003)
    monkeypatch.setattr(feeds, "SHARE", 0)
    monkeypatch.setattr(feeds, "KEPT", 10_000)
    feed = Feed(bus, Ticker().state, jp_serverapp.log)
    answers = []
    for number in range(50):
        answers.append(await feed.state(f"page-{number % 7}", timeline=number > 3))
        await asyncio.sleep(0.0005 * (number % 5))

    def deltas_since(number: int) -> list[dict[str, Any]]:
        return json.loads(feed.since(number))["deltas"]  # type: ignore[no-any-return]

    async def told() -> bool:
        return len(deltas_since(0)) > 30 and bool(deltas_since(answers[-1]["sequence"]))

    await eventually(told)
    deltas = deltas_since(0)
    await feed.stop()
    for answer in answers[4:]:
        seen = [sample[2] for sample in answer["timeline"]["samples"]]
        for delta in deltas:
            if delta["sequence"] > answer["sequence"]:
                seen += [sample[2] for sample in delta["samples"]]
        assert seen == list(range(len(seen)))


async def test_another_scheduler_requires_the_whole_state(
    bus: EventLogger,
    monkeypatch: pytest.MonkeyPatch,
    jp_serverapp: ServerApp,
    eventually: Any,
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.01)
    deltas: list[dict[str, Any]] = []

    async def listen(logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        deltas.append(data)

    bus.add_listener(schema_id=SCHEMA_ID, listener=listen)
    feed = Feed(bus, Ticker().state, jp_serverapp.log)
    before = (await feed.state("a", timeline=True))["sequence"]
    feed.restart()

    async def told() -> bool:
        return bool(deltas)

    await eventually(told)
    await feed.stop()
    assert deltas[0]["sequence"] == before + 2


async def test_a_page_that_lacks_more_than_is_kept_asks_for_the_whole_state(
    scheduler: AsyncControlClient,
    open_page: Open,
    get_status: GetStatus,
    monkeypatch: pytest.MonkeyPatch,
    extension: GpuShareExtension,
) -> None:
    monkeypatch.setattr(extension.feed, "_deltas", deque(maxlen=2))
    page = await open_page()
    for quantum in (2.0, 3.0, 4.0, 5.0):
        sequence = extension.feed.sequence
        await scheduler.request("set", quantum=quantum)
        while extension.feed.sequence == sequence:
            await asyncio.sleep(0.01)
    await page.hear()
    assert page.missed
    await page.ask()
    assert page.state["settings"]["quantum"] == 5.0


async def test_the_event_bus_carries_nothing_but_numbers(
    runtime: Path,
    gpu: dict[str, Any],
    open_page: Open,
    jp_serverapp: ServerApp,
    emitted: list[dict[str, Any]],
) -> None:
    page = await open_page(timeline=True)
    with FakeClient(runtime / "s.sock", "secret-group", gpu["uuid"]) as client:
        client.attach()
        client.run()
        await page.hear_until(
            lambda _: (page.group("secret-group") or {}).get("state") == "running"
        )
    assert emitted
    for event in emitted:
        said = {name for name in event if not name.startswith("__")}
        assert said == {"stream", "sequence"}
    assert "secret-group" not in json.dumps(emitted)


@pytest.mark.parametrize("since", ["", "-1", "1.5", "x", "9" * 30, "²"])
async def test_the_last_delta_is_named_by_a_number(
    extension: GpuShareExtension, jp_fetch: Fetch, since: str
) -> None:
    response = await jp_fetch(
        "gpushare", "api", "changes", params={"since": since}, raise_error=False
    )
    assert response.code == 400
    assert "since=" in json.loads(response.body)["message"]


async def test_a_missing_part_of_the_timeline_is_requested_again(
    bus: EventLogger,
    monkeypatch: pytest.MonkeyPatch,
    jp_serverapp: ServerApp,
    eventually: Any,
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.01)
    source = Ticker()
    feed = Feed(bus, source.state, jp_serverapp.log)

    def deltas() -> list[dict[str, Any]]:
        return json.loads(feed.since(0))["deltas"]  # type: ignore[no-any-return]

    sequence = (await feed.state("a", timeline=True))["sequence"]
    # The scheduler does not answer for a while, and goes on.
    source.silent = True
    assert (await feed.state("b", timeline=True))["timeline"] is None
    assert (await feed.state("b"))["sequence"] == sequence
    source.silent = False

    async def told() -> bool:
        return any(delta["samples"] for delta in deltas())

    await eventually(told)
    kept = deltas()
    await feed.stop()
    assert kept[-1]["sequence"] == sequence + len(kept) + 1


async def test_an_internal_error_does_not_end_the_feed(
    bus: EventLogger,
    monkeypatch: pytest.MonkeyPatch,
    jp_serverapp: ServerApp,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(feeds, "LOOK", 0.01)
    source = Ticker()
    feed = Feed(bus, source.state, jp_serverapp.log)
    before = (await feed.state("a", timeline=True))["sequence"]
    source.fail = True

    async def told() -> bool:
        return feed.sequence > before and not source.fail

    await eventually(told)
    await feed.stop()
    (record,) = (r for r in caplog.records if r.exc_info)
    assert "cannot send the changes" in record.getMessage()


@pytest.mark.parametrize("page", ["", "a b", "x" * 65, "ä", "a%2Fb"])
async def test_pages_have_plain_names(
    extension: GpuShareExtension, jp_fetch: Fetch, page: str
) -> None:
    response = await jp_fetch(
        "gpushare", "api", "status", params={"watch": page}, raise_error=False
    )
    assert response.code == 400
    assert "letters" in json.loads(response.body)["message"]


async def test_the_number_of_pages_is_limited(
    extension: GpuShareExtension, jp_fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch(page: str) -> int:
        response = await jp_fetch(
            "gpushare", "api", "status", params={"watch": page}, raise_error=False
        )
        return int(response.code)

    monkeypatch.setattr(feeds, "MAX_PAGES", 2)
    assert [await watch(page) for page in "abacab"] == [200, 200, 200, 429, 200, 200]
    await jp_fetch("gpushare", "api", "watchers", "a", method="DELETE")
    assert await watch("c") == 200


async def test_watching_does_not_count_as_activity(
    kernel: Any, scheduler: AsyncControlClient, open_page: Open, jp_fetch: Fetch
) -> None:
    async def activity() -> tuple[str, str]:
        server = json.loads((await jp_fetch("api", "status")).body)
        # The list of kernels says it of the kernel, but asking for it is activity of the server.
        model = kernel.manager.kernel_model(kernel.id)
        return server["last_activity"], model["last_activity"]

    before = await activity()
    page = await open_page()
    for quantum in (2.0, 3.0, 4.0):
        await scheduler.request("set", quantum=quantum)
        await page.hear_until(lambda state, q=quantum: state["settings"]["quantum"] == q)
        await page.ask()
    await jp_fetch("gpushare", "api", "watchers", "a", method="DELETE")
    assert await activity() == before
    await jp_fetch("api", "kernels")
    assert (await activity())[0] > before[0], "the reading would show activity"
