# SPDX-License-Identifier: BSD-3-Clause
"""Grants that fill: memory comes in while another's leaves, and never more of it than there is room for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.memory.pool import CHUNK, Pool
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.scripted import PIECE, evicted, filled
from tests.support.machine import PATIENCE, UNIT, Machine, Program, Scripted

MakeMachine = Callable[..., Machine]


def available(plain: Program) -> int:
    return int(plain.call("info")["free"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("backend", ["swap", "managed"])
def test_no_more_is_restored_than_there_is_room_for(
    make_script: Callable[..., Scripted], backend: str
) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND=backend)
    at_a = filled(script, a, 10 * PIECE, 7)
    assert evicted(script, 10 * PIECE).usage.resident == 0
    waiting = a.start("fill", pointer=at_a, bytes=4, value=8)
    script.next(ev.Request)
    script.send(*script.grant())
    assert a.waits(waiting)
    script.send(protocol.room(script.lease, script.gpu, 4 * PIECE + 1))
    assert a.waits(waiting)
    script.send(protocol.revoke(script.lease))
    restored = script.next(ev.Restored)
    assert restored.status == "partial"
    assert restored.bytes == restored.usage.resident == 4 * PIECE
    assert script.next(ev.Released).cause == "failed"
    script.next(ev.Request)
    script.send(*script.grant(4 * PIECE, ev.ALL))
    assert script.next(ev.Restored).bytes == 6 * PIECE
    assert a.result(waiting)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 10 * PIECE - 4 * UNIT, 7)


def test_the_gpu_shows_the_restored_memory(make_script: Callable[..., Scripted]) -> None:
    script, a, plain = make_script()
    at_a = filled(script, a, 10 * PIECE, 7)
    evicted(script, 10 * PIECE)
    empty = available(plain)
    waiting = a.start("fill", pointer=at_a, bytes=4, value=8)
    script.next(ev.Request)
    script.send(*script.grant(3 * PIECE))
    until(lambda: available(plain) == empty - 3 * PIECE)
    assert a.waits(waiting)
    assert available(plain) == empty - 3 * PIECE
    script.send(protocol.room(script.lease, script.gpu, 10 * PIECE))
    assert a.result(waiting)["result"] == 0


def test_messages_are_handled_while_waiting_for_room(make_script: Callable[..., Scripted]) -> None:
    script, a, _ = make_script()
    at_a = filled(script, a, 4 * PIECE, 7)
    evicted(script, 4 * PIECE)
    waiting = a.start("fill", pointer=at_a, bytes=4, value=8)
    script.next(ev.Request)
    script.send(*script.grant(2 * PIECE))
    script.send(protocol.contended(3), protocol.prepare(CHUNK), protocol.cancel())
    assert a.result(waiting)["result"] == 304
    assert a.call("attached")["contended"] == 3
    # The lease comes in all the same, and is kept idle.
    script.send(protocol.room(script.lease, script.gpu, ev.ALL))
    assert script.next(ev.Burst).phase == "end"
    assert script.next(ev.Restored).status == "done"
    assert a.holds(at_a, 4 * PIECE, 7)


def test_evictions_are_reported_piece_by_piece(make_script: Callable[..., Scripted]) -> None:
    script, a, _ = make_script(GPUSHARE_SIM_BANDWIDTH="200000000")
    filled(script, a, 10 * PIECE, 7, scattered=True)
    script.send(protocol.evict(5, script.gpu, 10 * PIECE))
    told = []
    while not isinstance(event := script.next(ev.Moving | ev.Evicted), ev.Evicted):  # type: ignore[arg-type]
        told.append(event)
    assert len(told) > 3
    assert all(moving.serial == event.serial == 5 for moving in told)
    sizes = [moving.bytes for moving in told]
    assert sizes == sorted(sizes)
    assert all(moving.usage.resident == 10 * PIECE - moving.bytes for moving in told)
    assert event.bytes == event.copied == 10 * PIECE


def test_orders_that_come_together_are_served_in_order(
    make_script: Callable[..., Scripted],
) -> None:
    """The grant waits for the evictions; its room and its end are known by then."""
    script, a, _ = make_script()
    at_a = filled(script, a, 10 * PIECE, 7)
    waiting = a.start("fill", pointer=at_a, bytes=4, value=8)
    script.next(ev.Request)
    evictions = [protocol.evict(serial, script.gpu, 3 * PIECE) for serial in (1, 2)]
    script.send(*evictions, *script.grant(5 * PIECE), protocol.revoke(script.lease))
    assert [script.next(ev.Evicted).serial for _ in range(2)] == [1, 2]
    assert script.next(ev.Restored).usage.resident <= 5 * PIECE
    script.next(ev.Released)
    script.send(*script.grant(ev.ALL))
    assert a.result(waiting)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 10 * PIECE - 4 * UNIT, 7)


def test_as_little_is_evicted_as_pieces_allow(make_script: Callable[..., Scripted]) -> None:
    script, a, _ = make_script()
    at_a = filled(script, a, 10 * PIECE, 7)
    out = evicted(script, 2 * PIECE + 1)
    assert out.status == "done"
    assert out.bytes == 3 * PIECE
    assert evicted(script, 0).bytes == 0
    assert evicted(script, 100 * PIECE).bytes == 7 * PIECE
    # What was never written goes first, without a copy.
    waiting = a.start("fill", pointer=at_a, bytes=4, value=7)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert a.result(waiting)["result"] == 0
    untouched = a.call("alloc", bytes=4 * PIECE)["pointer"]
    assert script.next(ev.Released).cause == "growth"
    script.send(*script.grant(filling=False))
    script.next(ev.Restored)
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)
    out = evicted(script, 4 * PIECE)
    assert (out.bytes, out.copied) == (4 * PIECE, 0)
    assert a.call("free", pointer=untouched)["result"] == 0


def test_a_scheduler_may_exit_during_a_restore(make_script: Callable[..., Scripted]) -> None:
    script, a, plain = make_script()
    at_a = filled(script, a, 10 * PIECE, 7)
    evicted(script, 10 * PIECE)
    empty = available(plain)
    waiting = a.start("fill", pointer=at_a, bytes=4, value=8)
    script.next(ev.Request)
    script.send(*script.grant(3 * PIECE))
    # The last of the three is mapped; a client that leaves finishes what it has begun to copy.
    until(lambda: available(plain) == empty - 3 * PIECE)
    script.disconnect()
    attach = script.next(ev.Attach)
    assert attach.reattach
    assert not attach.leased
    assert sum(usage.resident for usage in attach.usages) == 3 * PIECE
    script.next(ev.Request)
    assert a.waits(waiting)
    script.send(*script.grant(ev.ALL))
    assert a.result(waiting)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 10 * PIECE - 4 * UNIT, 7)


def test_memory_may_be_freed_during_a_restore(make_script: Callable[..., Scripted]) -> None:
    script, a, _ = make_script()
    at_a, other = filled(script, a, 10 * PIECE, 7), filled(script, a, 2 * PIECE, 9)
    evicted(script, 12 * PIECE)
    waiting = a.start("fill", pointer=other, bytes=4, value=9, thread="t")
    script.next(ev.Request)
    script.send(*script.grant(3 * PIECE))
    assert a.waits(waiting)
    assert a.call("free", pointer=at_a)["result"] == 0
    assert a.result(waiting)["result"] == 0
    assert a.holds(other, 2 * PIECE, 9)


def test_without_host_memory_the_rest_stays_and_a_grant_is_handled(
    make_script: Callable[..., Scripted],
) -> None:
    pool = Pool(2 * CHUNK)
    pool.order(limit=CHUNK, target=0, most=CHUNK)
    script, a, _ = make_script(pool)
    at_a = filled(script, a, 3 * CHUNK, 7, scattered=True)
    waiting = a.start("set_byte", pointer=at_a, value=8)
    script.next(ev.Request)
    script.send(protocol.evict(1, script.gpu, 2 * CHUNK))
    assert script.next(ev.Moving).bytes > 0
    until(lambda: pool.figures().in_use == CHUNK)
    # Room in the pool is used as soon as there is some.
    pool.order(limit=2 * CHUNK, target=0, most=2 * CHUNK)
    assert script.next(ev.Evicted).status == "done"
    script.send(protocol.evict(2, script.gpu, CHUNK))
    script.send(*script.grant(ev.ALL))
    out = script.next(ev.Evicted)
    assert (out.serial, out.status) == (2, "partial")
    assert out.usage.resident == CHUNK
    assert a.result(waiting)["result"] == 0
    assert any("the host has too little free memory" in line for line in a.errors)
    changed = {"0": 8}
    check = a.call("scattered", pointer=at_a, bytes=3 * CHUNK, seed=7, changed=changed)
    assert check["equal"]
    pool.close()


def test_memory_that_the_driver_frees_late_is_waited_for(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, _ = make_script(GPUSHARE_SIM_FAIL="cuMemCreate%gpushare:2")
    pointer = a.call("alloc", bytes=4 * PIECE)["pointer"]
    waiting = a.start("fill", pointer=pointer, bytes=4, value=8)
    script.next(ev.Request)
    script.send(*script.grant(ev.ALL))
    assert script.next(ev.Restored).status == "done"
    assert a.result(waiting)["result"] == 0


Pair = tuple[Machine, Program, Program]
#: Nine tenths of the GPU, in whole pieces.
MOST = 28 * PIECE


@pytest.fixture
def make_pair(make_machine: MakeMachine) -> Callable[..., Pair]:
    """Return a function that gives a machine and two programs, each of which takes nearly all of its GPU."""

    def make(*flags: str, bandwidth: int = 400_000_000, **environ: str) -> Pair:
        machine = make_machine(*flags, GPUSHARE_SIM_BANDWIDTH=str(bandwidth), **environ)
        return machine, machine.program("a"), machine.program("b")

    return make


def one_in_each(pair: Pair) -> tuple[int, int]:
    """Return the addresses of what both have filled; the second one's is on the GPU."""
    _, a, b = pair
    at = []
    for seed, program in enumerate((a, b)):
        at.append(int(program.call("alloc", bytes=MOST)["pointer"]))
        assert program.call("scatter", pointer=at[-1], bytes=MOST, seed=seed)["result"] == 0
        program.call("cell", phase="end")
    return at[0], at[1]


