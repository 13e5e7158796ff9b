# SPDX-License-Identifier: BSD-3-Clause
"""Control requests, by both clients, against a real scheduler."""

from __future__ import annotations

import asyncio
import getpass
import json
import math
import struct
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.model import Preferences
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import (
    ControlClient,
    ControlError,
    SchedulerUnreachable,
)
from tests.support.client import PATIENCE, FakeClient
from tests.support.scheduler import GIB, Scheduler, can_hibernate, state, until


def kinds(control: ControlClient, since: int = 0) -> list[str]:
    return [event["kind"] for event in control.request("history", since=since)["events"]]


def test_the_status_has_all_documented_fields(scheduler: Scheduler) -> None:
    with scheduler.client("a", name="train.ipynb") as a, scheduler.control() as control:
        a.grow(GIB)
        a.run()
        until(lambda: state(scheduler, "a")["state"] == "running")
        status = control.request("status")["status"]
    assert status["scheduler"]["pid"] == scheduler.process.pid
    assert status["scheduler"]["socket"] == str(scheduler.path)
    assert status["driver"]["simulated"] is True
    assert status["protocol"] == protocol.VERSION
    documented = documented_status()
    assert status.keys() == documented.keys()
    for part in ("scheduler", "settings", "driver", "host"):
        assert status[part].keys() == documented[part].keys()
    assert status["gpus"][0].keys() == documented["gpus"][0].keys()
    (group,) = status["groups"]
    assert group.keys() == documented["groups"][0].keys()
    assert group["gpus"][0].keys() == documented["groups"][0]["gpus"][0].keys()
    assert group["totals"].keys() == documented["groups"][0]["totals"].keys()
    assert group["preferences"].keys() == documented["groups"][0]["preferences"].keys()
    assert (group["name"], group["state"]) == ("train.ipynb", "running")


def documented_status() -> dict[str, Any]:
    page = Path(__file__).parents[2] / "docs" / "reference" / "control.md"
    text = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def test_release_and_evict_find_groups_by_name(scheduler: Scheduler) -> None:
    with (
        scheduler.client("kernel-1", name="a.ipynb") as a,
        scheduler.client("kernel-2", name="b.ipynb"),
        scheduler.control() as control,
    ):
        a.grow(GIB)
        a.run()
        with pytest.raises(ControlError, match="several"):
            control.request("release", group="kernel-")
        with pytest.raises(ControlError, match="nobody"):
            control.request("release", group="nobody")
        assert control.request("release", group="a.ipynb")["group"] == "kernel-1"
        a.expect(ev.Revoke)
        a.release()
        until(lambda: state(scheduler, "kernel-1")["state"] == "idle")
        assert not a.has(ev.Evict)
        control.request("evict", group="kernel-1")
        assert a.evict().bytes == GIB
        until(lambda: state(scheduler, "kernel-1")["gpus"][0]["swapped"] == GIB)


def test_settings_are_set(scheduler: Scheduler) -> None:
    with scheduler.control() as control:
        assert control.request("set", quantum=2.5)["settings"]["quantum"] == 2.5
        settings = control.request("set", anti_thrash="on")["settings"]
        assert (settings["quantum"], settings["anti_thrash"]) == (2.5, "on")
        assert control.request("set", quantum="auto")["settings"]["quantum"] == "auto"
        assert control.request("set", policy="fcfs")["settings"]["policy"] == "fcfs"
        assert control.request("set", anti_thrash="auto")["settings"]["policy"] == "fcfs"
        assert control.request("set", hibernate_after=60)["settings"]["hibernate_after"] == 60.0
        assert control.request("set", quantum=1)["settings"]["hibernate_after"] == 60.0
        for off in (0, None):
            control.request("set", hibernate_after=60)
            assert (
                control.request("set", hibernate_after=off)["settings"]["hibernate_after"] is None
            )
        with pytest.raises(ControlError, match="number of seconds"):
            control.request("set", hibernate_after=-1)


