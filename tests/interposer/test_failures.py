# SPDX-License-Identifier: BSD-3-Clause
"""Deaths, losses and bad settings: the user's program goes on, or says in one line why not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import UNIT, Machine, Program, Script
from tests.support.stopping import stop

MakeMachine = Callable[..., Machine]

#: CUDA_ERROR_OUT_OF_MEMORY
OUT_OF_MEMORY = 2
#: CUDA_ERROR_OPERATING_SYSTEM, which calls return whose wait the user interrupted
CANCELLED = 304


def attached(machine: Machine) -> int:
    return len(machine.control("status")["status"]["groups"])


def test_a_killed_holder_makes_room_although_its_child_lives(machine: Machine) -> None:
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
    killed = time.monotonic()
    os.kill(a.pid, signal.SIGKILL)
    filled = b.call("fill", pointer=at_b, bytes=192 * UNIT, value=2)
    assert filled["result"] == 0
    assert filled["end"] - killed > 0.6


def test_the_scheduler_may_die_and_come_back(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    at_b = b.filled(192 * UNIT, 2)
    loop_a = a.start("repeat", pointer=at_a, bytes=4, gap=0.001, thread="loop")
    loop_b = b.start("repeat", pointer=at_b, bytes=4, gap=0.001, thread="loop")
    time.sleep(0.5)
    machine.kill_scheduler()
    time.sleep(0.5)
    machine.start_scheduler()
    machine.until(lambda: len(machine.control("status")["status"]["groups"]) == 2)
    for program, loop in ((a, loop_a), (b, loop_b)):
        program.call("stop")
        assert program.result(loop)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)
    assert b.holds(at_b + 4 * UNIT, 100 * UNIT, 2)


def test_each_scheduler_knows_the_cell_that_runs(machine: Machine) -> None:
    """No Jupyter server tells of it here."""

    def cell() -> str | None:
        open_cell = machine.group("a")["cell"]
        return open_cell and open_cell["msg_id"]

    a = machine.program("a", init=False)
    a.call("cell", phase="begin")
    # The process is no client before its first use of CUDA.
    assert a.call("init")["result"] == 0
    machine.until(lambda: cell() == "cell-1")
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == 1)
    machine.until(lambda: cell() == "cell-1")
    a.call("cell", phase="end")
    machine.until(lambda: cell() is None)
    a.call("cell", phase="begin")
    machine.kill_scheduler()
    a.call("cell", phase="end")
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == 1)
    # What it says is in order: the end of a cell that this scheduler never knew would come before this.
    a.call("cell", phase="begin")
    machine.until(lambda: cell() == "cell-1")


def test_a_child_of_a_cells_process_does_not_run_the_cell(machine: Machine) -> None:
    a = machine.program("a", init=False)
    a.call("cell", phase="begin")
    forked = a.call("init_in_child")
    assert forked["result"] == 0, a.errors
    machine.until(lambda: attached(machine) == 1)
    os.kill(forked["child"], signal.SIGKILL)
    machine.until(lambda: attached(machine) == 0)
    assert [e for e in machine.control("history")["events"] if e["kind"] == "cell"] == []


def test_a_holder_continues_without_a_scheduler(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    machine.kill_scheduler()
    assert a.holds(at_a, 64 * UNIT, 1)
    more = a.filled(16 * UNIT, 2)
    assert a.holds(more, 16 * UNIT, 2)


def evicted_without_a_scheduler(machine: Machine) -> tuple[Program, int, Program]:
    """Return a program, its memory, and the program for which it was evicted; no scheduler is there."""
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    b.filled(192 * UNIT, 2)
    machine.kill_scheduler()
    return a, at_a, b


def test_a_waiting_program_without_a_scheduler_takes_the_gpu_itself(machine: Machine) -> None:
    a, at_a, b = evicted_without_a_scheduler(machine)
    os.kill(b.pid, signal.SIGKILL)
    assert a.holds(at_a, 192 * UNIT, 1)


def left_alone_without_room(machine: Machine) -> tuple[Program, int, int]:
    """Return a program that waits for room, its memory, and what waits; no scheduler is there."""
    a, at_a, _ = evicted_without_a_scheduler(machine)
    return a, at_a, a.start("fill", pointer=at_a, bytes=4, value=9)


def test_a_waiting_program_without_room_waits_for_the_next_scheduler(machine: Machine) -> None:
    a, at_a, filling = left_alone_without_room(machine)
    machine.until_said(a, "Waiting for a scheduler or for free GPU memory, for up to 29")
    assert a.waits(filling)
    machine.start_scheduler()
    assert a.result(filling)["result"] == 0
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_waiting_program_without_room_or_scheduler_can_be_interrupted(machine: Machine) -> None:
    a, at_a, filling = left_alone_without_room(machine)
    machine.until_said(a, "Waiting for a scheduler or for free GPU memory")
    os.kill(a.pid, signal.SIGINT)
    assert a.result(filling).get("interrupted")
    machine.start_scheduler()
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_waiting_program_without_room_or_scheduler_gets_an_error_finally(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(GPUSHARE_SCHEDULER_PATIENCE_S="6")
    a, at_a, filling = left_alone_without_room(machine)
    assert a.result(filling)["result"] == OUT_OF_MEMORY
    machine.until_said(a, "no scheduler answers")
    machine.until_said(a, "No data is lost")
    machine.start_scheduler()
    # What it could not request without a scheduler, it requests from the next one.
    machine.until(lambda: len(machine.control("status")["status"]["groups"]) == 2)
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)


def test_a_memory_limit_also_holds_without_a_scheduler(machine: Machine) -> None:
    a = machine.program("a", GPUSHARE_MEMORY=str(64 * UNIT))
    at_a = a.filled(32 * UNIT, 1)
    machine.kill_scheduler()
    assert a.call("alloc", bytes=96 * UNIT)["result"] == OUT_OF_MEMORY
    more = a.filled(16 * UNIT, 2)
    assert a.holds(at_a, 32 * UNIT, 1)
    assert a.holds(more, 16 * UNIT, 2)


def test_without_any_scheduler_the_program_runs_unshared(machine: Machine) -> None:
    machine.kill_scheduler()
    shutil.rmtree(machine.socket.parent)
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    assert a.holds(at_a, 64 * UNIT, 1)
    assert a.call("attached")["attached"] == -1
    machine.until_said(a, "running without sharing")


def test_a_program_waits_for_a_scheduler_that_is_replaced(machine: Machine) -> None:
    machine.kill_scheduler()
    a = machine.program("a", init=False)
    starting = a.start("init")
    machine.until_said(a, "waiting for the GPU scheduler")
    assert a.waits(starting)
    machine.start_scheduler()
    assert a.result(starting)["result"] == 0
    assert a.call("attached")["attached"] == 1
    at_a = a.filled(64 * UNIT, 1)
    assert a.holds(at_a, 64 * UNIT, 1)


def test_a_program_waits_for_a_scheduler_that_does_not_answer(machine: Machine) -> None:
    """As with a socket of systemd's, which takes connections while the service starts."""
    machine.kill_scheduler()
    machine.socket.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()
        a = machine.program("a", init=False)
        starting = a.start("init")
        machine.until_said(a, "waiting for the GPU scheduler")
        assert any("(Connection timed out)" in line for line in a.errors), a.errors
        os.kill(a.pid, signal.SIGINT)
        assert a.result(starting).get("interrupted")
        starting = a.start("init")
    machine.start_scheduler()
    assert a.result(starting)["result"] == 0
    assert a.call("attached")["attached"] == 1


