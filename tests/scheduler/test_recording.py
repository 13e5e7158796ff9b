# SPDX-License-Identifier: BSD-3-Clause
"""Recordings: what the core took in goes through it again, and gives the same decisions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.observability import checkpoint, recording, writer
from jupyter_gpushare.scheduler.observability.checkpoint import CheckpointError
from jupyter_gpushare.scheduler.observability.recording import (
    RecordedCore,
    Recording,
    RecordingError,
    replay,
)
from jupyter_gpushare.scheduler.observability.writer import Writer
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.policies.fcfs import FirstComeFirstServed
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import Machine
from tests.support.client import PATIENCE
from tests.support.scheduler import GIB, Scheduler, Start, state, until

os_open = os.open
OUR_POLICIES = ["burst", "fcfs", "tgs", "gemini", "priority"]
USERS = ("ada", "ben")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines of this file have a core that keeps what it takes in."""
    monkeypatch.setattr("tests.scheduler.core_machine.Core", RecordedCore)


class Day:
    """Notebooks that do this and that, each answering when it likes."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.machine = Machine(**{"interactive_burst": 2.0, **settings})
        self.pending: list[ev.Decision] = []
        self.cells = 0

    @property
    def core(self) -> RecordedCore:
        assert isinstance(self.machine.core, RecordedCore)
        return self.machine.core

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.random.random() < 0.3:
                self.pending += self.machine.sleep(self.random.choice([0.001, 0.1, 0.5, 2.5]))
            elif self.pending and self.random.random() < 0.7:
                self.answer(self.pending.pop(self.random.randrange(len(self.pending))))
            else:
                self.act()
            if self.random.random() < 0.2:
                # To look at it changes nothing.
                snapshot.status(self.core, self.machine.now)

    def act(self) -> None:
        machine, choose = self.machine, self.random.choice
        if len(machine.processes) < 6:
            number = len(machine.processes)
            process = machine.process(f"g{number}", user=USERS[number % 2])
            process.grow(choose([10, 40, 70]))
            return
        process = choose(list(machine.processes.values()))
        group = process.group
        self.cells += 1
        do: list[Callable[[], Any]] = [
            process.request,
            process.request,
            process.end,
            process.begin,
            lambda: machine.do(ev.Cell(group, "begin", str(self.cells), machine.now, True)),
            lambda: machine.do(ev.Cell(group, "end", str(self.cells - 9), machine.now, False)),
            lambda: machine.do(ev.Meter(process.number, "GPU-0", machine.now, 9, machine.now)),
            lambda: machine.do(ev.Adjust(group, priority=choose(["auto", "background"]))),
            lambda: machine.do(ev.Adjust(group, keep=choose([True, False]), weight=2.0)),
            lambda: machine.do(ev.Focus(choose(USERS), group)),
            lambda: machine.do(
                ev.Entitle(f"user:{choose(USERS)}", ev.Entitlement(choose([0.0, 0.5]), 0.5))
            ),
            lambda: machine.do(ev.Entitle("team:t", ev.Entitlement(limit=0.3), USERS)),
            lambda: machine.do(ev.Configure(anti_thrash=choose(["auto", "on"]))),
            lambda: machine.do(ev.Notice(group, "strange", {"n": [1, None, "ü"]})),
        ]
        self.pending += choose(do)() or []

    def answer(self, decision: ev.Decision) -> None:
        process = self.machine.processes.get(getattr(decision, "client", 0))
        if process is None:
            return
        if isinstance(decision, ev.Evict):
            self.pending += process.evict(decision)
        elif isinstance(decision, ev.Revoke) and process.lease == decision.lease:
            self.pending += process.release()
        elif isinstance(decision, ev.Grant) and process.lease == decision.lease:
            self.pending += process.restore()


def written(core: RecordedCore) -> list[bytes]:
    """What is kept, as the lines of a file."""
    return [recording.write_header(core.header()), *map(recording.write, core.entries())]


def decisions_of(core: RecordedCore) -> int:
    return sum(
        sum(type(d) is not ev.Log for d in entry.outcome)
        for entry in core.entries()
        if isinstance(entry.outcome, list)
    )


@pytest.mark.parametrize("policy", OUR_POLICIES)
def test_a_replay_gives_the_same_decisions(policy: str) -> None:
    day = Day(5, policy=policy)
    day.go_on(400)
    done = replay(Recording(written(day.core)))
    assert done.difference is None
    assert done.events == len(day.core.entries()) > 200
    assert done.decisions == decisions_of(day.core) > 30
    assert sum(done.kinds.values()) == done.decisions


@pytest.mark.parametrize("policy", OUR_POLICIES)
def test_a_recording_may_begin_in_the_middle(policy: str) -> None:
    day = Day(7, policy=policy, kept=100)
    core = day.core
    day.go_on(200)
    for _ in range(2):
        for group in list(core.groups):
            day.machine.do(ev.Cancel(group))
        # No group is waiting, so it is a good moment; and then there is enough after it.
        for _ in range(164):
            day.machine.do(ev.Tick())
    day.go_on(150)
    header = core.header()
    assert header["state"] is not None
    done = replay(Recording(written(core)))
    assert (done.difference, done.events) == (None, len(core.entries()))
    assert done.decisions == decisions_of(core) > 0


def test_a_new_beginning_waits_for_an_empty_queue() -> None:
    machine = Machine(kept=50, late=500)
    core = machine.core
    assert isinstance(core, RecordedCore)
    machine.runs("a", 75)
    waits = machine.process("b", 60)
    waits.request()
    while len(core.entries()) < 300:
        machine.do(ev.Tick())
    assert core.kept.older is None
    machine.do(ev.Cancel("b"))
    while core.kept.older is None:
        machine.do(ev.Tick())
    # What came before the new beginning is kept until there is enough after it.
    assert core.header()["state"] is None
    assert len(core.entries()) > 300
    for _ in range(60):
        machine.do(ev.Tick())
    assert core.header()["state"] is not None
    assert len(core.entries()) < 200
    assert replay(Recording(written(core))).difference is None


def test_recent_events_cannot_be_written_without_a_quiet_moment() -> None:
    machine = Machine(kept=50, late=100)
    core = machine.core
    assert isinstance(core, RecordedCore)
    machine.runs("a", 75)
    machine.process("b", 60).request()
    for _ in range(200):
        machine.do(ev.Tick())
    with pytest.raises(RecordingError, match=r"no quiet moment.*--record"):
        core.header()
    machine.do(ev.Cancel("b"))
    for _ in range(200):
        machine.do(ev.Tick())
    assert replay(Recording(written(core))).difference is None


class Stubborn(FirstComeFirstServed):
    """A policy whose state cannot be written."""

    name = "stubborn"

    def __init__(self, view: Any) -> None:
        super().__init__(view)
        self.random = random.Random(1)


def test_a_value_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recording.checkpoint.available(), "stubborn", Stubborn)
    monkeypatch.setattr("jupyter_gpushare.scheduler.policies.OURS", {"stubborn": Stubborn})
    machine = Machine(policy="stubborn", kept=50)
    core = machine.core
    assert isinstance(core, RecordedCore)
    for _ in range(49):
        machine.do(ev.Tick())
    with pytest.raises(RecordingError, match=r"random.*cannot be written.*--record"):
        core.header()


def test_events_that_the_core_refused_are_refused_again() -> None:
    machine = Machine()
    machine.process("a")
    for wrong in (ev.Attach(1, 1, "a", "a", "swap"), ev.Configure(quantum=-1.0)):
        with pytest.raises(Exception, match=r"attached twice|quantum"):
            machine.do(wrong)
    core = machine.core
    assert isinstance(core, RecordedCore)
    done = replay(Recording(written(core)))
    assert (done.difference, done.refused) == (None, 2)


def test_the_first_difference_is_named() -> None:
    day = Day(1)
    day.go_on(300)
    lines = written(day.core)
    number, line = next(
        (n, json.loads(text)) for n, text in enumerate(lines) if n > 100 and b'"Request"' in text
    )
    line[4] = "00000000"
    lines[number] = json.dumps(line).encode()
    done = replay(Recording(lines))
    assert done.difference is not None
    assert done.difference.number == number
    assert isinstance(done.difference.event, ev.Request)
    first = json.loads(lines[1])[0]
    assert done.difference.after == line[0] - first
    # An event that is missing shows as well.
    grown = next(n for n, text in enumerate(lines) if b'"Grow"' in text)
    assert replay(Recording(lines[:grown] + lines[grown + 1 :])).difference is not None


def test_a_recording_can_be_replayed_under_another_policy() -> None:
    day = Day(3, policy="burst")
    day.go_on(300)
    lines = written(day.core)
    other = replay(Recording(lines), "fcfs")
    assert other.events == len(lines) - 1
    assert other.difference is not None
    assert other.kinds["Grant"] > 0
    same = replay(Recording(lines), "burst")
    assert same.difference is None
    with pytest.raises(RecordingError, match="policy must be one of"):
        replay(Recording(lines), "none")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1 of the recording cannot be read"),
        (["{}"], "this is not a recording"),
        (["[1]"], "this is not a recording"),
        (['{"gpushare": "recording", "version": 99}'], "version 99"),
        (['{"gpushare": "recording", "version": 1}', "[}", "[]"], "line 2 .* cannot be read"),
        (['{"gpushare": "recording", "version": 1}', "{}", ""], "line 2 .* no event"),
        (['{"gpushare": "recording", "version": 1}', '[1, "Strange", {}, 0, ""]', ""], "line 2"),
        (['{"gpushare": "recording", "version": 1}', '[1, "Tick", {"x": 1}, 0, ""]', ""], "line 2"),
        (
            [
                '{"gpushare": "recording", "version": 1}',
                '[1, "Detach", {"client": "x"}, 0, ""]',
                "",
            ],
            "line 2 of the recording is no event that this release knows",
        ),
        (['{"gpushare": "recording", "version": 1, "settings": {"x": 1}}'], "x"),
        (['{"gpushare": "recording", "version": 1, "state": [["os:system", {}]]}'], "os:system"),
        (['{"gpushare": "recording", "version": 1, "state": 3}'], "cannot be read"),
        (
            [
                '{"gpushare": "recording", "version": 1, "state": '
                '[["jupyter_gpushare.scheduler.core.model:Totals", {"bursts": 1}]]}'
            ],
            "no 'waits' of a Totals",
        ),
    ],
)
def test_a_file_that_is_not_a_recording_is_reported(lines: list[str], words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        replay(Recording(lines))


def test_a_truncated_recording_ends_at_the_last_whole_line() -> None:
    day = Day(2)
    day.go_on(100)
    lines = written(day.core)
    lines[-1] = lines[-1][:-9]
    assert replay(Recording(lines)).events == len(lines) - 2


@pytest.mark.parametrize(
    "name",
    ["jupyter_gpushare.scheduler.observability.writer:Writer", "builtins:list", "subprocess:Popen"],
)
def test_a_state_creates_only_classes_of_the_core(name: str) -> None:
    with pytest.raises(CheckpointError, match="there is no class"):
        checkpoint.decode([[name, {}]])
    with pytest.raises(CheckpointError, match="there is no class"):
        checkpoint.decode([["list", [["named", name, "ls"]]]])


SAMPLES: dict[Any, Any] = {
    bool: True,
    int: 1 << 62,
    float: 0.1 + 0.2,
    str: "ü",
    Any: [1],
}


def example(hint: Any) -> Any:
    """Return a value of a type that a field of an event has."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        # It has bounds.
        return 3 if arguments[0] is int else example(arguments[0])
    if isinstance(hint, type) and issubclass(hint, Struct):
        hints = typing.get_type_hints(hint, include_extras=True)
        return hint(**{one.name: example(hints[one.name]) for one in fields(hint)})
    if typing.get_origin(hint) is tuple:
        return (example(arguments[0]),) * 2
    if typing.get_origin(hint) is dict:
        return {example(arguments[0]): example(arguments[1])}
    if typing.get_origin(hint) is typing.Literal:
        return arguments[0]
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return example(arguments[0])
    return SAMPLES[hint]


