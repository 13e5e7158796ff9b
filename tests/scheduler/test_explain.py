# SPDX-License-Identifier: BSD-3-Clause
"""Explanations of the queue's order, and what each user sees of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jupyter_gpushare import docs_url
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.views.explain import compare, explain
from jupyter_gpushare.scheduler.views.words import answers, explanations
from tests.scheduler.core_machine import GPU, Machine, Process


def explained(machine: Machine, group: str | None = None) -> list[dict[str, Any]]:
    return list(explain(machine.core, machine.now, group)["groups"])


def of(machine: Machine, group: str) -> dict[str, Any]:
    (found,) = explained(machine, group)
    return found


def waits(machine: Machine, group: str, **more: Any) -> Process:
    """One that cannot be served while another holds 75 GiB."""
    process = machine.process(group, 60, **more)
    process.request()
    return process


def lines(machine: Machine, group: str | None = None) -> list[str]:
    answer = explain(machine.core, machine.now, group)
    said: list[str] = answers.explanation(answer)["lines"]
    # Every code has words.
    codes = {
        code["code"]
        for each in answer["groups"]
        for code in (each["why_class"], each["pace"], each["next"], *each["before"])
        if code is not None
    }
    known = {
        **explanations.CLASSES,
        **explanations.PACES,
        **explanations.NEXT,
        **explanations.RULES,
    }
    assert codes <= known.keys()
    return said


def cell(machine: Machine, group: str, name: str) -> None:
    machine.do(ev.Cell(group, "begin", name, machine.now, True))


def test_earlier_requests_are_ahead() -> None:
    m = Machine()
    m.runs("a", 75)
    waits(m, "b")
    m.sleep(3)
    waits(m, "c")
    m.sleep(1)
    first, second = explained(m)
    assert (first["group"], first["before"], first["next"]["code"]) == ("b", [], "room")
    assert first["waited"] == pytest.approx(4)
    assert first["reason"]["code"] == "needs_memory"
    (before,) = second["before"]
    assert (before["group"], before["code"]) == ("b", "came")
    assert before["params"]["own"] - before["params"]["theirs"] == pytest.approx(3)
    assert second["next"] == {"code": "served", "params": {"count": 1, "ahead": "b.ipynb"}}
    said = lines(m)
    assert said[0].startswith("b.ipynb has been waiting for 4.0 s: needs 35 GiB more")
    assert said[2] == "  to run next: it is next in line; see the reason above"
    assert said[3] == f"  see {docs_url('reference/messages')}#needs-memory"
    assert said[4] == "c.ipynb has been waiting for 1.0 s: b.ipynb is ahead in the queue"
    assert said[6] == "  1. b.ipynb has been waiting 3.0 s longer"
    assert said[7] == "  to run next: wait for b.ipynb"


def test_background_requests_count_as_later() -> None:
    m = Machine()
    m.runs("a", 75)
    waits(m, "b")
    m.do(ev.Adjust("b", priority="background"))
    m.sleep(1)
    waits(m, "c")
    found = of(m, "b")
    assert found["why_class"] == {"code": "asked", "params": {}}
    (before,) = found["before"]
    assert (before["group"], before["code"]) == ("c", "background")
    assert before["params"] == {"own": 30.0, "theirs": 0.0}
    assert found["next"]["code"] == "interactive"
    said = lines(m, "b")
    assert said[1] == "  background (set manually)"
    assert "is interactive (background notebooks count as 30 s later)" in said[2]


def test_a_long_cell_is_in_the_background_and_the_next_one_is_not() -> None:
    m = Machine(interactive_burst=2.0)
    a = m.process("a", 75)
    cell(m, "a", "1")
    a.request()
    a.restore()
    assert of(m, "a")["why_class"]["code"] == "fresh_cell"
    m.sleep(3)
    found = of(m, "a")
    assert (found["class"], found["why_class"]["code"]) == ("background", "long_cell")
    assert lines(m, "a")[1] == (
        "  background: its cell has used 2.0 s of GPU time; the next cell is interactive again"
    )
    m.do(ev.Cell("a", "end", "1", m.now, True))
    assert of(m, "a")["why_class"]["code"] == "long_use"
    cell(m, "a", "2")
    assert of(m, "a")["class"] == "interactive"


def test_the_focused_notebook_comes_first_among_those_of_its_user() -> None:
    m = Machine()
    m.runs("a", 75)
    waits(m, "b")
    m.sleep(1)
    waits(m, "c")
    m.do(ev.Focus("", "c"))
    found = of(m, "b")
    assert [(b["group"], b["code"]) for b in found["before"]] == [("c", "focus")]
    assert found["next"]["code"] == "focus"
    assert "counts as waiting 5.0 s longer" in lines(m, "b")[2]


def test_between_users_past_gpu_time_decides() -> None:
    m = Machine()
    a = m.runs("a", 75, user="ada")
    m.sleep(4)
    a.end()
    a.begin()
    waits(m, "b", user="ada")
    m.sleep(1)
    waits(m, "c", user="ben")
    (before,) = of(m, "b")["before"]
    assert (before["group"], before["user"], before["code"]) == ("c", "ben", "user_share")
    params = before["params"]
    assert (params["whose"], params["their_whose"]) == ("user:ada", "user:ben")
    assert params["used"] > params["their_used"] == 0
    assert "user ben used 0% of the GPU and user ada used" in lines(m, "b")[2]
    m.do(ev.Entitle("team:t", ev.Entitlement(request=0.4), ("ben",)))
    m.sleep(0.5)
    (before,) = of(m, "b")["before"]
    assert (before["params"]["their_whose"], before["params"]["their_request"]) == ("team:t", 0.4)
    assert "team t used 0%" in lines(m, "b")[2]
    assert "it is guaranteed 40%" in lines(m, "b")[2]


def test_a_request_that_the_core_passes_over_is_ahead_of_no_other() -> None:
    m = Machine()
    m.runs("a", 75)
    waits(m, "b")
    m.sleep(1)
    waits(m, "c")
    m.do(ev.Adjust("b", frozen=True))
    assert of(m, "c")["before"] == []
    found = of(m, "b")
    assert (found["reason"]["code"], found["next"]["code"]) == ("frozen", "unfreeze")
    m.do(ev.Adjust("b", frozen=False))
    assert [b["group"] for b in of(m, "c")["before"]] == ["b"]


def test_a_group_at_its_gpu_time_limit_is_shown_when_it_may_continue() -> None:
    m = Machine()
    a = m.runs("a", 60)
    m.do(ev.Adjust("a", limit=0.1))
    m.sleep(5)
    m.do(ev.Meter(a.number, GPU, 5.0, 9, m.now))
    a.end()
    m.do(ev.Release("a"))
    a.release()
    a.request()
    found = of(m, "a")
    assert (found["reason"]["code"], found["next"]["code"]) == ("limited", "limit")
    assert found["next"]["params"]["until_in"] > 0
    said = lines(m, "a")
    assert "it has reached the GPU time limit; more in" in said[0]
    assert "or raise its GPU time limit" in said[-2]


def test_a_revoked_group_is_explained_as_behind_the_group_that_preempted_it() -> None:
    m = Machine()
    a, other = m.runs("a", 40), m.runs("c", 40)
    m.process("b", 90).request()
    m.sleep(35)
    a.release()
    a.request()
    assert other.state == "finishing"
    (before,) = of(m, "a")["before"]
    assert (before["group"], before["code"]) == ("b", "made_way")
    assert "preempted this notebook" in "\n".join(lines(m, "a"))


def test_a_throttled_group_is_shown_the_notebook_that_it_is_throttled_for() -> None:
    m = Machine(interactive_burst=2.0)
    m.runs("train", 20)
    m.sleep(4)
    assert explained(m) == []
    b = m.process("plot", 20)
    cell(m, "plot", "1")
    b.request()
    b.restore()
    (found,) = explained(m)
    assert (found["group"], found["class"], found["before"]) == ("train", "background", [])
    whom = {"names": ["plot.ipynb"], "groups": ["plot"]}
    assert found["pace"] == {"code": "paused", "params": whom}
    assert lines(m)[0] == "train.ipynb running: paused while plot.ipynb is running"
    m.sleep(0.02)
    b.end()
    (found,) = explained(m)
    assert found["pace"]["code"] == "bounded"
    assert lines(m)[0] == (
        "train.ipynb running: throttled to 1 ms of work at a time, because plot.ipynb is in use"
    )


def test_without_a_wait_there_is_nothing_to_explain() -> None:
    m = Machine()
    m.runs("a", 10)
    assert lines(m) == ["No notebook is waiting for the GPU or being throttled."]
    assert of(m, "a")["next"] is None
    assert lines(m, "a")[0] == "a.ipynb running"


def test_explaining_changes_nothing() -> None:
    found = []
    for asks in (False, True):
        m = Machine(interactive_burst=2.0)
        m.do(ev.Entitle("user:ada", ev.Entitlement(0.3, 0.6)))
        m.runs("a", 75, user="ada")
        seen = []
        for number in range(60):
            if number < 5:
                waits(m, f"b{number}", user="ada" if number % 2 else "ben")
            if asks:
                explained(m)
            seen.append(m.sleep(0.7))
        found.append(seen)
    assert found[0] == found[1]
    assert any(found[0])


@pytest.mark.parametrize(
    ("own", "theirs", "rule"),
    [
        (({"a": 1.0},), ({"a": 1.0},), None),
        (({"a": 1.0},), ({"a": 2.0},), None),
        (({"a": 2.0},), ({"a": 1.0},), ("a", 2.0, 1.0)),
        (({"a": 1.0}, {"b": 3.0}), ({"a": 1.0}, {"b": 2.0}), ("b", 3.0, 2.0)),
        (({"a": 1.0}, {"b": 1.0}), ({"a": 0.0}, {"b": 9.0}), ("a", 1.0, 0.0)),
        # Of the parts of a sum, one in favour of the first group, although another part differs more.
        (({"a": -20.0, "b": 15.0, "c": 6.0},), ({"c": 0.0},), ("b", 15.0, 0.0)),
        (({"a": 5.0},), ({"b": -3.0, "a": 4.0},), ("b", 0.0, -3.0)),
    ],
)
def test_the_first_sum_that_differs_decides(own: Any, theirs: Any, rule: Any) -> None:
    assert compare(own, theirs) == rule


def test_rules_of_a_third_party_policy_are_named() -> None:
    said = answers.explanation(
        {
            "groups": [
                {
                    **{"name": "a", "state": "waiting", "waited": 2.0, "class": "interactive"},
                    **{"reason": None, "pace": None, "why_class": {"code": "new", "params": {}}},
                    "before": [{"name": "b", "code": "moon_phase", "params": {"own": 1.0}}],
                    "next": {"code": "full_moon", "params": {}},
                }
            ]
        }
    )
    lines = [
        "a has been waiting for 2.0 s",
        "  new",
        "  1. b moon phase",
        "  to run next: full moon",
    ]
    assert said["lines"] == lines
    (group,) = said["groups"]
    assert [group[key]["text"] for key in ("why_class", "next")] == ["new", "full moon"]
    assert (group["reason"], group["pace"], group["before"][0]["text"]) == (
        None,
        None,
        "moon phase",
    )


def test_every_rule_of_our_policies_has_words() -> None:
    for policy in ("burst", "fcfs", "tgs", "gemini", "priority"):
        rng = random.Random(policy)
        m = Machine(policy=policy)
        m.runs("a", 75)
        for number in range(3):
            waits(m, f"b{number}", user=rng.choice(["ada", "ben"]))
            m.sleep(0.5)
        names = {name for wait in m.core.queue for part in wait.parts for name in part}
        assert names <= explanations.RULES.keys()
        lines(m)
