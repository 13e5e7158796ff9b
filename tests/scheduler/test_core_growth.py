# SPDX-License-Identifier: BSD-3-Clause
"""Allocations in the core: which grow at once, which wait, and which are refused; host memory for evictions."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from tests.scheduler.core_machine import BY_AGE, GIB, GPU, TOTAL, Machine, Process, of

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


@pytest.mark.parametrize("policy", ["burst", "fcfs"])
def test_a_second_process_does_not_wait_for_those_that_wait_for_its_group(policy: str) -> None:
    """A cell that waits for its worker would otherwise compute nothing until its quantum ends."""
    m = Machine(policy=policy)
    m.runs("a", 60)
    m.sleep(20)
    b = m.process("b", 45)
    b.request()
    m.sleep(5)
    worker = m.process("a")
    least = ev.Usage(GPU, context=GIB)
    (answer,) = of(ev.Grown, m.do(ev.Grow(worker.number, 7, least, 0)))
    assert answer.status == "resident"
    assert b.reason["code"] in ("needs_memory", "serialised")


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
