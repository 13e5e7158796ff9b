# SPDX-License-Identifier: BSD-3-Clause
"""The next scheduler has what the previous one has learnt and seen."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.placement import Placement
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.node.identity import Identities
from jupyter_gpushare.scheduler.node.principals import Identity
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.server import handover, history
from jupyter_gpushare.scheduler.server.handover import Files, Handover
from jupyter_gpushare.scheduler.server.history import EventHistory
from tests.support.scheduler import GIB, Scheduler, Start, state

GPU = "GPU-0"


class Clock:
    """The clocks of a machine that can be restarted."""

    def __init__(self) -> None:
        self.now, self.since_1970, self.boot = 1000.0, 1e9, "first"

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.since_1970

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.since_1970 += seconds

    def restart(self, seconds: float) -> None:
        self.now, self.boot = 5.0, "second"
        self.since_1970 += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stand_in = SimpleNamespace(monotonic=clock.monotonic, time=clock.time)
    monkeypatch.setattr(handover, "time", stand_in)
    monkeypatch.setattr(history, "time", stand_in)
    monkeypatch.setattr(handover, "boot_id", lambda: clock.boot)
    return clock


class Process:
    """The parts of a scheduler's process that take part."""

    def __init__(self, folder: Path | None, clock: Clock, driver: str = "1.0") -> None:
        self.clock, self.core = clock, Core(REGISTRY, Rules())
        identities = Identities(Identity(), self.core.groups)
        self.history = EventHistory(
            self.core, identities, clock.now, lambda line: None, lambda _: None
        )
        devices = Devices(None)
        devices.driver_version = driver
        self.placement = Placement(self.core)
        self.handle(ev.Device(GPU, 80 * GIB, 0, "Test GPU"))
        files = None if folder is None else Files(folder, "s.sock.")
        self.handover = Handover(
            files, self.core, devices, self.history, self.placement, self.handle
        )
        self.handover.begin()

    def handle(self, event: ev.Event) -> None:
        for decision in self.core.handle(event, self.clock.now):
            if isinstance(decision, ev.Log):
                self.history.note(decision, self.clock.now)
                self.history.look(decision.group, self.clock.now)

    def attach(self, group: str = "a") -> None:
        number = len(self.core.clients) + 1
        usages = (ev.Usage(GPU, GIB, GIB),)
        self.history.name(group, group)
        self.handle(ev.Attach(number, number, group, group, "swap", usages=usages, user="ann"))
        self.history.join(group)
        self.history.look(group, self.clock.now)

    def burst(self, seconds: float) -> None:
        """Have the first client run."""
        self.handle(ev.Request(1, 1))
        self.history.look("a", self.clock.now)
        self.clock.wait(seconds)
        self.handle(ev.Burst(1, "end", "cell", self.clock.now))
        self.history.look("a", self.clock.now)
        self.history.publish()

    def leave(self) -> None:
        asyncio.run(self.handover.prepare())
        self.handover.write(last=True)

    def load(self) -> None:
        """Load what the previous scheduler has left."""
        asyncio.run(self.history.load_slowly(0.0))

    def events(self) -> list[dict[str, Any]]:
        self.load()
        return self.history.after(0)

    def spans(self) -> list[dict[str, Any]]:
        self.load()
        found: list[dict[str, Any]] = json.loads(
            bytes(self.history.spans(0, self.clock.now, None)["spans"])
        )
        return found

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def numbers(self) -> list[int]:
        return [event["sequence"] for event in self.events()]


Begin = Callable[..., Process]


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Begin:
    return lambda **options: Process(tmp_path, clock, **options)


def test_events_and_what_was_learnt_go_on(begin: Begin, clock: Clock) -> None:
    first = begin()
    first.attach()
    first.burst(3.0)
    first.placement.recall({"gone": GIB})
    first.leave()
    second = begin()
    second.attach()
    second.history.publish()
    assert second.numbers() == list(range(1, second.history.sequence + 1))
    assert second.kinds() == [*first.kinds(), "join"]
    assert second.history.ledger.totals("a", clock.now)["ran"] == pytest.approx(3.0)
    assert second.core.groups["a"].burst.lengths.learnt() == (3.0,)
    assert second.history.forecast.learnt().stints == first.history.forecast.learnt().stints
    assert second.placement.need("gone") == GIB
    spans = second.spans()
    assert ("burst", 1000.0, 1003.0) in [(s["kind"], s["start"], s["end"]) for s in spans]


