# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of the core: which groups run, which wait and why, and which memory moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.checks import ProtocolViolation
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules, default_reserve
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import BY_AGE, GIB, GPU, TOTAL, Machine, Process, of

# --- Fit or rotate --------------------------------------------------------------------------------


def test_two_groups_that_fit_run_together() -> None:
    m = Machine()
    a, b = m.runs("a", 50), m.runs("b", 50)
    assert (a.state, b.state) == ("running", "running")
    assert m.gpu["available"] == 0
    assert m.sleep(100) == []


def test_without_memory_to_move_a_grant_needs_no_reading() -> None:
    m = Machine()
    a = m.runs("a", 10)
    a.end()
    m.do(ev.Release("a"))
    a.release()
    m.sleep(1)
    before = m.readings
    assert of(ev.Grant, a.request())
    assert m.readings == before


def test_two_groups_that_do_not_fit_rotate_and_evict_only_what_is_needed() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    assert of(ev.Grant, b.request()) == []
    assert b.reason["code"] == "needs_memory"
    assert b.reason["params"]["lack"] == 35 * GIB
    assert b.reason["params"]["holder_name"] == "a.ipynb"
    assert b.reason["params"]["yields_in"] == pytest.approx(30)
    assert m.group("b")["position"] == 1

    assert of(ev.Revoke, a.end()) == [ev.Revoke(a.number, a.lease)]
    assert b.reason["code"] == "draining"
    assert of(ev.Evict, a.release()) == []
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert (order.client, order.bytes) == (a.number, 35 * GIB)
    # All that it lacks is on its way out: it need not wait for the last byte of it.
    assert b.state == "restoring"
    assert b.reason == {
        "code": "filling",
        "params": {
            "arrived": 0,
            "footprint": 60 * GIB,
            "gpu": GPU,
            "victims": ["a.ipynb"],
            "victim_ids": ["a"],
        },
    }
    assert b.room == 25 * GIB
    assert of(ev.Room, a.moves(order, 10)) == [ev.Room(b.number, b.lease, GPU, 35 * GIB)]
    assert m.gpu["available"] == 0
    assert of(ev.Room, a.moves(order, 15)) == [ev.Room(b.number, b.lease, GPU, 40 * GIB)]
    assert of(ev.Room, a.evict(order)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]
    assert b.state == "restoring"
    b.restore()
    assert b.state == "running"
    assert m.kinds("b")[-3:] == ["wait", "grant", "restore"]
    assert m.kinds("a")[-4:] == ["burst", "revoke", "release", "evict"]


@pytest.mark.parametrize("while_draining", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_revoked_group_does_not_overtake_the_one_it_was_revoked_for(
    while_draining: bool, quiet: bool
) -> None:
    m = Machine(quantum=5.0, residency_factor=0.0)
    a = m.runs("a", 50)
    m.sleep(1)
    b, c = m.process("b", 50), m.runs("c", 50)
    if quiet:
        a.end("quiet")
    decisions = b.request() + m.sleep(4)
    assert of(ev.Revoke, decisions) == [ev.Revoke(1, 1)]
    # Its next work comes before the reading that the eviction waits for; for that, there is room.
    m.slow = True
    m.now += 0.002
    decisions = a.request() if while_draining else []
    decisions += a.release()
    decisions += [] if while_draining else a.request()
    assert of(ev.Grant, decisions) == []
    m.slow = False
    (evict,) = of(ev.Evict, m.do(m.reading()))
    assert evict.client == 1
    a.evict(evict)
    assert (b.state, a.state, c.state) == ("restoring", "waiting", "running")


def test_a_running_holder_keeps_its_quantum() -> None:
    m = Machine(quantum=5.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    assert m.sleep(4.9) == []
    assert of(ev.Revoke, m.sleep(0.2)) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Evict, decisions := a.release())
    assert of(ev.Grant, decisions) == [ev.Grant(b.number, b.lease, filling=True)]


def test_the_quantum_follows_the_measured_cost_of_moving() -> None:
    m = Machine(bandwidth=1e9)
    a = m.runs("a", 50)
    slow = m.core.residency.quantum_of(m.core.groups["a"])
    for _ in range(20):
        m.do(ev.Restored(a.number, a.lease, a.usage(), 50 * GIB, 50 * GIB, 50 / 100, "done"))
    assert slow == 30.0
    assert m.core.residency.quantum_of(m.core.groups["a"]) == pytest.approx(5.0, rel=0.02)


def test_the_longest_idle_loses_its_memory_first() -> None:
    m = Machine()
    for name in ("a", "b", "c"):
        p = m.runs(name, 30)
        p.end()
        m.do(ev.Release(name))
        p.release()
        m.sleep(1)
    d = m.process("d", 50)
    orders = of(ev.Evict, d.request())
    assert [(o.client, o.bytes) for o in orders] == [(1, 30 * GIB), (2, 10 * GIB)]


def test_idle_memory_is_evicted_before_an_idle_lease_is_revoked() -> None:
    m = Machine()
    idle, held = m.runs("idle", 40), m.runs("held", 40)
    held.end()
    m.sleep(1)
    idle.end()
    m.do(ev.Release("idle"))
    idle.release()
    m.sleep(1)
    decisions = m.process("c", 50).request()
    assert [o.client for o in of(ev.Evict, decisions)] == [idle.number]
    assert of(ev.Revoke, decisions) == []


# --- Overtaking, within limits --------------------------------------------------------------------


def test_a_small_request_overtakes_where_it_delays_no_other() -> None:
    m = Machine(quantum=5.0, policy=BY_AGE)
    m.runs("a", 60)
    b, c, d = m.process("b", 70), m.process("c", 30), m.process("d", 10)
    b.request()
    assert of(ev.Grant, c.request()) == [ev.Grant(c.number, c.lease)]
    assert of(ev.Grant, d.request()) == []
    assert d.reason == {"code": "behind", "params": {"ahead": "b", "ahead_name": "b.ipynb"}}
    assert m.group("d")["position"] == 2


def test_a_run_all_continues_within_its_residency() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    # Some of what was promised is headroom, which it does not use.
    a.resident -= 1 * GIB
    m.do(ev.UsageChanged(a.number, a.usage()))
    b.request()
    a.end()
    a.release()
    m.sleep(0.004)
    assert of(ev.Grant, a.request()) == [ev.Grant(a.number, a.lease)]
    a.restore()
    # ... but its turn goes on from where it was: once the quantum is over, it is over.
    assert of(ev.Revoke, m.sleep(31)) == [ev.Revoke(a.number, a.lease)]
    a.release()
    assert of(ev.Grant, a.request()) == []


def test_quiet_ends_leave_the_memory_for_as_long_as_its_move_takes() -> None:
    m = Machine(quantum=60.0, bandwidth=10 * GIB)
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    assert of(ev.Revoke, a.end("quiet")) == []
    assert b.reason["code"] == "needs_memory"
    move = (60 - m.gpu["available"] / GIB) / 10
    assert b.reason["params"]["yields_in"] == pytest.approx(move, abs=0.1)
    assert of(ev.Revoke, m.sleep(0.9 * move)) == []
    assert of(ev.Revoke, m.sleep(0.2 * move)) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Evict, a.release())


