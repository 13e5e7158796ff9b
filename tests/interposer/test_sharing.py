# SPDX-License-Identifier: BSD-3-Clause
"""Programs that share one GPU: which run, which wait, and no byte is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.machine import UNIT, Machine

MakeMachine = Callable[..., Machine]
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304
#: CU_POINTER_ATTRIBUTE_*
MEMORY_TYPE, RANGE_START, RANGE_SIZE, MAPPED, IS_MANAGED = 2, 11, 12, 13, 8


def test_two_programs_that_fit_run_side_by_side(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a, at_b = a.filled(64 * UNIT, 1), b.filled(64 * UNIT, 2)
    assert a.holds(at_a, 64 * UNIT, 1)
    assert b.holds(at_b, 64 * UNIT, 2)
    assert machine.group("a")["totals"]["evicted"] == machine.group("b")["totals"]["evicted"] == 0


@pytest.mark.parametrize("backend", ["swap", "managed"])
def test_two_programs_that_do_not_fit_take_turns(make_machine: MakeMachine, backend: str) -> None:
    machine = make_machine(GPUSHARE_BACKEND=backend)
    a, b = machine.program("a"), machine.program("b")
    a.call("cell", phase="begin")
    at_a = a.filled(192 * UNIT, 0x1111)
    a.call("cell", phase="end")
    b.call("cell", phase="begin")
    at_b = b.filled(192 * UNIT, 0x2222)
    b.call("cell", phase="end")
    for _ in range(2):
        assert a.holds(at_a, 192 * UNIT, 0x1111)
        a.call("cell", phase="end")
        assert b.holds(at_b, 192 * UNIT, 0x2222)
        b.call("cell", phase="end")
    # Partial eviction: only what the newcomer lacks moves.
    evicted = machine.group("a")["totals"]["evicted"]
    assert 0 < evicted < 3 * 192 * UNIT


def test_plain_memory_stays_and_is_counted(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_BACKEND="plain")
    a = machine.program("a")
    at_a = a.filled(100 * UNIT, 7)
    assert machine.group("a")["gpus"][0]["unevictable"] == 100 * UNIT
    assert machine.group("a")["gpus"][0]["footprint"] == 0
    assert a.call("free", pointer=at_a)["result"] == 0
    machine.until(lambda: machine.group("a")["gpus"][0]["unevictable"] == 0)


def test_a_waiting_program_is_shown_with_place_and_reason(machine: Machine) -> None:
    a, b, c = (machine.program(name) for name in "abc")
    a.filled(192 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    at_b, at_c = (p.call("alloc", bytes=192 * UNIT)["pointer"] for p in (b, c))
    waiting_b = b.start("fill", pointer=at_b, bytes=192 * UNIT, value=2)
    machine.until(lambda: machine.group("b")["state"] == "waiting")
    waiting_c = c.start("fill", pointer=at_c, bytes=192 * UNIT, value=3)
    machine.until(lambda: machine.group("c")["state"] == "waiting")
    assert machine.group("b")["position"] == 1
    reason = machine.group("b")["reason"]
    assert reason["code"] == "needs_memory"
    assert reason["params"]["holder_name"] == "a"
    assert machine.group("c")["position"] == 2
    assert machine.group("c")["reason"]["code"] == "behind"
    assert a.call("let_go")["result"] == 0
    for program, serial in ((b, waiting_b), (c, waiting_c)):
        assert program.result(serial)["result"] == 0


def test_the_end_of_a_cell_releases_the_gpu(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "600")
    a, b = machine.program("a"), machine.program("b")
    a.call("cell", phase="begin")
    at_a = a.filled(192 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    waiting = b.start("fill", pointer=at_b, bytes=192 * UNIT, value=2)
    assert b.waits(waiting)
    assert a.call("let_go")["result"] == 0
    a.call("cell", phase="end")
    assert b.result(waiting)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, UNIT, 1)


def test_a_holder_that_computes_on_the_cpu_releases_the_gpu(make_machine: MakeMachine) -> None:
    """Inside its cell, without any word of it: nothing in flight and nothing submitted."""
    machine = make_machine("--quantum", "600", "--anti-thrash", "on")
    a, b = machine.program("a"), machine.program("b")
    a.call("cell", phase="begin")
    a.filled(16 * UNIT, 1)
    at_b = b.call("alloc", bytes=16 * UNIT)["pointer"]
    assert b.call("fill", pointer=at_b, bytes=16 * UNIT, value=2)["result"] == 0
    assert machine.group("a")["state"] in ("idle", "idle_lease")


def test_a_program_with_work_in_flight_is_not_idle(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "600", "--anti-thrash", "on")
    a, b = machine.program("a"), machine.program("b")
    a.filled(16 * UNIT, 1)
    at_b = b.call("alloc", bytes=16 * UNIT)["pointer"]
    assert a.call("hold")["result"] == 0
    waiting = b.start("fill", pointer=at_b, bytes=16 * UNIT, value=2)
    assert b.waits(waiting, 1.0)
    assert a.call("let_go")["result"] == 0
    assert b.result(waiting)["result"] == 0


def test_the_quantum_ends_a_lease(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "0.3")
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    looping = a.start("repeat", pointer=at_a, bytes=4, gap=0.0005, thread="loop")
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    other = b.start("repeat", pointer=at_b, bytes=4, gap=0.0005, thread="loop")
    machine.until(lambda: all(machine.group(name)["totals"]["waits"] >= 2 for name in "ab"))
    for program, serial in ((a, looping), (b, other)):
        program.call("stop")
        result = program.result(serial)
        assert result["result"] == 0
        assert result["count"] > 1


def test_every_program_sees_the_whole_gpu(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    a.filled(128 * UNIT, 1)
    info = b.call("info")
    assert info["total"] == 256 * UNIT
    assert info["free"] > 240 * UNIT
    info = a.call("info")
    assert 100 * UNIT < info["free"] <= 128 * UNIT


def test_a_memory_limit_is_kept(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_MEMORY=str(64 * UNIT))
    assert a.call("info")["free"] <= 64 * UNIT
    assert a.call("alloc", bytes=80 * UNIT)["result"] == OUT_OF_MEMORY
    assert a.call("alloc", bytes=32 * UNIT)["result"] == 0


def test_an_allocation_that_can_never_fit_is_refused_with_the_figures(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(128 * UNIT, 5)
    assert a.call("alloc", bytes=200 * UNIT)["result"] == OUT_OF_MEMORY
    machine.until_said(a, "GPU")
    assert a.holds(at_a, 128 * UNIT, 5)


def test_growth_under_a_lease_keeps_the_contents(machine: Machine) -> None:
    """The larger footprint has no room beside the other's: the lease is given up, and nothing is lost."""
    a, b = machine.program("a"), machine.program("b")
    at_a, at_b = a.filled(96 * UNIT, 1), b.filled(96 * UNIT, 2)
    more = a.filled(96 * UNIT, 3)
    assert a.holds(at_a, 96 * UNIT, 1)
    assert a.holds(more, 96 * UNIT, 3)
    assert b.holds(at_b, 96 * UNIT, 2)


