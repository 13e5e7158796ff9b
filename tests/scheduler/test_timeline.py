# SPDX-License-Identifier: BSD-3-Clause
"""The timeline, and what cells took, from what was seen of the groups."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.views.timeline import GroupSnapshot, Ledger, Timeline
from tests.scheduler.timelines import told

GPU = "GPU-0"


def seen(
    time: float,
    group: str = "a",
    *,
    ran: float | None = None,
    waited: float | None = None,
    cells: dict[str, float] | None = None,
    left: bool = False,
    hibernated: float | None = None,
) -> GroupSnapshot:
    return GroupSnapshot(
        time,
        group,
        f"{group}.ipynb",
        ran,
        waited,
        cells or {},
        left=left,
        hibernated_since=hibernated,
    )


def spans(timeline: Timeline, version: int = 0, now: float = 100.0) -> list[tuple[Any, ...]]:
    return [(s["kind"], s["start"], s["end"]) for s in told(timeline, version, now)["spans"]]


def moved(bytes: int, duration: float) -> dict[str, Any]:
    return {"gpu": GPU, "bytes": bytes, "copied": 0, "duration": duration, "status": "done"}


def test_a_wait_ends_when_the_burst_begins_and_a_burst_when_it_is_over() -> None:
    timeline = Timeline(0.0)
    timeline.observe(seen(10, waited=9.5))
    assert spans(timeline) == [("wait", 9.5, None)]
    timeline.observe(seen(12, ran=12))
    timeline.observe(seen(13, ran=12))
    timeline.observe(seen(15))
    timeline.observe(seen(16))
    assert spans(timeline) == [("wait", 9.5, 12), ("burst", 12, 15)]


def test_hibernation_lasts_until_the_wait_for_the_wake_begins() -> None:
    timeline = Timeline(0.0)
    timeline.observe(seen(10, hibernated=10))
    timeline.observe(seen(20, hibernated=10))
    timeline.observe(seen(30, waited=30))
    timeline.observe(seen(31, ran=31))
    assert spans(timeline) == [("hibernated", 10, 30), ("burst", 31, None), ("wait", 30, 31)]


def test_a_group_that_leaves_ends_its_open_spans() -> None:
    timeline = Timeline(0.0)
    timeline.observe(seen(1, "b", ran=1))
    timeline.observe(seen(2, ran=2, waited=2))
    timeline.observe(seen(3, left=True))
    assert spans(timeline) == [("burst", 1, None), ("burst", 2, 3), ("wait", 2, 3)]


def test_a_burst_without_an_observed_end_ends_with_the_next() -> None:
    timeline = Timeline(0.0)
    timeline.observe(seen(1, ran=1))
    timeline.observe(seen(8, ran=7))
    assert spans(timeline) == [("burst", 1, 7), ("burst", 7, None)]


def test_pieces_of_one_move_are_one_span() -> None:
    timeline = Timeline(0.0)
    for piece in range(10):
        timeline.move(10 + piece * 0.2, "a", "a.ipynb", "in", moved(100, 0.1))
    (span,) = told(timeline, 0, 20)["spans"]
    assert span == {
        "id": span["id"], "group": "a", "name": "a.ipynb", "kind": "in", "gpu": GPU,
        "start": pytest.approx(9.9), "end": pytest.approx(11.8), "bytes": 1000,
    }  # fmt: skip
    timeline.move(11.9, "a", "a.ipynb", "out", moved(7, 0.05))
    timeline.move(12.0, "a", "a.ipynb", "in", moved(8, 0.05))
    timeline.move(12.0, "b", "b.ipynb", "in", moved(9, 0.05))
    timeline.move(20.0, "b", "b.ipynb", "in", moved(9, 0.05))
    timeline.move(21.0, "b", "b.ipynb", "in", moved(0, 0.0))
    assert [s["bytes"] for s in told(timeline, 0, 30)["spans"]] == [1000, 7, 8, 9, 9]


def test_only_changes_are_sent() -> None:
    timeline = Timeline(0.0)
    timeline.observe(seen(1, ran=1))
    timeline.observe(seen(2, "b", waited=2))
    timeline.utilization(2.5, GPU, 40)
    version = told(timeline, 0, 3)["version"]
    again = told(timeline, version, 4)
    assert (again["version"], again["spans"], again["samples"]) == (version, [], [])
    timeline.observe(seen(5))
    timeline.utilization(6, GPU, 50)
    news = told(timeline, version, 7)
    assert [(s["id"], s["end"]) for s in news["spans"]] == [(1, 5)]
    assert news["samples"] == [[6, GPU, 50]]
    assert len(told(timeline, 0, 7)["spans"]) == 2


def test_an_unchanged_level_is_recorded_every_ten_seconds() -> None:
    timeline = Timeline(0.0)
    for second in range(25):
        timeline.utilization(second, GPU, 3)
    timeline.utilization(25, GPU, None)
    timeline.utilization(26, GPU, 4)
    assert [s[0] for s in told(timeline, 0, 30)["samples"]] == [0, 10, 20, 26]


def test_old_spans_are_deleted_but_open_spans_are_not() -> None:
    timeline = Timeline(0.0, keep=100)
    timeline.observe(seen(1, "b", ran=1))
    for second in range(10, 60, 10):
        timeline.observe(seen(second, ran=second))
        timeline.observe(seen(second + 5))
        timeline.utilization(second, GPU, second)
    assert told(timeline, 0, 60)["start"] == 0
    found = told(timeline, 0, 135.5)
    assert found["start"] == 35.5
    assert [(s["group"], s["start"]) for s in found["spans"]] == [("b", 1), ("a", 40), ("a", 50)]
    assert [s[0] for s in found["samples"]] == [40, 50]


def test_the_timeline_is_bounded() -> None:
    timeline = Timeline(0.0, most=10)
    timeline.observe(seen(0.5, "b", ran=0.5))
    for second in range(1, 100):
        timeline.observe(seen(second, ran=second))
        timeline.observe(seen(second + 0.5))
    found = told(timeline, 0, 100)
    assert [s["start"] for s in found["spans"]] == [0.5, *range(91, 100)]
    assert found["start"] == 90.5


def test_a_deleted_move_does_not_reappear() -> None:
    timeline = Timeline(0.0, most=1)
    timeline.move(1.0, "a", "a.ipynb", "in", moved(1, 0.5))
    timeline.observe(seen(1.0, ran=1.0))
    timeline.move(1.1, "a", "a.ipynb", "in", moved(1, 0.1))
    assert [k for k, _, _ in spans(timeline)] == ["burst"]


def test_old_spans_are_deleted_without_a_query() -> None:
    timeline = Timeline(0.0, keep=100)
    for second in range(1000):
        timeline.observe(seen(second, f"g{second}", ran=second))
        timeline.move(second, f"g{second}", "g", "out", moved(1, 0.1))
        timeline.observe(seen(second, f"g{second}", left=True))
        # What was still on its way when its group left.
        timeline.move(second + 0.5, f"g{second}", "g", "in", moved(1, 0.1))
        timeline.utilization(second, GPU, second)
    assert len(timeline._samples) == len(timeline._moves) == 101
    assert len(timeline._spans) < 400


# --- What cells took ------------------------------------------------------------------------------


def test_a_cell_has_its_wait_and_run_time() -> None:
    ledger = Ledger()
    ledger.observe(seen(0, ran=0))
    ledger.observe(seen(5))
    ledger.observe(seen(10, cells={"m1": 10}))
    assert ledger.last_cell("a") is None
    ledger.observe(seen(11, waited=11, cells={"m1": 10}))
    assert ledger.cell("a", "m1", 12) == {"waited": 1, "ran": 0}
    ledger.observe(seen(13, ran=13, cells={"m1": 10}))
    assert ledger.cell("a", "m1", 16) == {"waited": 2, "ran": 3}
    ledger.observe(seen(17, cells={"m1": 10}))
    ledger.observe(seen(18))
    assert ledger.last_cell("a") == {"msg_id": "m1", "waited": 2, "ran": 4}
    assert ledger.cell("a", "m1", 20) == {"waited": 0, "ran": 0}
    assert ledger.totals("a", 20) == {"waited": 2, "ran": 9}


def test_a_cell_may_begin_before_its_group_is_known() -> None:
    ledger = Ledger()
    ledger.observe(seen(3))
    ledger.observe(seen(3.5, waited=3.5))
    ledger.observe(seen(5, ran=5))
    ledger.observe(seen(6))
    ledger.observe(seen(7, ran=7))
    # The server hears of the cell that has been open all the time.
    ledger.observe(seen(8, ran=7, cells={"m1": 1}))
    assert ledger.cell("a", "m1", 8) == {"waited": 1.5, "ran": 2}
    # And this one is told about late, too: it began within the first burst.
    ledger.observe(seen(9, ran=7, cells={"m1": 1, "m2": 5.25}))
    assert ledger.cell("a", "m2", 9) == {"waited": 0, "ran": 2.75}


def test_a_group_that_returns_to_its_place_did_not_wait_while_served() -> None:
    ledger, timeline = Ledger(), Timeline(0.0)
    for one in (seen(1, waited=1), seen(4, ran=4), seen(6, waited=1), seen(9, ran=9)):
        timeline.observe(ledger.observe(one))
    waits = [s for s in spans(timeline) if s[0] == "wait"]
    assert waits == [("wait", 1, 4), ("wait", 6, 9)]


def test_a_group_that_left_is_forgotten() -> None:
    ledger = Ledger()
    ledger.observe(seen(1, cells={"m": 1}))
    ledger.observe(seen(2))
    assert ledger.last_cell("a") is not None
    ledger.observe(seen(3, left=True))
    assert ledger.last_cell("a") is None