def test_a_group_with_short_pauses_keeps_its_memory_for_its_residency() -> None:
    m = Machine(quantum=60.0, bandwidth=10 * GIB)
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    residency, revoked = m.core.residency.residency(m.core.groups["a"]), 0.0
    while not revoked:
        a.end("quiet")
        revoked = m.now if of(ev.Revoke, m.sleep(0.5)) else 0.0
        a.begin()
    assert revoked - m.core.groups["a"].turn_at >= residency


def test_an_absence_that_is_expected_to_be_long_is_not_waited_for() -> None:
    m = Machine(quantum=60.0, bandwidth=10 * GIB)
    a, b = m.runs("a", 75), m.process("b", 60)
    for _ in range(3):
        a.end("quiet")
        m.sleep(10)
        a.begin()
    b.request()
    assert of(ev.Revoke, a.end("quiet")) == []
    assert of(ev.Revoke, m.sleep(1.0)) == [ev.Revoke(a.number, a.lease)]


def test_a_cell_that_ends_after_its_burst_went_quiet_leaves_no_residency() -> None:
    m = Machine(quantum=60.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Cell("a", "begin", "1", m.now, from_kernel=True))
    b.request()
    a.end("quiet")
    assert of(ev.Revoke, m.sleep(1)) == []
    end = ev.Cell("a", "end", "1", m.now, from_kernel=True)
    assert of(ev.Revoke, m.do(end)) == [ev.Revoke(a.number, a.lease)]


def test_after_a_broken_residency_the_remaining_memory_is_evicted_at_once() -> None:
    m = Machine(quantum=60.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    a.end()
    a.release()
    b_before = b.lease
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert b.lease > b_before
    m.sleep(0.1)
    # Its next cell is waiting behind b, and another program has taken a part of the room.
    m.do(ev.Cell("a", "begin", "2", m.now, from_kernel=True))
    assert of(ev.Grant, a.request()) == []
    # Of 26 GiB, 25 may be b's: it does not say what has arrived before all has.
    m.foreign = 26 * GIB
    (more,) = of(ev.Evict, a.evict(order))
    assert more.bytes == 1 * GIB
    assert of(ev.Room, a.evict(more)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]


# --- anti_thrash ----------------------------------------------------------------------------------


def test_anti_thrash_on_serialises_what_would_fit() -> None:
    m = Machine(anti_thrash="on", quantum=5.0)
    a, b = m.runs("a", 20), m.process("b", 20)
    assert of(ev.Grant, b.request()) == []
    assert b.reason["code"] == "serialised"
    assert b.reason["params"]["yields_in"] == pytest.approx(5)
    assert of(ev.Revoke, a.end()) == [ev.Revoke(a.number, a.lease)]
    assert of(ev.Grant, a.release()) == [ev.Grant(b.number, b.lease)]


def test_anti_thrash_off_lets_managed_memory_overlap() -> None:
    m = Machine(anti_thrash="off")
    m.runs("a", 75, backend="managed")
    b = m.process("b", 75, backend="managed")
    assert of(ev.Grant, b.request())
    c = m.process("c", 75)
    assert of(ev.Grant, c.request()) == []


def test_settings_change_and_bad_ones_are_refused() -> None:
    m = Machine()
    m.do(ev.Configure(quantum=2.5, anti_thrash="on"))
    assert snapshot.status(m.core, m.now)["settings"] == {
        "quantum": 2.5,
        "anti_thrash": "on",
        "policy": "burst",
        "policies": ["burst", "fcfs", "gemini", "priority", "tgs"],
        "hibernate_after": 600.0,
    }
    for bad in (0, -1, 3601, float("nan"), "fast", True):
        with pytest.raises(ValueError, match="quantum must be"):
            m.do(ev.Configure(quantum=bad))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="anti_thrash must be"):
        m.do(ev.Configure(quantum=3.0, anti_thrash="maybe"))  # type: ignore[arg-type]
    assert m.core.rules.quantum == 2.5
    with pytest.raises(ValueError, match="policy must be"):
        Core(REGISTRY, Rules(policy="lottery"))


# --- Growth ---------------------------------------------------------------------------------------


def test_growth_under_a_lease_is_resident_if_there_is_room() -> None:
    m = Machine()
    a = m.runs("a", 50)
    answer = a.grow(10, most=20)
    assert answer is not None
    assert (answer.status, answer.promised) == ("resident", 70 * GIB)


def test_growth_without_room_releases_the_lease_and_queues_again() -> None:
    m = Machine(quantum=5.0)
    a, b = m.runs("a", 50), m.runs("b", 40)
    b.end()
    least = ev.Usage(GPU, a.promised + 20 * GIB, a.resident)
    answer, revoke = m.do(ev.Grow(a.number, 1, least, least.promised))
    assert isinstance(answer, ev.Grown)
    assert answer.status == "swapped"
    # It gives up by itself, but its grant may not have come in yet.
    assert revoke == ev.Revoke(a.number, a.lease)
    a.take(answer)
    assert a.state == "finishing"
    a.release("growth")
    assert of(ev.Revoke, a.request()) == [ev.Revoke(b.number, b.lease)]
    b.release()
    decisions = m.sleep(0.02)
    (order,) = of(ev.Evict, decisions)
    assert (order.client, order.bytes) == (b.number, 10 * GIB)
    assert of(ev.Grant, decisions) == [ev.Grant(a.number, a.lease, filling=True)]


def test_a_running_group_that_grows_takes_memory_from_a_waiting_group() -> None:
    m = Machine(policy=BY_AGE)
    a, b, c = m.runs("a", 40), m.runs("b", 40), m.process("c", 60)
    c.request()
    for process in (a, b):
        answer = process.grow(25)
        assert answer is not None
        assert answer.status == "swapped"
        process.release("growth")
        decisions = process.request()
    # All wait now, c first. The memory of a and b is protected for as long as their turns are.
    (order,) = of(ev.Evict, decisions)
    assert (order.client, order.bytes) == (b.number, 5 * GIB)
    decisions = b.evict(order)
    assert ev.Grant(a.number, a.lease) in decisions
    a.restore()
    # Its turn is not wound again.
    m.sleep(30)
    assert a.state == "finishing"


def test_a_capture_grows_at_once_although_its_lease_was_revoked() -> None:
    m = Machine(quantum=1.0)
    a, b = m.runs("a", 50), m.process("b", 60)
    b.request()
    m.sleep(2)
    assert a.state == "finishing"
    least = ev.Usage(GPU, a.promised + 5 * GIB, a.resident)
    (answer,) = of(ev.Grown, m.do(ev.Grow(a.number, 1, least, least.promised, urgent=True)))
    assert answer.status == "resident"


