# SPDX-License-Identifier: BSD-3-Clause
"""What people ask for a group, and what comes of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core import preferences as preferences
from jupyter_gpushare.scheduler.core import reasons
from jupyter_gpushare.scheduler.core.model import Preferences
from jupyter_gpushare.scheduler.core.planner import Planner
from tests.scheduler.core_machine import BY_AGE, GIB, GPU, Machine, Process, of


def idle(m: Machine, group: str, gib: float) -> Process:
    """One whose memory is in, and that does nothing."""
    process = m.runs(group, gib)
    process.end()
    m.do(ev.Release(group))
    process.release()
    m.sleep(1)
    return process


def cell(m: Machine, group: str, phase: Any, number: int = 1, at: float | None = None) -> Any:
    at = m.now if at is None else at
    return m.do(ev.Cell(group, phase, str(number), at, from_kernel=True))


def order(m: Machine) -> list[str]:
    return [w.group.id for w in m.core.queue]


# --- Asking ---------------------------------------------------------------------------------------


def test_preferences_are_accepted_and_reported() -> None:
    m = Machine()
    a = m.process("a", 10)
    m.do(ev.Adjust("a", priority="background", keep=True, memory=20 * GIB))
    wanted = Preferences(priority="background", keep=True, memory=20 * GIB)
    assert m.core.preferences_of("a") == m.core.groups["a"].preferences == wanted
    assert m.history[-1] == ev.Log("adjust", "a", {"preferences": asdict(wanted)})
    before = len(m.history)
    m.do(ev.Adjust("a", keep=True))
    assert len(m.history) == before
    assert a.state == "idle"


@pytest.mark.parametrize(
    ("preference", "sentence"),
    [
        (
            {"priority": "urgent"},
            "priority must be auto, interactive, agent or background, not 'urgent'",
        ),
        ({"memory": -1}, "memory must be a whole number of bytes, 0 for no limit, not -1"),
        ({"memory": 1.5}, "memory must be"),
        ({"memory": True}, "memory must be"),
        ({"memory": 1 << 60}, "memory must be"),
        (
            {"limit": 1.5},
            "limit must be a fraction of a GPU's time, from 0 .none. to 1, not 1.5",
        ),
        ({"limit": -0.1}, "limit must be"),
        ({"limit": float("nan")}, "limit must be"),
        ({"request": "half"}, "request must be"),
        ({"request": True}, "request must be"),
        ({"weight": 0}, "weight must be a number above 0 and at most 1000, not 0"),
        ({"weight": float("inf")}, "weight must be"),
        ({"keep": 1}, "keep must be true or false, not 1"),
        ({"frozen": "yes"}, "frozen must be true or false"),
        ({"exclusive": 0}, "exclusive must be true or false"),
    ],
)
def test_impossible_preferences_are_refused_and_change_nothing(
    preference: Any, sentence: str
) -> None:
    m = Machine()
    m.process("a", 10)
    for group in ("a", "z"):
        with pytest.raises(ValueError, match=sentence):
            m.do(ev.Adjust(group, **{"later": True, **preference}))
        assert m.core.preferences_of(group) == Preferences()


def test_preferences_of_an_absent_group_are_kept_only_on_request() -> None:
    m = Machine()
    with pytest.raises(ValueError, match="no group on the GPU has the id 'a'"):
        m.do(ev.Adjust("a", keep=True))
    m.do(ev.Adjust("a", keep=True, exclusive=True, later=True))
    assert m.core.preferences_of("a") == Preferences(keep=True)
    m.process("a", 10)
    assert m.core.groups["a"].preferences == Preferences(keep=True)


def test_a_restarted_kernel_keeps_its_preferences_except_for_the_cell() -> None:
    m = Machine()
    a = m.runs("a", 10)
    cell(m, "a", "begin")
    m.do(ev.Adjust("a", priority="background", frozen=True, exclusive=True))
    m.do(ev.Detach(a.number))
    assert "a" not in m.core.groups
    lasting = Preferences(priority="background", frozen=True)
    assert m.core.preferences_of("a") == lasting
    m.process("a", 10)
    assert m.core.groups["a"].preferences == lasting


def test_the_number_of_remembered_groups_is_limited() -> None:
    m = Machine()
    a = m.process("a", 10)
    m.do(ev.Adjust("a", keep=True))
    for number in range(preferences.MOST_REMEMBERED):
        m.do(ev.Adjust(f"later-{number}", keep=True, later=True))
    assert m.core.preferences_of("a").keep
    m.do(ev.Detach(a.number))
    assert m.core.preferences_of("a").keep
    assert not m.core.preferences_of("later-0").keep
    assert m.core.preferences_of("later-1").keep
    m.do(ev.Adjust("later-1", keep=False, later=True))
    m.do(ev.Adjust("one-more", keep=True, later=True))
    assert m.core.preferences_of("later-2").keep


# --- Priority -------------------------------------------------------------------------------------


def test_background_work_waits_behind_slightly_later_requests() -> None:
    m = Machine(quantum=1000.0)
    m.runs("a", 90)
    b, c, d, e = (m.process(name, 80) for name in "bcde")
    m.do(ev.Adjust("b", priority="background"))
    b.request()
    m.sleep(29)
    c.request()
    m.sleep(2)
    d.request()
    assert order(m) == ["c", "b", "d"]
    m.do(ev.Adjust("b", priority="interactive"))
    assert order(m) == ["b", "c", "d"]
    m.do(ev.Adjust("c", priority="background"))
    m.do(ev.Adjust("d", priority="background"))
    e.request()
    assert order(m) == ["b", "e", "c", "d"]


def test_memory_of_background_groups_is_evicted_first() -> None:
    m = Machine()
    idle(m, "a", 30)
    b = idle(m, "b", 30)
    m.do(ev.Adjust("b", priority="background"))
    c = m.process("c", 60)
    (evict,) = of(ev.Evict, c.request())
    assert (evict.client, evict.bytes) == (b.number, 20 * GIB)


def test_a_background_holder_releases_for_an_interactive_group() -> None:
    m = Machine(quantum=20.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", priority="background"))
    b.request()
    assert b.reason["params"]["yields_in"] == pytest.approx(2)
    assert m.group("a")["yields_in"] == pytest.approx(2)
    assert m.sleep(1.9) == []
    assert of(ev.Revoke, m.sleep(0.2)) == [ev.Revoke(a.number, a.lease)]
    (evict,) = of(ev.Evict, a.release())
    a.evict(evict)
    b.restore()
    # A group that is not in the background keeps the GPU for longer.
    a.request()
    assert a.reason["params"]["yields_in"] == pytest.approx(20)


def test_a_background_holder_keeps_its_quantum_among_background_groups() -> None:
    m = Machine(quantum=20.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", priority="background"))
    m.do(ev.Adjust("b", priority="background"))
    b.request()
    assert m.sleep(19.9) == []
    assert of(ev.Revoke, m.sleep(0.2)) == [ev.Revoke(a.number, a.lease)]


def test_the_residency_of_a_background_group_is_short_for_interactive_ones() -> None:
    m = Machine(quantum=20.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", priority="background"))
    b.request()
    assert of(ev.Revoke, a.end("quiet")) == []
    assert of(ev.Revoke, m.sleep(1.9)) == []
    assert of(ev.Revoke, m.sleep(0.2)) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Grant, a.release())
    # ... and it does not come back within it, before the other.
    assert of(ev.Grant, a.request()) == []


@pytest.mark.parametrize("priority", ["interactive", "background"])
def test_a_background_group_does_not_continue_its_time_slice_before_others(priority: Any) -> None:
    m = Machine(quantum=20.0)
    a, _, b = m.runs("a", 40), m.runs("c", 40), m.process("b", 90)
    m.do(ev.Adjust("a", priority=priority))
    b.request()
    a.end("quiet")
    m.do(ev.Released(a.number, a.lease, "revoke"))
    m.sleep(5)
    assert bool(of(ev.Grant, a.request())) == (priority == "interactive")


# --- Keep -----------------------------------------------------------------------------------------


def test_idle_memory_that_is_kept_stays_for_five_minutes() -> None:
    m = Machine()
    a, b = idle(m, "a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", keep=True))
    assert b.request() == []
    assert b.reason == {
        "code": "kept",
        "params": {
            "holder": "a", "holder_name": "a.ipynb", "until_in": pytest.approx(300),
            "lack": 35 * GIB, "gpu": GPU,
        },
    }  # fmt: skip
    assert m.sleep(299.9) == []
    (evict,) = of(ev.Evict, m.sleep(0.2))
    assert (evict.client, evict.bytes) == (a.number, 35 * GIB)
    assert b.state == "restoring"


def test_an_idle_lease_of_a_kept_group_is_revoked_only_after_the_patience() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", keep=True))
    a.end()
    b.request()
    assert b.reason["code"] == "kept"
    assert of(ev.Revoke, m.sleep(299)) == []
    assert of(ev.Revoke, m.sleep(2)) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Evict, a.release())


def test_memory_that_is_not_kept_is_evicted_first() -> None:
    m = Machine(quantum=5.0)
    idle(m, "a", 40)
    b = m.runs("b", 40)
    m.do(ev.Adjust("a", keep=True))
    c = m.process("c", 50)
    c.request()
    # Even from a running group.
    assert c.reason["code"] == "needs_memory"
    assert of(ev.Revoke, m.sleep(6)) == [ev.Revoke(b.number, b.lease)]
    (evict,) = of(ev.Evict, b.release())
    assert evict.client == b.number


def test_a_group_that_is_no_longer_kept_makes_room_for_others() -> None:
    m = Machine()
    a, b = idle(m, "a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", keep=True))
    b.request()
    m.sleep(10)
    (evict,) = of(ev.Evict, m.do(ev.Adjust("a", keep=False)))
    assert evict.client == a.number


def test_a_kept_group_runs_at_once_and_releases_like_any_other() -> None:
    m = Machine(quantum=5.0)
    a, b = idle(m, "a", 75), m.process("b", 60)
    m.do(ev.Adjust("a", keep=True))
    b.request()
    m.sleep(100)
    # A group that is waiting for its memory has to wait anyway.
    assert of(ev.Grant, a.request()) == [ev.Grant(a.number, a.lease)]
    a.end()
    m.sleep(1)
    assert b.reason["code"] == "kept"
    a.begin()
    # What runs is not idle.
    assert b.reason["code"] == "needs_memory"
    assert of(ev.Revoke, m.sleep(5)) == [ev.Revoke(a.number, a.lease)]
    (evict,) = of(ev.Evict, a.release())
    assert evict.client == a.number
    assert of(ev.Grant, a.request()) == []


def test_a_kept_group_that_cannot_run_at_once_delays_no_other() -> None:
    m = Machine(policy=BY_AGE)
    a, b = idle(m, "a", 60), m.process("b", 60)
    answer = a.grow(20)
    assert answer is not None
    m.do(ev.Adjust("a", keep=True))
    b.request()
    (evict,) = of(ev.Evict, a.request())
    assert evict.client == a.number
    assert b.state == "restoring"


def test_no_group_overtakes_if_the_head_would_then_need_kept_memory() -> None:
    m = Machine(quantum=5.0, policy=BY_AGE)
    idle(m, "a", 30)
    m.do(ev.Adjust("a", keep=True))
    m.runs("b", 40)
    c, d = m.process("c", 70), m.process("d", 10)
    c.request()
    assert of(ev.Grant, d.request()) == []
    # One that has to wait for it in any case does not mind.
    e = m.process("e", 75)
    m.do(ev.Cancel("c"))
    m.do(ev.Cancel("d"))
    e.request()
    assert e.reason["code"] == "kept"
    assert of(ev.Grant, d.request())


def test_kept_memory_is_evicted_when_the_gpu_is_overcommitted() -> None:
    m = Machine()
    a = idle(m, "a", 75)
    m.do(ev.Adjust("a", keep=True))
    m.foreign = 40 * GIB
    (evict,) = of(ev.Evict, m.do(m.reading()))
    assert evict.client == a.number


# --- Frozen ---------------------------------------------------------------------------------------


def test_freezing_revokes_the_lease_and_delays_no_other() -> None:
    m = Machine()
    a, b, c = m.runs("a", 75), m.process("b", 60), m.process("c", 60)
    assert of(ev.Revoke, m.do(ev.Adjust("a", frozen=True))) == [ev.Revoke(a.number, a.lease)]
    a.request()
    a.release()
    m.sleep(1)
    assert (a.state, a.reason) == ("waiting", {"code": "frozen", "params": {}})
    # It came first, and its memory serves no running group.
    (evict,) = of(ev.Evict, b.request())
    assert evict.client == a.number
    assert b.state == "restoring"
    b.restore()
    a.evict(evict)
    b.restore()
    assert b.state == "running"
    c.request()
    assert c.reason["params"]["holder"] == "b"
    assert m.core.deadline() is not None
    # Thawed, it has its old place.
    m.do(ev.Adjust("a", frozen=False))
    assert order(m) == ["a", "c"]
    assert c.reason["params"]["ahead"] == "a"


def test_a_frozen_group_does_not_count_in_the_queue() -> None:
    m = Machine()
    m.runs("a", 75)
    for group in "bcd":
        m.process(group, 75).request()
    m.do(ev.Adjust("b", frozen=True))
    assert [m.group(group)["position"] for group in "abcd"] == [None, 1, 1, 2]
    m.do(ev.Adjust("b", frozen=False))
    assert [m.group(group)["position"] for group in "abcd"] == [None, 1, 2, 3]


def test_a_frozen_group_makes_no_holder_end_its_burst() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Adjust("b", frozen=True))
    assert b.request() == []
    assert m.core.clients[a.number].contended == 0
    assert of(ev.Contended, m.do(ev.Adjust("b", frozen=False))) == [ev.Contended(a.number, 1)]


def test_growth_of_others_ignores_a_frozen_group() -> None:
    m = Machine()
    m.runs("a", 45)
    b = m.process("b", 60)
    b.request()
    m.do(ev.Adjust("b", frozen=True))
    c = m.runs("c", 40)
    answer = c.grow(10, most=13)
    assert answer is not None
    assert (answer.status, answer.promised) == ("resident", 53 * GIB)


def test_a_frozen_group_does_not_shorten_the_turn_of_a_holder() -> None:
    m = Machine(quantum=20.0)
    m.runs("a", 75)
    b, c = m.process("b", 60), m.process("c", 60)
    m.do(ev.Adjust("a", priority="background"))
    m.do(ev.Adjust("b", frozen=True))
    m.do(ev.Adjust("c", priority="background"))
    b.request()
    c.request()
    assert m.group("a")["yields_in"] == pytest.approx(20)
    m.do(ev.Adjust("b", frozen=False))
    assert m.group("a")["yields_in"] == pytest.approx(2)


def test_a_frozen_group_may_still_allocate_unevictable_memory() -> None:
    m = Machine()
    a, b, _ = m.process("a", 10), idle(m, "b", 60), m.runs("c", 35)
    m.do(ev.Adjust("a", frozen=True))
    m.do(ev.Adjust("b", keep=True, frozen=True))
    least = ev.Usage(GPU, a.promised, a.resident, 8 * GIB)
    (evict,) = of(ev.Evict, m.do(ev.Grow(a.number, 1, least, 0)))
    (answer,) = of(ev.Grown, b.evict(evict))
    assert answer.status in ("resident", "swapped")


def test_a_frozen_group_that_reconnects_with_a_lease_loses_it() -> None:
    m = Machine()
    m.do(ev.Adjust("a", frozen=True, later=True))
    a = Process(m, 1, "a")
    a.promised = a.resident = 10 * GIB
    a.lease = 7
    m.processes[1] = a
    attach = ev.Attach(
        1, 1001, "a", "a.ipynb", "swap", usages=(a.usage(),), reattach=True, leased=True, lease=7
    )
    assert of(ev.Revoke, m.do(attach)) == [ev.Revoke(1, 7)]
    a.release()
    assert of(ev.Grant, a.request()) == []
    assert of(ev.Grant, m.do(ev.Adjust("a", frozen=False)))


# --- Memory ---------------------------------------------------------------------------------------


def test_growth_beyond_the_memory_limit_is_refused() -> None:
    m = Machine()
    a = m.process("a", 15)
    m.do(ev.Adjust("a", memory=20 * GIB))
    answer = a.grow(10)
    assert answer is not None
    assert answer.status == "cap"
    assert answer.text == (
        "10.0 GiB more would make a total of 25.0 GiB, but this kernel is limited to 20.0 GiB on each GPU "
        "(remove the limit with `%gpushare memory off`)"
    )
    # Headroom is not what it needs.
    answer = a.grow(4, most=50)
    assert answer is not None
    assert answer.status == "swapped"
    assert 19 * GIB <= a.promised <= 20 * GIB
    # What is there stays.
    m.do(ev.Adjust("a", memory=5 * GIB))
    assert of(ev.Grant, a.request())
    answer = a.grow(0, unevictable=1)
    assert answer is not None
    assert answer.status == "resident"
    m.do(ev.Adjust("a", memory=0))
    answer = a.grow(30)
    assert answer is not None
    assert answer.status == "resident"


# --- Exclusive ------------------------------------------------------------------------------------


def exclusive(m: Machine) -> tuple[Process, Process]:
    """A group with an exclusive cell that has become idle, and a waiting group."""
    a, b = m.runs("a", 75), m.process("b", 60)
    cell(m, "a", "begin")
    m.do(ev.Adjust("a", exclusive=True))
    b.request()
    a.end("quiet")
    return a, b


def test_a_whole_cell_keeps_its_lease_through_pauses() -> None:
    m = Machine(quantum=1.0)
    a, b = exclusive(m)
    assert m.core.clients[a.number].contended == 0
    assert of(ev.Revoke, m.sleep(100)) == []
    assert b.reason == {
        "code": "exclusive",
        "params": {
            "holder": "a", "holder_name": "a.ipynb", "until_in": pytest.approx(500),
            "lack": 35 * GIB, "gpu": GPU,
        },
    }  # fmt: skip
    decisions = cell(m, "a", "end")
    assert of(ev.Revoke, decisions) == [ev.Revoke(a.number, a.lease)]
    assert not m.core.preferences_of("a").exclusive
    assert m.kinds("a").count("adjust") == 2


def test_a_whole_cell_has_a_time_limit() -> None:
    m = Machine(quantum=1.0)
    a, _ = exclusive(m)
    assert of(ev.Revoke, m.sleep(599)) == []
    assert of(ev.Revoke, m.sleep(2)) == [ev.Revoke(a.number, a.lease)]
    assert not m.core.preferences_of("a").exclusive
    assert of(ev.Evict, a.release())


@pytest.mark.parametrize("end", [ev.Adjust("a", exclusive=False), ev.Release("a")])
def test_the_user_may_end_a_whole_cell_early(end: ev.Event) -> None:
    m = Machine(quantum=20.0)
    a, _ = exclusive(m)
    m.sleep(30)
    assert of(ev.Revoke, m.do(end)) == [ev.Revoke(a.number, a.lease)]
    assert not m.core.preferences_of("a").exclusive
    assert of(ev.Evict, a.release())


def test_without_an_open_cell_the_preference_is_for_the_next() -> None:
    m = Machine(quantum=20.0)
    m.runs("a", 75)
    cell(m, "a", "begin", 1)
    early = m.now
    cell(m, "a", "end", 1)
    m.sleep(1)
    m.do(ev.Adjust("a", exclusive=True))
    # News of an older cell come late.
    cell(m, "a", "begin", 2, at=early)
    cell(m, "a", "end", 2, at=early)
    assert m.core.preferences_of("a").exclusive
    b = m.process("b", 60)
    b.request()
    assert b.reason["code"] == "needs_memory"
    cell(m, "a", "begin", 3)
    assert b.reason["code"] == "exclusive"
    cell(m, "a", "end", 3)
    assert not m.core.preferences_of("a").exclusive


def test_a_whole_cell_that_grows_comes_before_the_others() -> None:
    m = Machine(quantum=5.0)
    c = m.runs("c", 20)
    a, b = m.runs("a", 70), m.process("b", 60)
    cell(m, "a", "begin")
    m.do(ev.Adjust("a", exclusive=True))
    b.request()
    m.sleep(30)
    answer = a.grow(25)
    assert answer is not None
    assert answer.status == "swapped"
    a.release("growth")
    decisions = a.request()
    # Its memory stays. Room comes from a concurrent group at the end of its quantum.
    assert of(ev.Revoke, decisions) == [ev.Revoke(c.number, c.lease)]
    (evict,) = of(ev.Evict, c.release())
    assert evict.client == c.number
    assert of(ev.Grant, c.evict(evict)) == [ev.Grant(a.number, a.lease)]
    a.restore()
    # The time for which the others wait is not longer for it.
    assert of(ev.Revoke, m.sleep(569)) == []
    assert of(ev.Revoke, m.sleep(2)) == [ev.Revoke(a.number, a.lease)]


def test_serialised_groups_wait_for_a_whole_cell() -> None:
    m = Machine(quantum=1.0, anti_thrash="on")
    a, b = m.runs("a", 20), m.process("b", 20)
    cell(m, "a", "begin")
    m.do(ev.Adjust("a", exclusive=True))
    b.request()
    assert of(ev.Revoke, a.end("quiet")) == []
    assert b.reason["code"] == "exclusive"
    assert of(ev.Revoke, cell(m, "a", "end")) == [ev.Revoke(a.number, a.lease)]


# --- Reasons for a long queue ---------------------------------------------------------------------


def test_a_long_queue_is_explained_with_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Machine()
    m.runs("a", 75)
    for number in range(30):
        m.process(f"b{number}", 30).request()
    one_by_one = [reasons.Explainer(m.core.sources, m.now).reason(wait) for wait in m.core.queue]
    plans = []
    plan = Planner.plan
    monkeypatch.setattr(Planner, "plan", lambda self, wait: plans.append(wait) or plan(self, wait))
    explainer = reasons.Explainer(m.core.sources, m.now)
    assert [explainer.reason(wait) for wait in m.core.queue] == one_by_one
    assert {r["params"].get("ahead") for r in one_by_one[1:]} == {m.core.queue[0].group.id}
    assert plans == [m.core.queue[0]]