def test_a_program_that_waits_for_a_scheduler_can_be_interrupted(machine: Machine) -> None:
    machine.kill_scheduler()
    a = machine.program("a", init=False)
    for _ in range(2):
        lines = len(a.errors)
        starting = a.start("init")
        while len(a.errors) == lines:
            time.sleep(0.01)
        os.kill(a.pid, signal.SIGINT)
        assert a.result(starting).get("interrupted")
    machine.start_scheduler()
    assert a.call("init")["result"] == 0
    assert a.call("attached")["attached"] == 1


def is_asleep(program: Program) -> bool:
    """Tell whether no thread of a program is running or about to run."""
    tasks = Path(f"/proc/{program.pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)


def test_an_interrupt_ends_the_waits_of_all_threads(machine: Machine) -> None:
    machine.kill_scheduler()
    a = machine.program("a", init=False)
    waits = [a.start("init", thread=name) for name in ("one", "two", "three")]
    waits.append(a.start("init"))
    machine.until_said(a, "waiting for the GPU scheduler")
    machine.until(lambda: is_asleep(a))
    os.kill(a.pid, signal.SIGINT)
    *others, main = [a.result(wait) for wait in waits]
    assert main.get("interrupted")
    assert [other["result"] for other in others] == [CANCELLED] * 3
    machine.start_scheduler()
    assert a.call("init")["result"] == 0
    assert a.call("attached")["attached"] == 1


def test_an_interrupt_ends_the_allocations_of_all_threads(machine: Machine) -> None:
    """One asks the scheduler, the others wait for it to have done so."""
    a = machine.program("a")
    assert machine.scheduler is not None
    stop(machine.scheduler.pid)
    waits = [a.start("alloc", bytes=8 * UNIT, thread=name) for name in ("one", "two", "three")]
    machine.until(lambda: is_asleep(a))
    waits.append(a.start("alloc", bytes=8 * UNIT))
    machine.until(lambda: is_asleep(a))
    os.kill(a.pid, signal.SIGINT)
    *others, main = [a.result(wait) for wait in waits]
    machine.scheduler.send_signal(signal.SIGCONT)
    assert main.get("interrupted")
    assert [other["result"] for other in others] == [CANCELLED] * 3
    pointer = a.filled(8 * UNIT, 1)
    assert a.holds(pointer, 8 * UNIT, 1)


def test_a_program_that_ran_without_a_scheduler_joins_later(machine: Machine) -> None:
    machine.kill_scheduler()
    a = machine.program("a", GPUSHARE_SCHEDULER_PATIENCE_S="1")
    machine.until_said(
        a, "This process continues without a scheduler, and connects as soon as one answers"
    )
    at_a = a.filled(192 * UNIT, 1)
    assert a.holds(at_a, 192 * UNIT, 1)
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == 1)
    b = machine.program("b")
    at_b = b.filled(192 * UNIT, 2)
    b.call("cell", phase="end")
    assert a.holds(at_a, 192 * UNIT, 1)
    assert b.holds(at_b, 192 * UNIT, 2)


