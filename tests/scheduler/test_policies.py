# SPDX-License-Identifier: BSD-3-Clause
"""Policies under the real core: the order of groups, evictions, and the pace of concurrent groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.policies import OURS
from tests.scheduler.core_machine import FREE, GPU, Lab, Process, of
from tests.scheduler.turns import Turns, waiting
from tests.support.properties import examples

# --- Alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(OURS))
@pytest.mark.parametrize("priority", ["auto", "interactive", "background"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_sole_holder_is_never_limited(policy: str, priority: Any, shared: bool) -> None:
    lab = Lab(policy=policy)
    lab.asks("a", priority=priority)
    if shared:
        lab.entitle("user:ada", request=0.5, weight=3)
        lab.entitle("user:ben", limit=0.1)
    a = lab.runs("a", 50, user="ada")
    lab.begin("a")
    lab.works([a], 20)
    assert lab.paced == {}


@pytest.mark.parametrize("policy", sorted(OURS))
def test_a_holder_left_alone_is_unlimited_again(policy: str) -> None:
    lab = Lab(policy=policy)
    lab.asks("b", priority="background")
    a, b = lab.runs("a", 40, user="ada"), lab.process("b", 40, user="ben")
    b.request()
    lab.works([a, b], 12)
    lab.end(a)
    lab.do(ev.Release("a"))
    a.release()
    lab.sleep(1)
    assert lab.pace(b) == FREE


# --- burst: order ---------------------------------------------------------------------------------


def test_the_earlier_of_two_equal_requests_comes_first() -> None:
    lab = Lab()
    waiting(lab, a={}, b={}, c={})
    assert lab.order == ["a", "b", "c"]


def test_background_work_comes_later_but_is_served() -> None:
    lab = Lab()
    waiting(lab, a={"priority": "background"}, b={})
    assert lab.order == ["b", "a"]
    lab.sleep(40)
    c = lab.process("c", 20)
    c.request()
    assert lab.order == ["b", "a", "c"]


def test_the_focused_notebook_comes_first_among_those_of_its_user() -> None:
    lab = Lab()
    waiting(lab, a={}, b={}, c={})
    lab.do(ev.Focus("", "c"))
    assert lab.order == ["c", "a", "b"]
    lab.do(ev.Focus("", ""))
    assert lab.order == ["a", "b", "c"]


def test_a_request_that_moves_less_memory_comes_first() -> None:
    lab = Lab()
    waiting(lab, a={"gib": 80}, b={"gib": 20})
    assert lab.order == ["b", "a"]


def test_a_request_expected_to_be_short_comes_first() -> None:
    lab = Lab()
    for name, length in (("long", 8.0), ("short", 0.1)):
        lab.asks(name, priority="interactive")
        for _ in range(3):
            p = next((p for p in lab.processes.values() if p.group == name), None)
            p = p or lab.process(name, 10)
            p.request()
            p.restore()
            lab.sleep(length)
            p.end()
            lab.do(ev.Release(name))
            p.release()
    full = lab.process("full", 85)
    grant = full.request()
    for order in of(ev.Evict, grant + lab.sleep(1)):
        lab.processes[order.client].evict(order)
    assert full.lease
    lab.processes[1].request()
    lab.sleep(0.5)
    lab.processes[2].request()
    assert lab.order[0] == "short"


def test_between_users_neither_class_nor_focus_nor_length_counts() -> None:
    lab = Lab()
    waiting(
        lab,
        a={"user": "ada", "priority": "background", "gib": 80},
        b={"user": "ben", "priority": "interactive", "gib": 10},
    )
    lab.do(ev.Focus("ben", "b"))
    assert lab.order == ["a", "b"]


def test_the_user_with_less_past_gpu_time_comes_first() -> None:
    lab = Lab()
    busy = lab.runs("busy", 10, user="ada")
    other = lab.runs("other", 10, user="ben")
    lab.works([busy], 3)
    other.end()
    lab.do(ev.Release("other"))
    other.release()
    full = lab.runs("full", 80, user="cy")
    assert full.lease
    more = lab.process("more", 40, user="ada")
    more.request()
    lab.sleep(0.5)
    late = lab.process("late", 40, user="ben")
    late.request()
    assert lab.order == ["late", "more"]


def test_entitlements_come_before_all_other_rules() -> None:
    lab = Lab()
    lab.entitle("user:ben", request=0.5)
    waiting(lab, a={"user": "ada", "priority": "interactive"}, b={"user": "ben"})
    lab.works([lab.processes[1]], 1)
    assert lab.order == ["b", "a"]


@settings(max_examples=examples(6), deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0.2, 1.0, 4.0]), min_size=2, max_size=3),
    background=st.integers(0, 2),
    policy=st.sampled_from(["burst", "fcfs", "gemini"]),
)
def test_no_request_is_overtaken_for_ever(
    lengths: list[float], background: int, policy: str
) -> None:
    """One user's groups that all always want more: each has its turns, the background too."""
    turns = Turns(policy=policy)
    turns.asks("g0", priority="background" if background < 2 else "auto")
    turns.do(ev.Focus("", "g1"))
    processes = [turns.plays(f"g{n}", length) for n, length in enumerate(lengths)]
    turns.play(180, step=0.2)
    for process in processes:
        assert turns.had(process) > 1
        # As late as one may rank, and a turn of each of the others. (By Gemini's rule, whoever had a long turn
        # waits until the others have had as much, however short theirs are.)
        if policy != "gemini":
            assert turns.longest[process.number] < 30 + 10 + 5 + 30 * len(processes)