def test_a_capture_takes_memory_from_waiting_groups() -> None:
    m = Machine(quantum=1.0)
    b = m.runs("b", 60)
    b.end()
    a = m.runs("a", 40)
    b.grow(10)
    b.release("growth")
    b.request()
    m.sleep(2)
    assert a.state == "finishing"
    least = ev.Usage(GPU, a.promised + 5 * GIB, a.resident)
    decisions = m.do(ev.Grow(a.number, 1, least, least.promised, urgent=True))
    assert not of(ev.Grown, decisions)
    (order,) = of(ev.Evict, decisions)
    assert order.client == b.number
    (answer,) = of(ev.Grown, b.evict(order))
    assert answer.status == "resident"


def test_a_capture_without_any_possible_room_is_refused() -> None:
    m = Machine(quantum=100.0)
    a, _ = m.runs("a", 50), m.runs("b", 45)
    least = ev.Usage(GPU, a.promised + 20 * GIB, a.resident)
    assert not of(ev.Grown, m.do(ev.Grow(a.number, 1, least, least.promised, urgent=True)))
    (answer,) = of(ev.Grown, m.sleep(2))
    assert answer.status == "swapped"


def test_a_capture_waits_briefly_for_other_groups_to_release() -> None:
    m = Machine(quantum=100.0)
    a, b = m.runs("a", 50), m.runs("b", 45)
    least = ev.Usage(GPU, a.promised + 20 * GIB, a.resident)
    assert not of(ev.Grown, m.do(ev.Grow(a.number, 1, least, least.promised, urgent=True)))
    b.end()
    (order,) = of(ev.Evict, b.release("release"))
    (answer,) = of(ev.Grown, b.evict(order))
    assert answer.status == "resident"


def test_promised_memory_gets_room_at_once_where_a_cuda_kernel_may_need_it() -> None:
    m = Machine(quantum=1.0)
    b = m.runs("b", 60)
    b.end()
    a = m.runs("a", 40)
    b.grow(10)
    b.release("growth")
    b.request()
    m.sleep(2)
    assert a.state == "finishing"
    answer = a.grow(5)
    assert answer is not None
    assert answer.status == "swapped"
    least = ev.Usage(GPU, a.promised, a.resident)
    decisions = m.do(ev.Grow(a.number, 2, least, least.promised, urgent=True))
    assert not of(ev.Grown, decisions)
    (order,) = of(ev.Evict, decisions)
    assert order.client == b.number
    (answer,) = of(ev.Grown, b.evict(order))
    assert answer.status == "resident"


def test_a_request_that_can_never_fit_is_refused_with_the_figures() -> None:
    m = Machine(foreign=10 * GIB)
    a = m.process("a", 50)
    answer = a.grow(60)
    assert answer is not None
    assert answer.status == "device"
    assert answer.text == (
        "60.0 GiB more would make a total of 110.0 GiB, but one kernel can use at most 90.0 GiB of this GPU "
        "(other programs hold 10.0 GiB)"
    )
    assert m.kinds("a")[-1] == "refuse"
    # Before it says no for the sake of others, it looks again.
    m.sleep(1)
    m.foreign = 0
    answer = a.grow(45)
    assert answer is not None
    assert answer.status == "swapped"


def test_cap_and_host_memory_refuse() -> None:
    m = Machine()
    capped = m.process("a", 10, cap=20 * GIB)
    answer = capped.grow(11)
    assert answer is not None
    assert answer.status == "cap"
    assert answer.text == (
        "11.0 GiB more would make a total of 21.0 GiB, but this kernel is limited to 20.0 GiB"
    )
    m.do(ev.HostMemory(50 * GIB))
    m.sleep(60)
    m.process("b", 90)
    answer = m.process("c").grow(60, most=90)
    assert answer is not None
    assert answer.status == "host"
    assert "160.0 GiB for all kernels" in answer.text
    # The host's 50 GiB, less what is in flight and what rounding takes.
    assert "149.2 GiB" in answer.text
    answer = m.process("d").grow(40, most=90)
    assert answer is not None
    assert answer.status == "swapped"
    assert 48 * GIB < answer.promised <= 50 * GIB


def short_of_host_memory() -> tuple[Machine, Process]:
    """Return a machine that had 1000 GiB for swapped data until now, and a process whose allocation needs some."""
    m = Machine()
    m.process("a", 90)
    b = m.process("b")
    m.do(ev.HostMemory(0))
    assert b.grow(60) is None
    return m, b


def grown(decisions: list[ev.Decision]) -> list[str]:
    return [decision.status for decision in decisions if isinstance(decision, ev.Grown)]


def test_growth_waits_while_the_host_is_short_of_memory() -> None:
    m, b = short_of_host_memory()
    assert m.group("b")["state"] == "waiting"
    params = {"lack": 60 * GIB, "gpu": GPU, "until_in": 30.0}
    assert b.reason == {"code": "host_memory", "params": params}
    assert grown(m.sleep(20)) == []
    assert grown(m.do(ev.HostMemory(100 * GIB))) == ["swapped"]
    assert m.group("b")["state"] == "idle"


def test_growth_waits_for_host_memory_for_a_bounded_time() -> None:
    m, b = short_of_host_memory()
    assert grown(m.sleep(29.9)) == []
    assert grown(m.sleep(0.1)) == ["host"]
    m.sleep(30)
    answer = b.grow(60)
    assert answer is not None, "it is short of memory for longer than a moment"
    assert answer.status == "host"


def test_growth_that_waits_for_host_memory_can_be_interrupted() -> None:
    m, b = short_of_host_memory()
    assert ev.CancelWaits(b.number) in m.do(ev.Cancel("b"))
    assert (m.group("b")["state"], b.reason) == ("idle", None)
    assert grown(m.do(ev.HostMemory(100 * GIB))) == []


def test_growth_that_waited_in_vain_is_refused_at_once_the_next_time() -> None:
    m = Machine()
    m.do(ev.HostMemory(20 * GIB))
    m.sleep(60)
    m.do(ev.HostMemory(0))
    m.process("a", 90)
    answer = m.process("b").grow(60)
    assert answer is not None
    assert answer.status == "host"


def test_a_scheduler_that_begins_short_of_host_memory_waits_for_it_too() -> None:
    core = Core(REGISTRY, Rules(reserve=0))
    core.handle(ev.Device(GPU, TOTAL, 0, "Test GPU", 0), 1.0)
    core.handle(ev.HostMemory(0, most=100 * GIB), 1.0)
    for number in (1, 2):
        core.handle(ev.Attach(number, number, str(number), str(number), "swap"), 1.0)
    first = core.handle(ev.Grow(1, 1, ev.Usage(GPU, 90 * GIB), 90 * GIB), 1.0)
    assert grown(first) == ["swapped"]
    assert grown(core.handle(ev.Grow(2, 1, ev.Usage(GPU, 60 * GIB), 60 * GIB), 1.0)) == []
    assert grown(core.handle(ev.HostMemory(100 * GIB, most=100 * GIB), 2.0)) == ["swapped"]