@pytest.mark.parametrize("kind", typing.get_args(ev.Event))
def test_every_event_is_read_back_as_it_was_written(kind: type[Any]) -> None:
    event = example(kind)
    line = recording.write(recording.Entry(0.1 + 0.2, event, []))
    header = recording.write_header({"gpushare": "recording", "version": 1})
    ((at, found, decisions, _),) = Recording([header, line]).lines()
    assert (at, found, decisions) == (0.1 + 0.2, event, 0)


def test_the_checksum_depends_on_the_decisions() -> None:
    def sums(*decisions: ev.Decision) -> str:
        line = recording.write(recording.Entry(0.0, ev.Tick(), list(decisions)))
        return str(json.loads(line)[4])

    log = ev.Log("join", "g", {})
    assert sums() == sums(log) == ""
    assert sums(ev.CancelWaits(1)) == sums(log, ev.CancelWaits(1)) != ""
    different = {sums(ev.Grant(1, 2)), sums(ev.Grant(1, 3)), sums(ev.Revoke(1, 2)), ""}
    assert len(different) == 4


# --- The scheduler's process ----------------------------------------------------------------------


def go_on(scheduler: Scheduler) -> None:
    """Two that take turns, once."""
    with scheduler.client("aaaa", name="a.ipynb") as a, scheduler.client("bbbb") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "bbbb").get("state") == "waiting")
        a.end_burst("cell")
        a.expect(ev.Revoke)
        a.release()
        a.evict()
        b.take()