def test_events_since_the_last_minute_survive_although_the_history_is_older(begin: Begin) -> None:
    first = begin()
    first.attach()
    asyncio.run(first.handover.prepare())
    first.attach("b")
    first.handover.write()
    second = begin()
    second.attach("c")
    second.history.publish()
    assert second.kinds() == ["join", "join", "join"]
    # The first one may have used further numbers before it crashed.
    assert second.numbers() == [1, 2, 3 + history.KEPT]


def test_a_crash_between_the_files_uses_no_number_twice(begin: Begin) -> None:
    first = begin()
    first.attach()
    asyncio.run(first.handover.prepare())
    first.handover.write()
    first.attach("b")
    asyncio.run(first.handover.write_large())
    second = begin()
    second.attach("c")
    second.history.publish()
    assert second.numbers() == [1, 2 + history.KEPT]
    assert [event["group"] for event in second.events()] == ["a", "c"]


async def poll(process: Process) -> None:
    """Poll, and wait for what that begins."""
    process.handover.poll()
    while process.handover._writing is not None:
        await asyncio.sleep(0.001)


def test_the_files_are_written_once_a_minute(begin: Begin, clock: Clock, tmp_path: Path) -> None:
    first = begin()
    first.attach()
    clock.wait(handover.PERIOD - 1)
    asyncio.run(poll(first))
    assert not list(tmp_path.iterdir())
    clock.wait(1)
    asyncio.run(poll(first))
    names = {f"s.sock.{name}" for name in ("learnt", "history", "timeline")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_groups_that_do_not_return_are_forgotten(begin: Begin, clock: Clock) -> None:
    first = begin()
    first.attach()
    first.attach("b")
    first.burst(1.0)
    first.leave()
    second = begin()
    second.attach()
    assert set(second.history.ledger.learnt(clock.now)) == {"a", "b"}
    clock.wait(handover.PERIOD)
    asyncio.run(poll(second))
    assert set(second.history.ledger.learnt(clock.now)) == {"a"}
    assert set(second.history.forecast.learnt().stints) <= {"a"}


@pytest.mark.parametrize("at_once", [1, 3, 200])
def test_only_so_many_events_are_kept(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    first = begin()
    for name in "abcdef":
        first.attach(name)
    first.leave()
    monkeypatch.setattr(history, "KEPT", 4)
    monkeypatch.setattr(handover, "KEPT", 4)
    monkeypatch.setattr(handover, "AT_ONCE", at_once)
    for _ in range(2):
        second = begin()
        second.load()
        assert second.numbers() == [3, 4, 5, 6]
        second.leave()


def test_older_events_come_later_or_when_they_are_asked_for(begin: Begin, clock: Clock) -> None:
    first = begin()
    for name in "abc":
        first.attach(name)
    first.leave()
    second = begin()
    second.attach("d")
    second.history.publish()
    assert not second.history.lacks(3)
    assert second.history.lacks(2)
    assert [event["group"] for event in second.history.after(0)] == ["d"]
    assert second.numbers() == [1, 2, 3, 4]
    assert not second.history.lacks(0)


def test_the_loop_continues_while_older_events_are_loaded(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "AT_ONCE", 2)
    first = begin()
    for number in range(20):
        first.attach(f"g{number}")
    first.leave()
    second, readers = begin(), []
    read = Files.read

    def watched(files: Files, name: str) -> bytes:
        readers.append(threading.current_thread())
        return read(files, name)

    monkeypatch.setattr(Files, "read", watched)

    async def load() -> list[int]:
        # Two requests at the same time load it once.
        loading = [asyncio.create_task(second.history.load_events()) for _ in range(2)]
        seen = []
        while not all(task.done() for task in loading):
            seen.append(len(second.history.events))
            await asyncio.sleep(0)
        return seen

    seen = asyncio.run(load())
    assert len(readers) == 1
    assert threading.main_thread() not in readers
    most = max(after - before for before, after in itertools.pairwise(seen))
    assert most <= 2 * 2  # a step of each
    assert second.numbers() == list(range(1, 21))


def test_a_restart_of_the_machine_keeps_events_at_their_times(begin: Begin, clock: Clock) -> None:
    first = begin()
    first.attach()
    first.burst(3.0)
    first.core.gpus[GPU].bandwidth, first.core.gpus[GPU].measured = 7.0, True
    first.leave()
    clock.restart(60.0)
    second = begin()
    second.attach()
    assert second.core.gpus[GPU].bandwidth == 7.0
    assert second.core.groups["a"].burst.lengths.learnt() == ()
    second.load()
    joined = next(event for event in second.events() if event["kind"] == "join")
    assert joined["time"] == pytest.approx(clock.now - 63.0)
    assert second.spans() == []
    second.leave()
    third = begin()
    third.load()
    assert third.events()[0]["time"] == joined["time"]


def test_another_driver_may_have_contexts_of_other_sizes(begin: Begin) -> None:
    first = begin()
    first.core.gpus[GPU].context_sizes.taken = (1, 2)
    first.leave()
    assert begin().core.gpus[GPU].context_sizes.taken == (1, 2)
    assert begin(driver="2.0").core.gpus[GPU].context_sizes.taken == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\0" * 10,
        '{"version": 1}',
        '{"version": 1, "boot": "first", "at": 1e999, "wall": 0, "core": {"at": 0, "window": 10}}',
        '{"version": 1, "boot": "first", "at": 1, "wall": 0, "core": ' + "[" * 10_000,
    ],
)
def test_a_damaged_file_is_ignored(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "s.sock.learnt").write_text(text)
    second = begin()
    second.attach()
    second.history.publish()
    assert second.numbers() == [1]
    if text:
        assert (
            f"What an earlier scheduler left in {tmp_path}/s.sock.learnt is ignored" in caplog.text
        )
    second.leave()
    assert begin().history.sequence == 1


