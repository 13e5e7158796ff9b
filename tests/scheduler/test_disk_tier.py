# SPDX-License-Identifier: BSD-3-Clause
"""Which clients' host memory goes to a disk and which comes back, as the core decides it."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, Machine, of
from tests.scheduler.prefetching import away

DISK = ev.Disk(1000 * GIB)


def test_without_a_disk_nothing_is_decided() -> None:
    m = Machine()
    a = away(m, "a", 40)
    m.sleep(7200.0)
    a.request()
    assert of(ev.Spill, m.sleep(1.0)) == []


def test_the_longest_idle_goes_first_and_at_once_after_a_while() -> None:
    m = Machine(disk_after=100.0, hibernate_after=None)
    m.do(DISK)
    a, b = away(m, "a", 40), away(m, "b", 40)
    m.do(DISK)
    told = of(ev.Spill, m.sleep(300.0))
    assert [(d.clients, d.at_once) for d in told] == [
        ((a.number, b.number), 1),
        ((a.number, b.number), 2),
    ]


def test_data_that_is_evicted_after_the_time_goes_at_once() -> None:
    m = Machine(disk_after=0.1, hibernate_after=None)
    m.do(DISK)
    told = []
    do = m.do
    m.do = lambda event: told.extend(found := do(event)) or found  # type: ignore[method-assign]
    a = away(m, "a", 40)
    m.sleep(10.0)
    assert of(ev.Spill, told)[-1] == ev.Spill((a.number,), 1)


def test_without_a_time_data_goes_only_when_it_is_needed() -> None:
    m = Machine(disk_after=None, hibernate_after=None)
    away(m, "a", 40)
    assert [d.at_once for d in of(ev.Spill, m.do(DISK))] == [0]
    assert of(ev.Spill, m.sleep(1e6)) == []


def test_what_a_group_needs_comes_back() -> None:
    m = Machine(hibernate_after=None)
    a = away(m, "a", 40)
    b = m.runs("b", 90)
    m.do(ev.Disk(1000 * GIB, {a.number: 40 * GIB}))
    # It is the head of the queue.
    told = a.request()
    assert of(ev.Fetch, told) == [ev.Fetch((a.number,))]
    assert a.number not in of(ev.Spill, told)[-1].clients
    assert b.state == "running"
    # All of it is in memory again.
    assert of(ev.Fetch, m.do(DISK)) == [ev.Fetch(())]


def test_a_failed_disk_takes_no_more() -> None:
    m = Machine(hibernate_after=None)
    a = away(m, "a", 40)
    assert of(ev.Spill, m.do(DISK)) == [ev.Spill((a.number,), 0)]
    assert of(ev.Spill, m.do(ev.Disk(0, {a.number: GIB}))) == [ev.Spill(())]


def test_the_disk_counts_for_admission() -> None:
    m = Machine()
    m.do(ev.HostMemory(1 * GIB, 1 * GIB))
    # An earlier amount of host memory counts no more.
    m.sleep(61.0)
    m.do(ev.HostMemory(1 * GIB, 1 * GIB))
    m.runs("a", 60)
    b = m.process("b")
    answer = b.grow(60)
    assert answer is not None
    assert answer.status == "host"
    m.do(DISK)
    c = m.process("c")
    answer = c.grow(60)
    assert answer is None or answer.status == "swapped"


@pytest.mark.parametrize(
    ("kind", "second"),
    [
        ({}, "swapped"),
        ({"backend": "managed"}, "host"),
        ({"oversubscribe": True}, "host"),
        ({"apart": True}, "host"),
    ],
    ids=["swap", "managed", "oversubscribing", "without a pool"],
)
def test_the_disk_counts_only_for_what_can_go_there(kind: dict[str, Any], second: str) -> None:
    m = Machine()
    for _ in range(2):
        m.do(ev.HostMemory(1 * GIB, 1 * GIB))
        # An earlier amount of host memory counts no more.
        m.sleep(61.0)
    apart = (2, 3) if kind.get("apart") else ()
    m.do(ev.Disk(1000 * GIB, {}, apart))
    m.process("a", 60)
    answers = []
    for group in ("b", "c"):
        more = {name: value for name, value in kind.items() if name != "apart"}
        answer = m.process(group, **more).grow(60)
        assert answer is not None
        answers.append(answer)
    # The GPU can hold the first of them, because the other one can be on the disk.
    assert answers[0].status == "swapped"
    assert answers[1].status == second
    assert "on disk" not in answers[1].text


def test_those_who_wait_go_after_the_idle_ones_and_the_last_in_the_queue_first() -> None:
    m = Machine(hibernate_after=None)
    a, b, c, d = (away(m, name, 40) for name in "abcd")
    e = away(m, "e", 40)
    m.runs("x", 90)
    m.do(DISK)
    for process in (a, b, c):
        told = process.request()
    # The first one needs its memory next.
    assert of(ev.Spill, told)[-1].clients == (d.number, e.number, c.number, b.number)
    assert of(ev.Fetch, told) == []


def test_what_waits_on_the_disk_comes_back_when_it_is_next() -> None:
    m = Machine(hibernate_after=None)
    a, b = away(m, "a", 60), away(m, "b", 60)
    x = m.runs("x", 90)
    m.do(DISK)
    a.request()
    b.request()
    assert of(ev.Fetch, m.do(ev.Disk(1000 * GIB, {b.number: 40 * GIB}))) == []
    x.end("cell")
    m.do(ev.Release("x", evict=True))
    told = x.release()
    for order in of(ev.Evict, told):
        told += x.evict(order)
    assert a.state == "restoring"
    assert b.state == "waiting"
    assert of(ev.Fetch, told) == [ev.Fetch((b.number,))]
