# SPDX-License-Identifier: BSD-3-Clause
"""What status, explanations, metrics and reports show of memory that is clean, shared or on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare.cli.show.report import use_table
from jupyter_gpushare.cli.show.status import render
from jupyter_gpushare.kernel_provisioner.in_kernel.tables import Status
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.observability.counters import Counters
from jupyter_gpushare.scheduler.observability.usage_report import HOUR
from jupyter_gpushare.scheduler.views import status as snapshot
from jupyter_gpushare.scheduler.views.explain import explain
from jupyter_gpushare.scheduler.views.redaction import Pseudonyms, View
from jupyter_gpushare.scheduler.views.words import answers
from jupyter_gpushare.scheduler.views.words.events import event_text
from jupyter_gpushare.scheduler.views.words.explanations import explanation_lines, with_texts
from tests.scheduler.core_machine import GIB, GPU, Lab, Process, of
from tests.scheduler.usage_histories import NOON, Opener
from tests.support.consistency import check


def state(lab: Lab) -> dict[str, Any]:
    return snapshot.status(lab.core, lab.now)


def states(process: Process, **usage: int) -> None:
    """Report other figures than the process would by itself, in GiB."""
    changed = {kind: size * GIB for kind, size in usage.items()}
    process.machine.do(ev.UsageChanged(process.number, replace(process.usage(), **changed)))


def test_each_byte_is_in_one_place() -> None:
    lab = Lab()
    process = lab.runs("a", 40)
    states(process, resident=24, clean=20, host=10, shared=4, disk=6)
    said = state(lab)
    check(said)
    [share] = said["groups"][0]["gpus"]
    assert {kind: share[kind] // GIB for kind in (*snapshot.KINDS, "footprint")} == {
        **{"resident": 24, "clean": 20, "swapped": 10, "shared": 4, "disk": 6},
        **{"unevictable": 0, "context": 0, "footprint": 40},
    }
    assert (said["host"]["swapped"], said["host"]["disk"]) == (10 * GIB, 6 * GIB)


def test_what_is_stored_once_is_counted_once() -> None:
    lab = Lab()
    for group in ("a", "b"):
        states(lab.process(group, 40), host=40, shared=30)
    lab.do(ev.HostMemory(100 * GIB, shared=30 * GIB))
    said = state(lab)
    check(said)
    assert [group["gpus"][0]["swapped"] for group in said["groups"]] == [40 * GIB, 40 * GIB]
    assert (said["host"]["swapped"], said["host"]["shared"]) == (50 * GIB, 30 * GIB)


def evict(lab: Lab, process: Process, **parts: int) -> None:
    """Let a new group take the room of an idle one; of the moved GiB, these need no copy."""
    process.end()
    lab.do(ev.Release(process.group))
    process.release()
    lab.sleep(10)
    [order] = of(ev.Evict, lab.process("new", 96).request() + lab.sleep(1))
    process.resident -= order.bytes
    copied = order.bytes - sum(parts.values()) * GIB
    known = {name: size * GIB for name, size in parts.items() if name != "clean"}
    lab.do(
        ev.Evicted(
            process.number, order.serial, process.usage(), order.bytes, copied, 0.5, "done",
            hashed=order.bytes, **known,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"clean": 21}, "21 GiB of 24 GiB left without a copy, because they had not changed"),
        ({}, "all 24 GiB were copied, because they had changed"),
        (
            {"clean": 10, "zero": 2, "shared": 8},
            "20 GiB of 24 GiB left without a copy: 10 GiB had not changed since the last copy, 2 GiB contained only "
            "zeros, 8 GiB was already in host memory for another notebook of the same user",
        ),
    ],
)
def test_explain_says_why_an_eviction_copied_how_much(parts: dict[str, int], text: str) -> None:
    lab = Lab()
    process = lab.runs("a", 28)
    evict(lab, process, **parts)
    lab.sleep(4)
    found = explain(lab.core, lab.now, "a")
    [group] = found["groups"]
    moved = group["moved"]["params"]
    assert moved["bytes"] == moved["copied"] + moved["clean"] + moved["zero"] + moved["shared"]
    worded = with_texts(group)
    assert worded["moved"]["text"].endswith(f" ago; {text}")
    assert f"  {worded['moved']['text']}" in explanation_lines([worded])
    # It would tell another user what the notebooks of this one have in common.
    [other] = View("eve", frozenset(), lambda _: "ada", Pseudonyms()).explanation(found)["groups"]
    assert other["moved"] is None
    counters = Counters()
    for log in lab.history:
        counters.observe(log, lab.core)
    assert counters.uncopied == {(GPU, name): size * GIB for name, size in parts.items()}
    [log] = [log for log in lab.history if log.kind == "evict"]
    copied = 24 - sum(parts.values())
    assert event_text({"kind": "evict", **log.fields}) == (
        f"had 24 GiB of its memory evicted, {copied} GiB of it with a copy"
    )


def test_explain_says_nothing_of_an_eviction_that_was_a_plain_copy() -> None:
    lab = Lab()
    process = lab.runs("a", 28)
    process.end()
    lab.do(ev.Release("a"))
    process.release()
    lab.sleep(10)
    [order] = of(ev.Evict, lab.process("new", 96).request() + lab.sleep(1))
    process.evict(order)
    [group] = explain(lab.core, lab.now, "a")["groups"]
    assert group["moved"] is None


@pytest.mark.parametrize("shown", [True, False])
def test_the_tables_show_what_is_clean_shared_or_on_disk_and_hide_zeros(shown: bool) -> None:
    lab = Lab()
    process = lab.runs("a", 40)
    if shown:
        lab.do(ev.HostMemory(100 * GIB, shared=4 * GIB))
        states(process, resident=24, clean=20, host=10, shared=4, disk=6)
        states(lab.process("b", 4), host=4, shared=4)
    said = {**state(lab), "driver": {"simulated": False}}
    if shown:
        said["host"]["disk_tier"] = {"used": 6 * GIB, "size": 9 * GIB, "fault": ""}
    text = render(said).plain
    table = str(Status(answers.status(said), "a")._repr_html_())
    for part in ("24 GiB (20 GiB clean)", "10 GiB (4 GiB shared)", "6 GiB"):
        assert (part in text) is shown
        assert (part in table) is shown
    for part in ("ON DISK", "4 GiB saved by sharing", "disk 6 GiB of 9 GiB in use"):
        assert (part in text) is shown
    assert ("on disk" in table) is shown


def test_reports_have_a_column_for_the_disk_if_it_was_used() -> None:
    row = {
        **{"user": "ada", "seconds": 1, "gpu_byte_seconds": 0, "host_byte_seconds": 0},
        **{"moved": 0, "energy": None, "disk_byte_seconds": 0},
    }
    assert "DISK" not in use_table({"rows": [row]}, ["user"]).plain
    row["disk_byte_seconds"] = 3 * GIB * 3600
    assert " 3.00 " in use_table({"rows": [row]}, ["user"]).plain


def test_a_usage_history_of_an_older_version_gets_the_new_column(
    open_history: Opener, tmp_path: Path, make_old: Callable[[Path], None]
) -> None:
    path = tmp_path / "usage.sqlite3"
    make_old(path)
    [row] = open_history(path).uses(NOON, NOON + HOUR, ("user",), None, NOON)()
    assert (row["user"], row["host_byte_seconds"], row["disk_byte_seconds"]) == ("ada", 3, 0)


@pytest.fixture
def make_old() -> Callable[[Path], None]:
    """Return a function that makes a history as versions without a disk tier did."""

    def make(path: Path) -> None:
        with sqlite3.connect(path) as database:
            columns = "seconds, measured, gpu_bytes, host_bytes, moved, energy"
            database.execute(
                f"CREATE TABLE notebooks (hour INTEGER, user TEXT, team TEXT, notebook TEXT, {columns}, "
                "PRIMARY KEY (hour, user, team, notebook)) WITHOUT ROWID"
            )
            row = (NOON // HOUR, "ada", "", "a.ipynb", 1, 1, 2, 3, 4, 5)
            database.execute("INSERT INTO notebooks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.close()

    return make