def test_queries_about_evicted_memory_are_answered(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    assert machine.group("a")["gpus"][0]["swapped"] > 0
    inside = at_a + 5 * UNIT
    assert a.call("address_range", pointer=inside) | {"time": 0, "serial": 0} == {
        "result": 0, "base": at_a, "size": 192 * UNIT, "time": 0, "serial": 0
    }  # fmt: skip
    for attribute, value in {
        MEMORY_TYPE: 2, RANGE_START: at_a, RANGE_SIZE: 192 * UNIT, MAPPED: 1, IS_MANAGED: 0
    }.items():  # fmt: skip
        assert a.call("attribute", pointer=inside, attribute=attribute)["value"] == value


def test_memory_freed_while_evicted_is_gone(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    assert a.call("free", pointer=at_a)["result"] == 0
    machine.until(lambda: machine.group("a")["gpus"][0]["footprint"] < 64 * UNIT)
    assert a.call("free", pointer=at_a)["result"] != 0


def test_small_and_stream_ordered_allocations_work(machine: Machine) -> None:
    a = machine.program("a")
    pointers = [a.filled(4096, i) for i in range(50)]
    for pointer in pointers[::2]:
        assert a.call("free", pointer=pointer)["result"] == 0
    ordered = a.call("alloc_async", bytes=8 * UNIT)
    assert a.call("fill", pointer=ordered["pointer"], bytes=8 * UNIT, value=9)["result"] == 0
    assert a.holds(ordered["pointer"], 8 * UNIT, 9)
    assert a.call("free_async", pointer=ordered["pointer"])["result"] == 0
    for i, pointer in list(enumerate(pointers))[1::2]:
        assert a.holds(pointer, 4096, i)


def test_memory_that_was_never_written_is_not_copied(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(16 * UNIT, 1)
    untouched = a.call("alloc", bytes=160 * UNIT)["pointer"]
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    events = machine.control("history")["events"]
    moves = [event for event in events if event["kind"] == "evict" and event["name"] == "a"]
    assert sum(move["bytes"] for move in moves) > 100 * UNIT
    assert sum(move["copied"] for move in moves) <= 40 * UNIT
    assert a.holds(at_a, 16 * UNIT, 1)
    assert a.call("fill", pointer=untouched, bytes=160 * UNIT, value=3)["result"] == 0


def test_users_can_release_and_evict(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    machine.control("release", group="a")
    machine.until(lambda: machine.group("a")["state"] == "idle")
    assert machine.resident("a") >= 64 * UNIT
    machine.evict("a")
    assert a.holds(at_a, 64 * UNIT, 1)


def test_memory_is_freed_with_its_context(machine: Machine) -> None:
    a = machine.program("a")
    a.filled(64 * UNIT, 1)
    assert a.call("end_context", how="release")["result"] == 0
    machine.until(lambda: machine.group("a")["gpus"][0]["footprint"] < 64 * UNIT)
    assert machine.group("a")["gpus"][0]["context"] == 0
    assert a.call("init")["result"] == 0
    at_a = a.filled(64 * UNIT, 2)
    assert a.holds(at_a, 64 * UNIT, 2)


def test_threads_of_one_process_share_its_lease(machine: Machine) -> None:
    a = machine.program("a")
    pointers = [a.filled(16 * UNIT, i) for i in range(3)]
    serials = [
        a.start("fill", pointer=pointer, bytes=16 * UNIT, value=10 + i, thread=f"t{i}")
        for i, pointer in enumerate(pointers)
    ]
    assert all(a.result(serial)["result"] == 0 for serial in serials)
    assert all(a.holds(pointer, 16 * UNIT, 10 + i) for i, pointer in enumerate(pointers))


def test_processes_of_one_group_run_together(make_machine: MakeMachine) -> None:
    machine = make_machine("--anti-thrash", "on")
    parent = machine.program("a", group="one")
    child = machine.program("a", group="one")
    at_parent, at_child = parent.filled(32 * UNIT, 1), child.filled(32 * UNIT, 2)
    looping = parent.start("repeat", pointer=at_parent, bytes=4, gap=0.0005, thread="loop")
    assert child.call("fill", pointer=at_child, bytes=32 * UNIT, value=3)["result"] == 0
    parent.call("stop")
    assert parent.result(looping)["result"] == 0


@pytest.mark.parametrize("gil", [False, True])
@pytest.mark.parametrize("thread", [None, "other"])
def test_an_interrupt_ends_a_wait(make_machine: MakeMachine, thread: str | None, gil: bool) -> None:
    machine = make_machine("--quantum", "600")
    a, b = machine.program("a"), machine.program("b")
    a.filled(192 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    where: dict[str, Any] = {} if thread is None else {"thread": thread}
    waiting = b.start("fill", pointer=at_b, bytes=192 * UNIT, value=2, gil=gil, **where)
    assert b.waits(waiting)
    machine.control("cancel", group="group-b")
    assert b.result(waiting)["result"] == OPERATING_SYSTEM
    assert b.call("attached")["interrupted"] == 1
    assert a.call("let_go")["result"] == 0
    assert b.call("fill", pointer=at_b, bytes=192 * UNIT, value=3)["result"] == 0


@pytest.mark.parametrize("gil", [False, True])
def test_a_signal_ends_a_wait_of_the_main_thread(make_machine: MakeMachine, gil: bool) -> None:
    """Without a provisioner, the wait cannot be cancelled from outside."""
    machine = make_machine("--quantum", "600")
    a, b = machine.program("a"), machine.program("b")
    a.filled(192 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    waiting = b.start("fill", pointer=at_b, bytes=192 * UNIT, value=2, gil=gil)
    assert b.waits(waiting)
    os.kill(b.pid, signal.SIGINT)
    assert b.result(waiting).get("interrupted")
    assert a.call("let_go")["result"] == 0
    assert b.call("fill", pointer=at_b, bytes=192 * UNIT, value=3)["result"] == 0


def test_a_signal_ends_a_wait_of_another_thread_during_a_cell(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "600")
    a, b = machine.program("a"), machine.program("b")
    a.filled(192 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    b.call("cell", phase="begin")
    waiting = b.start("fill", pointer=at_b, bytes=192 * UNIT, value=2, thread="autograd")
    assert b.waits(waiting)
    os.kill(b.pid, signal.SIGINT)
    assert b.result(waiting)["result"] == OPERATING_SYSTEM
    assert a.call("let_go")["result"] == 0
