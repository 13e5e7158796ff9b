# SPDX-License-Identifier: BSD-3-Clause
"""Deaths, losses and bad settings: the user's program goes on, or says in one line why not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler import protocol
from tests.interposer.conftest import UNIT, Machine, Program
from tests.workshop import Workshop

MakeMachine = Callable[..., Machine]

#: CUDA_ERROR_OUT_OF_MEMORY
OUT_OF_MEMORY = 2


def test_a_killed_holder_makes_room_though_its_child_lives(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    a.filled(192 * UNIT, 1)
    child = a.call("fork")["child"]
    try:
        at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
        os.kill(a.pid, signal.SIGKILL)
        assert b.call("fill", pointer=at_b, bytes=192 * UNIT, value=2)["result"] == 0
        assert b.holds(at_b, 192 * UNIT, 2)
    finally:
        os.kill(child, signal.SIGKILL)


def test_memory_of_a_dying_process_is_waited_for(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_TEARDOWN_MS="700")
    a, b = machine.program("a"), machine.program("b")
    a.filled(192 * UNIT, 1)
    at_b = b.call("alloc", bytes=192 * UNIT)["pointer"]
    os.kill(a.pid, signal.SIGKILL)
    killed = time.monotonic()
    filled = b.call("fill", pointer=at_b, bytes=192 * UNIT, value=2)
    assert filled["result"] == 0
    assert filled["end"] - killed > 0.6


def test_the_scheduler_may_die_and_come_back(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    at_b = b.filled(192 * UNIT, 2)
    loop_a = a.start("repeat", pointer=at_a, bytes=4, seconds=3.0, gap=0.001)
    loop_b = b.start("repeat", pointer=at_b, bytes=4, seconds=3.0, gap=0.001)
    time.sleep(0.5)
    machine.kill_scheduler()
    time.sleep(0.5)
    machine.start_scheduler()
    assert a.result(loop_a)["result"] == 0
    assert b.result(loop_b)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)
    assert b.holds(at_b + 4 * UNIT, 100 * UNIT, 2)


def test_a_holder_goes_on_without_a_scheduler(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    machine.kill_scheduler()
    assert a.holds(at_a, 64 * UNIT, 1)
    more = a.filled(16 * UNIT, 2)
    assert a.holds(more, 16 * UNIT, 2)


def test_a_waiter_left_alone_helps_itself(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    machine.kill_scheduler()
    os.kill(b.pid, signal.SIGKILL)
    assert a.holds(at_a, 192 * UNIT, 1)


def left_alone_without_room(machine: Machine) -> tuple[Program, int, int]:
    """Return a program that waits for room, its memory, and what waits; no scheduler is there."""
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    machine.kill_scheduler()
    return a, at_a, a.start("fill", pointer=at_a, bytes=4, value=9)


def test_a_waiter_left_alone_without_room_waits_for_the_next_scheduler(machine: Machine) -> None:
    a, at_a, filling = left_alone_without_room(machine)
    machine.until_said(a, "it waits for either, for another 55 s at most")
    assert a.waits(filling)
    machine.start_scheduler()
    assert a.result(filling)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_waiter_left_alone_without_room_can_be_interrupted(machine: Machine) -> None:
    a, at_a, filling = left_alone_without_room(machine)
    machine.until_said(a, "it waits for either")
    os.kill(a.pid, signal.SIGINT)
    assert a.result(filling).get("interrupted")
    machine.start_scheduler()
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_waiter_left_alone_without_room_is_told_in_the_end(
    machine: Machine, workshop: Workshop
) -> None:
    patience = (
        "interposer/client.c",
        "alone_patience = 60 * SECOND",
        "alone_patience = 6 * SECOND",
    )
    machine.libraries = workshop.build((patience,))
    a, at_a, filling = left_alone_without_room(machine)
    assert a.result(filling)["result"] == OUT_OF_MEMORY
    machine.until_said(a, "no scheduler answers")
    machine.until_said(a, "nothing is lost")
    machine.start_scheduler()
    # What it asked nobody for, while it was away, it asks the next one for.
    machine.until(lambda: len(machine.control("status")["status"]["groups"]) == 2)
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_cap_holds_without_a_scheduler_too(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_MEMORY=str(64 * UNIT))
    at_a = a.filled(32 * UNIT, 1)
    machine.kill_scheduler()
    assert a.call("alloc", bytes=96 * UNIT)["result"] == OUT_OF_MEMORY
    more = a.filled(16 * UNIT, 2)
    assert a.holds(at_a, 32 * UNIT, 1)
    assert a.holds(more, 16 * UNIT, 2)


def test_without_a_scheduler_the_program_runs_plainly(machine: Machine) -> None:
    machine.kill_scheduler()
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    assert a.holds(at_a, 64 * UNIT, 1)
    assert a.call("attached")["attached"] == -1
    machine.until_said(a, "running without sharing")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GPUSHARE_BACKEND", "magic", "use auto, swap, managed or plain"),
        ("GPUSHARE_MEMORY", "lots", "not a number of bytes"),
    ],
)
def test_bad_settings_are_named(machine: Machine, variable: str, value: str, said: str) -> None:
    a = machine.program("a", **{variable: value})
    at_a = a.filled(UNIT, 1)
    assert a.holds(at_a, UNIT, 1)
    machine.until_said(a, said)


def test_managed_memory_can_be_forbidden(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_BACKEND="managed", GPUSHARE_FORBID_MANAGED="1")
    assert "GPUSHARE_FORBID_MANAGED" in a.call("attached")["why"]


def test_disabled(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_DISABLE="1")
    assert a.call("attached")["attached"] == -1
    a.filled(UNIT, 1)
    assert not machine.control("status")["status"]["groups"]


def test_a_program_that_does_not_use_cuda_pays_nothing(machine: Machine) -> None:
    a = machine.program("a", init=False)
    seen = a.call("threads")
    assert seen["sockets"] == 0
    a.call("init")
    assert a.call("threads")["sockets"] == 1
    assert a.call("attached")["attached"] == 1


def test_a_forked_child_is_told_and_the_parent_goes_on(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(16 * UNIT, 1)
    forked = a.call("fork")
    os.kill(forked["child"], signal.SIGKILL)
    assert forked["result"] != 0
    assert a.holds(at_a, 16 * UNIT, 1)


def test_a_scheduler_that_talks_nonsense_is_left(machine: Machine) -> None:
    """Something else listens on the socket: the program runs plainly, and at once."""
    machine.kill_scheduler()
    machine.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()
        a = machine.program("a", init=False)
        started = a.start("init")
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        server.close()
        connection.close()
        assert a.result(started)["result"] == 0
    assert a.call("attached")["attached"] == -1


def test_a_scheduler_that_falls_over_at_every_request_is_not_waited_for(machine: Machine) -> None:
    """It is started again each time, so it is never away for long."""
    machine.kill_scheduler()
    machine.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()

        def fall_over() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(protocol.welcome(1, 0, 0.02, 0))
                        connection.recv(65536)

        threading.Thread(target=fall_over, daemon=True).start()
        a = machine.program("a")
        at_a = a.filled(64 * UNIT, 1)
        assert a.holds(at_a, 64 * UNIT, 1)
        server.shutdown(socket.SHUT_RDWR)
