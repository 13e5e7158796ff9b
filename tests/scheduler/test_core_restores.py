# SPDX-License-Identifier: BSD-3-Clause
"""Restores in the core that fill memory while another group's memory is being evicted."""

from __future__ import annotations

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import BY_AGE, GIB, GPU, Machine, Process, of


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


def test_when_an_eviction_fails_another_victim_is_chosen() -> None:
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


def test_a_resident_group_is_not_delayed_by_another_groups_restore() -> None:
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
