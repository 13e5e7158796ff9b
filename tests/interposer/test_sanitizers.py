# SPDX-License-Identifier: BSD-3-Clause
"""The interposer and the simulated driver under the sanitizers, while memory moves and threads compete."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.fuzz.random_programs import Recipe, fuzz, report
from tests.interposer.bed import Bed, attached_again
from tests.interposer.frees import (
    SMALL,
    free_while_allocating,
    free_while_pinning,
    release_while_exporting,
)
from tests.interposer.paced import Paced
from tests.interposer.scripted import evicted, filled
from tests.interposer.workers import wait_for_a_worker
from tests.support.ground import MIB, Figures, Ground
from tests.support.machine import UNIT, Machine, Program, Script
from tests.support.sanitizers import SANITIZERS

pytestmark = pytest.mark.slow


def compete(machine: Machine, a: Program, b: Program) -> None:
    """Two programs, one with several threads, that do not fit together."""
    machine.control("set", quantum=0.2)
    at_a, at_b = a.filled(144 * UNIT, 1), b.filled(144 * UNIT, 2)
    started = [
        (
            program,
            program.start(
                "repeat", pointer=pointer, bytes=4, seconds=1.0, gap=0.0005, thread=f"t{i}"
            ),
        )
        for i in range(2)
        for program, pointer in ((a, at_a), (b, at_b))
    ]
    for _ in range(5):
        small = a.call("alloc", bytes=5000)["pointer"]
        ordered = b.call("alloc_async", bytes=2 * UNIT)["pointer"]
        assert a.call("free", pointer=small)["result"] == 0
        assert b.call("free_async", pointer=ordered)["result"] == 0
        machine.control("cancel", group="group-a")
    for program, serial in started:
        # A cancelled wait ends the loop with its error; nothing else may.
        assert program.result(serial, timeout=120)["result"] in (0, 304)
    assert a.holds(at_a + 4 * UNIT, 100 * UNIT, 1)
    assert b.holds(at_b + 4 * UNIT, 100 * UNIT, 2)
    for program, pointer in ((a, at_a), (b, at_b)):
        assert program.call("free", pointer=pointer)["result"] == 0


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found(
    machine: Machine, sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    found, _, settings, _ = SANITIZERS[name]
    machine.libraries, runtime = sanitized(name)
    machine.preload_first = (runtime,)
    a, b = machine.program("a", **settings), machine.program("b", **settings)
    compete(machine, a, b)
    child = a.call("fork")["child"]
    os.kill(child, 9)
    machine.kill_scheduler()
    machine.start_scheduler()
    compete(machine, a, b)
    assert a.call("end_context", how="release")["result"] == 0
    for program in (a, b):
        said = "".join(program.errors)
        assert not any(words in said for words in found), said


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_while_processes_wait_for_each_other(
    make_machine: Callable[..., Machine], sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    found, _, settings, _ = SANITIZERS[name]
    machine.libraries, runtime = sanitized(name)
    machine.preload_first = (runtime,)
    for program in wait_for_a_worker(machine, **settings):
        said = "".join(program.errors)
        assert not any(words in said for words in found), said


def test_no_freed_memory_is_used_when_it_is_freed_concurrently(
    machine: Machine, sanitized: Callable[[str], tuple[Path, str]]
) -> None:
    name = "address,undefined"
    found, _, settings, _ = SANITIZERS[name]
    machine.libraries, runtime = sanitized(name)
    machine.preload_first = (runtime,)
    pins = machine.program("a", **settings)
    free_while_pinning(machine, pins)
    pins.close()
    allocates = machine.program("b", GPUSHARE_SIM_REUSE="1", **settings)
    free_while_allocating(machine, allocates)
    allocates.close()
    shares = machine.program("b", GPUSHARE_SIM_REUSE="1", **settings)
    free_while_allocating(machine, shares, SMALL)
    shares.close()
    machine.kill_scheduler()
    with contextlib.closing(Script(machine)) as script:
        exports = machine.program("c", **settings)
        release_while_exporting(script, exports)
        for program in (pins, allocates, shares, exports):
            said = "".join(program.errors)
            assert not any(words in said for words in found), said


def test_no_race_is_found_while_the_pace_changes(
    machine: Machine, sanitized: Callable[[str], tuple[Path, str]]
) -> None:
    found, _, settings, _ = SANITIZERS["thread"]
    machine.libraries, runtime = sanitized("thread")
    machine.preload_first = (runtime,)
    paced = Paced(machine, **settings)
    program, script = paced.program, paced.script
    try:
        program.call("takes", seconds=0.0005)
        training = [program.start("train", thread=f"t{i}") for i in range(3)]
        for _ in range(4):
            for told in (
                ev.Pace(1, 0.002, 0.01, meter=True),
                ev.Pace(1, 0.0, 0.005, meter=True),
                ev.Pace(1, None, 0.01, 0.3, meter=True),
                ev.Pace(1),
            ):
                least = paced.progress("launched") + 5
                script.send(protocol.pace(told))
                paced.until(functools.partial(paced.has_launched, least))
            paced.revoke()
            paced.grant()
        program.call("stop")
        assert [program.result(serial)["result"] for serial in training] == [0, 0, 0]
        assert program.call("unload")["result"] == 0
        assert program.call("end_context", how="release")["result"] == 0
        said = "".join(program.errors)
        assert not any(words in said for words in found), said
    finally:
        script.close()


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_during_hibernation(
    make_bed: Callable[..., Bed], sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    found, _, settings, _ = SANITIZERS[name]
    libraries, runtime = sanitized(name)
    bed = make_bed(
        libraries,
        runtime,
        program={**settings, "GPUSHARE_SIM_FAIL": "cuCheckpointProcessRestore:2/forget"},
    )
    pointer = filled(bed.script, bed.a, 8 * UNIT, 7)
    threads = [f"t{i}" for i in range(3)]
    for thread in threads:
        assert bed.a.call("info", thread=thread)["result"] == 0
    for cycle in range(4):
        evicted(bed.script, 8 * UNIT)
        bed.hibernate()
        calls = [bed.a.start("info", thread=thread) for thread in threads]
        if cycle == 1:
            bed.script.next(ev.Wake)
            while any(bed.a.waits(call, 0.1) for call in calls):
                bed.script.send(protocol.cancel())
            assert {bed.a.result(call)["result"] for call in calls} == {304}
            calls = []
            os.kill(bed.a.call("fork")["child"], 9)
            bed.script.disconnect()
            assert attached_again(bed).hibernated
        checking = bed.a.start("check", pointer=pointer, bytes=8 * UNIT, value=7)
        bed.wake()
        assert [bed.a.result(call)["result"] for call in calls] == [0] * len(calls)
        bed.lend()
        assert bed.a.result(checking)["equal"]
        bed.take_back()
    said = "".join(bed.a.errors)
    assert not any(words in said for words in found), said


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_in_random_programs(
    sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    folder, runtime = sanitized(name)
    # Whatever is found ends the process, and its report is in the failure.
    settings = {key: f"{options}:halt_on_error=1" for key, options in SANITIZERS[name][2].items()}
    figures = Figures()
    recipes = [
        Recipe(operations=200, asks=0.03, threads=3, largest=8 * MIB),
        Recipe(operations=200, asks=0.03, threads=2, largest=16 * MIB, failures=0.02),
    ]
    with contextlib.closing(Ground(32 * MIB, folder, [runtime], **settings)) as ground:
        ground.start_scheduler()
        found = fuzz(
            ground,
            figures,
            seed=name,
            recipes=recipes,
            processes=2,
            seconds=4,
        )
    assert found is None, report(found)
    assert figures.evicted > 0