@pytest.mark.parametrize("claim", ["auto", "interactive"])
def test_calling_everything_interactive_gains_nothing_in_the_queue(claim: Any) -> None:
    turns = Turns()
    for name in ("a1", "a2", "a3"):
        turns.asks(name, priority=claim)
    turns.asks("b", priority="background")
    turns.do(ev.Focus("ada", "a1"))
    ada = [turns.plays(name, 1.0, user="ada") for name in ("a1", "a2", "a3")]
    ben = turns.plays("b", 5.0, user="ben")
    turns.play(240, step=0.25)
    assert turns.had(ben) >= 0.45 * (turns.had(*ada) + turns.had(ben))


# --- burst: paces ---------------------------------------------------------------------------------


def test_an_interactive_burst_pauses_the_background() -> None:
    lab = Lab()
    trainer, person = lab.runs("trainer", 40), lab.process("person", 40)
    lab.begin("trainer")
    lab.sleep(3)
    assert lab.pace(trainer) == FREE
    lab.begin("person")
    person.request()
    assert lab.pace(trainer).inflight == 0
    assert lab.pace(trainer).stall == 0.050
    assert lab.pace(person) == FREE, "nothing bounds it, and nothing costs it"
    lab.end(person)
    assert lab.pace(trainer).inflight == 0.001, "it is about"
    lab.sleep(29.9)
    assert lab.pace(trainer).inflight == 0.001
    lab.sleep(0.2)
    assert lab.pace(trainer).inflight == 0.020, "the next cell is not to find a long queue"
    lab.sleep(569.8)
    assert lab.pace(trainer).inflight == 0.020
    lab.sleep(0.2)
    assert lab.pace(trainer).inflight is None


def test_a_cell_pauses_the_background_before_its_burst_if_it_is_expected_to_have_one() -> None:
    lab = Lab()
    trainer, person = lab.runs("trainer", 40), lab.runs("person", 40)
    lab.asks("trainer", priority="background")
    lab.end(person)
    lab.begin("person")
    assert lab.pace(trainer).inflight == 0, "cells are expected to use the GPU"
    lab.sleep(0.011)
    assert lab.pace(trainer).inflight == 0.001, "this one does not, so far"
    lab.end(person)
    lab.begin("person")
    assert lab.pace(trainer).inflight == 0.001, "the one before did not"
    person.begin()
    lab.sleep(0.01)
    lab.end(person)
    lab.begin("person")
    assert lab.pace(trainer).inflight == 0