def test_a_program_that_joins_an_old_scheduler_takes_its_turn(machine: Machine) -> None:
    """A scheduler that runs for longer than it takes leases over revokes unknown leases."""
    b = machine.program("b")
    at_b = b.filled(192 * UNIT, 2)
    b.call("cell", phase="end")
    hidden = machine.socket.with_name("hidden")
    machine.socket.rename(hidden)
    a = machine.program("a", GPUSHARE_SCHEDULER_PATIENCE_S="1")
    at_a = a.filled(32 * UNIT, 1)
    hidden.rename(machine.socket)
    machine.until(lambda: attached(machine) == 2)
    assert a.holds(at_a, 32 * UNIT, 1)
    assert b.holds(at_b, 192 * UNIT, 2)
    at_more = a.filled(160 * UNIT, 3)
    a.call("cell", phase="end")
    assert b.holds(at_b, 192 * UNIT, 2)
    assert a.holds(at_more, 160 * UNIT, 3)


def test_an_allocation_larger_than_the_gpu_is_explained_on_standard_error(machine: Machine) -> None:
    a = machine.program("a")
    assert a.call("alloc", bytes=1000 << 30)["result"] == OUT_OF_MEMORY
    machine.until_said(a, "cannot allocate 1024000 MiB at once: the GPU has ")


@pytest.mark.parametrize("code", [errno.EPROTO, errno.EAGAIN, errno.EACCES])
def test_a_program_that_is_refused_at_first_joins_later(machine: Machine, code: int) -> None:
    machine.kill_scheduler()
    script = Script(machine, welcome=protocol.refused(code, "it is not served"))
    try:
        a = machine.program("a")
        at_a = a.filled(192 * UNIT, 1)
        found = a.call("attached")
        assert (found["attached"], found["why"]) == (-1, "the scheduler refused this process")
    finally:
        script.close()
    machine.start_scheduler()
    # The program counts as attached while no scheduler answers at all; the new one knows it before its welcome arrives.
    machine.until(lambda: attached(machine) == 1)
    machine.until(lambda: a.call("attached")["attached"] == 1)
    assert len(a.errors) == 1, a.errors
    assert "it is not served" in a.errors[0]
    b = machine.program("b")
    at_b = b.filled(192 * UNIT, 2)
    b.call("cell", phase="end")
    assert a.holds(at_a, 192 * UNIT, 1)
    assert b.holds(at_b, 192 * UNIT, 2)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GPUSHARE_BACKEND", "magic", "Use auto, swap, managed or plain"),
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


def test_a_disabled_interposer_does_nothing(machine: Machine) -> None:
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


def test_a_scheduler_that_sends_nonsense_is_disconnected(machine: Machine) -> None:
    """Something else listens on the socket: the program goes on without a scheduler."""
    machine.kill_scheduler()
    machine.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()
        a = machine.program("a", init=False, GPUSHARE_SCHEDULER_PATIENCE_S="1")
        started = a.start("init")
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        server.close()
        connection.close()
        assert a.result(started)["result"] == 0
    at_a = a.filled(UNIT, 1)
    assert a.holds(at_a, UNIT, 1)


def test_a_scheduler_that_crashes_at_every_request_is_not_waited_for(machine: Machine) -> None:
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


def test_short_answers_do_not_count_as_time_without_a_scheduler(machine: Machine) -> None:
    """This happens when a scheduler is upgraded several times in a row."""
    a, at_a, b = evicted_without_a_scheduler(machine)
    os.kill(b.pid, signal.SIGKILL)
    machine.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()

        def answer() -> socket.socket:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(protocol.welcome(1, 0, 0.02, 0))
            return connection

        filling = a.start("fill", pointer=at_a, bytes=4, value=2)
        for _ in range(4):
            with answer():
                assert a.waits(filling, 1.5)
        with answer():
            assert a.waits(filling)
    machine.socket.unlink()
    machine.start_scheduler()
    assert a.result(filling)["result"] == 0
    assert a.errors == []