def changes(program: Program, pointer: int, seed: int) -> bool:
    """Tell whether the memory has its contents, and change all of it, so that it has to be copied again."""
    check = program.call("scattered", pointer=pointer, bytes=MOST, seed=seed)
    written = program.call("scatter", pointer=pointer, bytes=MOST, seed=seed + 2)
    program.call("cell", phase="end")
    return bool(check["equal"]) and written["result"] == 0


def moves(machine: Machine, kind: str) -> list[tuple[float, float]]:
    """Return the beginning and the end of what moved."""
    events = machine.control("history")["events"]
    return [
        (event["time"] - event["duration"], event["time"])
        for event in events
        if event["kind"] == kind and event["copied"]
    ]


def test_two_programs_that_fill_the_gpu_swap_in_both_directions_at_once(
    make_pair: Callable[..., Pair],
) -> None:
    pair = machine, a, b = make_pair()
    at_a, at_b = one_in_each(pair)
    for turn in range(3):
        assert changes(a, at_a, 2 * turn)
        assert changes(b, at_b, 2 * turn + 1)
    evictions, restores = moves(machine, "evict"), moves(machine, "restore")
    assert len(restores) >= 5
    # On a busy machine one may come too late for it.
    both = [any(start < out[1] < end for out in evictions) for start, end in restores]
    assert sum(both) > len(both) / 2
    events = machine.control("history")["events"]
    assert {e["status"] for e in events if e["kind"] in ("evict", "restore")} == {"done"}
    assert not a.errors
    assert not b.errors


