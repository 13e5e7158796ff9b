# SPDX-License-Identifier: BSD-3-Clause
"""Managed memory: moved before it is missed, advised for what it is for, and more of it than the GPU has."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from jupyter_gpushare.benchmarks.published import oversubscribe
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu.drivers import find_driver
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.scripted import PIECE, evicted, filled
from tests.support.machine import UNIT, Machine, Program, Script, Scripted

MakeMachine = Callable[..., Machine]
MakeScript = Callable[..., Scripted]

PREFERRED_LOCATION, ACCESSED_BY = 2, 3
HOST, NOWHERE, DEVICE = -1, -2, 0
OVER = {"GPUSHARE_OVERSUBSCRIBE": "1"}


def advice(program: Program, pointer: int, bytes: int = PIECE) -> tuple[int, int]:
    """Return a range's preferred location, and the devices that map it."""
    values = [
        program.call("range_attribute", pointer=pointer, bytes=bytes, attribute=which)
        for which in (PREFERRED_LOCATION, ACCESSED_BY)
    ]
    assert [value["result"] for value in values] == [0, 0]
    return values[0]["value"], values[1]["value"]


def granted(script: Script, program: Program, pointer: int, *rooms: bytes) -> ev.Restored:
    """Let the program use its memory under a grant that fills; the rooms are for it."""
    script.lease += 1
    waiting = program.start("fill", pointer=pointer, bytes=4, value=7)
    script.next(ev.Request)
    script.send(protocol.grant(script.lease, filling=True), *rooms)
    restored = script.next(ev.Restored)
    assert program.result(waiting)["result"] == 0
    return restored


def last_room(script: Script, bytes: int, lease: int | None = None) -> bytes:
    number = script.lease + 1 if lease is None else lease
    return protocol.room(number, script.gpu, bytes, last=True)


def given_back(script: Script) -> None:
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)


# --- Two that alternate -----------------------------------------------------------------------------------------------


def test_two_programs_that_alternate_never_fault(make_machine: MakeMachine) -> None:
    """The old one's memory has left before the new one's is prefetched: nothing is pushed out by the driver."""
    machine = make_machine(GPUSHARE_BACKEND="managed")
    a, b = machine.program("a"), machine.program("b")
    size = 150 * UNIT // PIECE * PIECE
    at_a, at_b = a.filled(size, 1), b.filled(size, 2)
    before = [program.call("counters") for program in (a, b)]
    rounds = 3
    for _ in range(rounds):
        assert a.holds(at_a, size, 1)
        a.call("cell", phase="end")
        assert b.holds(at_b, size, 2)
        b.call("cell", phase="end")
    after = [program.call("counters") for program in (a, b)]
    for one, other in zip(before, after, strict=True):
        assert other["faulted"] == one["faulted"] == 0
        assert other["stolen"] == other["written_back"] == other["remote"] == 0
        # In and out, once in each round at most; what fits beside the other stays.
        moved = other["prefetched"] - one["prefetched"]
        assert 0 < moved <= 2 * rounds * size
    assert not a.errors
    assert not b.errors


def test_advice_follows_where_the_memory_is(make_script: MakeScript) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND="managed", **OVER)
    at_a = filled(script, a, 4 * PIECE, 7)
    assert advice(a, at_a) == (DEVICE, NOWHERE)
    evicted(script, 4 * PIECE)
    assert advice(a, at_a) == (HOST, NOWHERE)
    restored = granted(script, a, at_a, last_room(script, PIECE))
    assert (restored.status, restored.bytes) == ("done", PIECE)
    assert advice(a, at_a) == (DEVICE, NOWHERE)
    assert advice(a, at_a + PIECE, 3 * PIECE) == (HOST, DEVICE)
    # With more room, what was far comes in.
    given_back(script)
    restored = granted(script, a, at_a, last_room(script, 4 * PIECE))
    assert restored.bytes == 3 * PIECE
    assert advice(a, at_a, 4 * PIECE) == (DEVICE, NOWHERE)


def test_unwritten_memory_moves_at_no_cost(make_script: MakeScript) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND="managed")
    filled(script, a, PIECE, 7)
    before = a.call("counters")
    a.call("alloc", bytes=4 * PIECE)
    # No work is submitted under this lease.
    script.lease += 1
    script.send(protocol.grant(script.lease))
    assert script.next(ev.Restored).bytes == 4 * PIECE
    given_back(script)
    out = evicted(script, 4 * PIECE)
    assert (out.bytes, out.copied) == (4 * PIECE, 0)
    assert a.call("counters")["prefetched"] == before["prefetched"]


# --- More than the GPU has --------------------------------------------------------------------------------------------


