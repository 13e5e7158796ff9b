# SPDX-License-Identifier: BSD-3-Clause
"""The tables of ``%gpushare``: status, history and explanations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest

from jupyter_gpushare.kernel_provisioner.in_kernel import control
from jupyter_gpushare.kernel_provisioner.in_kernel.faults import Failure
from jupyter_gpushare.kernel_provisioner.in_kernel.tables import (
    Answer,
    History,
    Status,
    columns_of,
    explanation_text,
)
from jupyter_gpushare.scheduler.core.model import Preferences
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.views.words import answers

from .cell_steps import SETUP, Ask, group_of
from .conftest import eventually, started

USUAL = asdict(Preferences())


async def test_status_is_a_table_and_json(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        data = (await kernel.execute("%gpushare")).data()
        assert "Simulated GPU" in data["text/plain"]
        assert "running" in data["text/plain"] or "idle lease" in data["text/plain"]
        assert data["text/html"].count("<table>") == 1
        assert "Simulated GPU" in data["text/html"]
        printed = (await kernel.execute("%gpushare status --json")).stream("stdout")
        assert json.loads(printed)["groups"][0]["id"] == kernel.manager.kernel_id
        same = (await kernel.execute("found = %gpushare status\nlen(found.data['gpus'])")).data()
        assert same["text/plain"] == "1"


async def test_history_is_a_table_and_json(scheduler: Ask) -> None:
    async with started() as kernel:
        assert (
            "No notebook has used"
            in (await kernel.execute("%gpushare history")).data()["text/plain"]
        )
        await kernel.execute(SETUP)
        await kernel.execute("%gpushare evict")
        await eventually(
            lambda: group_of(scheduler, kernel)["gpus"][0]["resident"] == 0, "the memory is out"
        )
        data = (await kernel.execute("%gpushare history")).data()
        lines = data["text/plain"].splitlines()
        assert all(line.startswith("*  ") for line in lines[1:])
        assert any(" ran " in line for line in lines)
        (out,) = [line for line in lines if " evicted " in line]
        assert out.endswith("8 MiB")
        assert data["text/html"].count("<tr>") == len(lines)
        printed = json.loads((await kernel.execute("%gpushare history --json")).stream("stdout"))
        assert {span["kind"] for span in printed["spans"]} >= {"burst", "out"}
        assert printed["left_out"] == 0


async def test_explain_shows_the_order_of_the_queue(scheduler: Ask) -> None:
    async with started() as kernel, started() as other:
        await kernel.execute(SETUP)
        said = (await kernel.execute("%gpushare explain")).data()
        nobody = "No notebook is waiting for the GPU or being throttled."
        assert (said["text/plain"], nobody in said["text/html"]) == (nobody, True)
        name = group_of(scheduler, kernel)["name"]
        said = (await kernel.execute(f"%gpushare explain {name}")).data()
        # A cell that has run for 0.1 s is a hint, which has a line of its own.
        first, second, *hint = said["text/plain"].splitlines()
        assert first.startswith(name)
        assert second.startswith("  interactive: its cell has used less than 2.0 s of GPU time")
        assert said["text/html"].count("<p") == 2 + len(hint)
        printed = await kernel.execute(f"%gpushare explain --json {kernel.manager.kernel_id}")
        assert json.loads(printed.stream("stdout"))["groups"][0]["name"] == name

        await other.execute(SETUP)
        scheduler("adjust", group=other.manager.kernel_id, frozen=True)
        waiting = asyncio.create_task(other.execute("work()"))
        await eventually(
            lambda: group_of(scheduler, other)["state"] == "waiting", "the frozen one waits"
        )
        said = (await kernel.execute("%gpushare explain")).data()
        assert "frozen; unfreeze it to continue" in said["text/plain"]
        assert "to run next: unfreeze it" in said["text/html"]
        scheduler("adjust", group=other.manager.kernel_id, frozen=False)
        assert (await asyncio.wait_for(waiting, 60)).reply["status"] == "ok"


def test_requests_state_the_current_control_version() -> None:
    assert control.PROTOCOL == protocol.CONTROL_VERSION


async def test_a_scheduler_of_another_version_is_reported_with_both_versions(
    scheduler: Ask,
) -> None:
    other = protocol.CONTROL_VERSION + 1
    # The modules have the name under which the kernel has loaded them from their folder.
    change = f"""
