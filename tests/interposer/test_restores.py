# SPDX-License-Identifier: BSD-3-Clause
"""Restores that fail: what may pass is tried again, and what does not pass is reported to the call that waits."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.support.machine import UNIT, Machine, Program

#: CUresult
OUT_OF_MEMORY, OPERATING_SYSTEM, UNKNOWN = 2, 304, 999
SIZE = 192 * UNIT


@pytest.fixture
def swapped(machine: Machine) -> tuple[Program, int]:
    """Return a program whose memory is in the host, and where on the GPU it is to be."""
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(SIZE, 1)
    a.call("cell", phase="end")
    b.filled(SIZE, 2)
    b.call("cell", phase="end")
    return a, at_a


def reason(machine: Machine) -> dict[str, Any]:
    return machine.group("a")["reason"] or {}


FAILURES = [
    ("cuMemCreate%gpushare=UNKNOWN", UNKNOWN),
    ("cuMemCreate%gpushare:3+=UNKNOWN", UNKNOWN),
    ("cuMemCreate%gpushare=OUT_OF_MEMORY", OUT_OF_MEMORY),
    ("cuMemMap%gpushare=UNKNOWN", UNKNOWN),
    ("cuMemSetAccess%gpushare=UNKNOWN", UNKNOWN),
    ("cuMemcpyHtoDAsync%gpushare=OPERATING_SYSTEM", OPERATING_SYSTEM),
    ("cuMemcpyHtoDAsync%gpushare=UNKNOWN/later", UNKNOWN),
    ("cuEventRecord%gpushare=UNKNOWN", UNKNOWN),
]


@pytest.mark.parametrize(("rules", "error"), FAILURES)
def test_a_call_gets_the_error_of_a_failed_restore_and_the_next_its_data(
    machine: Machine, swapped: tuple[Program, int], rules: str, error: int
) -> None:
    a, at_a = swapped
    assert a.call("fail", rules=rules)["result"] == 0
    assert a.call("fill", pointer=at_a, bytes=4, value=9)["result"] == error, a.errors
    assert any(
        "could not restore this process's data" in line and f", {error})" in line
        for line in a.errors
    )
    machine.until(lambda: machine.group("a")["state"] == "idle")
    a.call("fail", rules="")
    assert a.holds(at_a, SIZE, 1)


def test_the_status_shows_the_failed_restore(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    # Tried for ten seconds.
    a.call("fail", rules="cuMemCreate%gpushare=OUT_OF_MEMORY")
    waiting = a.start("fill", pointer=at_a, bytes=4, value=9)
    seen: list[dict[str, Any]] = []
    machine.until(lambda: seen.append(reason(machine)) or seen[-1].get("code") == "restore_failed")
    assert "foreign_use" not in {found.get("code") for found in seen}
    assert seen[-1]["params"]["error"] == OUT_OF_MEMORY
    assert seen[-1]["params"]["attempts"] >= 1
    assert a.result(waiting)["result"] == OUT_OF_MEMORY


def test_data_whose_copies_to_the_host_fail_later_stays_on_the_gpu(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(SIZE, 1)
    a.call("fail", rules="cuMemcpyDtoHAsync%gpushare=UNKNOWN/later")
    a.call("cell", phase="end")
    at_b = b.call("alloc", bytes=SIZE)["pointer"]
    waiting = b.start("fill", pointer=at_b, bytes=SIZE, value=2)
    machine.until_said(a, "it stays on the GPU")
    a.call("fail", rules="")
    assert b.result(waiting)["result"] == 0
    b.call("cell", phase="end")
    assert a.holds(at_a, SIZE, 1)
    assert b.holds(at_b, SIZE, 2)


def test_another_call_repeats_the_restore_and_fails_again(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    a.call("fail", rules="cuMemCreate%gpushare=UNKNOWN")
    for _ in range(2):
        assert a.call("fill", pointer=at_a, bytes=4, value=9)["result"] == UNKNOWN
    assert sum("could not restore this process's data" in line for line in a.errors) == 2
    a.call("fail", rules="")
    assert a.holds(at_a, SIZE, 1)


def test_a_lack_of_file_descriptors_is_reported(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    a.call("use_up_descriptors")
    assert a.call("fill", pointer=at_a, bytes=4, value=9)["result"] == OUT_OF_MEMORY
    assert any("no file descriptors left" in line for line in a.errors)
    a.call("close_descriptors")
    assert a.holds(at_a, SIZE, 1)


@pytest.mark.parametrize(
    "rules", ["cuMemCreate%gpushare:1=UNKNOWN", "cuMemCreate%gpushare@0.3=UNKNOWN"]
)
def test_a_temporary_failure_is_retried_without_an_error(
    machine: Machine, swapped: tuple[Program, int], rules: str
) -> None:
    a, at_a = swapped
    a.call("fail", rules=rules)
    assert a.holds(at_a, SIZE, 1)
    assert not any("could not restore this process's data" in line for line in a.errors)


def test_others_are_served_while_a_restore_fails(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    b = machine.programs[1]
    a.call("fail", rules="cuMemCreate%gpushare=OUT_OF_MEMORY")
    waiting = a.start("fill", pointer=at_a, bytes=4, value=9)
    at_b = b.filled(16 * UNIT, 3)
    assert b.holds(at_b, 16 * UNIT, 3)
    assert a.result(waiting)["result"] == OUT_OF_MEMORY
    a.call("fail", rules="")
    assert a.holds(at_a, SIZE, 1)


def test_a_wait_that_was_interrupted_leaves_no_restore_behind(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    a.call("fail", rules="cuMemCreate%gpushare=OUT_OF_MEMORY")
    waiting = a.start("fill", pointer=at_a, bytes=4, value=9)
    machine.until(lambda: reason(machine).get("code") == "restore_failed")
    os.kill(a.pid, signal.SIGINT)
    assert a.result(waiting).get("interrupted")
    machine.until(lambda: machine.group("a")["state"] == "idle")
    a.call("fail", rules="")
    assert a.holds(at_a, SIZE, 1)


def test_a_restore_that_fails_without_a_scheduler_also_ends_the_call(
    machine: Machine, swapped: tuple[Program, int]
) -> None:
    a, at_a = swapped
    machine.kill_scheduler()
    machine.programs[1].close()
    a.call("fail", rules="cuMemCreate%gpushare=UNKNOWN")
    assert a.call("fill", pointer=at_a, bytes=4, value=9)["result"] == UNKNOWN
    a.call("fail", rules="")
    assert a.holds(at_a, SIZE, 1)