def test_memory_without_room_is_used_from_the_host(make_script: MakeScript) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND="managed", **OVER)
    at_a = filled(script, a, 10 * PIECE, 7)
    evicted(script, 10 * PIECE)
    waiting = a.start("check", pointer=at_a, bytes=10 * PIECE, value=7)
    script.next(ev.Request)
    script.lease += 1
    # Until it is known that there will be no more, it waits.
    script.send(
        protocol.grant(script.lease, filling=True),
        protocol.room(script.lease, script.gpu, 2 * PIECE),
    )
    assert a.waits(waiting)
    script.send(last_room(script, 4 * PIECE + 1, script.lease))
    restored = script.next(ev.Restored)
    assert restored.status == "done"
    assert restored.bytes == restored.usage.resident == 4 * PIECE
    assert a.result(waiting)["equal"]
    counters = a.call("counters")
    assert counters["faulted"] == counters["written_back"] == 0
    assert counters["remote"] == 6 * PIECE
    # What is far has nothing to leave, and stays far as long as there is no room.
    given_back(script)
    assert evicted(script, 10 * PIECE).bytes == 4 * PIECE
    before = a.call("counters")["prefetched"]
    assert granted(script, a, at_a, last_room(script, 4 * PIECE)).bytes == 4 * PIECE
    assert a.call("counters")["prefetched"] - before == 4 * PIECE
    assert a.holds(at_a, 10 * PIECE, 7)


def test_memory_that_must_be_on_the_gpu_is_restored_first_and_evicted_last(
    make_script: MakeScript,
) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND="swap")
    assert a.call("oversubscribe", on=True)["result"] == 0
    managed = filled(script, a, 4 * PIECE, 7)
    assert a.call("oversubscribe", on=False)["result"] == 0
    swapped = filled(script, a, 4 * PIECE, 9)
    assert a.call("counters")["copied_out"] == 0
    assert evicted(script, 3 * PIECE).bytes == 3 * PIECE
    assert a.call("counters")["copied_out"] == 0
    assert evicted(script, 8 * PIECE).bytes == 5 * PIECE
    assert granted(script, a, managed, last_room(script, 5 * PIECE)).usage.resident == 5 * PIECE
    # The key of the digests was copied there, too.
    assert 4 * PIECE <= a.call("counters")["copied_in"] < 4 * PIECE + UNIT
    assert a.holds(managed, 4 * PIECE, 7)
    assert a.holds(swapped, 4 * PIECE, 9)
    # With no room for that, nothing is lost either.
    given_back(script)
    evicted(script, 8 * PIECE)
    waiting = a.start("check", pointer=swapped, bytes=4 * PIECE, value=9)
    script.next(ev.Request)
    script.lease += 1
    script.send(
        protocol.grant(script.lease, filling=True), last_room(script, 2 * PIECE, script.lease)
    )
    assert script.next(ev.Restored).status == "failed"
    script.lease += 1
    script.send(
        protocol.grant(script.lease, filling=True), last_room(script, 4 * PIECE, script.lease)
    )
    assert script.next(ev.Restored).status == "done"
    assert a.result(waiting)["equal"]


def test_growth_under_a_lease_stays_within_its_room(make_script: MakeScript) -> None:
    script, a, _ = make_script(GPUSHARE_BACKEND="managed", **OVER)
    at_a = filled(script, a, 4 * PIECE, 7)
    assert granted(script, a, at_a, last_room(script, 5 * PIECE)).bytes == 0
    script.growth = "resident"
    more = int(a.call("alloc", bytes=4 * PIECE)["pointer"])
    assert a.call("fill", pointer=more, bytes=4 * PIECE, value=8)["result"] == 0
    assert advice(a, more) == (DEVICE, NOWHERE)
    assert advice(a, more + PIECE, 3 * PIECE) == (HOST, DEVICE)
    counters = a.call("counters")
    assert (counters["faulted"], counters["remote"]) == (0, 3 * PIECE)
    # Memory that has to be on the GPU has no room now.
    assert a.call("oversubscribe", on=False)["result"] == 0
    assert a.call("alloc", bytes=PIECE)["result"] == 0
    assert a.holds(at_a, 4 * PIECE, 7)
    assert a.holds(more, 4 * PIECE, 8)


@pytest.mark.parametrize("how", ["environment", "call"])
def test_managed_memory_is_not_used_where_it_is_forbidden(
    make_machine: MakeMachine, how: str
) -> None:
    machine = make_machine(GPUSHARE_FORBID_MANAGED="1")
    a = machine.program("a", **(OVER if how == "environment" else {}))
    pointer = a.filled(8 * UNIT, 7)
    if how == "environment":
        said = [line for line in a.errors if "GPUSHARE_FORBID_MANAGED=1" in line]
        assert len(said) == 1
    refused = a.call("oversubscribe", on=True)
    assert refused["result"] == -1
    assert "GPUSHARE_FORBID_MANAGED=1" in refused["why"]
    assert a.call("alloc", bytes=300 * UNIT)["result"] == 2
    assert a.holds(pointer, 8 * UNIT, 7)


def test_managed_memory_is_not_used_on_the_plain_backend(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_BACKEND="plain", **OVER)
    machine.until_said(a, "backend plain keeps all memory on the GPU")
    assert "backend plain" in a.call("oversubscribe", on=True)["why"]
    assert a.filled(8 * UNIT, 7)


