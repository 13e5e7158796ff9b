# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler that stands by takes over while 50 programs contend for the GPU."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler.protocol.client import ControlError
from tests.acceptance.releases import Release
from tests.support.machine import UNIT, Machine

MakeMachine = Callable[..., Machine]

PROGRAMS = 50
#: Bytes of each program. All together are twice what the GPU has.
SIZE = 32 * UNIT
#: Seconds for which each of them computes.
SECONDS = 10.0
#: They take turns often.
FLAGS = ("--quantum", "0.05")


def take_over(machine: Machine, release: Release, number: signal.Signals) -> None:
    """Have a scheduler of a release stand by, and end the running one."""
    before = machine.scheduler
    assert before is not None
    machine.scheduler_folder = release.folder
    machine.start_scheduler("--stand-by", *FLAGS, word="standing by")
    before.send_signal(number)
    before.wait()
    assert before.stdout is not None
    before.stdout.close()
    assert machine.scheduler is not None
    assert machine.scheduler.stdout is not None
    assert machine.scheduler.stdout.readline() == "ready\n"


def attached(machine: Machine) -> int:
    try:
        return len(machine.control("status")["status"]["groups"])
    except ControlError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("first", ["old", "new"])
def test_programs_notice_nothing(
    make_machine: MakeMachine, request: pytest.FixtureRequest, new: Release, first: str
) -> None:
    """Two upgrades and a crash under load: all data stays, all programs stay shared, and none is out of memory."""
    release: Release = request.getfixturevalue(first)
    machine = make_machine(GPUSHARE_SIM_MEMORY=str(900 * UNIT), GPUSHARE_SIM_CONTEXT="256KiB")
    machine.kill_scheduler()
    machine.scheduler_folder = release.folder
    machine.start_scheduler(*FLAGS)
    programs = [machine.program(f"p{number}") for number in range(PROGRAMS)]
    data = [program.filled(SIZE, 1 + number) for number, program in enumerate(programs)]
    words = [program.filled(UNIT, 0) for program in programs]
    loops = [
        program.start("repeat", pointer=word, bytes=4, seconds=SECONDS, gap=0.002)
        for program, word in zip(programs, words, strict=True)
    ]
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        take_over(machine, new, number)
        machine.until(lambda: attached(machine) == PROGRAMS)
    for program, loop in zip(programs, loops, strict=True):
        assert program.result(loop)["result"] == 0
    for number, (program, pointer) in enumerate(zip(programs, data, strict=True)):
        assert program.holds(pointer, SIZE, 1 + number)
    assert [line for program in programs for line in program.errors] == []