def test_a_long_cell_no_longer_pauses_others() -> None:
    lab = Lab()
    trainer, person = lab.runs("trainer", 40), lab.process("person", 40)
    lab.asks("trainer", priority="background")
    lab.begin("person")
    person.request()
    assert lab.pace(trainer).inflight == 0
    lab.works([person], 3)
    assert lab.pace(trainer).inflight is None
    lab.end(person)
    lab.begin("person")
    person.begin()
    assert lab.pace(trainer).inflight == 0


def test_equal_groups_do_not_limit_each_other() -> None:
    lab = Lab()
    a, b = lab.runs("a", 40), lab.runs("b", 40)
    lab.begin("a")
    lab.begin("b")
    assert lab.paced == {}
    lab.sleep(5)
    assert (lab.pace(a), lab.pace(b)) == (FREE, FREE)


@pytest.mark.parametrize("claim", ["auto", "interactive"])
def test_calling_everything_interactive_gains_nothing_side_by_side(claim: Any) -> None:
    lab = Lab()
    lab.asks("a", priority=claim)
    lab.asks("b", priority="background")
    a, b = lab.runs("a", 40, user="ada"), lab.runs("b", 40, user="ben")
    lab.works([a, b], 30)
    assert lab.had(b) >= 0.95 * lab.had(a)


def test_an_interactive_burst_pauses_another_users_training() -> None:
    lab = Lab()
    lab.asks("b", priority="background")
    b = lab.runs("b", 40, user="ben")
    a = lab.process("a", 40, user="ada")
    lab.sleep(1)
    lab.begin("a")
    a.request()
    assert lab.pace(b).inflight == 0
    assert lab.pace(b).meter, "between users, GPU time counts"


# --- burst: shares --------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("whose", ["user:ada", "team:t", "group"])
def test_a_limit_is_kept(whose: str, alone: bool) -> None:
    lab = Lab()
    if whose == "group":
        lab.asks("a", limit=0.3)
    else:
        lab.entitle(whose, *(["ada"] if whose == "team:t" else []), limit=0.3)
    a = lab.runs("a", 30, user="ada")
    others = [] if alone else [lab.runs("b", 30, user="ben")]
    lab.works([a, *others], 10)
    for _ in range(3):
        before = lab.had(a)
        lab.works([a, *others], 10)
        assert (lab.had(a) - before) / 10 == pytest.approx(0.3, abs=0.02)


def test_groups_of_a_user_divide_the_users_limit() -> None:
    lab = Lab()
    lab.entitle("user:ada", limit=0.4)
    a, b = lab.runs("a", 30, user="ada"), lab.runs("b", 30, user="ada")
    lab.works([a, b], 10)
    before = lab.had(a, b)
    lab.works([a, b], 10)
    # Each keeps to its half by its own clock, and here they are at work in the same moments.
    assert 0.18 <= (lab.had(a, b) - before) / 10 <= 0.42
    assert lab.pace(a).share == lab.pace(b).share == 0.2


def test_a_removed_limit_has_no_effect() -> None:
    lab = Lab()
    lab.asks("a", limit=0.1)
    a = lab.runs("a", 30)
    lab.works([a], 5)
    lab.asks("a", limit=0)
    lab.sleep(0.2)
    assert lab.pace(a) == FREE


def test_a_group_at_its_limit_gets_no_lease() -> None:
    lab = Lab()
    lab.asks("a", limit=0.2)
    a = lab.runs("a", 30)
    lab.do(ev.Meter(a.number, GPU, 4.0, 1, lab.now))
    a.end()
    lab.do(ev.Release("a"))
    a.release()
    lab.sleep(1)
    assert of(ev.Grant, a.request()) == []
    assert of(ev.Grant, lab.sleep(10))


@settings(max_examples=examples(10), deadline=None)
@given(request=st.sampled_from([0.2, 0.5, 0.8]), others=st.integers(1, 2))
def test_requests_are_reached(request: float, others: int) -> None:
    """Beside groups that never stop, a new group soon reaches its request, and then all run."""
    lab = Lab()
    lab.entitle("user:ada", request=request)
    rest = [lab.runs(f"b{n}", 20, user=f"u{n}") for n in range(others)]
    lab.works(rest, 10)
    a = lab.runs("a", 20, user="ada")
    before = lab.had(*rest)
    lab.works([a, *rest], 10 * request)
    assert lab.core.times.share("user:ada", GPU, lab.now) >= request - 0.02
    # They paused meanwhile, but for one kernel in a while each.
    assert lab.had(*rest) - before <= others * (0.3 + 0.05 * 10 * request)
    lab.works([a, *rest], 2)
    assert all(lab.pace(p).inflight is None for p in (a, *rest))