def test_the_history_continues_if_what_the_core_has_learnt_is_damaged(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin()
    first.attach()
    first.burst(3.0)
    first.leave()
    path = tmp_path / "s.sock.learnt"
    path.write_text(json.dumps({**json.loads(path.read_text()), "core": {"at": 0, "window": -1}}))
    second = begin()
    second.attach()
    assert second.core.groups["a"].burst.lengths.learnt() == ()
    assert second.kinds() == first.kinds()
    assert f"{tmp_path}/s.sock.learnt is ignored" in caplog.text


def test_a_pipe_or_a_link_in_place_of_a_file_is_ignored(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "s.sock.learnt")
    begin()
    assert f"{tmp_path}/s.sock.learnt is ignored: it is not a file of this user" in caplog.text
    (tmp_path / "s.sock.learnt").unlink()
    (tmp_path / "s.sock.learnt").symlink_to("/proc/self/status")
    assert begin().history.sequence == 0


def test_a_failure_to_write_is_reported_and_ends_nothing(
    begin: Begin, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin()
    first.attach()

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(first.history.timeline, "learnt", fail)
    clock.wait(handover.PERIOD)
    asyncio.run(poll(first))
    assert "can't start new thread" in caplog.text
    caplog.clear()
    # It is tried again a minute later, and when the scheduler leaves.
    asyncio.run(poll(first))
    assert caplog.text == ""
    first.leave()
    assert "can't start new thread" in caplog.text


def test_events_are_kept_in_the_small_file_if_the_large_one_cannot_be_written(
    begin: Begin, tmp_path: Path
) -> None:
    first = begin()
    first.attach()
    (tmp_path / "s.sock.history").mkdir()
    first.leave()
    assert not list(tmp_path.glob("*.new"))
    second = begin()
    assert [event["kind"] for event in second.history.events] == ["join"]


def test_spans_are_handed_over_beside_many_samples(begin: Begin, clock: Clock) -> None:
    first = begin()
    first.attach()
    first.burst(3.0)
    for number in range(6000):
        first.history.timeline.utilization(clock.now + number / 10, GPU, number % 100)
    first.leave()
    second = begin()
    spans = second.spans()
    assert ("burst", 1000.0, 1003.0) in [(s["kind"], s["start"], s["end"]) for s in spans]


def test_a_file_that_is_too_large_is_ignored(
    begin: Begin,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = begin()
    first.attach()
    first.leave()
    monkeypatch.setattr(handover, "LARGEST", 10)
    assert begin().history.sequence == 0
    assert f"{tmp_path}/s.sock.learnt is ignored: it has more than 10 bytes" in caplog.text


def test_a_file_of_a_later_release_is_ignored(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin()
    first.attach()
    first.leave()
    path = tmp_path / "s.sock.learnt"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    second = begin()
    assert second.history.sequence == 0
    assert "it has version 2, and this release reads version 1" in caplog.text


def test_fields_of_a_later_release_do_not_matter(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    first.attach()
    first.leave()
    path = tmp_path / "s.sock.learnt"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert begin().history.sequence == 1


@pytest.mark.parametrize("name", ["history", "timeline"])
@pytest.mark.parametrize("damage", [b"", b"{}\n", b"\xff", None])
def test_a_damaged_large_file_is_ignored(
    begin: Begin, tmp_path: Path, name: str, damage: bytes | None
) -> None:
    first = begin()
    first.attach()
    first.burst(1.0)
    first.leave()
    path = tmp_path / f"s.sock.{name}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    second = begin()
    second.attach("b")
    second.load()
    second.history.publish()
    assert second.numbers()[-1] == first.history.sequence + 1


def test_events_that_no_viewer_could_show_are_dropped(begin: Begin) -> None:
    can_be_shown = begin().handover._is_event
    plain: dict[str, Any] = {
        "sequence": 1, "time": 1.0, "kind": "join", "group": "a", "name": "a", "user": "ann",
    }  # fmt: skip
    assert can_be_shown(plain)
    for change in (
        {"group": None},
        {"sequence": "1"},
        {"reason": "x"},
        {"reason": {"code": "x"}},
        {"kind": "notice"},
        {"kind": "entitle", "whose": "user:ann"},
        {"kind": "wait", "reason": {"code": "x", "params": {"victim_ids": ["b"]}}},
    ):
        assert not can_be_shown({**plain, **change})
    assert can_be_shown({**plain, "kind": "notice", "code": "x", "params": {}})


def test_a_name_that_is_not_utf8_is_kept_with_escapes(begin: Begin) -> None:
    first = begin()
    first.handle(ev.Notice("", "recording_ended", {"file": "/tmp/\udcff"}))
    first.leave()
    first.handle(ev.Notice("", "recording_ended", {"file": "/tmp/\udcfe"}))
    first.handover.write()
    params = [event["params"] for event in begin().events()]
    assert params == [{"file": "/tmp/\\udcff"}, {"file": "/tmp/\\udcfe"}]


def test_without_a_folder_nothing_is_kept(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    first = Process(None, clock)
    first.attach()
    with caplog.at_level(logging.WARNING):
        first.leave()
        asyncio.run(poll(first))
    assert caplog.text == ""


def test_a_folder_that_cannot_be_written_is_reported_once(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin()
    (tmp_path / "s.sock.learnt").mkdir()
    asyncio.run(first.handover.prepare())
    first.handover.write()
    first.handover.write()
    assert caplog.text.count("cannot be written") == 1


def test_programs_see_what_happened_before_the_scheduler_was_replaced(
    scheduler: Scheduler, start: Start
) -> None:
    with scheduler.client("a") as a:
        a.grow(GIB)
        a.run()
        a.end_burst("cell")
        before = state(scheduler, "a")["totals"]
        with scheduler.control() as control:
            events = control.request("history")
        # The client is still there, as it is while a scheduler is replaced.
        scheduler.close()
    following = start()
    with following.client("a"), following.control() as control:
        after = control.request("history")
        assert after["events"][: len(events["events"])] == events["events"]
        assert after["sequence"] > events["sequence"]
        totals = state(following, "a")["totals"]
    assert totals["bursts"] == before["bursts"] == 1
    assert "ignored" not in following.log