def test_unevictable_memory_waits_until_room_is_made() -> None:
    m = Machine()
    a, _, b = m.runs("a", 60), m.runs("c", 35), m.process("b")
    assert b.grow(unevictable=10) is None
    assert b.reason["code"] == "needs_memory"
    a.end()
    a.release()
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert order.bytes == 5 * GIB
    (answer,) = of(ev.Grown, a.evict(order))
    assert (answer.client, answer.status) == (b.number, "resident")
    b.take(answer, 10)
    assert m.gpu["unevictable"] == 10 * GIB
    assert m.gpu["foreign"] == 0


# --- Others on the GPU, and the dead --------------------------------------------------------------


def test_use_by_other_programs_is_reported_and_waited_for() -> None:
    m = Machine()
    a = m.process("a", 80)
    m.sleep(1)
    m.foreign = 30 * GIB
    a.request()
    assert a.reason == {
        "code": "foreign_use",
        "params": {"lack": 10 * GIB, "gpu": GPU, "foreign": 30 * GIB},
    }
    assert m.sleep(0.2) == []
    m.foreign = 0
    assert of(ev.Grant, m.sleep(0.06)) == [ev.Grant(a.number, a.lease)]


def test_a_small_unexplained_use_counts_as_the_drivers_own() -> None:
    m, mib = Machine(), 1 << 20

    def said(foreign: int) -> tuple[int, int]:
        m.foreign = foreign * mib
        m.do(m.reading())
        return m.gpu["contexts"] // mib, m.gpu["foreign"] // mib

    assert said(3) == (0, 0)
    assert said(60) == (0, 60)
    a = m.process("a", 1)
    a.context = 512 * mib
    m.do(ev.UsageChanged(a.number, a.usage()))
    m.do(ev.Measured(a.number, GPU, 602 * mib))
    assert said(90) == (602, 0)
    assert said(100) == (612, 0)
    assert said(200) == (602, 110)


# --- Contexts -------------------------------------------------------------------------------------


def begin_context(m: Machine, group: str, takes: int, estimate: int = GIB) -> Process:
    """One more process, whose context takes so many bytes, and is admitted with an estimate."""
    process = m.process(group)
    least = ev.Usage(GPU, context=estimate)
    (answer,) = of(ev.Grown, m.do(ev.Grow(process.number, 7, least, 0)))
    assert answer.status == "resident"
    process.context = estimate
    m.foreign += takes - estimate
    m.do(ev.UsageChanged(process.number, process.usage()))
    return process