def test_spare_time_is_divided_by_weight_side_by_side() -> None:
    lab = Lab()
    lab.entitle("user:ada", weight=3)
    a, b = lab.runs("a", 40, user="ada"), lab.runs("b", 40, user="ben")
    lab.works([a, b], 30)
    before = lab.had(a), lab.had(b)
    lab.works([a, b], 20)
    ratio = (lab.had(a) - before[0]) / (lab.had(b) - before[1])
    assert ratio == pytest.approx(3, rel=0.15)


# --- burst: quantum -------------------------------------------------------------------------------


def quantum(lab: Lab, holder: str, waiter: str) -> float:
    wait = next(w for w in lab.core.queue if w.group.id == waiter)
    return lab.core.residency.quantum_of(lab.core.groups[holder], wait)


def test_the_quantum_is_ten_times_the_cost() -> None:
    lab = Lab()
    lab.asks("a", priority="interactive")
    lab.runs("a", 20)
    lab.process("b", 90).request()
    lab.sleep(3)
    assert quantum(lab, "a", "b") == pytest.approx(20.0)


def test_the_quantum_grows_with_the_number_of_concurrent_holders() -> None:
    lab = Lab()
    for name in ("a", "b"):
        lab.asks(name, priority="interactive")
    lab.runs("a", 10)
    lab.runs("b", 40)
    lab.process("c", 90).request()
    lab.sleep(3)
    assert quantum(lab, "a", "c") == pytest.approx(20.0)


def test_background_work_soon_releases_for_the_same_user_and_users_with_less_gpu_time() -> None:
    lab = Lab()
    lab.asks("a", priority="background")
    a = lab.runs("a", 60, user="ada")
    lab.process("b", 60, user="ada").request()
    lab.process("c", 60, user="cy").request()
    lab.works([a], 1)
    lab.sleep(1)
    assert quantum(lab, "a", "b") == 2.0
    assert quantum(lab, "a", "c") == 2.0


def test_a_burst_that_is_about_to_end_is_not_interrupted() -> None:
    lab = Lab()
    lab.asks("a", priority="interactive")
    a = lab.process("a", 5)
    for _ in range(3):
        a.request()
        a.restore()
        lab.sleep(6.0)
        a.end()
        lab.do(ev.Release("a"))
        a.release()
        lab.sleep(1)
    a.request()
    b = lab.process("b", 98)
    b.request()
    # Its memory alone would be worth 5 s. With 1 s of the burst left, it may end: what moves otherwise takes 10.
    lab.sleep(4.9)
    assert 6.0 <= quantum(lab, "a", "b") <= 7.0
    assert of(ev.Revoke, lab.sleep(0.9)) == []


# --- The others -----------------------------------------------------------------------------------


def test_first_come_first_served_one_at_a_time_for_thirty_seconds() -> None:
    lab = Lab(policy="fcfs")
    a = lab.runs("a", 10)
    lab.asks("b", priority="background")
    b, c = lab.process("b", 10), lab.process("c", 10)
    assert of(ev.Grant, b.request()) == []
    c.request()
    assert lab.order == ["b", "c"]
    assert of(ev.Revoke, lab.sleep(29.5)) == []
    assert of(ev.Revoke, lab.sleep(1)) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Grant, a.release()) == [ev.Grant(b.number, b.lease)]


def test_gemini_serves_the_largest_deficit_and_then_the_least_gpu_time() -> None:
    lab = Lab(policy="gemini")
    for name, request in (("a", 0.4), ("b", 0.2), ("c", 0.0), ("d", 0.0)):
        lab.asks(name, request=request)
    holder = lab.runs("holder", 10)
    assert holder.lease
    had = {"a": 3.0, "b": 0.5, "c": 2.0, "d": 1.0}
    for name, seconds in had.items():
        process = lab.process(name, 10)
        lab.core.times.add(lab.core.groups[name], GPU, seconds, lab.now)
        process.request()
    assert lab.order == ["b", "a", "d", "c"]


