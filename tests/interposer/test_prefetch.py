# SPDX-License-Identifier: BSD-3-Clause
"""Memory is restored before the first submission needs it, and the restore gives way to demand."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.scripted import PIECE, evicted, filled
from tests.interposer.swapped import SIZE, SLOW, results, swapped
from tests.support.machine import PATIENCE, UNIT, Machine, Program, Script, Scripted

MakeMachine = Callable[..., Machine]


def available(plain: Program) -> int:
    return int(plain.call("info")["free"])


def stage(machine: Machine, name: str) -> str | None:
    found = machine.group(name)["prefetch"]
    return None if found is None else str(found["stage"])


def test_the_first_submission_finds_its_memory(machine: Machine) -> None:
    a, pointer = swapped(machine, "a")
    before = machine.group("a")["totals"]["waits"]
    machine.control("hint", group="group-a", kind="typing")
    machine.until(lambda: stage(machine, "a") == "ready")
    assert machine.resident("a") == SIZE
    # No thread has asked for it.
    assert machine.group("a")["state"] == "idle_lease"
    assert a.holds(pointer, SIZE, 7)
    assert stage(machine, "a") is None
    assert results(machine, "prefetch", "a") == ["begun", "used"]
    assert machine.group("a")["totals"]["waits"] == before


def test_a_submission_during_the_restore_is_served_by_it(make_machine: MakeMachine) -> None:
    machine = make_machine(**SLOW)
    plain = machine.program("plain", GPUSHARE_DISABLE="1")
    a, pointer = swapped(machine, "a")
    before = available(plain)
    machine.control("hint", group="a", kind="ready")
    machine.until(lambda: available(plain) < before)
    filling = a.start("fill", pointer=pointer, bytes=UNIT, value=8)
    machine.until(lambda: machine.group("a")["state"] in ("restoring", "running"))
    assert a.result(filling)["result"] == 0
    assert a.holds(pointer, UNIT, 8)
    assert a.holds(pointer + UNIT, SIZE - UNIT, 7)
    # It did not start again.
    restores = [e for e in machine.control("history")["events"] if e["kind"] == "restore"]
    assert [restore["bytes"] for restore in restores[-1:]] == [SIZE]


def with_evicted(make_script: Callable[..., Scripted]) -> tuple[Script, Program, int]:
    """Return a script, and a program with the address of its four pieces, which are evicted."""
    script, a, _ = make_script()
    at_a = filled(script, a, 4 * PIECE, 7)
    evicted(script, 4 * PIECE)
    return script, a, at_a


def test_a_demand_ends_the_prefetch(make_machine: MakeMachine) -> None:
    machine = make_machine(**SLOW)
    a, pointer = swapped(machine, "a", 128 * UNIT)
    b, other = swapped(machine, "b", 160 * UNIT)
    machine.control("hint", group="a", kind="ready")
    machine.until(lambda: results(machine, "prefetch", "a") != [])
    assert b.call("fill", pointer=other, bytes=UNIT, value=9)["result"] == 0
    # On a busy machine, all of its memory may have arrived before.
    assert results(machine, "prefetch", "a")[1] in ("abandoned", "vain")
    assert b.holds(other + UNIT, 159 * UNIT, 7)
    assert a.holds(pointer, 128 * UNIT, 7)


def test_a_revocation_ends_the_restore_between_two_pieces(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, at_a = with_evicted(make_script)
    script.send(*script.grant(ev.ALL), protocol.revoke(script.lease))
    restored = script.next(ev.Restored)
    assert restored.status == "partial"
    assert restored.usage.resident < 4 * PIECE
    assert script.next(ev.Released).lease == script.lease
    reading = a.start("check", pointer=at_a, bytes=4 * PIECE, value=7)
    script.next(ev.Request)
    script.send(*script.grant(ev.ALL))
    assert a.result(reading)["equal"]


def test_a_hibernated_program_is_awake_before_it_calls_the_driver(machine: Machine) -> None:
    a, pointer = swapped(machine, "a")
    machine.hibernate("a")
    machine.control("hint", group="a", kind="ready")
    machine.until(lambda: stage(machine, "a") == "ready")
    assert machine.group("a")["hibernation"] is None
    assert a.holds(pointer, SIZE, 7)


def test_a_lease_that_no_thread_requested_is_held_idle(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, at_a = with_evicted(make_script)
    script.send(*script.grant(ev.ALL))
    assert script.next(ev.Burst).phase == "end"
    assert script.next(ev.Restored).status == "done"
    filling = a.start("fill", pointer=at_a, bytes=4, value=8)
    while not isinstance(event := script.events.get(timeout=PATIENCE), ev.Burst):
        assert not isinstance(event, ev.Request)
    assert event.phase == "begin"
    assert a.result(filling)["result"] == 0
    script.send(protocol.revoke(script.lease))
    assert script.next(ev.Released).cause == "revoke"


def test_a_restore_that_fails_without_a_waiting_thread_gives_the_lease_back(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, at_a = with_evicted(make_script)
    a.call("fail", rules="cuMemCreate:2+")
    script.send(*script.grant(ev.ALL))
    restored = script.next(ev.Restored)
    assert restored.status == "partial"
    assert script.next(ev.Released).cause == "release"
    a.call("fail", rules="")
    reading = a.start("check", pointer=at_a, bytes=4 * PIECE, value=7)
    script.next(ev.Request)
    script.send(*script.grant(ev.ALL))
    assert a.result(reading)["equal"]
