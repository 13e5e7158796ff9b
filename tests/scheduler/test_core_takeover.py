# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of the core: a new scheduler takes over, and clients connect again."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU, Machine, Process, of


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


@pytest.mark.parametrize(
    ("swapped", "disk", "state"),
    [(0, 0, "running"), (GIB, 0, "restoring"), (0, GIB, "restoring")],
)
def test_after_a_take_over_only_evicted_memory_is_restored(
    swapped: int, disk: int, state: str
) -> None:
    m = Machine()
    m.foreign = 0
    a = Process(m, 1, "a")
    usage = ev.Usage(GPU, promised=60 * GIB, resident=59 * GIB, host=swapped, disk=disk)
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