def test_gemini_quota_follows_the_bursts_within_bounds() -> None:
    lab = Lab(policy="gemini")
    a = lab.process("a", 10)
    lab.asks("a", limit=0.5)
    found = []
    for length in (0.01, 0.01, 0.01, 0.01, 60.0, 60.0, 60.0, 60.0):
        a.request()
        found.append(lab.core.residency.quantum_of(lab.core.groups["a"]))
        lab.sleep(length)
        a.end()
        lab.do(ev.Release("a"))
        a.release()
        # Until it may have more.
        lab.sleep(11)
    assert found[0] > found[3] == pytest.approx(0.1, rel=0.5)
    assert found[3] >= 0.1
    assert found[-1] == 5.0, "its limit of the window"


def test_the_highest_priority_alone_has_the_gpu_while_it_has_work() -> None:
    lab = Lab(policy="priority")
    lab.asks("low", weight=1)
    lab.asks("high", weight=4)
    lab.asks("last", priority="background", weight=8)
    low, last, high = lab.runs("low", 20), lab.runs("last", 20), lab.process("high", 20)
    assert (lab.pace(low), lab.pace(last).inflight) == (FREE, 0)
    high.request()
    assert (lab.pace(low).inflight, lab.pace(last).inflight, lab.pace(high)) == (0, 0, FREE)
    high.end()
    assert (lab.pace(low), lab.pace(last).inflight) == (FREE, 0)


def test_the_highest_priority_runs_at_once_and_the_lowest_is_served_finally() -> None:
    lab = Lab(policy="priority")
    lab.asks("low", priority="background")
    low = lab.runs("low", 60)
    lab.sleep(1)
    high = lab.process("high", 60)
    assert of(ev.Revoke, high.request()) == [ev.Revoke(low.number, low.lease)]
    waits = lab.process("later", 60)
    low.request()
    lab.sleep(601)
    waits.request()
    assert lab.order.index("low") < lab.order.index("later")


def tgs(lab: Lab) -> tuple[Process, Process]:
    lab.asks("job", priority="background")
    lab.asks("production", priority="interactive")
    return lab.runs("production", 40), lab.runs("job", 40)


def test_tgs_gives_more_while_production_is_not_slowed() -> None:
    lab = Lab(policy="tgs")
    production, job = tgs(lab)
    shares = []
    for _ in range(8):
        lab.works([production, job], 5)
        shares.append(lab.pace(job).share)
    assert shares == sorted(shares)
    assert shares[-1] > 5 * shares[0]
    assert lab.pace(production).share == 1


def test_tgs_gives_less_once_production_suffers() -> None:
    lab = Lab(policy="tgs")
    production, job = tgs(lab)
    lab.works([production, job], 60, rates=lambda p: 10)
    before = lab.pace(job).share
    lab.works([production, job], 30, rates=lambda p: 5 if p is production else 10)
    assert lab.pace(job).share < before / 5


def test_tgs_gives_all_while_production_is_idle() -> None:
    lab = Lab(policy="tgs")
    production, job = tgs(lab)
    lab.works([production, job], 30)
    lab.works([job], 40)
    assert lab.pace(job).share == 1
    assert lab.pace(production).meter


# --- What others write ----------------------------------------------------------------------------


def test_the_policy_in_the_documentation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        Path(__file__)
        .parents[2]
        .joinpath("docs", "explanation", "scheduling.md")
        .read_text("utf-8")
    )
    (code,) = re.findall(r"```python\n(class .*?)```", text, re.DOTALL)
    space: dict[str, Any] = {}
    exec(code, space)
    monkeypatch.setitem(OURS, "shortest", space["Shortest"])
    turns = Turns(policy="shortest")
    short, long = turns.plays("short", 0.5), turns.plays("long", 5.0)
    turns.play(120, step=0.25)
    assert turns.had(short) > 1
    assert turns.had(long) > 1
    assert turns.core.policy.name == "shortest", "it did not fail"
