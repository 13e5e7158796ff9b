# SPDX-License-Identifier: BSD-3-Clause
"""Groups are ready before they use the GPU, where that costs no group that works."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.likelihood import HORIZON
from tests.scheduler.core_machine import GIB, GPU, SPEED, TOTAL, Machine, of
from tests.scheduler.night import CONTEXT, Kernel, Night
from tests.scheduler.prefetching import ALL_OF_IT, away, idle, prefetch, results

# --- The lease ahead ------------------------------------------------------------------------------


def test_memory_is_restored_when_the_user_begins_to_type() -> None:
    m = Machine()
    a = away(m, "a", 40)
    told = m.do(ev.Hint("a", "typing"))
    assert told == [ev.Grant(a.number, 2, True), ALL_OF_IT]
    assert a.state == "prefetching"
    assert prefetch(m, "a") == {
        "hint": "typing", "likelihood": pytest.approx(0.6), "stage": "restoring", "since": m.now,
    }  # fmt: skip
    # Its room is taken at once, so that nothing else counts on it.
    assert m.gpu["available"] == 60 * GIB
    m.sleep(4.0)
    a.end("quiet")
    a.restore()
    assert (a.state, prefetch(m, "a")["stage"]) == ("idle_lease", "ready")
    # It works at once, without a request.
    a.begin()
    assert (a.state, prefetch(m, "a")) == ("running", None)
    assert results(m, "a") == ["begun", "used"]
    line = m.history[-2]
    assert (line.kind, line.fields["bytes"], line.fields["seconds"]) == ("prefetch", 40 * GIB, 4.0)


def test_a_lease_ahead_is_not_work() -> None:
    m = Machine()
    b = m.runs("b", 20)
    a = away(m, "a", 40)
    group = m.core.groups["a"]
    totals, idle_since, absent = dict(m.group("a")["totals"]), group.idle_since, group.away_since
    told = m.do(ev.Hint("a", "typing"))
    # The group that runs hears nothing of it.
    assert {d.client for d in told} == {a.number}
    assert m.core.gpus[GPU].holders.keys() == {"b"}
    a.end("quiet")
    a.restore()
    assert not group.runs
    assert group.turn != group.lease
    m.sleep(HORIZON)
    # After a minute, the lease ends, and nothing but the place of the memory is different.
    a.release()
    assert (a.state, a.resident, prefetch(m, "a")) == ("idle", 40 * GIB, None)
    assert results(m, "a") == ["begun", "vain"]
    totals["restored"] += 40 * GIB
    assert m.group("a")["totals"] == totals
    assert (group.idle_since, group.away_since, group.ended_at is not None) == (
        idle_since,
        absent,
        True,
    )
    assert b.state == "running"


def test_a_request_during_the_restore_is_served_by_it() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "typing"))
    m.sleep(1.0)
    # It has its grant already: another one would arrive after the end of this restore.
    assert not of(ev.Grant, a.request())
    assert a.state == "restoring"
    assert results(m, "a") == ["begun", "used"]
    assert m.core.gpus[GPU].holders.keys() == {"a"}
    m.sleep(3.0)
    a.restore()
    group = m.core.groups["a"]
    assert (a.state, group.turn, group.turn_at) == ("running", group.lease, m.now)
    a.end("cell")
    assert a.state == "idle_lease"


def test_an_allocation_is_a_use() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "typing"))
    a.end("quiet")
    a.restore()
    answer = a.grow(1)
    assert answer is not None
    assert answer.status == "resident"
    assert results(m, "a") == ["begun", "used"]


def test_a_demand_that_lacks_the_room_ends_it_between_two_pieces() -> None:
    m = Machine()
    a, b = away(m, "a", 60), away(m, "b", 80)
    m.do(ev.Hint("a", "typing"))
    told = b.request()
    assert ev.Revoke(a.number, 3) in told
    assert results(m, "a") == ["begun", "abandoned"]
    # What has arrived stays until the other group needs the room, which it does at once.
    a.resident = 10 * GIB
    m.do(ev.Restored(a.number, a.lease, a.usage(), a.resident, a.resident, 1.0, "partial"))
    told = a.release("failed")
    assert of(ev.Grant, told) == [ev.Grant(b.number, 4)]
    assert a.state == "idle"
    b.restore()
    b.end("cell")
    # It goes on when the GPU is calm, if it has the room: here it has not.
    assert results(m, "a") == ["begun", "abandoned"]


def test_a_demand_with_room_of_its_own_ends_it_as_well() -> None:
    m = Machine()
    a, b = away(m, "a", 30), away(m, "b", 30)
    m.do(ev.Hint("a", "typing"))
    told = b.request()
    # The bus belongs to the group that waits.
    assert of(ev.Grant, told) == [ev.Grant(b.number, 4)]
    assert of(ev.Revoke, told) == [ev.Revoke(a.number, 3)]
    a.release("failed")
    assert results(m, "a") == ["begun", "abandoned"]
    told = b.restore()
    assert of(ev.Grant, told) == [ev.Grant(a.number, 5, True)]
    assert results(m, "a") == ["begun", "abandoned", "begun"]


def test_a_group_that_is_ready_gives_way_without_a_quantum_or_a_residency() -> None:
    m = Machine(residency_factor=100.0)
    a, b = away(m, "a", 60), away(m, "b", 80)
    m.do(ev.Hint("a", "typing"))
    a.end("quiet")
    a.restore()
    told = b.request()
    assert ev.Revoke(a.number, 3) in told
    told = a.release()
    (order,) = of(ev.Evict, told)
    assert of(ev.Grant, told) == [ev.Grant(b.number, b.lease, True)]
    a.evict(order)
    assert results(m, "a") == ["begun", "vain"]


def test_memory_that_a_demand_did_not_need_is_still_there() -> None:
    m = Machine()
    a, b = away(m, "a", 30), away(m, "b", 60)
    m.do(ev.Hint("a", "typing"))
    a.end("quiet")
    a.restore()
    b.request()
    a.release()
    b.restore()
    # It has no lease, but all of its memory.
    assert (a.state, prefetch(m, "a")["stage"]) == ("idle", "ready")
    assert of(ev.Grant, a.request()) == [ev.Grant(a.number, 5)]
    assert results(m, "a") == ["begun", "used"]


def test_a_kept_group_is_not_kept_because_of_a_hint() -> None:
    m = Machine()
    a, b = away(m, "a", 60), away(m, "b", 80)
    m.do(ev.Adjust("a", keep=True))
    m.do(ev.Hint("a", "typing"))
    a.end("quiet")
    a.restore()
    b.request()
    assert of(ev.Evict, a.release())


def test_a_cell_that_works_on_the_cpu_first_finds_its_memory() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Cell("a", "begin", "1", m.now, from_kernel=True))
    assert prefetch(m, "a") is None
    # Most cells use the GPU at once.
    assert of(ev.Grant, m.sleep(0.2)) == [ev.Grant(a.number, a.lease, True)]
    assert prefetch(m, "a")["hint"] == "cell"


def test_cells_that_wait_behind_another_are_a_hint() -> None:
    m = Machine()
    a = away(m, "a", 40)
    # It begins in a moment, and most cells use the GPU at once.
    m.do(ev.Queued("a", 1))
    assert prefetch(m, "a") is None
    m.do(ev.Cell("a", "begin", "1", m.now, from_kernel=True))
    told = m.do(ev.Queued("a", 19))
    assert of(ev.Grant, told) == [ev.Grant(a.number, a.lease, True)]
    assert prefetch(m, "a")["hint"] == "queued"


# --- What is not done -----------------------------------------------------------------------------


def test_an_unlikely_use_causes_no_prefetch() -> None:
    m = Machine()
    a = away(m, "a", 40)
    assert m.do(ev.Hint("a", "focus")) == []
    assert prefetch(m, "a") is None
    # Now it is.
    assert of(ev.Grant, m.do(ev.Hint("a", "typing")))
    assert a.state == "prefetching"


@pytest.mark.parametrize(
    "before",
    [
        ev.Configure(prefetch=False),
        ev.Adjust("a", frozen=True),
        ev.Hold("a", True),
        ev.Drain(GPU, True),
        ev.Entitle("user:*", ev.Entitlement(gpus=1)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_bounds_of_users_and_administrators_hold(before: ev.Event) -> None:
    m = Machine()
    m.do(ev.Device("GPU-1", TOTAL, 0, "Test GPU", 1))
    b = m.runs("b", 10, user="ada")
    away(m, "a", 40, user="ada")
    if isinstance(before, ev.Entitle):
        # A group of the same user has its GPU, and it is another one.
        m.do(ev.UsageChanged(b.number, ev.Usage("GPU-1", GIB, GIB)))
        m.do(ev.UsageChanged(b.number, ev.Usage(GPU)))
    m.do(before)
    assert not of(ev.Grant, m.do(ev.Hint("a", "ready")))


def test_switching_it_off_ends_prefetches_in_progress() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "ready"))
    assert of(ev.Revoke, m.do(ev.Configure(prefetch=False))) == [ev.Revoke(a.number, 2)]
    a.release("failed")
    assert a.state == "idle"
    # The hint is not old.
    assert of(ev.Grant, m.do(ev.Configure(prefetch=True)))


def test_memory_that_a_user_released_is_not_prefetched() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "typing"))
    m.do(ev.Release("a", evict=True))
    a.resident = GIB
    m.do(ev.Restored(a.number, a.lease, a.usage(), GIB, GIB, 0.1, "partial"))
    (order,) = of(ev.Evict, a.release("failed"))
    assert not of(ev.Grant, a.evict(order))


def test_a_failed_restore_is_not_tried_again() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "typing"))
    m.do(ev.Restored(a.number, a.lease, a.usage(), 0, 0, 0.1, "partial", 2))
    assert a.release("release") == []
    assert a.state == "idle"
    assert results(m, "a") == ["begun", "abandoned"]
    assert m.sleep(HORIZON) == []


def test_one_group_at_a_time_stays_one_at_a_time() -> None:
    m = Machine(anti_thrash="on")
    a = away(m, "a", 20)
    b = m.runs("b", 20)
    assert not of(ev.Grant, m.do(ev.Hint("a", "ready")))
    b.end("cell")
    m.do(ev.Release("b"))
    assert of(ev.Grant, b.release()) == [ev.Grant(a.number, a.lease, True)]


def test_the_most_likely_group_comes_first_and_then_the_next() -> None:
    m = Machine()
    a, b = away(m, "a", 20), away(m, "b", 20)
    m.do(ev.Hint("a", "typing"))
    assert not of(ev.Grant, m.do(ev.Hint("b", "ready")))
    a.end("quiet")
    assert of(ev.Grant, a.restore()) == [ev.Grant(b.number, 4, True)]


def test_running_groups_keep_room_to_grow() -> None:
    m = Machine()
    away(m, "a", 40)
    m.runs("b", 58)
    assert not of(ev.Grant, m.do(ev.Hint("a", "ready")))
    assert prefetch(m, "a") is None


# --- The room of idle groups ------------------------------------------------------------------------


def test_idle_groups_that_are_less_likely_to_be_used_make_room_in_slices() -> None:
    m = Machine()
    a = away(m, "a", 60)
    b = idle(m, "b", 70, seconds=100)
    told = m.do(ev.Hint("a", "typing"))
    # The lease of the idle group ends first.
    assert told == [ev.Revoke(b.number, b.lease)]
    assert (a.state, prefetch(m, "a")["stage"]) == ("prefetching", "evicting")
    told = b.release()
    size = int(SPEED * 0.02)
    evicted = 0
    while orders := of(ev.Evict, told):
        (order,) = orders
        assert order.bytes <= size
        evicted += order.bytes
        m.sleep(0.02)
        told = b.evict(order)
    assert evicted == 30 * GIB
    assert of(ev.Grant, told) == [ev.Grant(a.number, a.lease, True)]
    assert b.resident == 40 * GIB
    a.end("quiet")
    a.restore()
    assert prefetch(m, "a")["stage"] == "ready"


def test_a_demand_waits_for_one_slice_at_most() -> None:
    m = Machine()
    away(m, "a", 60)
    c = away(m, "c", 20)
    b = idle(m, "b", 70, seconds=100)
    m.do(ev.Hint("a", "typing"))
    (order,) = of(ev.Evict, b.release())
    assert of(ev.Grant, c.request()) == [ev.Grant(c.number, c.lease)]
    assert results(m, "a") == ["begun", "abandoned"]
    assert of(ev.Evict, b.evict(order)) == []
    assert of(ev.Evict, c.restore()), "it goes on when the bus is free"


@pytest.mark.parametrize("spared", ["kept", "recent", "cell", "hinted", "running", "returns"])
def test_other_groups_are_spared(spared: str) -> None:
    m = Machine()
    away(m, "a", 60)
    b = m.runs("b", 70)
    if spared != "running":
        b.end("cell")
    if spared == "returns":
        # It usually comes back after a minute and a half.
        for _ in range(8):
            m.sleep(90)
            b.begin()
            b.end("cell")
    m.sleep(5 if spared == "recent" else 80)
    if spared == "kept":
        m.do(ev.Adjust("b", keep=True))
    elif spared == "cell":
        m.do(ev.Cell("b", "begin", "1", m.now, from_kernel=True))
        m.sleep(HORIZON)
    elif spared == "hinted":
        m.do(ev.Hint("b", "focus"))
    assert m.do(ev.Hint("a", "typing")) == []
    assert prefetch(m, "a") is None


@pytest.mark.parametrize("priority", ["agent", "background"])
def test_people_lose_no_memory_to_agents_or_background_groups(priority: ev.Priority) -> None:
    m = Machine()
    away(m, "a", 60)
    idle(m, "b", 70, seconds=100)
    m.do(ev.Adjust("a", priority=priority))
    assert m.do(ev.Hint("a", "ready")) == []


def test_agents_lose_their_memory_before_people_do() -> None:
    m = Machine()
    away(m, "a", 60)
    idle(m, "b", 30)
    agent = idle(m, "c", 40, seconds=100)
    m.do(ev.Adjust("c", priority="agent"))
    assert m.do(ev.Hint("a", "typing")) == [ev.Revoke(agent.number, agent.lease)]


def test_nothing_is_evicted_unless_all_that_is_missing_can_be_had() -> None:
    m = Machine()
    away(m, "a", 60)
    m.runs("c", 35)
    idle(m, "b", 20, seconds=100)
    assert m.do(ev.Hint("a", "ready")) == []


# --- Hibernated groups ------------------------------------------------------------------------------


def test_a_hibernated_group_is_woken_and_restored() -> None:
    night = Night()
    a = night.asleep("a")
    night.said.clear()
    night.do(ev.Hint("a", "typing"))
    assert of(ev.Awake, night.said) == [ev.Awake(a.number, 0)]
    assert of(ev.Grant, night.said) == [ev.Grant(a.number, a.lease, True)]
    assert prefetch(night, "a")["stage"] == "restoring"
    a.end("quiet")
    a.restore()
    assert prefetch(night, "a")["stage"] == "ready"
    assert night.gpu["contexts"] == CONTEXT
    a.begin()
    assert results(night, "a") == ["begun", "used"]


def test_a_call_during_the_wake_makes_it_a_wake_on_demand() -> None:
    night = Night()
    a = night.asleep("a")
    a.restores = None
    night.do(ev.Hint("a", "typing"))
    assert (a.state, prefetch(night, "a")["stage"]) == ("prefetching", "waking")
    a.call()
    assert (a.state, prefetch(night, "a")) == ("waking", None)
    assert results(night, "a") == ["begun", "used"]


def test_a_group_that_was_woken_in_vain_hibernates_again() -> None:
    night = Night()
    a = night.ran("a")
    night.sleep(620)
    assert a.where == "hibernated"
    night.do(ev.Hint("a", "typing"))
    a.end("quiet")
    a.restore()
    night.sleep(HORIZON - 1)
    assert a.where == "idle_lease"
    night.sleep(3)
    assert results(night, "a") == ["begun", "vain"]
    assert a.where == "hibernated"


def test_a_group_is_not_woken_into_room_that_is_not_there() -> None:
    night = Night()
    a = night.asleep("a", 40)
    b = night.ran("b", 70)
    b.begin()
    night.said.clear()
    night.do(ev.Hint("a", "ready"))
    assert not of(ev.Wakeup, night.said)
    assert a.where == "hibernated"


def test_a_wake_that_fails_is_not_tried_again() -> None:
    night = Night()
    a = night.asleep("a")
    a.restores = "failed"
    night.said.clear()
    night.do(ev.Hint("a", "typing"))
    night.sleep(10)
    assert len(of(ev.Wakeup, night.said)) == 1
    assert a.where == "hibernated"
    assert results(night, "a") == ["begun", "abandoned"]


def test_a_hint_during_a_wake_on_demand_begins_no_prefetch() -> None:
    """The failed wake counted as one ahead of need, so the process that waited for it was never woken."""
    night = Night()
    a = night.asleep("a")
    a.restores = "room"
    a.call()
    night.do(ev.Hint("a", "typing"))
    night.sleep(10)
    assert prefetch(night, "a") is None
    a.restores = ""
    night.sleep(10)
    assert not a.parked


@pytest.mark.parametrize("needed", ["exit", "user"])
def test_a_wake_ahead_that_is_needed_meanwhile_is_tried_again(needed: str) -> None:
    night = Night()
    a = night.asleep("a")
    a.restores = None
    night.do(ev.Hint("a", "typing"))
    if needed == "exit":
        a.call("exit")
    else:
        night.do(ev.WakeNow("a"))
    night.do(ev.Woken(a.number, False, "room", "it says room", 0.5))
    a.restores = ""
    night.sleep(10)
    assert not a.parked


def test_a_group_that_its_user_woke_during_a_wake_ahead_does_not_hibernate_with_the_hint() -> None:
    night = Night()
    a = night.ran("a")
    night.sleep(620)
    a.restores = None
    night.do(ev.Hint("a", "typing"))
    (order,) = night.orders(ev.Wakeup)
    night.do(ev.WakeNow("a"))
    night.woken(a, "", order)
    a.end("quiet")
    a.restore()
    night.sleep(HORIZON + 10)
    assert results(night, "a") == ["begun", "vain"]
    assert a.where == "idle"


def test_a_group_that_a_user_hibernated_is_not_prefetched() -> None:
    night = Night()
    a = night.ran("a")
    night.sleep(10)
    night.do(ev.Hint("a", "typing"))
    night.do(ev.HibernateNow("a"))
    night.sleep(10)
    assert a.where == "hibernated"


def test_a_hint_keeps_a_group_from_hibernating_for_a_minute() -> None:
    night = Night()
    a = night.asleep("a")
    assert isinstance(a, Kernel)
    night.do(ev.Hint("a", "ready"))
    a.end("quiet")
    a.restore()
    night.sleep(HORIZON / 2)
    assert prefetch(night, "a")["stage"] == "ready"
