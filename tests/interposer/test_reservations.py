# SPDX-License-Identifier: BSD-3-Clause
"""Programs get the GPU that was reserved for them, with their memory restored, before any of their threads needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.interposer.swapped import SIZE, SLOW, results, swapped
from tests.support.machine import UNIT, Machine

MakeMachine = Callable[..., Machine]


def reservation(machine: Machine, name: str) -> Any:
    return (machine.group(name)["reservation"] or {}).get("state")


def test_its_memory_is_restored_and_it_runs_at_once(machine: Machine) -> None:
    a, pointer = swapped(machine, "a")
    before = machine.group("a")["totals"]
    assert machine.control("reserve", group="a")["reservation"]["state"] == "waiting"
    machine.until(lambda: reservation(machine, "a") == "ready")
    assert machine.resident("a") == SIZE
    assert machine.group("a")["state"] == "idle_lease"
    assert a.holds(pointer, SIZE, 7)
    assert reservation(machine, "a") is None
    assert results(machine, "reservation", "a") == ["waiting", "ready", "used"]
    assert machine.group("a")["totals"]["bursts"] == before["bursts"] + 1


def test_memory_that_never_left_is_reserved_too(machine: Machine) -> None:
    a = machine.program("a")
    pointer = a.filled(SIZE, 7)
    machine.control("release", group="a")
    machine.until(lambda: machine.group("a")["state"] == "idle")
    machine.control("reserve", group="a")
    machine.until(lambda: reservation(machine, "a") == "ready")
    assert a.holds(pointer, SIZE, 7)


def test_a_submission_during_the_restore_is_served_by_it(make_machine: MakeMachine) -> None:
    machine = make_machine(**SLOW)
    a, pointer = swapped(machine, "a")
    machine.control("reserve", group="a")
    machine.until(lambda: machine.group("a")["state"] == "restoring")
    assert a.call("fill", pointer=pointer, bytes=UNIT, value=8)["result"] == 0
    assert a.holds(pointer, UNIT, 8)
    assert a.holds(pointer + UNIT, SIZE - UNIT, 7)
    assert results(machine, "reservation", "a") == ["waiting", "used"]


def test_the_room_of_another_program_is_made_for_it(machine: Machine) -> None:
    a, pointer = swapped(machine, "a", 160 * UNIT)
    b = machine.program("b")
    other = b.filled(160 * UNIT, 9)
    machine.control("reserve", group="a")
    machine.until(lambda: reservation(machine, "a") == "ready")
    assert machine.resident("a") == 160 * UNIT
    # The other one waits for it now, until the reservation is used or ends.
    waiting = b.start("fill", pointer=other, bytes=UNIT, value=1)
    machine.until(lambda: machine.group("b")["state"] == "waiting")
    assert a.holds(pointer, 160 * UNIT, 7)
    machine.control("release", group="a")
    assert b.result(waiting)["result"] == 0
    assert b.holds(other + UNIT, 159 * UNIT, 9)


def test_a_hibernated_program_is_woken_for_it(machine: Machine) -> None:
    a, pointer = swapped(machine, "a")
    machine.hibernate("a")
    machine.control("reserve", group="a")
    machine.until(lambda: reservation(machine, "a") == "ready")
    assert machine.group("a")["hibernation"] is None
    assert a.holds(pointer, SIZE, 7)


def test_a_cancelled_reservation_leaves_the_memory_where_it_is(machine: Machine) -> None:
    a, pointer = swapped(machine, "a")
    machine.control("reserve", group="a")
    machine.until(lambda: reservation(machine, "a") == "ready")
    machine.control("reserve", group="a", on=False)
    assert machine.resident("a") == SIZE
    assert results(machine, "reservation", "a")[-1] == "cancelled"
    assert a.holds(pointer, SIZE, 7)
