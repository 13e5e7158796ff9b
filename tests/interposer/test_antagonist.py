# SPDX-License-Identifier: BSD-3-Clause
"""A program whose memory is taken again and again computes what it would compute undisturbed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from jupyter_gpushare.benchmarks.harness.antagonist import Antagonist
from tests.support.machine import UNIT, Machine

MakeMachine = Callable[..., Machine]
PATIENCE = 60.0


def evictions(machine: Machine, group: str) -> int:
    """How often a group has lost memory."""
    events = machine.control("history")["events"]
    return sum(
        event["kind"] == "evict" and event["group"] == group and event["bytes"] > 0
        for event in events
    )


def test_results_are_right_although_memory_is_evicted_all_the_time(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine("--quantum", "0.02")
    a = machine.program("a")
    blocks = [(a.filled(size, value), size, value) for value, size in enumerate((UNIT, 30 * UNIT))]
    deadline = time.monotonic() + PATIENCE
    with Antagonist(machine.socket, pause=0.005) as antagonist:
        while evictions(machine, "group-a") < 20:
            assert antagonist.error is None, antagonist.error
            assert time.monotonic() < deadline, machine.control("status")
            for index, (pointer, size, value) in enumerate(blocks):
                assert a.holds(pointer, size, value)
                value += 2
                assert a.call("fill", pointer=pointer, bytes=size, value=value)["result"] == 0
                blocks[index] = (pointer, size, value)
    assert antagonist.error is None
    assert antagonist.turns >= 20
    # Evicted wholly, but for what the antagonist leaves.
    last = [e for e in machine.control("history")["events"] if e["kind"] == "evict"][-1]
    assert last["bytes"] > 0
    for pointer, size, value in blocks:
        assert a.holds(pointer, size, value)


def test_the_antagonist_follows_the_free_memory(make_machine: MakeMachine) -> None:
    machine = make_machine("--quantum", "0.02")
    machine.until_able()
    with Antagonist(machine.socket, pause=0.005) as antagonist:
        machine.until(lambda: antagonist.turns > 2)
        # A context comes while the antagonist wants all. (More that cannot move would be refused for its sake.)
        a = machine.program("a")
        pointer = a.filled(64 * UNIT, 7)
        before = antagonist.turns
        machine.until(lambda: antagonist.turns > before + 2)
        assert a.holds(pointer, 64 * UNIT, 7)
        assert antagonist.error is None


def test_the_antagonist_process_exits_on_request(make_machine: MakeMachine) -> None:
    machine = make_machine()
    command = [
        "-m",
        "jupyter_gpushare.benchmarks.harness.antagonist",
        "--socket",
        str(machine.socket),
    ]
    with subprocess.Popen(
        [sys.executable, *command, "--pause", "0.001"], stdout=subprocess.PIPE, text=True
    ) as process:
        machine.until(
            lambda: any(
                group["name"] == "antagonist" and group["totals"]["bursts"] > 2
                for group in machine.control("status")["status"]["groups"]
            )
        )
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert said.startswith("had the GPU")


def test_the_antagonist_reports_a_missing_scheduler(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.kill_scheduler()
    command = [
        "-m",
        "jupyter_gpushare.benchmarks.harness.antagonist",
        "--socket",
        str(machine.socket),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gpushare: no scheduler is running at")