def test_an_invalid_setting_is_named(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_OVERSUBSCRIBE="yes")
    machine.until_said(a, "ignored GPUSHARE_OVERSUBSCRIBE=yes: use 1")
    assert a.call("alloc", bytes=300 * UNIT)["result"] == 2


def test_reported_figures_follow_the_usable_memory(machine: Machine) -> None:
    a = machine.program("a")
    before = a.call("info")
    assert a.call("oversubscribe", on=True)["result"] == 0
    more = a.call("info")
    assert more["total"] > before["total"]
    assert more["free"] - before["free"] == more["total"] - before["total"]
    assert a.call("oversubscribe", on=False)["result"] == 0
    assert a.call("info")["total"] == before["total"]


# --- The same, with a scheduler ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["swap", "managed"])
def test_one_process_holds_twice_the_gpu(make_machine: MakeMachine, backend: str) -> None:
    machine = make_machine(GPUSHARE_BACKEND=backend)
    a = machine.program("a", **OVER)
    size = 512 * UNIT
    pointer = a.filled(size, 7)
    assert a.holds(pointer, size, 7)
    counters = a.call("counters")
    assert counters["faulted"] == counters["written_back"] == 0
    assert counters["remote"] > 0
    usage = machine.group("a")
    (on,) = usage["gpus"]
    assert on["footprint"] >= size
    assert 200 * UNIT < on["resident"] < 256 * UNIT
    assert a.call("free", pointer=pointer)["result"] == 0
    assert not a.errors


def test_an_oversubscribing_program_alternates_with_another(make_machine: MakeMachine) -> None:
    machine = make_machine()
    a, b = machine.program("a", **OVER), machine.program("b")
    at_a, at_b = a.filled(400 * UNIT, 1), b.filled(200 * UNIT, 2)
    for _ in range(2):
        a.call("cell", phase="end")
        assert b.holds(at_b, 200 * UNIT, 2)
        b.call("cell", phase="end")
        assert a.holds(at_a, 400 * UNIT, 1)
    counters = a.call("counters")
    assert counters["faulted"] == counters["stolen"] == counters["written_back"] == 0
    assert not a.errors
    assert not b.errors


def test_a_program_may_turn_oversubscription_on_and_off(machine: Machine) -> None:
    a = machine.program("a")
    own = a.filled(100 * UNIT, 1)
    assert a.call("alloc", bytes=300 * UNIT)["result"] == 2
    assert a.call("oversubscribe", on=True)["result"] == 0
    more = a.filled(300 * UNIT, 2)
    assert a.call("oversubscribe", on=False)["result"] == 0
    assert a.call("alloc", bytes=100 * UNIT)["result"] == 2
    a.call("cell", phase="end")
    b = machine.program("b")
    at_b = b.filled(200 * UNIT, 3)
    b.call("cell", phase="end")
    assert a.holds(own, 100 * UNIT, 1)
    assert a.holds(more, 300 * UNIT, 2)
    assert a.call("counters")["faulted"] == 0
    a.call("cell", phase="end")
    assert b.holds(at_b, 200 * UNIT, 3)
    # Once there is room, memory of its own backend is there to be had again.
    assert a.call("free", pointer=more)["result"] == 0
    assert a.filled(100 * UNIT, 4)


def test_a_restarted_scheduler_is_sent_the_memory_in_use(machine: Machine) -> None:
    a = machine.program("a", **OVER)
    pointer = a.filled(400 * UNIT, 7)
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: bool(machine.control("status")["status"]["groups"]))
    assert a.holds(pointer, 400 * UNIT, 7)
    a.call("cell", phase="end")
    b = machine.program("b")
    assert b.filled(200 * UNIT, 3)
    b.call("cell", phase="end")
    assert a.holds(pointer, 400 * UNIT, 7)
    assert a.call("counters")["faulted"] == 0


# --- The benchmark ----------------------------------------------------------------------------------------------------


def test_the_benchmark_counts_page_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", "bench", "oversubscribe", "--json"],
        env={**os.environ, "GPUSHARE_SIM": "1", "GPUSHARE_SIM_MEMORY": "64MiB"},
        capture_output=True,
        text=True,
        check=True,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    faulted = [figure for figure in figures if "faulted" in figure["metric"]]
    assert [figure["value"] for figure in faulted] == [0, 0]
    assert all(figure["bare"] > 40 for figure in faulted)


def test_the_benchmark_is_not_for_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = find_driver({**os.environ, "GPUSHARE_SIM": "1"})
    assert simulated is not None
    real = dataclasses.replace(simulated, simulated=False)
    monkeypatch.setattr(oversubscribe, "find_driver", lambda _: real)
    with pytest.raises(RuntimeError, match=r"^managed memory .* set GPUSHARE_SIM=1$"):
        list(oversubscribe.run())