def finished(control: ControlClient, file: Path) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        found[:] = [
            r
            for r in control.request("recordings")["recordings"]
            if r["file"] == str(file) and r["ended"] is not None
        ]
        return bool(found)

    until(ended)
    return found[0]


def test_the_recent_events_are_written(scheduler: Scheduler, tmp_path: Path) -> None:
    go_on(scheduler)
    file = tmp_path / "kept"
    with scheduler.control() as control:
        control.request("record", file=str(file), seconds=0)
        found = finished(control, file)
    assert found["ended"] == "stopped"
    assert found["bytes"] == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    lines = file.read_bytes().splitlines()
    assert found["events"] == len(lines) - 1
    done = replay(Recording(lines))
    assert done.difference is None
    assert done.kinds["Grant"] == 2
    assert done.kinds["Evict"] >= 1


def test_a_recording_continues_until_it_is_stopped(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "live"
    with scheduler.control() as control:
        control.request("record", file=str(file))
        with pytest.raises(
            ControlError, match="is already running; stop it with: gpushare record --stop"
        ):
            control.request("record", file=str(tmp_path / "other"))
        go_on(scheduler)
        control.request("recordings", stop=True)
        assert finished(control, file)["ended"] == "stopped"
        with pytest.raises(ControlError, match="no recording is running"):
            control.request("recordings", stop=True)
        with pytest.raises(ControlError, match="exists"):
            control.request("record", file=str(file))
    done = replay(Recording(file.read_bytes().splitlines()))
    assert (done.difference, done.kinds["Grant"]) == (None, 2)


def test_a_recording_from_the_start_keeps_the_previous_one(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "all"
    for policy in ("burst", "fcfs"):
        scheduler = start("--record", str(file), "--policy", policy)
        go_on(scheduler)
        assert scheduler.close() == 0
    for path, policy in ((file, "fcfs"), (file.with_name("all.1"), "burst")):
        read = Recording(path.read_bytes().splitlines())
        assert Rules(**read.settings).policy == policy
        done = replay(read)
        assert done.difference is None
        assert done.kinds["Grant"] == 2


def test_an_unusable_file_is_reported(start: Start, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jupyter_gpushare.scheduler", "--record", "/proc/none/file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert "cannot write to /proc/none/file" in done.stderr


async def test_a_recording_that_cannot_continue_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = RecordedCore(REGISTRY)
    for longest, full, ended in ((2000, False, "full"), (1 << 30, True, "failed")):
        told: list[Writer] = []
        if full:
            monkeypatch.setattr(os, "open", lambda *_: os_open("/dev/full", os.O_WRONLY))
        one = Writer(core, tmp_path / ended, longest=longest, on_end=told.append)
        monkeypatch.undo()
        assert core.sink is one
        for number in range(100):
            core.handle(ev.Tick(), float(number))
        await asyncio.wait_for(one.close(), PATIENCE)
        assert told == [one]
        assert one.status()["ended"] == ended
        assert core.sink is None
    assert "space" in one.status()["error"]


async def test_an_error_of_the_recording_does_not_reach_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> Any:
        raise ZeroDivisionError("of ours")

    core = RecordedCore(REGISTRY, kept=20)
    monkeypatch.setattr(recording, "write", fault)
    one = Writer(core, tmp_path / "file")
    core.handle(ev.Tick(), 1.0)
    await asyncio.wait_for(one.close(), PATIENCE)
    assert (one.ended, one.error) == ("failed", "of ours")
    monkeypatch.setattr(checkpoint, "encode", fault)
    for number in range(40):
        core.handle(ev.Tick(), 2.0 + number)
    with pytest.raises(RecordingError, match=r"cannot be written \(of ours\)"):
        core.header()


async def test_a_recording_that_falls_behind_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_PENDING", 100)
    core = RecordedCore(REGISTRY)
    one = Writer(core, tmp_path / "slow")
    for number in range(200):
        core.handle(ev.Tick(), float(number))
    assert core.sink is None
    await asyncio.wait_for(one.close(), PATIENCE)
    assert (one.ended, one.events) == ("slow", 100)


def test_a_scheduler_that_cannot_record_shows_a_notice(start: Start, tmp_path: Path) -> None:
    scheduler = start("--record", str(tmp_path / "file"))
    # Its file grows no further than this.
    resource.prlimit(scheduler.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    with scheduler.control() as control:
        until(lambda: bool(control.request("status")["status"]["notices"]))
        (notice,) = control.request("status")["status"]["notices"]
    assert notice["code"] == "recording_ended"
    assert notice["params"]["why"] == "failed"
    go_on(scheduler)