import importlib
package = type(get_ipython()._gpushare[0]).__module__.rpartition(".")[0]
importlib.import_module(package + ".control").PROTOCOL = {other}
"""
    async with started() as kernel:
        assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        assert (await kernel.execute(change)).reply["status"] == "ok"
        for line in ("status", "explain", "background"):
            assert (await kernel.execute(f"%gpushare {line}")).stream("stderr") == (
                f"UsageError: gpushare: the program sends control requests of version {other}, but the scheduler "
                f"expects version {protocol.CONTROL_VERSION}; install the same version of jupyter-gpushare for both\n"
            )
        # Cells run as before.
        assert (await kernel.execute("work()\nprint(1)")).stream("stdout") == "1\n"


def span(number: int, **fields: Any) -> dict[str, Any]:
    return {
        **{"id": number, "group": "g", "name": "a.ipynb", "kind": "burst", "start": number},
        **{"end": number + 0.5, "gpu": None, "bytes": 0},
        **fields,
    }


def test_the_history_is_bounded_and_in_order() -> None:
    spans = [span(number) for number in range(2000)]
    status = {"time": 2000.0, "timeline": {"version": 1, "start": 0.0, "spans": spans[::-1]}}
    history = History(status, "g")
    assert [s["id"] for s in history.data["spans"]] == list(range(1960, 2000))
    # Of the last ten minutes, not of all that is known.
    assert history.data["left_out"] == 600 - 40
    assert repr(history).splitlines()[0] == (
        "Showing the last 40 events; there were 560 earlier ones in the last 10 min."
    )
    assert len(repr(history).splitlines()) == 42


def test_open_and_finished_spans_are_distinguished() -> None:
    spans = [
        span(1, kind="wait", end=3.0),
        span(2, kind="wait", end=None),
        span(3, kind="in", bytes=3 << 30, end=None),
        span(4, kind="of_a_newer_scheduler"),
    ]
    status = {"time": 12.0, "timeline": {"version": 1, "start": 0.0, "spans": spans}}
    rows = History(status, "other").rows()
    assert [row[3:] for row in rows] == [
        ("waited", "2.0 s", ""),
        ("waiting", "10 s", ""),
        ("restoring", "9.0 s", "3 GiB"),
        ("of_a_newer_scheduler", "0.5 s", ""),
    ]
    assert {row[0] for row in rows} == {""}
    with pytest.raises(Failure, match="keeps no timeline"):
        History({"time": 12.0}, "other")


def group(**fields: Any) -> dict[str, Any]:
    return {
        **{"id": "g", "name": "a.ipynb", "state": "idle", "position": None, "reason": None},
        **{"gpus": [], "preferences": USUAL, "estimate": None, "yields_in": None},
        **fields,
    }


SETTINGS = {"policy": "burst", "quantum": "auto", "anti_thrash": "auto", "hibernate_after": None}


def test_the_table_shows_preferences_and_how_long_a_wait_is() -> None:
    waits = group(
        **{"class": "background"},
        state="waiting",
        position=2,
        reason={"code": "behind", "params": {"ahead_name": "b.ipynb"}},
        estimate={"seconds": 4.0, "low": 2.5, "high": 9.0},
        preferences={**USUAL, "priority": "background", "keep": True, "memory": 20 << 30},
    )
    holds = group(id="h", state="running", yields_in=3.0, preferences={**USUAL, "exclusive": True})
    found = {"gpus": [], "settings": SETTINGS, "groups": [waits, holds], "notices": []}
    status = Status(answers.status(found), "g")
    (first, second) = status.rows()
    assert first[7:] == ("exclusive", "turn ends within 3.0 s")
    assert second[2] == "waiting (2)"
    assert second[3] == "background"
    assert second[7:] == (
        "background, keep, memory 20 GiB",
        "b.ipynb is ahead in the queue; about 4 s (2-9 s)",
    )
    assert all(text in status._repr_html_() for text in (*first[7:], *second[7:]))


def test_the_table_aligns_wide_characters() -> None:
    groups = [group(id=name, name=name, state="idle") for name in ("训练.ipynb", "plot.ipynb")]
    found = {"gpus": [], "settings": SETTINGS, "groups": groups, "notices": []}
    head, *rows = repr(Status(answers.status(found), "g")).splitlines()
    start = head.index("state")
    assert [columns_of(row.split("idle")[0]) for row in rows] == [start, start]


def test_the_status_shows_maintenance_draining_and_unavailable_hibernation() -> None:
    gpu = {"uuid": "GPU-1", "index": 0, "name": "Simulated GPU", "total": 8 << 30}
    gpu |= {"used": 0, "foreign": 0, "draining": True}
    told = {"maintenance": "stops at <18:00>", "gpus": [gpu], "groups": [], "notices": []}
    told["settings"] = SETTINGS
    found = {"able": False, "code": "driver", "text": "the driver is older than 570"}
    status = Status(answers.status({**told, "hibernation": found}), "g")
    first, _, drained, asleep, _ = repr(status).splitlines()
    assert first == "Maintenance: stops at <18:00>"
    assert drained == "GPU 0 is draining: no new leases are granted"
    assert asleep == "Hibernation is unavailable: the driver is older than 570."
    assert "&lt;18:00&gt;" in status._repr_html_()


def test_an_older_scheduler_sends_codes_only() -> None:
    reason = {"code": "behind", "params": {}}
    status = Status({"gpus": [], "groups": [group(state="waiting", reason=reason), group()]}, "g")
    (first, second) = status.rows()
    assert (first[2], first[7:]) == ("waiting", ("", "behind"))
    assert (second[2], second[7:]) == ("idle", ("", ""))
    assert "older version" in explanation_text({"groups": []})


def test_the_words_of_a_newer_scheduler_are_shown() -> None:
    words = {"state": "sharing", "preferences": "twice", "why": "the moon is full"}
    reason = {"code": "full_moon", "params": {}, "text": "the moon is full"}
    status = Status({"gpus": [], "groups": [group(state="shares", reason=reason, words=words)]}, "")
    (row,) = status.rows()
    assert (row[2], row[7:]) == ("sharing", ("twice", "the moon is full"))
    assert explanation_text({"groups": [], "lines": ["a", "  b"]}) == "a\n  b"


@pytest.mark.parametrize("name", ["<script>.ipynb", "a & b", '"><b>'])
def test_names_are_escaped(name: str) -> None:
    status = Status({"gpus": [], "groups": [group(name=name)]}, "g")
    history = History({"time": 2.0, "timeline": {"start": 0.0, "spans": [span(1, name=name)]}}, "g")
    answer = Answer({}, name)
    for shown in (status, history, answer):
        assert name in repr(shown)
        assert name not in shown._repr_html_()
    assert "* " in repr(status)
