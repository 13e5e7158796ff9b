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
from tests.scheduler.core_machine import BY_AGE, GIB, GPU, Machine, of

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
        "prefetch": True,
    }
    for bad in (0, -1, 3601, float("nan"), "fast", True):
        with pytest.raises(ValueError, match="quantum must be"):
            m.do(ev.Configure(quantum=bad))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="anti_thrash must be"):
        m.do(ev.Configure(quantum=3.0, anti_thrash="maybe"))  # type: ignore[arg-type]
    assert m.core.rules.quantum == 2.5
    with pytest.raises(ValueError, match="policy must be"):
        Core(REGISTRY, Rules(policy="lottery"))


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
