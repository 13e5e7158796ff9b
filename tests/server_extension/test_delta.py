# SPDX-License-Identifier: BSD-3-Clause
"""A page that applies the deltas has what the server has, but for what counts with time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.server_extension.delta import Changes
from tests.server_extension.page import apply, settled

SECONDS = st.floats(0, 20)

GROUP = {
    "id": "a",
    "name": "train.ipynb",
    "user": "ada",
    "class": "interactive",
    "state": "waiting",
    "since": 1.0,
    "position": 1,
    "reason": {"code": "needs_memory", "params": {"lack": 5, "holder": "b", "yields_in": 4.0}},
    "yields_in": 10.0,
    "estimate": {"seconds": 8.0, "low": 6.0, "high": 12.0},
    "cell": {"msg_id": "m", "since": 1.0, "waited": 2.0, "ran": 1.0},
    "last_cell": {"msg_id": "l", "waited": 1.0, "ran": 1.0},
    "totals": {"bursts": 1, "waited": 2.0, "ran": 1.0},
    "sessions": [],
}

STATE: dict[str, Any] = {
    "time": 100.0,
    "availability": {"code": "ok", "params": {}},
    "host": None,
    "settings": None,
    "hibernation": None,
    "notices": [],
    "unshared": [],
    "gpus": [],
    "groups": [GROUP],
}


@st.composite
def groups(draw: st.DrawFn, name: str) -> dict[str, Any]:
    reason: Any = draw(st.sampled_from(["none", "needs_memory", "draining", "behind", "limited"]))
    params = {
        "needs_memory": {"lack": draw(st.integers(0, 1)), "yields_in": draw(st.none() | SECONDS)},
        "draining": {"for": draw(SECONDS)},
        "behind": {"ahead": draw(st.sampled_from("ab"))},
        "limited": {"until_in": draw(SECONDS), "whose": draw(st.sampled_from("ab"))},
    }
    estimate = st.fixed_dictionaries({"seconds": SECONDS, "low": SECONDS, "high": SECONDS})
    return {
        "id": name,
        "state": draw(st.sampled_from(["running", "waiting"])),
        "reason": None if reason == "none" else {"code": reason, "params": params[reason]},
        "yields_in": draw(st.none() | SECONDS),
        "estimate": draw(st.none() | estimate),
        "cell": draw(st.none() | st.fixed_dictionaries({"waited": SECONDS, "ran": SECONDS})),
        "totals": {"bursts": draw(st.integers(0, 1)), "waited": draw(SECONDS), "ran": 0.0},
    }


@st.composite
def states(draw: st.DrawFn) -> list[dict[str, Any]]:
    found, now = [], 0.0
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([0.0, 0.1, 3.0]))
        names = draw(st.sets(st.sampled_from("abc")))
        found.append(
            {
                **STATE,
                "time": now,
                "availability": {"code": draw(st.sampled_from(["ok", "starting"])), "params": {}},
                "gpus": [{"uuid": "g", "free": draw(st.integers(0, 2))}],
                "groups": [draw(groups(name)) for name in sorted(names)],
            }
        )
    return found


@given(states(), st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 5))
def test_deltas_lead_to_the_state(
    steps: list[dict[str, Any]], emissions: list[bool], asked: int
) -> None:
    changes = Changes(steps[0])
    early, late = copy.deepcopy(steps[0]), None
    for number, state in enumerate(steps):
        changes.see(state)
        if number == asked:
            # It asked between two deltas: the next brings again what it has in part.
            late = copy.deepcopy(state)
        if emissions[number] or number == len(steps) - 1:
            delta = copy.deepcopy(changes.take())
            apply(early, delta)
            assert settled(early) == settled(state)
            if late is not None:
                apply(late, delta)
                assert settled(late) == settled(state)
            assert not changes.any


def told(after: dict[str, Any], passed: float) -> bool:
    """Whether a page is told of what a group is after some seconds."""
    state = {**STATE, "time": 100.0 + passed, "groups": [after]}
    changes = Changes(STATE)
    changes.see(state)
    if not changes.any:
        return False
    assert changes.take()["groups"] == [after]
    changes.see(state)
    assert not changes.any, "it was told"
    return True


def changed(path: str, value: Any) -> dict[str, Any]:
    group = copy.deepcopy(GROUP)
    *parents, last = path.split(".")
    place: Any = group
    for name in parents:
        place = place[name]
    place[last] = value
    return group


def counted(passed: float) -> dict[str, Any]:
    """Return the group as it is when all has counted."""
    group: Any = copy.deepcopy(GROUP)
    group["yields_in"] -= passed
    group["reason"]["params"]["yields_in"] -= passed
    group["estimate"] = {name: value - passed for name, value in group["estimate"].items()}
    group["cell"]["waited"] += passed
    group["totals"]["waited"] += passed
    return group  # type: ignore[no-any-return]


def test_values_that_only_count_up_are_not_sent() -> None:
    assert not told(GROUP, 0.0)
    assert not told(counted(3.0), 3.0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("yields_in", 9.4),
        ("yields_in", 10.6),
        ("yields_in", None),
        ("reason.params.yields_in", 3.0),
        ("reason.params.yields_in", None),
        ("reason.params.lack", 6),
        ("reason.code", "behind"),
        ("reason", None),
        ("estimate.seconds", 10.0),
        ("estimate.low", 4.5),
        ("estimate", None),
        ("cell.waited", 2.6),
        ("cell.waited", 1.0),
        ("cell.msg_id", "n"),
        ("cell", None),
        ("last_cell.ran", 1.1),
        ("totals.bursts", 2),
        ("totals.ran", 9.0),
        ("state", "running"),
        ("class", "background"),
        ("sessions", [{"path": "a"}]),
    ],
)
def test_a_jump_is_sent(path: str, value: Any) -> None:
    assert told(changed(path, value), 0.0)


def test_small_differences_are_not_sent() -> None:
    assert not told(changed("yields_in", 10.4), 0.0)
    assert not told(changed("estimate.seconds", 9.5), 0.0)


@pytest.mark.parametrize("name", ["yields_in", "estimate"])
def test_a_counter_that_stands_still_is_sent(name: str) -> None:
    assert told({**counted(3.0), name: GROUP[name]}, 3.0)


def test_slow_drift_is_sent_once_it_is_large() -> None:
    changes = Changes(STATE)
    times = []
    for step in range(1, 31):
        changes.see({**STATE, "time": 100.0 + step / 10})
        if changes.any:
            times.append(changes.take()["time"])
    assert len(times) in (4, 5)


def test_a_removed_gpu_requires_the_whole_state() -> None:
    changes = Changes({**STATE, "gpus": [{"uuid": "g"}]})
    changes.see(STATE)
    assert changes.any
    assert changes.unspeakable
    changes.take()
    changes.see(STATE)
    assert not changes.any