def test_a_group_that_cannot_hibernate_is_reported(scheduler: Scheduler) -> None:
    until(lambda: can_hibernate(scheduler))
    with scheduler.client("a") as a, scheduler.control() as control:
        with pytest.raises(ControlError, match="no CUDA context"):
            control.request("hibernate", group="a")
        a.grow(GIB, context=64 << 20)
        control.request("set", hibernate_after=0)
        with pytest.raises(ControlError, match="switched off"):
            control.request("hibernate", group="a")
        # One that is awake has nothing to wake from.
        assert control.request("wake", group="a") == {"ok": True, "group": "a"}
        with pytest.raises(ControlError, match="nobody"):
            control.request("wake", group="nobody")


def test_users_and_teams_are_entitled(scheduler: Scheduler) -> None:
    nothing = {**structs.asdict(ev.Entitlement()), "members": []}
    with scheduler.control() as control:
        assert control.request("shares")["shares"] == {}
        shares = control.request("entitle", whose="user:ada", request=0.5, memory=GIB)["shares"]
        ada = {**nothing, "request": 0.5, "memory": GIB, "used": {scheduler.gpu: 0.0}}
        assert shares == {"user:ada": ada}
        team = {"limit": 0.5, "weight": 2.0, "members": ["ben", "cy"]}
        control.request("entitle", whose="team:course", **team)
        shares = control.request("shares")["shares"]
        assert shares["team:course"] == {**ada, "request": 0.0, "memory": 0, **team}
        # What is left out is as for all.
        control.request("entitle", whose="user:ada")
        assert control.request("shares")["shares"].keys() == {"team:course"}


def test_the_notebook_in_front_comes_first(scheduler: Scheduler) -> None:
    user = getpass.getuser()
    with (
        scheduler.client("a") as a,
        scheduler.client("b") as b,
        scheduler.client("c") as c,
        scheduler.control() as control,
    ):
        a.grow(6 * GIB)
        a.run()
        for one in (b, c):
            one.grow(6 * GIB)
            one.request()
            until(lambda group=one.group: state(scheduler, group).get("state") == "waiting")

        def before(group: str) -> list[tuple[str, str]]:
            found = control.request("explain", group=group)["explanation"]["groups"]
            return [(b["group"], b["code"]) for b in found[0]["before"]]

        assert before("c") == [("b", "came")]
        control.request("focus", user=user, group="c")
        assert (before("b"), before("c")) == ([("c", "focus")], [])
        assert [g["group"] for g in control.request("explain")["explanation"]["groups"]] == [
            "c",
            "b",
        ]
        control.request("focus", user=user, group="")
        assert before("c") == [("b", "came")]
        assert state(scheduler, "a")["user"] == user
        found = control.request("explain", group="a")["explanation"]["groups"][0]
        assert (found["state"], found["next"]) == ("running", None)


def test_a_wait_is_cancelled(scheduler: Scheduler) -> None:
    with (
        scheduler.client("a") as a,
        scheduler.client("b") as b,
        scheduler.control() as control,
    ):
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b").get("state") == "waiting")
        control.request("cancel", group="b")
        b.expect(ev.CancelWaits)
        until(lambda: state(scheduler, "b")["state"] == "idle")
        # Every kernel is interrupted now and then, also those without CUDA.
        control.request("cancel", group="unknown")


def test_preferences_find_a_group_by_id_or_name(scheduler: Scheduler) -> None:
    with (
        scheduler.client("kernel-1", name="a.ipynb"),
        scheduler.client("kernel-2", name="b.ipynb"),
        scheduler.control() as control,
    ):
        asked = {"priority": "background", "memory": 3 * GIB, "request": 0.25, "limit": 0.5}
        answer = control.request("adjust", group="b.ipynb", weight=2, **asked)
        assert answer["group"] == "kernel-2"
        preferences = {**asdict(Preferences()), "weight": 2, **asked}
        assert answer["preferences"] == state(scheduler, "kernel-2")["preferences"] == preferences
        assert control.request("adjust", group="kernel-2", memory=0)["preferences"]["memory"] == 0
        assert state(scheduler, "kernel-1")["preferences"]["priority"] == "auto"
        with pytest.raises(ControlError, match="several"):
            control.request("adjust", group="kernel-", keep=True)
        events = control.request("history")["events"]
        assert [e["preferences"]["memory"] for e in events if e["kind"] == "adjust"] == [3 * GIB, 0]