def run_side_by_side(machine: Machine) -> list[tuple[Program, int]]:
    """Return eight programs that nearly fill the GPU, and where their memory is."""
    programs = [machine.program(f"p{i}") for i in range(8)]
    held = []
    for i, program in enumerate(programs):
        held.append((program, program.filled(24 * UNIT, i + 1)))
        program.call("cell", phase="end")
    return held


def outside(machine: Machine) -> list[int]:
    return [found["pid"] for found in machine.control("status")["status"]["processes"]]


@pytest.mark.parametrize("first", [8, 1, 0])
def test_allocations_right_after_a_restart_of_the_scheduler_do_not_fail(
    machine: Machine, first: int
) -> None:
    """So many of them have connected again before the others."""
    held = run_side_by_side(machine)
    for program, _ in held[first:]:
        stop(program.pid)
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == first)
    assert outside(machine) == []
    allocations = [program.start("alloc", bytes=96 * UNIT) for program, _ in held]
    for program, _ in held[first:]:
        os.kill(program.pid, signal.SIGCONT)
    for i, (program, pointer) in enumerate(held):
        allocated = program.result(allocations[i])
        assert allocated["result"] == 0, program.errors
        filling = program.call("fill", pointer=allocated["pointer"], bytes=4, value=9)
        assert filling["result"] == 0, program.errors
        program.call("cell", phase="end")
        assert program.holds(pointer, 24 * UNIT, i + 1)


def test_a_process_that_has_not_reconnected_is_waited_for(machine: Machine) -> None:
    held = run_side_by_side(machine)
    others, (late, at_late) = held[:-1], held[-1]
    stop(late.pid)
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == 7)
    first, _ = others[0]
    # With the contexts, more than the GPU has as long as the late one holds its part.
    pointer = first.call("alloc", bytes=184 * UNIT)["pointer"]
    assert pointer, first.errors
    filling = first.start("fill", pointer=pointer, bytes=4, value=9)
    machine.until(lambda: (machine.group("p0")["reason"] or {}).get("code") == "returning")
    assert machine.group("p0")["reason"]["params"]["clients"] == 1
    gpu = machine.control("status")["status"]["gpus"][0]
    assert (gpu["foreign"], outside(machine)) == (0, [])
    os.kill(late.pid, signal.SIGCONT)
    assert first.result(filling)["result"] == 0
    first.call("cell", phase="end")
    assert late.holds(at_late, 24 * UNIT, 8)


def test_an_allocation_that_waits_for_a_reconnection_reports_it_and_can_be_interrupted(
    machine: Machine,
) -> None:
    first, late = machine.program("first"), machine.program("late", GPUSHARE_BACKEND="plain")
    late.filled(64 * UNIT, 2)
    roster = machine.socket.with_name(machine.socket.name + ".clients")

    def is_listed() -> bool:
        clients = json.loads(roster.read_text().partition("\n")[0])["clients"]
        return any(usage[3] >= 64 * UNIT for *_, usages in clients for usage in usages)

    machine.until(is_listed)
    stop(late.pid)
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: attached(machine) == 1)

    def says_so() -> bool:
        group = machine.group("first")
        return bool(group["state"] == "waiting" and group["reason"]["code"] == "returning")

    # It does not fit beside what the late one holds, which cannot move.
    for end in ("interrupt", "exit"):
        allocation = first.start("alloc", bytes=224 * UNIT)
        machine.until(says_so)
        if end == "interrupt":
            machine.control("cancel", group="group-first")
            assert first.result(allocation)["result"] != 0
        else:
            late.close()
            assert first.result(allocation)["result"] == 0, first.errors


def test_a_process_that_exited_without_a_scheduler_is_not_waited_for(
    machine: Machine,
) -> None:
    held = run_side_by_side(machine)
    machine.kill_scheduler()
    held[-1][0].close()
    machine.start_scheduler()
    first, at_first = held[0]
    pointer = first.call("alloc", bytes=192 * UNIT)["pointer"]
    assert first.call("fill", pointer=pointer, bytes=4, value=9)["result"] == 0
    assert first.holds(at_first, 24 * UNIT, 1)


def test_a_list_of_clients_that_cannot_be_read_is_ignored(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(64 * UNIT, 1)
    machine.kill_scheduler()
    machine.socket.with_name(machine.socket.name + ".clients").write_text('{"boot": 3')
    machine.start_scheduler()
    assert a.holds(at_a, 64 * UNIT, 1)
