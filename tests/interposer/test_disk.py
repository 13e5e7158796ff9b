# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose evicted data goes to a disk and comes back: real clients, schedulers, helpers and files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import PATIENCE, UNIT, Machine, Program

MIB = 1 << 20
SIZE = 190 * UNIT
HOST = 256 * MIB
MakeMachine = Callable[..., Machine]


def with_disk(make_machine: MakeMachine, folder: Path, *, after: str = "off") -> Machine:
    """Start a scheduler with little host memory and a disk."""
    folder.mkdir(exist_ok=True)
    return make_machine(
        *("--host-memory", str(HOST), "--disk-folder", str(folder), "--disk-size", "4G"),
        *("--disk-after", after, "--hibernate-after", "off"),
        GPUSHARE_BACKEND="swap",
    )


def disk(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = machine.control("status")["status"]["host"]["disk_tier"]
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(machine: Machine, count: int) -> list[tuple[Program, int]]:
    """Start programs, each with data that takes most of the GPU."""
    started = []
    for i in range(count):
        program = machine.program(f"p{i}")
        pointer = program.call("alloc", bytes=SIZE)["pointer"]
        assert program.call("scatter", pointer=pointer, bytes=SIZE, seed=i)["result"] == 0
        program.call("cell", phase="end")
        started.append((program, pointer))
    return started


def is_right(program: Program, pointer: int, seed: int) -> bool:
    """Whether every byte of a program's data is as it was, compared by the program, which needs it on the GPU."""
    return bool(program.call("scattered", pointer=pointer, bytes=SIZE, seed=seed)["equal"])


def gone(machine: Machine, name: str) -> bool:
    """Whether all evicted data of a program is on the disk."""
    group = machine.group(name)
    return bool(group["gpus"][0]["disk"] > 32 * MIB and group["gpus"][0]["swapped"] == 0)


def test_more_notebooks_than_host_memory_holds(make_machine: MakeMachine, tmp_path: Path) -> None:
    machine = with_disk(make_machine, tmp_path / "disk")
    programs = start(machine, 8)
    assert disk(machine)["used"] >= 8 * SIZE - HOST - 64 * MIB
    for _ in range(2):
        for i, (program, pointer) in enumerate(programs):
            assert is_right(program, pointer, i)
            program.call("cell", phase="end")
    pool = machine.control("status")["status"]["host"]["pool"]
    assert pool["in_use"] <= HOST + 64 * MIB
    assert disk(machine)["fault"] == ""
    assert os.listdir(tmp_path / "disk") == []
    assert not any(
        "could not" in line or "cannot" in line for p, _ in programs for line in p.errors
    )


def test_data_of_idle_notebooks_goes_after_a_while(
    make_machine: MakeMachine, tmp_path: Path
) -> None:
    machine = with_disk(make_machine, tmp_path / "disk", after="0.2")
    (a, at), (b, bt) = start(machine, 2)
    until(lambda: gone(machine, "p0"))
    assert is_right(a, at, 0)
    assert is_right(b, bt, 1)
    until(lambda: disk(machine)["read"] >= 32 * MIB)


def test_data_of_the_only_notebook_goes(make_machine: MakeMachine, tmp_path: Path) -> None:
    """Nothing else wakes the thread that ends page-locks."""
    machine = with_disk(make_machine, tmp_path / "disk", after="0.1")
    ((a, at),) = start(machine, 1)
    machine.evict("p0")
    until(lambda: gone(machine, "p0"))
    assert is_right(a, at, 0)


def test_a_program_that_ends_leaves_nothing_on_the_disk(
    make_machine: MakeMachine, tmp_path: Path
) -> None:
    machine = with_disk(make_machine, tmp_path / "disk", after="0.2")
    (a, _), _ = start(machine, 2)
    until(lambda: gone(machine, "p0"))
    a.process.send_signal(signal.SIGKILL)
    until(lambda: disk(machine)["used"] == 0)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_the_scheduler_may_end(make_machine: MakeMachine, tmp_path: Path, end: str) -> None:
    machine = with_disk(make_machine, tmp_path / "disk", after="0.2")
    (a, at), (b, bt) = start(machine, 2)
    until(lambda: gone(machine, "p0"))
    assert machine.scheduler is not None
    getattr(machine.scheduler, end)()
    machine.scheduler.wait(PATIENCE)
    machine.kill_scheduler()
    assert os.listdir(tmp_path / "disk") == []
    machine.start_scheduler()
    assert is_right(a, at, 0)
    assert is_right(b, bt, 1)