def test_preferences_wait_for_a_kernel_that_has_not_started(scheduler: Scheduler) -> None:
    with scheduler.client("kernel-10"), scheduler.control() as control:
        control.request("adjust", group="kernel-1", keep=True, later=True)
        answer = control.request("adjust", group="kernel-1", frozen=True, later=True)
        assert answer["group"] == "kernel-1"
        assert (answer["preferences"]["keep"], answer["preferences"]["frozen"]) == (True, True)
        with scheduler.client("kernel-1") as client:
            assert state(scheduler, "kernel-1")["preferences"] == answer["preferences"]
            client.request()
            until(lambda: state(scheduler, "kernel-1")["state"] == "waiting")
            group = state(scheduler, "kernel-1")
            assert (group["reason"]["code"], group["estimate"]) == ("frozen", None)


def test_a_waiting_group_has_an_estimate(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b").get("state") == "waiting")
        found = state(scheduler, "b")["estimate"]
        assert 0 <= found["low"] <= found["seconds"] <= found["high"]
        assert state(scheduler, "a")["estimate"] is None


def test_the_totals_count_current_activity(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.client("b") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b").get("state") == "waiting")
        assert state(scheduler, "b")["totals"]["waits"] == 1
        for group, what in (("a", "ran"), ("b", "waited")):
            before = state(scheduler, group)["totals"][what]
            until(lambda g=group, w=what, b=before: state(scheduler, g)["totals"][w] > b)


def test_the_last_cell_has_its_wait_and_run_time(scheduler: Scheduler) -> None:
    def cell(group: str, phase: str) -> None:
        control.request("cell", group=group, phase=phase, msg_id="m1", at=time.monotonic())

    with (
        scheduler.client("a") as a,
        scheduler.client("b") as b,
        scheduler.control() as control,
    ):
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        cell("b", "begin")
        assert state(scheduler, "b")["cell"]["waited"] == 0
        b.request()
        until(lambda: state(scheduler, "b")["cell"]["waited"] > 0.01)
        assert state(scheduler, "b")["cell"]["ran"] == 0
        a.end_burst("cell")
        a.expect(ev.Revoke)
        a.release()
        a.evict()
        b.take()
        until(lambda: state(scheduler, "b")["cell"]["ran"] > 0.01)
        waited = state(scheduler, "b")["cell"]["waited"]
        b.end_burst("cell")
        cell("b", "end")
        group = state(scheduler, "b")
        assert group["cell"] is None
        assert group["last_cell"]["msg_id"] == "m1"
        assert group["last_cell"]["waited"] == waited
        assert group["last_cell"]["ran"] > 0.01
        assert (group["totals"]["waits"], group["totals"]["bursts"]) == (1, 1)


def test_the_timeline_is_sent_on_request(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.control() as control:
        assert "timeline" not in control.request("status")["status"]
        begun = time.monotonic()
        a.grow(GIB)
        a.run()
        # What another connection has sent may be handled a moment later.
        until(lambda: state(scheduler, "a")["gpus"][0]["resident"] == GIB)
        first = control.request("status", timeline=0)["status"]["timeline"]
        assert [(s["kind"], s["group"]) for s in first["spans"]] == [("burst", "a"), ("in", "a")]
        burst, move = first["spans"]
        assert burst["end"] is None
        assert (move["gpu"], move["bytes"]) == (scheduler.gpu, GIB)
        assert begun < burst["start"] < move["end"] < time.monotonic()
        a.end_burst()
        until(lambda: state(scheduler, "a")["state"] == "idle_lease")
        news = control.request("status", timeline=first["version"])["status"]["timeline"]
        assert [(s["id"], s["end"] is None) for s in news["spans"]] == [(burst["id"], False)]
        assert news["version"] > first["version"]


def test_a_process_that_joins_the_lease_of_its_group_is_on_the_timeline(
    scheduler: Scheduler,
) -> None:
    with (
        scheduler.client("a") as first,
        scheduler.client("a") as second,
        scheduler.control() as control,
    ):
        first.run()
        first.end_burst()
        until(lambda: state(scheduler, "a")["state"] == "idle_lease")
        second.run()
        told = control.request("status", timeline=0)["status"]["timeline"]
        assert [s["end"] is None for s in told["spans"]] == [False, True]


def test_a_busy_process_that_reconnects_is_on_the_timeline(scheduler: Scheduler) -> None:
    with (
        scheduler.client("a") as first,
        FakeClient(scheduler.path, "a", scheduler.gpu) as second,
        scheduler.control() as control,
    ):
        first.run()
        first.end_burst()
        until(lambda: state(scheduler, "a")["state"] == "idle_lease")
        second.attach(reattach=True, leased=True, busy=True)
        told = control.request("status", timeline=0)["status"]["timeline"]
        assert [s["end"] is None for s in told["spans"]] == [False, True]


def test_the_utilisation_is_sampled(scheduler: Scheduler) -> None:
    with scheduler.control() as control:

        def samples() -> list[Any]:
            found: list[Any] = control.request("status", timeline=0)["status"]["timeline"][
                "samples"
            ]
            return found

        # The scheduler looks once a second, and serves before its first look.
        until(lambda: bool(samples()))
        told = samples()
        assert told[0][1] == scheduler.gpu
        assert 0 <= told[0][2] <= 100


def test_cells_end_bursts(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.control() as control:
        a.grow(GIB)
        control.request("cell", group="a", phase="begin", msg_id="m1", at=time.monotonic())
        assert state(scheduler, "a")["cell"]["msg_id"] == "m1"
        a.run()
        control.request("cell", group="a", phase="end", msg_id="m1", at=time.monotonic())
        a.expect(ev.EndBurst)
        assert state(scheduler, "a")["cell"] is None


def test_names_and_notices(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.control() as control:
        control.request("name", group="a", name="new.ipynb")
        assert state(scheduler, "a")["name"] == "new.ipynb"
        control.request("notice", group="k", code="started_without_interposer", params={"n": 1})
        (notice,) = control.request("status")["status"]["notices"]
        assert (notice["group"], notice["code"]) == ("k", "started_without_interposer")
        assert notice["params"] == {"n": 1}
        a.request()
        a.take()
        events = control.request("history")["events"]
        assert [event["name"] for event in events if event["kind"] == "grant"] == ["new.ipynb"]


def test_history_is_numbered(scheduler: Scheduler) -> None:
    with scheduler.client("a") as a, scheduler.control() as control:
        a.grow(GIB)
        a.run()
        events = control.request("history")["events"]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert {"join", "grow", "grant"} <= {event["kind"] for event in events}
        since = control.request("history")["sequence"]
        control.request("set", quantum=3)
        assert kinds(control, since) == ["settings"]


def test_a_long_history_arrives_whole(scheduler: Scheduler) -> None:
    with scheduler.control() as control:
        for _ in range(1500):
            control.request("notice", group="x", code="y", params={"text": "z" * 4000})
        # More than a peer may leave unread, in one reply.
        assert len(control.request("history")["events"]) == 1500


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"op": "dance"}, "dance"),
        ({}, "None"),
        ({"op": ["status"]}, "status"),
        (
            {"op": "status", "protocol": 6},
            "the program sends control requests of version 6, but the scheduler expects version "
            f"{protocol.CONTROL_VERSION}; install the same version of jupyter-gpushare for both",
        ),
        ({"op": "status", "protocol": None}, "control requests of version None"),
        ({"op": "set", "quantum": 0}, "quantum"),
        ({"op": "set", "quantum": -1}, "quantum"),
        ({"op": "set", "quantum": True}, "quantum"),
        ({"op": "set", "quantum": "long"}, "quantum"),
        ({"op": "set", "quantum": [1]}, "quantum"),
        ({"op": "set", "anti_thrash": "maybe"}, "maybe"),
        ({"op": "set", "anti_thrash": {}}, "{}"),
        ({"op": "release"}, "group"),
        ({"op": "release", "group": ""}, "group"),
        ({"op": "evict", "group": 3}, "group"),
        ({"op": "cancel", "group": None}, "group"),
        ({"op": "history", "since": "x"}, "since"),
        ({"op": "status", "timeline": True}, "timeline"),
        ({"op": "status", "timeline": "x"}, "timeline"),
        ({"op": "adjust", "keep": True}, "group"),
        ({"op": "adjust", "group": "x", "keep": True}, "no group"),
        ({"op": "adjust", "group": "x"}, "nothing to adjust"),
        ({"op": "adjust", "group": "x", "priority": "high", "later": True}, "interactive"),
        ({"op": "adjust", "group": "x", "keep": 1, "later": True}, "keep"),
        ({"op": "adjust", "group": "x", "frozen": "yes", "later": True}, "frozen"),
        ({"op": "adjust", "group": "x", "exclusive": [], "later": True}, "exclusive"),
        ({"op": "adjust", "group": "x", "keep": True, "later": 1}, "later"),
        ({"op": "adjust", "group": "x", "memory": 1.5, "later": True}, "memory"),
        ({"op": "adjust", "group": "x", "memory": -1, "later": True}, "memory"),
        ({"op": "adjust", "group": "x", "memory": True, "later": True}, "memory"),
        ({"op": "adjust", "group": "x", "memory": 1 << 60, "later": True}, "memory"),
        ({"op": "adjust", "group": "x", "limit": 1.5, "later": True}, "limit"),
        ({"op": "adjust", "group": "x", "request": "half", "later": True}, "request"),
        ({"op": "adjust", "group": "x", "weight": 0, "later": True}, "weight"),
        ({"op": "adjust", "group": "x", "limit": -1, "later": True}, "limit"),
        ({"op": "adjust", "group": "x", "limit": True, "later": True}, "limit"),
        ({"op": "adjust", "group": "x", "limit": [], "later": True}, "limit"),
        ({"op": "set", "policy": "best"}, "policy must be one of burst, fcfs"),
        ({"op": "set", "policy": 3}, "policy"),
        ({"op": "entitle"}, "whose"),
        ({"op": "entitle", "whose": "ada"}, "user:NAME or team:NAME"),
        ({"op": "entitle", "whose": "user:ada", "limit": 2}, "limit"),
        ({"op": "entitle", "whose": "user:ada", "memory": "20GiB"}, "memory"),
        ({"op": "entitle", "whose": "user:ada", "weight": True}, "weight"),
        ({"op": "entitle", "whose": "user:ada", "members": ["b"]}, "members"),
        ({"op": "entitle", "whose": "team:t", "members": "b"}, "members"),
        ({"op": "entitle", "whose": "team:t", "members": [1]}, "members"),
        ({"op": "focus", "user": "", "group": "x"}, "user"),
        ({"op": "focus", "user": "ada", "group": 3}, "group"),
        ({"op": "hint", "group": "x", "kind": "cell"}, "kind"),
        ({"op": "hint", "group": "x", "kind": "ready"}, "no group"),
        ({"op": "explain", "group": "x"}, "no group"),
        ({"op": "record"}, "file"),
        ({"op": "record", "file": "here"}, "absolute"),
        ({"op": "record", "file": "/proc/none/x"}, "cannot write to /proc/none/x"),
        ({"op": "record", "file": "/tmp/x", "seconds": -1}, "seconds"),
        ({"op": "record", "file": "/tmp/x", "seconds": "long"}, "seconds"),
        ({"op": "recordings", "stop": True}, "no recording is running"),
        ({"op": "cell", "group": "a", "phase": "middle", "msg_id": "m", "at": 1}, "phase"),
        ({"op": "cell", "group": "a", "phase": "end", "msg_id": "m", "at": "now"}, "at"),
        ({"op": "cell", "group": "a", "phase": "end", "at": 1.0}, "msg_id"),
        ({"op": "cell", "group": "a", "phase": "begin", "msg_id": "m", "at": 10**400}, "at"),
        ({"op": "adjust", "group": "x", "keep": True, "later": None}, "later"),
        ({"op": "name", "group": "a"}, "name"),
        ({"op": "notice", "group": "a", "code": "x", "params": 3}, "params"),
        ({"op": "notice", "group": "a", "code": "x", "params": {"x": "y" * 5000}}, "4096"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(
    scheduler: Scheduler, request_: dict[str, Any], words: str
) -> None:
    request_ = {"protocol": protocol.CONTROL_VERSION, **request_}
    with FakeClient(scheduler.path, "x") as client:
        client.send_raw(protocol.encode_json(protocol.CONTROL, request_))
        reply = raw_reply(client)
        assert reply["ok"] is False
        assert words in reply["error"]
        # The connection goes on.
        question = {"op": "status", "protocol": protocol.CONTROL_VERSION}
        client.send_raw(protocol.encode_json(protocol.CONTROL, question))
        assert raw_reply(client)["ok"] is True


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "cell", "phase": "begin", "msg_id": "m", "at": math.nan},
        {"op": "cell", "phase": "begin", "msg_id": "m", "at": math.inf},
        {"op": "notice", "code": "x", "params": {"x": [math.inf]}},
    ],
)
def test_values_that_json_lacks_do_not_break_the_status(
    scheduler: Scheduler, request_: dict[str, Any]
) -> None:
    with (
        scheduler.client("a"),
        scheduler.control() as control,
        FakeClient(scheduler.path, "x") as client,
    ):
        body = json.dumps({"protocol": protocol.CONTROL_VERSION, "group": "a", **request_}).encode()
        client.send_raw(struct.pack("=IHH", 8 + len(body), protocol.CONTROL, 0) + body)
        assert raw_reply(client)["ok"] is False
        control.request("status")


@pytest.mark.parametrize("body", [b"{]", b"[1]", b"\xff\xff", b"[" * 60000])
def test_a_request_that_is_not_a_json_object_is_answered(scheduler: Scheduler, body: bytes) -> None:
    with FakeClient(scheduler.path, "x") as client:
        client.send_raw(struct.pack("=IHH", 8 + len(body), protocol.CONTROL, 0) + body)
        reply = raw_reply(client)
        assert reply["ok"] is False
        assert "JSON" in reply["error"]


def raw_reply(client: FakeClient) -> dict[str, Any]:
    reader = protocol.FrameReader(from_scheduler=True)
    while True:
        data = client.socket.recv(1 << 16)
        assert data
        for frame in reader.feed(data):
            return protocol.decode_json(frame.body)


def test_an_overlong_request_is_not_sent(scheduler: Scheduler) -> None:
    with scheduler.control() as control:
        with pytest.raises(ControlError, match="too long"):
            control.request("name", group="a", name="x" * protocol.MAX_REQUEST)
        assert control.request("status")["ok"]


def test_events_are_pushed(scheduler: Scheduler) -> None:
    with scheduler.control() as watcher, scheduler.control() as control:
        control.request("set", quantum=1)
        watcher.request("subscribe")
        control.request("set", quantum=2)
        event = watcher.next_event(PATIENCE)
        assert event is not None
        assert (event["kind"], event["quantum"]) == ("settings", 2.0)
        assert watcher.next_event(0.01) is None
        # Requests and events share the connection.
        assert watcher.request("status")["ok"]


async def test_the_asynchronous_client_works_like_the_blocking_client(scheduler: Scheduler) -> None:
    async with AsyncControlClient(scheduler.path) as client:
        replies = await asyncio.gather(*(client.request("set", quantum=n) for n in range(1, 9)))
        assert [reply["settings"]["quantum"] for reply in replies] == list(range(1, 9))
        with pytest.raises(ControlError, match="dance"):
            await client.request("dance")
        seen: list[Any] = []

        async def watch() -> None:
            async for event in client.subscribe():
                seen.append(event["quantum"])

        watching = asyncio.create_task(watch())
        while (await client.request("set", quantum=42)) and not seen:
            await asyncio.sleep(0.01)
        assert seen[0] == 42
        scheduler.close()
        await asyncio.wait_for(client.wait_lost(), PATIENCE)
        assert not client.connected
        with pytest.raises(SchedulerUnreachable):
            await client.request("status")
        with pytest.raises(SchedulerUnreachable):
            await watching


def test_a_missing_scheduler_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnreachable, match="gpushare scheduler"):
        ControlClient(tmp_path / "none.sock")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SchedulerUnreachable, match="not a socket"):
        ControlClient(file)


async def test_the_asynchronous_client_reports_a_missing_scheduler(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnreachable, match="gpushare scheduler"):
        await AsyncControlClient(tmp_path / "none.sock").connect()


def test_a_scheduler_that_ends_is_noticed(scheduler: Scheduler) -> None:
    with scheduler.control() as control:
        control.request("status")
        scheduler.close()
        with pytest.raises(SchedulerUnreachable):
            control.request("status")