@pytest.mark.parametrize("takes", [1, GIB // 2, GIB + GIB // 3])
def test_the_size_of_a_context_is_learned_from_the_next_reading(takes: int) -> None:
    """So it is where the driver says nothing of each process."""
    m = Machine()
    begin_context(m, "a", takes)
    assert (m.gpu["contexts"], m.gpu["foreign"]) == (takes, 0)
    assert m.group("a")["gpus"][0]["context"] == takes
    assert m.gpu["available"] == 100 * GIB - takes
    # The next is admitted with just that.
    b = m.process("b")
    m.do(ev.Grow(b.number, 7, ev.Usage(GPU, context=GIB), 0))
    assert m.group("b")["gpus"][0]["context"] == takes


def test_the_size_of_a_context_is_not_learned_while_memory_moves() -> None:
    m = Machine()
    a, b = m.runs("a", 10), m.process("b")
    (answer,) = of(ev.Grown, m.do(ev.Grow(b.number, 7, ev.Usage(GPU, context=GIB), 0)))
    assert answer.status == "resident"
    a.promised = a.resident = 9 * GIB
    m.do(ev.UsageChanged(a.number, a.usage()))
    b.context = GIB
    m.foreign = GIB // 4
    m.do(ev.UsageChanged(b.number, b.usage()))
    assert m.group("b")["gpus"][0]["context"] == GIB
    # And what cannot be told from contexts is not said to be another program's.
    assert (m.gpu["contexts"], m.gpu["foreign"]) == (GIB + GIB // 4, 0)


def test_contexts_are_charged_as_measured_up_and_down() -> None:
    m = Machine()
    a, b = begin_context(m, "a", GIB), begin_context(m, "b", GIB)
    m.foreign += 2 * GIB
    m.do(ev.Measured(a.number, GPU, 3 * GIB))
    assert [m.group(name)["gpus"][0]["context"] for name in "ab"] == [3 * GIB, GIB]
    assert (m.gpu["foreign"], m.gpu["available"]) == (0, 96 * GIB)
    m.foreign -= 2 * GIB + GIB // 2
    m.do(ev.Measured(a.number, GPU, GIB // 2))
    assert m.group("a")["gpus"][0]["context"] == GIB // 2
    assert m.gpu["available"] == 98 * GIB + GIB // 2
    m.do(ev.Measured(b.number, GPU, GIB))
    # Its end takes all of it off.
    for process in (a, b):
        m.foreign -= 0 if process is b else -GIB // 2
        del m.processes[process.number]
        m.do(ev.Detach(process.number))
    m.do(m.reading())
    assert (m.gpu["contexts"], m.gpu["foreign"], m.gpu["pending_reclaim"]) == (0, 0, 0)


def test_small_contexts_leave_their_spare_room_to_others() -> None:
    m = Machine()
    takes = GIB // 16
    for number in range(150):
        begin_context(m, f"g{number}", takes)
    assert m.gpu["contexts"] == 150 * takes
    assert m.gpu["foreign"] == 0


def test_a_second_context_is_charged_in_addition_to_the_first() -> None:
    m = Machine()
    a = begin_context(m, "a", GIB // 2)
    m.do(ev.Grow(a.number, 8, ev.Usage(GPU, context=2 * GIB), 0))
    assert m.group("a")["gpus"][0]["context"] == GIB
    a.context = 2 * GIB
    m.foreign -= GIB // 2
    m.do(ev.UsageChanged(a.number, a.usage()))
    assert m.group("a")["gpus"][0]["context"] == GIB
    a.context = 0
    m.foreign = 0
    m.do(ev.UsageChanged(a.number, a.usage()))
    assert (m.gpu["contexts"], m.gpu["foreign"]) == (0, 0)


def test_restored_memory_is_not_foreign_although_others_free_memory() -> None:
    m = Machine(foreign=20 * GIB)
    a, b = m.process("a", 30), m.process("b", 50)
    a.request()
    a.restore()
    assert of(ev.Grant, b.request()) == [ev.Grant(b.number, b.lease)]
    b.resident = 25 * GIB  # which it does not state before all is in
    a.promised = a.resident = 20 * GIB
    m.do(m.reading())
    m.do(ev.UsageChanged(a.number, a.usage()))
    # Whether the reading was without what a freed cannot be known; more than that cannot be others' use.
    assert m.do(m.reading()) == []
    assert m.gpu["foreign"] <= 30 * GIB
    assert b.state == "restoring"
    b.restore()
    m.do(m.reading())
    assert m.gpu["foreign"] == 20 * GIB


def test_memory_freed_before_its_report_hides_no_foreign_use() -> None:
    m = Machine(foreign=20 * GIB)
    a, b = m.runs("a", 30), m.process("b", 50)
    a.promised = a.resident = 20 * GIB
    m.do(m.reading())
    assert m.gpu["foreign"] == 10 * GIB
    b.request()
    m.do(ev.UsageChanged(a.number, a.usage()))
    m.do(m.reading())
    assert m.gpu["foreign"] == 20 * GIB


def test_memory_that_a_victim_frees_during_a_restore_hides_no_foreign_use() -> None:
    m = Machine(foreign=20 * GIB)
    a, b = m.runs("a", 60), m.process("b", 50)
    b.request()
    a.end()
    a.release()
    m.sleep(0.02)
    assert (b.state, b.room) == ("restoring", 20 * GIB)
    a.promised = a.resident = 20 * GIB  # which it has not stated yet
    m.do(m.reading())
    assert m.gpu["foreign"] == 10 * GIB
    m.do(ev.UsageChanged(a.number, a.usage()))
    m.do(m.reading())
    assert m.gpu["foreign"] == 20 * GIB
    assert b.room == 50 * GIB
    assert m.gpu["available"] == 10 * GIB


def test_memory_freed_during_a_restore_is_not_foreign() -> None:
    m = Machine(foreign=20 * GIB)
    a, b = m.runs("a", 60), m.process("b", 50)
    b.request()
    a.end()
    a.release()
    m.sleep(0.02)
    a.promised = a.resident = 20 * GIB
    m.do(ev.UsageChanged(a.number, a.usage()))
    assert m.gpu["foreign"] == 20 * GIB
    assert b.room == 50 * GIB


def test_unevictable_memory_of_others_is_reported() -> None:
    m = Machine()
    a, b = m.process("a", 80), m.process("b")
    m.sleep(1)
    b.unevictable, b.context = 20 * GIB, 5 * GIB
    m.do(ev.UsageChanged(b.number, b.usage()))
    m.do(ev.Measured(b.number, GPU, 5 * GIB))
    a.unevictable = GIB
    m.do(ev.UsageChanged(a.number, a.usage()))
    m.foreign = 2 * GIB
    a.request()
    assert a.reason == {
        "code": "crowded",
        "params": {"lack": 8 * GIB, "gpu": GPU, "fixed": 25 * GIB},
    }
    assert of(ev.Grant, m.sleep(0.2)) == []
    m.foreign = 30 * GIB
    m.sleep(0.2)
    assert a.reason["code"] == "foreign_use", "which is more"
    m.foreign = 2 * GIB
    b.unevictable = 0
    m.do(ev.UsageChanged(b.number, b.usage()))
    assert of(ev.Grant, m.sleep(2)) == [ev.Grant(a.number, a.lease)]


def test_a_request_that_cannot_be_served_now_delays_no_other() -> None:
    m = Machine()
    a, b = m.process("a", 80), m.process("b", 50)
    m.sleep(1)
    m.foreign = 30 * GIB
    a.request()
    assert of(ev.Grant, b.request()) == [ev.Grant(b.number, b.lease)]


def test_dead_processes_are_charged_until_their_memory_is_free() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    a_size, m.pending_reclaim = a.resident, a.resident
    del m.processes[a.number]
    assert of(ev.Grant, m.do(ev.Detach(a.number))) == []
    assert m.gpu["pending_reclaim"] == a_size
    assert b.reason["code"] == "dying"
    m.sleep(0.05)
    m.pending_reclaim = 40 * GIB
    assert of(ev.Grant, m.sleep(0.1)) == [ev.Grant(b.number, b.lease)]
    assert m.gpu["pending_reclaim"] == 40 * GIB


def test_a_failed_restore_queues_again_at_the_front() -> None:
    m = Machine()
    a = m.process("a", 50)
    a.request()
    m.foreign = 60 * GIB
    assert of(ev.Grant, a.restore("failed")) == []
    assert a.state == "waiting"
    assert a.reason["code"] == "foreign_use"
    b = m.process("b", 30)
    assert of(ev.Grant, b.request())
    b.restore()
    m.foreign = 0
    assert of(ev.Grant, m.sleep(0.1)) == [ev.Grant(a.number, a.lease)]


def test_a_wait_despite_free_memory_is_explained_by_the_failed_restore() -> None:
    m = Machine()
    a = m.process("a", 50)
    a.request()
    for attempts in (1, 2):
        assert of(ev.Grant, a.restore("failed", error=999)) == []
        assert a.reason == {
            "code": "restore_failed",
            "params": {"attempts": attempts, "error": 999},
        }
        assert of(ev.Grant, m.sleep(0.1)) == [ev.Grant(a.number, a.lease)]
    a.restore()
    assert a.state == "running"


def test_a_process_that_abandons_its_restore_is_not_queued_again() -> None:
    m = Machine()
    a = m.process("a", 50)
    a.request()
    a.restore("failed", error=999)
    m.sleep(0.1)
    a.restore("partial", error=999)
    a.release("release")
    assert a.state == "idle"
    assert of(ev.Grant, m.sleep(2)) == []
    assert of(ev.Grant, a.request()) == [ev.Grant(a.number, a.lease)], "no pause"


def test_an_eviction_that_fails_is_tried_again_later() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    a.end()
    a.release()
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert of(ev.Evict, a.evict(order, "failed")) == []
    (again,) = of(ev.Evict, m.sleep(0.02))
    assert of(ev.Room, a.evict(again)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]


# --- Filling --------------------------------------------------------------------------------------


def fills(gib: int = 60) -> tuple[Machine, Process, Process, ev.Evict]:
    """A machine on which b fills while what it lacks of a's 75 GiB leaves."""
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", gib)
    b.request()
    a.end()
    a.release()
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert b.state == "restoring"
    return m, a, b, order


def test_an_eviction_allows_for_changes_between_readings() -> None:
    m = Machine(margin=64 << 20)
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    a.end()
    a.release()
    (order,) = of(ev.Evict, m.sleep(0.02))
    assert order.bytes == 35 * GIB + (64 << 20)
    a.moves(order, 35)
    # b has all its promised memory, although another program took 17 MiB: one eviction was enough.
    m.foreign = 17 << 20
    m.sleep(0.1)
    assert of(ev.Evict, a.evict(order)) == []
    assert m.gpu["available"] >= 40 << 20


def test_when_less_room_is_left_other_victims_are_taken() -> None:
    m = Machine(policy=BY_AGE)
    c = m.runs("c", 20)
    m.do(ev.Release("c"))
    c.release()
    a, b = m.runs("a", 75), m.process("b", 40)
    decisions = b.request() + a.end() + a.release() + m.sleep(0.02)
    orders = {o.client: o for o in of(ev.Evict, decisions)}
    assert {n: o.bytes for n, o in orders.items()} == {c.number: 20 * GIB, a.number: 15 * GIB}
    assert of(ev.Room, a.evict(orders[a.number])) == [ev.Room(b.number, b.lease, GPU, 20 * GIB)]
    # c keeps all it has: it is asked once more, then a gives the rest.
    c.evict(orders[c.number], "failed")
    (again,) = of(ev.Evict, m.sleep(0.02))
    assert again.client == c.number
    (more,) = of(ev.Evict, c.evict(again, "failed"))
    assert (more.client, more.bytes) == (a.number, 20 * GIB)
    assert of(ev.Room, a.evict(more)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]


def test_a_victim_that_returns_during_its_eviction_runs_after_the_group_being_restored() -> None:
    _m, a, b, order = fills()
    assert of(ev.Grant, a.request()) == []
    assert a.state == "waiting"
    assert of(ev.Room, a.evict(order)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]


def test_a_resident_group_is_not_delayed_by_another_ones_restore() -> None:
    m = Machine()
    c = m.runs("c", 5)
    m.do(ev.Release("c"))
    c.release()
    a, b = m.runs("a", 75), m.process("b", 60)
    c.request()
    b.request()
    a.end()
    a.release()
    m.sleep(0.02)
    assert b.state == "restoring"
    assert c.state == "running"
    m.do(ev.Release("c"))
    c.release()
    assert of(ev.Grant, c.request()) == [ev.Grant(c.number, c.lease)]


def test_the_death_of_a_victim_makes_room_once_a_reading_shows_it() -> None:
    m, a, b, _order = fills()
    m.pending_reclaim = 75 * GIB
    a.resident = 0
    m.do(ev.Detach(a.number))
    assert b.state == "restoring"
    m.pending_reclaim = 0
    assert of(ev.Room, m.sleep(1.5)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]


def test_the_death_of_a_group_being_restored_frees_its_allotment() -> None:
    m, a, b, order = fills()
    b.resident = 10 * GIB
    m.do(ev.Detach(b.number))
    del m.processes[b.number]
    assert m.gpu["pending_reclaim"] == 25 * GIB
    a.evict(order)
    m.sleep(2)
    assert m.gpu["pending_reclaim"] == 0
    assert m.gpu["available"] == 60 * GIB


def test_a_group_keeps_its_place_when_expected_room_never_appears() -> None:
    m, a, b, order = fills(95)
    b.resident = 25 * GIB
    m.do(ev.UsageChanged(b.number, b.usage()))
    m.foreign = 70 * GIB
    m.sleep(0.1)
    a.evict(order)
    (revoke,) = of(ev.Revoke, m.sleep(1.5))
    assert revoke == ev.Revoke(b.number, b.lease)
    b.release("failed")
    a.request()
    b.request()
    assert (m.group("b")["position"], m.group("a")["position"]) == (1, 2)
    m.foreign = 0
    assert of(ev.Grant, m.sleep(2)) == [ev.Grant(b.number, b.lease)]


def test_a_lease_revoked_during_a_restore_keeps_the_restored_memory() -> None:
    m, a, b, order = fills()
    assert of(ev.Revoke, m.do(ev.Release("b"))) == [ev.Revoke(b.number, b.lease)]
    b.resident = 20 * GIB
    m.do(ev.Restored(b.number, b.lease, b.usage(), b.resident, b.resident, 2.0, "partial"))
    b.release("failed")
    assert b.state == "idle"
    assert m.gpu["available"] == 5 * GIB
    a.evict(order)
    assert m.gpu["available"] == 40 * GIB
    assert of(ev.Grant, b.request()) == [ev.Grant(b.number, b.lease)]


def test_restored_memory_is_not_foreign_although_more_was_evicted_than_ordered() -> None:
    m, a, b, order = fills()
    assert of(ev.Room, a.moves(order, 35)) == [ev.Room(b.number, b.lease, GPU, ev.ALL)]
    a.resident -= GIB  # pieces leave as a whole
    m.do(ev.Evicted(a.number, order.serial, a.usage(), 36 * GIB, 36 * GIB, 3.6, "done"))
    b.resident = 40 * GIB  # which it has not stated yet
    assert m.do(m.reading()) == []
    assert b.state == "restoring"
    b.restore()
    assert b.state == "running"
    m.do(m.reading())
    assert m.gpu["foreign"] == 0


def test_a_repeated_request_is_sent_the_room_again() -> None:
    _m, _a, b, _order = fills()
    assert b.request() == [
        ev.Grant(b.number, b.lease, filling=True),
        ev.Room(b.number, b.lease, GPU, 25 * GIB),
    ]


# --- Host memory ahead of need --------------------------------------------------------------------


def test_nothing_is_prepared_while_no_contention_is_in_sight() -> None:
    m = Machine()
    m.process("a", 95)
    m.process("b")
    assert (m.pool, m.prepared) == (0, {})


def test_host_memory_is_prepared_before_any_group_waits() -> None:
    m = Machine()
    a, b = m.process("a", 60), m.process("b", 15)
    assert m.pool == 0
    b.grow(10)
    assert 0 < m.pool <= 4 * GIB
    b.grow(60)
    # 145 GiB on 100.
    assert 45 * GIB <= m.pool <= 60 * GIB
    assert m.prepared == {a.number: m.pool, b.number: m.pool}
    small = m.process("c", 1)
    assert m.prepared[small.number] == 1 * GIB


def test_small_growth_causes_few_messages() -> None:
    m = Machine()
    m.process("a", 90)
    b = m.process("b")
    for _ in range(1000):
        b.grow(0.05)
    assert m.told < 60


def test_the_prepared_host_memory_shrinks_only_after_a_delay() -> None:
    m = Machine()
    a, b = m.process("a", 90), m.process("b", 60)
    before = m.pool
    assert before >= 50 * GIB
    b.promised = 0
    m.do(ev.UsageChanged(b.number, b.usage()))
    m.sleep(9)
    assert m.pool == before
    m.sleep(2)
    assert m.pool == 0
    assert m.prepared == {a.number: 0, b.number: 0}


def test_no_more_host_memory_is_prepared_than_the_host_has() -> None:
    m = Machine()
    m.process("a", 90)
    m.process("b", 60)
    m.do(ev.HostMemory(8 * GIB))
    assert m.pool == 8 * GIB
    assert set(m.prepared.values()) == {8 * GIB}


# --- Groups, cells, people ------------------------------------------------------------------------


def test_a_group_is_leased_as_one() -> None:
    m = Machine()
    parent = m.runs("a", 40)
    child = m.process("a")
    assert of(ev.Grant, child.request()) == [ev.Grant(child.number, parent.lease)]
    b = m.process("b", 90)
    b.request()
    parent.end()
    assert len(of(ev.Revoke, child.end())) == 2
    assert of(ev.Evict, parent.release()) == []
    assert m.group("a")["state"] == "finishing"
    child.release()
    assert of(ev.Evict, m.sleep(0.02))


def test_a_stale_release_is_ignored() -> None:
    m = Machine()
    a = m.runs("a", 40)
    m.do(ev.Released(a.number, a.lease + 5, "revoke"))
    assert a.state == "running"


def test_a_late_idle_does_not_end_the_next_burst() -> None:
    m = Machine()
    a = m.runs("a", 40)
    m.do(ev.Cell("a", "begin", "m1", m.now, False))
    m.sleep(1)
    ended = m.now
    m.do(ev.Cell("a", "end", "m1", ended, True))
    a.end()
    m.sleep(0.01)
    m.do(ev.Cell("a", "begin", "m2", m.now, True))
    a.begin()
    assert of(ev.EndBurst, m.do(ev.Cell("a", "end", "m1", ended, False))) == []
    m.sleep(1)
    assert of(ev.EndBurst, m.do(ev.Cell("a", "end", "m2", m.now, False))) == [
        ev.EndBurst(a.number, m.now)
    ]


def test_a_burst_ends_with_the_last_open_cell() -> None:
    m = Machine()
    a = m.runs("a", 40)
    for cell in ("m1", "m2"):
        m.do(ev.Cell("a", "begin", cell, m.now, False))
    m.sleep(1)
    assert of(ev.EndBurst, m.do(ev.Cell("a", "end", "m1", m.now, False))) == []
    assert m.group("a")["cell"]["msg_id"] == "m2"
    assert of(ev.EndBurst, m.do(ev.Cell("a", "end", "m2", m.now, False)))
    assert m.group("a")["cell"] is None
    assert a.state == "running"


def test_cancel_ends_the_waits_of_a_group() -> None:
    m = Machine()
    m.runs("a", 75)
    b = m.process("b", 60)
    b.request()
    assert of(ev.CancelWaits, m.do(ev.Cancel("b"))) == [ev.CancelWaits(b.number)]
    assert b.state == "idle"
    assert m.core.queue == []


def test_users_can_release_and_evict() -> None:
    m = Machine()
    a = m.runs("a", 75)
    assert of(ev.Revoke, m.do(ev.Release("a", evict=True))) == [ev.Revoke(a.number, a.lease)]
    (order,) = of(ev.Evict, a.release())
    assert order.bytes == 75 * GIB
    a.evict(order)
    assert a.state == "idle"
    assert m.group("a")["gpus"][0]["swapped"] == 75 * GIB


def test_lease_holders_are_sent_whether_others_wait() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    assert of(ev.Contended, b.request()) == [ev.Contended(a.number, 1)]
    # A changed number of waiting groups alone is not sent to every holder.
    assert of(ev.Contended, m.process("c", 60).request()) == []
    assert of(ev.Contended, m.do(ev.Cancel("b"))) == []
    assert of(ev.Contended, m.do(ev.Cancel("c"))) == [ev.Contended(a.number, 0)]


def test_lease_holders_are_sent_whether_others_hold_leases_too() -> None:
    m = Machine()
    a = m.runs("a", 20)
    assert m.core.clients[a.number].beside == 0
    b = m.process("b", 20)
    told = of(ev.Contended, b.request())
    assert told == [ev.Contended(a.number, 0, beside=1), ev.Contended(b.number, 0, beside=1)]
    c = m.process("c", 20)
    assert of(ev.Contended, c.request()) == [ev.Contended(c.number, 0, beside=2)]
    for process in (b, c):
        m.do(ev.Release(process.group))
    assert of(ev.Contended, c.release()) == [ev.Contended(c.number, 0)]
    assert of(ev.Contended, b.release()) == [ev.Contended(b.number, 0), ev.Contended(a.number, 0)]


def test_a_scheduler_that_takes_over_resolves_an_overcommitment() -> None:
    m = Machine()
    m.foreign = 0
    a, b = Process(m, 1, "a"), Process(m, 2, "b")
    a.promised = a.resident = 60 * GIB
    b.promised, b.resident = 60 * GIB, 40 * GIB
    a.lease, b.lease = 4, 5
    a.attach(reattach=True, leased=True, busy=True, lease=4)
    assert a.state == "running"
    b.attach(reattach=True, leased=True, busy=True, lease=5)
    assert b.state == "finishing"
    b.release()
    assert m.gpu["foreign"] == 0
    assert m.gpu["available"] == 0
    c = m.process("c", 10)
    c.request()
    a.end("cell")
    assert a.lease == 4
    assert m.core.groups["c"].wait is not None or c.lease > 5


@pytest.mark.parametrize(("swapped", "state"), [(0, "running"), (GIB, "restoring")])
def test_after_a_take_over_only_memory_on_the_host_is_restored(swapped: int, state: str) -> None:
    m = Machine()
    m.foreign = 0
    a = Process(m, 1, "a")
    usage = ev.Usage(GPU, promised=60 * GIB, resident=59 * GIB, host=swapped)
    m.processes[1] = a
    m.do(
        ev.Attach(
            *(1, 1001, "a", "a.ipynb", "swap"),
            usages=(usage,),
            reattach=True,
            leased=True,
            busy=True,
            lease=4,
        )
    )
    assert a.state == state


def test_a_lease_that_a_client_took_by_itself_can_be_taken_back() -> None:
    m = Machine()
    a = Process(m, 1, "a")
    a.promised = a.resident = 60 * GIB
    a.attach(reattach=True, leased=True, lease=0)
    m.process("b", 60).request()
    assert of(ev.Revoke, m.sleep(31)) == [ev.Revoke(a.number, 0)]
    a.release()
    assert a.state == "idle"


def comes_back(process: Process, lease: int) -> list[ev.Decision]:
    """Attach once more, with a lease; return the decisions about it."""
    m, more = process.machine, {"reattach": True, "leased": True, "busy": True, "lease": lease}
    usages = (process.usage(),)
    number, group = process.number, process.group
    m.processes = {n: p for n, p in m.processes.items() if p is not process} | {number: process}
    decisions = m.do(
        ev.Attach(number, 1000 + number, group, group, "swap", usages=usages, **more)  # type: ignore[arg-type]
    )
    return [d for d in decisions if isinstance(d, ev.Grant | ev.Revoke) and d.client == number]


def test_a_lease_that_was_never_granted_is_not_taken_over_later() -> None:
    m = Machine()
    a, b = m.runs("a", 60), m.process("b", 60)
    m.sleep(60)
    a.end("quiet")
    b.request()
    for number, lease in ((7, 0), (8, a.lease), (9, a.lease + 1), (10, 1 << 60)):
        liar = Process(m, number, f"liar {number}")
        assert comes_back(liar, lease) == [ev.Revoke(number, lease)]
        assert liar.state == "idle"
        # It obeys: its release is of an unknown lease, and it queues again.
        liar.promised = 80 * GIB
        m.do(ev.Released(number, lease, "revoke"))
        m.do(ev.UsageChanged(number, liar.usage()))
        assert of(ev.Grant, liar.request()) == []
    assert b.reason["code"] in ("needs_memory", "draining")


def test_a_client_that_reconnects_continues_its_time_slice() -> None:
    m = Machine(quantum=20.0)
    a, b = m.runs("a", 60), m.process("b", 60)
    m.sleep(60)
    lease = a.lease
    m.do(ev.Detach(a.number))
    m.sleep(1)
    a.number = 3
    assert comes_back(a, lease) == []
    assert a.state == "running"
    assert m.gpu["pending_reclaim"] == 0
    # Its quantum is long over: a broken connection begins none.
    assert of(ev.Revoke, b.request()) == [ev.Revoke(3, lease)]
    m.do(ev.Detach(3))
    a.number = 4
    assert comes_back(a, lease) == [ev.Revoke(4, lease)]


@pytest.mark.parametrize("away", [0, 10])
def test_a_client_that_reconnects_is_not_charged_twice(away: float) -> None:
    m = Machine(foreign=5 * GIB)
    a, b = m.runs("a", 60), m.runs("b", 30)
    m.sleep(100)
    m.do(ev.Detach(a.number))
    assert m.gpu["pending_reclaim"] == 60 * GIB
    # Before the next reading, or when its death is no longer expected.
    m.sleep(away)
    expected = (0, 65 * GIB) if away else (60 * GIB, 5 * GIB)
    assert (m.gpu["pending_reclaim"], m.gpu["foreign"]) == expected
    a.number = 3
    assert comes_back(a, a.lease) == []
    assert (a.state, b.state) == ("running", "running")
    assert (m.gpu["pending_reclaim"], m.gpu["foreign"], m.gpu["available"]) == (0, 5 * GIB, 5 * GIB)


def test_a_client_reconnects_although_its_old_connection_is_still_open() -> None:
    m = Machine()
    a = m.runs("a", 30)
    m.sleep(100)
    again = Process(m, 2, "a")
    again.promised = again.resident = 30 * GIB
    assert comes_back(again, a.lease) == []
    a.resident = 0
    m.do(ev.Detach(a.number))
    assert again.state == "running"


def test_a_lease_from_a_connection_that_ended_long_ago_is_not_taken_over() -> None:
    m = Machine()
    a = m.runs("a", 60)
    m.sleep(60)
    m.do(ev.Detach(a.number))
    m.sleep(60)
    a.number = 2
    assert comes_back(a, a.lease) == [ev.Revoke(2, a.lease)]


@pytest.mark.parametrize("lease", [(1 << 48) + 1, (1 << 64) - 1])
def test_absurd_lease_numbers_are_not_continued(lease: int) -> None:
    m = Machine()
    a = Process(m, 1, "a")
    a.promised = a.resident = 60 * GIB
    assert comes_back(a, lease) == []
    assert a.state == "running"
    b = m.runs("b", 10)
    assert b.lease == 2
    # The client knows it by its own number all the same.
    assert of(ev.Revoke, m.do(ev.Release("a"))) == [ev.Revoke(1, lease)]
    m.do(ev.Released(1, lease, "release"))
    assert a.state == "idle"


def test_names_and_prefixes_find_a_group() -> None:
    m = Machine()
    for name in ("alpha", "alpine"):
        m.process(name)
    assert m.core.find_group("alpi") == "alpine"
    assert m.core.find_group("alpine.ipynb") == "alpine"
    m.do(ev.Rename("alpine", "new.ipynb"))
    assert m.core.find_group("new.ipynb") == "alpine"
    with pytest.raises(LookupError, match="several"):
        m.core.find_group("alp")
    with pytest.raises(LookupError, match="no group"):
        m.core.find_group("beta")


def test_only_the_latest_notices_are_kept() -> None:
    m = Machine()
    for n in range(60):
        m.do(ev.Notice("a", "started_without_interposer", {"n": n}))
    notices = snapshot.status(m.core, m.now)["notices"]
    assert len(notices) == 50
    assert notices[-1]["params"] == {"n": 59}


def test_the_status_is_json_and_has_counters() -> None:
    m = Machine()
    a, b = m.runs("a", 75), m.process("b", 60)
    b.request()
    m.sleep(2)
    a.end()
    a.release()
    (order,) = of(ev.Evict, m.sleep(0.02))
    a.evict(order)
    b.restore()
    json.dumps(snapshot.status(m.core, m.now))
    assert m.group("a")["totals"]["evicted"] == 35 * GIB
    assert m.group("b")["totals"]["waits"] == 1


# --- What cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ev.Request(99, 1),
        ev.Detach(99),
        ev.UsageChanged(1, ev.Usage(GPU, promised=1, resident=2)),
        ev.UsageChanged(1, ev.Usage(GPU, promised=-1)),
        ev.UsageChanged(1, ev.Usage(GPU, unevictable=1 << 51)),
        ev.UsageChanged(1, ev.Usage("GPU-none")),
        ev.Grow(1, 1, ev.Usage(GPU, promised=5), -1),
        ev.Evicted(1, 1, ev.Usage(GPU), -5, 0, 0.1, "done"),
        ev.Restored(1, 1, ev.Usage(GPU), 5, 0, float("nan"), "done"),
        ev.Attach(1, 5, "a", "a", "swap"),
        ev.Attach(5, 5, "", "a", "swap"),
        ev.Attach(5, 5, "z", "z", "plain", usages=(ev.Usage(GPU, promised=5),)),
        ev.Attach(5, 5, "z", "z", "swap", usages=(ev.Usage(GPU), ev.Usage(GPU))),
    ],
)
def test_an_impossible_event_is_a_violation_and_changes_nothing(event: Any) -> None:
    m = Machine()
    m.runs("a", 20)
    before = json.dumps(snapshot.status(m.core, m.now))
    with pytest.raises(ProtocolViolation):
        m.do(event)
    assert json.dumps(snapshot.status(m.core, m.now)) == before


def test_the_reserve_suits_small_and_large_gpus() -> None:
    assert default_reserve(256 << 20) == (256 << 20) // 50
    assert default_reserve(139 * GIB) == 139 * GIB // 100
