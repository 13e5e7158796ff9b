# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of several processes, on several GPUs: leased and revoked as one, without deadlock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interposer.workers import wait_for_a_worker
from tests.support.machine import UNIT, Machine

MakeMachine = Callable[..., Machine]
RANK = "jupyter_gpushare.benchmarks.programs.rank"


def expected(ranks: int, steps: int) -> list[int]:
    """Return the word that each process has in the end."""
    words = [rank + 1 for rank in range(ranks)]
    for step in range(1, steps + 1):
        total = sum(words)
        words = [(total + step + rank) & 0xFFFFFFFF for rank in range(ranks)]
    return words


class Ranks:
    """Processes of one group that compute together, one on each GPU."""

    def __init__(self, machine: Machine, group: str, ranks: int, steps: int, size: int) -> None:
        self.path = machine.folder / group
        self.path.write_bytes(bytes(512 + 4 * 4 * 256 * ranks))
        self.ranks, self.steps = ranks, steps
        command = [sys.executable, "-m", RANK]
        self.processes = [
            subprocess.Popen(
                [*command, *map(str, (number, number, ranks, steps, self.path, size))],
                env=machine.environment(group, group),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(ranks)
        ]

    def heard(self) -> list[str]:
        """Return a line of each."""
        lines = []
        for process in self.processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        return lines

    def go(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def check(self) -> None:
        results: list[dict[str, Any]] = [json.loads(line) for line in self.heard()]
        assert [r["word"] for r in results] == expected(self.ranks, self.steps)
        assert all(r["alike"] and r["ballast"] for r in results)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def make_ranks() -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(*arguments: Any) -> Ranks:
        made.append(Ranks(*arguments))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def test_two_groups_of_two_ranks_take_turns(
    make_machine: MakeMachine, make_ranks: Callable[..., Ranks]
) -> None:
    machine = make_machine("--quantum", "0.1", GPUSHARE_SIM_DEVICES="2")
    groups = [make_ranks(machine, name, 2, 120, 160 * UNIT) for name in "ab"]
    for group in groups:
        assert group.heard() == ["ready\n"] * 2
    for group in groups:
        group.go()
    for group in groups:
        group.check()
    events = machine.control("history")["events"]
    assert {e["group"] for e in events if e["kind"] == "revoke"} == {"a", "b"}


def test_a_parent_waits_for_a_worker_that_starts_during_a_release(
    machine: Machine,
) -> None:
    wait_for_a_worker(machine)


def test_a_group_with_a_long_computation_gets_no_extra_submissions(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_b = b.filled(160 * UNIT, 2)
    at_a = a.filled(160 * UNIT, 1)
    assert a.call("hold")["result"] == 0
    filling = b.start("fill", pointer=at_b, bytes=160 * UNIT, value=3)
    machine.until(lambda: machine.group("a")["state"] == "finishing")
    held = a.start("fill", thread="second", pointer=at_a, bytes=4 * UNIT, value=5)
    events = lambda: {e["kind"] for e in machine.control("history")["events"]}  # noqa: E731
    machine.until(lambda: "stuck" in events())
    assert a.waits(held)
    assert a.call("let_go")["result"] == 0
    assert b.result(filling)["result"] == a.result(held)["result"] == 0


def test_two_groups_that_extend_to_each_others_gpu_are_served(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "0.2", GPUSHARE_SIM_DEVICES="2")
    programs = {name: machine.program(name) for name in "ab"}
    one, two = (p.call("devices")["uuids"] for p in programs.values())
    assert one == two[::-1]
    first = {name: p.filled(160 * UNIT, ord(name)) for name, p in programs.items()}
    # Each goes on to the other's GPU while it has a lease on its own; there is room for one of them on each.
    waits = {}
    for name, program in programs.items():
        assert program.call("busy", seconds=0.3)["result"] == 0
        waits[name] = program.start("fill", pointer=first[name], bytes=160 * UNIT, value=1)
    begun = {name: p.start("init", ordinal=1) for name, p in programs.items()}
    for name, program in programs.items():
        assert program.result(waits[name])["result"] == 0
        assert program.result(begun[name])["result"] == 0
    allocated = {name: p.start("alloc", bytes=160 * UNIT) for name, p in programs.items()}
    second = {name: p.result(allocated[name])["pointer"] for name, p in programs.items()}
    for value in (7, 8):
        fills = {
            name: p.start("fill", pointer=second[name], bytes=160 * UNIT, value=value)
            for name, p in programs.items()
        }
        for name, program in programs.items():
            assert program.result(fills[name])["result"] == 0
    for name, program in programs.items():
        assert program.holds(second[name], 160 * UNIT, 8)
        assert program.call("init", ordinal=0)["result"] == 0
        assert program.holds(first[name], 160 * UNIT, 1)
        assert len(machine.group(name)["gpus"]) == 2
