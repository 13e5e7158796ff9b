# SPDX-License-Identifier: BSD-3-Clause
"""Contexts and other programs in the core: how their memory is measured and charged."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU, Machine, Process, of

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


@pytest.mark.parametrize(("others", "learned"), [(GIB // 2, False), (GIB // 4, True)])
def test_a_context_does_not_seem_small_because_another_program_may_have_ended(
    others: int, learned: bool
) -> None:
    """What seems to be missing may be what that held, and then the next context lacked it."""
    m = Machine(foreign=others)
    begin_context(m, "a", GIB // 2)
    assert m.group("a")["gpus"][0]["context"] == (GIB // 2 if learned else GIB)
    assert m.gpu["available"] == 100 * GIB - others - GIB // 2


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
