# SPDX-License-Identifier: BSD-3-Clause
"""Interactive, or in the background: what people say, and what follows from what a group does."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jupyter_gpushare.scheduler.core.activity import ActivityClassifier
from jupyter_gpushare.scheduler.core.model import Group, Preferences, Wait


@pytest.fixture
def classes() -> ActivityClassifier:
    return ActivityClassifier(interactive_burst=2.0, interactive_pause=2.0)


@pytest.fixture
def group() -> Group:
    return Group("a", "a.ipynb", 1)


def open_cell(classes: ActivityClassifier, group: Group, now: float) -> None:
    group.cells["m"] = now
    classes.begin_cell(group, now)


def end_cell(classes: ActivityClassifier, group: Group, now: float) -> None:
    group.cells.clear()
    classes.end_cell(group, now)


def test_a_cell_is_interactive_until_it_has_had_its_burst(
    classes: ActivityClassifier, group: Group
) -> None:
    open_cell(classes, group, 10.0)
    classes.add_time(group, 1.9, 12.0)
    assert classes.class_of(group) == "interactive"
    classes.add_time(group, 0.1, 12.1)
    assert classes.class_of(group) == "background"


def test_a_long_cell_stays_in_the_background_despite_pauses(
    classes: ActivityClassifier, group: Group
) -> None:
    open_cell(classes, group, 10.0)
    classes.add_time(group, 3.0, 13.0)
    classes.add_time(group, 0.1, 100.0)
    assert classes.class_of(group) == "background"


def test_the_next_cell_is_interactive_again(classes: ActivityClassifier, group: Group) -> None:
    open_cell(classes, group, 10.0)
    classes.add_time(group, 30.0, 40.0)
    end_cell(classes, group, 40.0)
    assert classes.class_of(group) == "background"
    open_cell(classes, group, 40.1)
    assert classes.class_of(group) == "interactive"


def test_a_long_cell_with_little_gpu_time_stays_interactive(
    classes: ActivityClassifier, group: Group
) -> None:
    open_cell(classes, group, 10.0)
    for second in range(100):
        classes.add_time(group, 0.01, 10.0 + second)
    assert classes.class_of(group) == "interactive"


@pytest.mark.parametrize("priority", ["interactive", "background"])
def test_the_priority_that_a_user_sets_wins(
    classes: ActivityClassifier, group: Group, priority: str
) -> None:
    group.preferences = Preferences(priority=priority)  # type: ignore[arg-type]
    assert classes.class_of(group) == priority
    open_cell(classes, group, 10.0)
    classes.add_time(group, 3.0, 13.0)
    group.busy = 1
    assert classes.class_of(group) == priority
    assert classes.changes_at(group, 13.0) is None


def test_without_cells_short_bursts_stay_interactive(
    classes: ActivityClassifier, group: Group
) -> None:
    for number in range(20):
        classes.add_time(group, 1.0, 10.0 + 5 * number)
        assert classes.class_of(group) == "interactive"


def test_without_cells_bursts_close_to_each_other_are_one(
    classes: ActivityClassifier, group: Group
) -> None:
    for number in range(5):
        classes.add_time(group, 0.5, 10.0 + number)
    assert classes.class_of(group) == "background"


def test_without_cells_a_long_burst_predicts_a_long_one(
    classes: ActivityClassifier, group: Group
) -> None:
    classes.add_time(group, 10.0, 20.0)
    assert classes.class_of(group) == "background"
    classes.add_time(group, 0.5, 30.0)
    assert classes.class_of(group) == "background"  # as the last was
    group.wait = Wait(group, 1, 40.0)
    assert classes.class_of(group) == "interactive"  # the last was short


def test_the_time_of_the_next_change_is_reported(classes: ActivityClassifier, group: Group) -> None:
    open_cell(classes, group, 10.0)
    assert classes.changes_at(group, 10.0) is None  # it does nothing
    group.busy = 1
    assert classes.changes_at(group, 10.0) == 12.0
    classes.add_time(group, 0.5, 10.5)
    assert classes.changes_at(group, 10.5) == 12.0
    classes.add_time(group, 1.5, 12.0)
    assert classes.changes_at(group, 12.0) is None


def test_a_removed_group_starts_afresh(classes: ActivityClassifier, group: Group) -> None:
    classes.add_time(group, 10.0, 20.0)
    classes.forget(group.id)
    assert classes.class_of(group) == "interactive"


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30))
def test_the_class_changes_at_the_reported_time(pieces: list[float]) -> None:
    """A group that goes on changes at the time that was asked for, and not after it."""
    classes, group = ActivityClassifier(), Group("a", "a", 1)
    open_cell(classes, group, 0.0)
    group.busy = 1
    now = before = 0.0
    for piece in pieces:
        change = classes.changes_at(group, now)
        if change is None:
            assert classes.class_of(group) == "background"
            return
        assert change > now
        now = min(now + piece, change)
        classes.add_time(group, now - before, now)
        if now == change:
            assert classes.class_of(group) == "background"
        before = now
