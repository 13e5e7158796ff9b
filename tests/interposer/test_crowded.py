# SPDX-License-Identifier: BSD-3-Clause
"""More processes than the GPU has room for contexts beside what one of them needs: all are served all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.machine import PATIENCE, UNIT, Machine, Program

MIB = 1 << 20
#: A dozen contexts leave 61 MiB. Hibernated, each but one of them leaves 4 MiB on the GPU.
CROWDED = {"GPUSHARE_SIM_MEMORY": "160MiB", "GPUSHARE_SIM_CONTEXT": "8MiB"}
NEED = 92 * MIB
#: So much that seven other contexts leave no room for it.
LARGE = 110 * MIB

Make = Callable[..., Machine]


def hibernating(make_machine: Make, **parameters: str) -> Machine:
    """Return a machine that is known to hibernate programs."""
    machine = make_machine(**parameters)
    machine.until_able()
    return machine


def until_measured(machine: Machine, count: int) -> None:
    """Wait until the contexts of so many programs count as what they take: until then, the rest is others' use."""

    def measured() -> bool:
        groups = machine.control("status")["status"]["groups"]
        sizes = [sum(share["context"] for share in group["gpus"]) for group in groups]
        known = [
            g["hibernation"] is not None or s >= 8 * MIB for g, s in zip(groups, sizes, strict=True)
        ]
        return len(known) == count and all(known)

    machine.until(measured)


@pytest.mark.slow
def test_a_dozen_programs_that_start_at_once_are_served(make_machine: Make) -> None:
    machine = hibernating(make_machine, **CROWDED)
    programs = [machine.program(f"p{n}", init=False) for n in range(12)]
    begun = [program.start("init") for program in programs]
    for program, call in zip(programs, begun, strict=True):
        assert program.result(call, 4 * PATIENCE)["result"] == 0, program.errors
    until_measured(machine, len(programs))
    pointers = [program.call("alloc", bytes=NEED)["pointer"] for program in programs]
    fills = [
        program.start("fill", pointer=pointer, bytes=NEED, value=n)
        for n, (program, pointer) in enumerate(zip(programs, pointers, strict=True))
    ]
    for program, call in zip(programs, fills, strict=True):
        assert program.result(call, 4 * PATIENCE)["result"] == 0, program.errors
    for n, (program, pointer) in enumerate(zip(programs, pointers, strict=True)):
        call = program.start("check", pointer=pointer, bytes=NEED, value=n)
        assert program.result(call, 4 * PATIENCE)["equal"]
        assert not program.errors


@pytest.mark.slow
def test_a_class_whose_students_run_one_cell_at_the_same_time_is_served(make_machine: Make) -> None:
    machine = hibernating(make_machine, **CROWDED)
    programs, pointers = [], []
    for n in range(12):
        programs.append(machine.program(f"p{n}"))
        until_measured(machine, len(programs))
        pointers.append(programs[-1].filled(NEED, n))
    cells = [
        program.start("check", pointer=pointer, bytes=NEED, value=n)
        for n, (program, pointer) in enumerate(zip(programs, pointers, strict=True))
    ]
    for program, cell in zip(programs, cells, strict=True):
        assert program.result(cell, 4 * PATIENCE)["equal"], program.errors
        assert not program.errors


class Neighbours:
    """Programs that submit again and again, with a pause of 10 ms."""

    def __init__(self, programs: list[Program]) -> None:
        self.over = threading.Event()
        self.failures: list[object] = []
        self.threads = [threading.Thread(target=self._submit, args=(p,)) for p in programs]
        for thread in self.threads:
            thread.start()

    def _submit(self, program: Program) -> None:
        pointer = program.call("alloc", bytes=10 * UNIT)["pointer"]
        while not self.over.is_set():
            call = program.start("fill", pointer=pointer, bytes=10 * UNIT, value=1)
            result = program.result(call, 4 * PATIENCE)
            if result["result"] != 0:
                self.failures.append(result)
            time.sleep(0.010)

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures


def admitted(machine: Machine) -> list[Program]:
    """Start small programs until one is refused its context, and return those before it: one to six."""
    small: list[Program] = []
    while True:
        newcomer = machine.program(f"small{len(small)}", init=False)
        if newcomer.call("init")["result"] != 0:
            break
        small.append(newcomer)
        assert len(small) < 7
    assert small
    assert any("Shut down a notebook" in line for line in newcomer.errors)
    return small


def test_small_neighbours_that_never_pause_do_not_keep_a_large_program_out(
    make_machine: Make,
) -> None:
    machine = hibernating(make_machine, **CROWDED)
    large = machine.program("large")
    pointer = large.filled(LARGE, 7)
    neighbours = Neighbours([machine.program(f"small{n}") for n in range(7)])
    try:
        for _ in range(2):
            call = large.start("check", pointer=pointer, bytes=LARGE, value=7)
            assert large.result(call, PATIENCE)["equal"]
    finally:
        neighbours.stop()


@pytest.mark.slow
def test_without_hibernation_a_context_that_keeps_others_out_is_refused(
    make_machine: Make,
) -> None:
    machine = make_machine("--hibernate-after", "0", **CROWDED)
    large = machine.program("large")
    pointer = large.filled(LARGE, 7)
    neighbours = Neighbours(admitted(machine))
    try:
        call = large.start("check", pointer=pointer, bytes=LARGE, value=7)
        assert large.result(call, PATIENCE)["equal"]
    finally:
        neighbours.stop()


def test_a_context_that_keeps_others_out_although_it_hibernates_is_refused(
    make_machine: Make,
) -> None:
    """What each leaves on the GPU is all of its context."""
    machine = hibernating(make_machine, GPUSHARE_SIM_MEMORY="96MiB", GPUSHARE_SIM_CONTEXT="4MiB")
    large = machine.program("large")
    pointer = large.filled(80 * MIB, 7)
    neighbours = Neighbours(admitted(machine))
    try:
        for _ in range(2):
            call = large.start("check", pointer=pointer, bytes=80 * MIB, value=7)
            assert large.result(call, PATIENCE)["equal"]
    finally:
        neighbours.stop()