@pytest.mark.parametrize("dies", ["scheduler", "evicted program", "restored program"])
def test_a_program_may_die_in_the_middle_of_a_swap(
    make_pair: Callable[..., Pair], dies: str
) -> None:
    pair = machine, a, b = make_pair(bandwidth=100_000_000)
    at_a, at_b = one_in_each(pair)
    waiting = a.start("scattered", pointer=at_a, bytes=MOST, seed=0)
    machine.until(lambda: machine.resident("b") < MOST - 4 * PIECE)
    if dies == "scheduler":
        machine.kill_scheduler()
        machine.start_scheduler()
    else:
        os.kill((b if dies == "evicted program" else a).pid, signal.SIGKILL)
    if dies != "restored program":
        assert a.result(waiting)["equal"]
    if dies != "evicted program":
        assert b.call("scattered", pointer=at_b, bytes=MOST, seed=1)["equal"]


def test_a_swap_can_be_interrupted(make_pair: Callable[..., Pair]) -> None:
    pair = machine, a, b = make_pair(bandwidth=100_000_000)
    at_a, at_b = one_in_each(pair)
    waiting = a.start("fill", pointer=at_a, bytes=4, value=9)
    machine.until(lambda: machine.resident("b") < MOST - 4 * PIECE)
    machine.control("cancel", group="group-a")
    assert a.result(waiting)["result"] == 304
    assert b.call("scattered", pointer=at_b, bytes=MOST, seed=1)["equal"]
    assert a.call("scattered", pointer=at_a, bytes=MOST, seed=0)["equal"]
