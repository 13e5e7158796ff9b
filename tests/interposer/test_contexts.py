# SPDX-License-Identifier: BSD-3-Clause
"""Contexts are charged with what they take, whatever they were admitted with, and are no other program's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.support.consistency import check
from tests.support.machine import Machine, Script

MIB = 1 << 20
#: Of what NVML says of a process, the part that the driver may hold besides.
BESIDE = 1 / 64


@pytest.mark.parametrize(
    ("memory", "context", "count"), [("8GiB", 448 * MIB, 2), ("640MiB", 655360, 6)]
)
def test_contexts_are_charged_with_their_measured_memory(
    make_machine: Callable[..., Machine], memory: str, context: int, count: int
) -> None:
    """They are admitted with a 64th of the GPU each: 128 MiB where 448 are needed, or 10 MiB for 0.6."""
    machine = make_machine(GPUSHARE_SIM_MEMORY=memory, GPUSHARE_SIM_CONTEXT=str(context))

    def status() -> dict[str, Any]:
        said: dict[str, Any] = machine.control("status")["status"]
        check(said)
        assert said["gpus"][0]["foreign"] == 0
        assert said["processes"] == []
        assert not [one for one in said["notices"] if one["code"] == "underreported"]
        return said

    for number in range(count):
        machine.program(f"p{number}")
        # The next reading of the GPU shows it, also before the driver is asked what each process holds.
        machine.until(lambda: bool(status()["gpus"][0]["contexts"] >= context))
    most = count * context * (1 + BESIDE) + count

    def measured() -> bool:
        return bool(count * context <= status()["gpus"][0]["contexts"] <= most)

    machine.until(measured)
    shares = [group["gpus"][0] for group in status()["groups"]]
    assert all(context <= share["context"] <= most / count for share in shares)
    for program in machine.programs:
        program.close()
    machine.until(lambda: machine.control("status")["status"]["gpus"][0]["used"] == 0)


def test_contexts_of_lease_holders_are_measured_by_the_next_scheduler(
    make_machine: Callable[..., Machine],
) -> None:
    """Each takes 1 MiB, states 8, and holds a lease under which it may allocate a little more without asking."""
    machine = make_machine(GPUSHARE_SIM_MEMORY="512MiB")
    programs = [machine.program(f"p{n}") for n in range(4)]
    pointers = [program.filled(MIB, n) for n, program in enumerate(programs)]
    machine.kill_scheduler()
    machine.start_scheduler()

    def contexts() -> list[int]:
        groups = machine.control("status")["status"]["groups"]
        return [group["gpus"][0]["context"] for group in groups]

    machine.until(lambda: len(contexts()) == 4 and max(contexts()) < 2 * MIB)
    assert all(machine.group(f"p{n}")["state"] == "idle_lease" for n in range(4))
    for n, (program, pointer) in enumerate(zip(programs, pointers, strict=True)):
        assert program.holds(pointer, MIB, n)


def test_residues_of_hibernated_processes_are_not_foreign_use(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(
        GPUSHARE_SIM_MEMORY="1GiB",
        GPUSHARE_SIM_CONTEXT="16MiB",
        GPUSHARE_SIM_CHECKPOINT_LEFT="4MiB",
    )
    names = [f"p{n}" for n in range(3)]
    for name in names:
        machine.program(name).call("cell", phase="end")
    for name in names:
        machine.hibernate(name)

    def gpu() -> dict[str, Any]:
        said: dict[str, Any] = machine.control("status")["status"]
        check(said)
        return dict(said["gpus"][0])

    machine.until(lambda: gpu()["used"] == 3 * 4 * MIB)
    assert (gpu()["foreign"], gpu()["contexts"]) == (0, 3 * 4 * MIB)
    # What is more than that is.
    plain = machine.program("plain", GPUSHARE_DISABLE="1")
    plain.filled(64 * MIB, 1)
    machine.until(lambda: gpu()["foreign"] == (64 + 16) * MIB)


def test_the_measured_size_of_a_context_is_admitted_for_the_next(
    make_machine: Callable[..., Machine],
) -> None:
    """Where three of them have no room, the third is refused by the figures that were measured."""
    machine = make_machine(
        "--hibernate-after", "off", GPUSHARE_SIM_MEMORY="1GiB", GPUSHARE_SIM_CONTEXT="120MiB"
    )
    first = machine.program("first")
    machine.until(lambda: machine.group("first")["gpus"][0]["context"] >= 120 * MIB)
    allocated = first.call("alloc", bytes=900 * MIB)
    assert allocated["result"] != 0, "it would have no room beside its context"
    assert "MiB" in "".join(first.errors)


def test_threads_that_retain_a_context_at_once_are_admitted_once(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine()
    machine.kill_scheduler()
    script = Script(machine)
    try:
        a = machine.program("a", init=False)
        assert a.call("raw", function="cuInit", arguments=[0])["result"] == 0
        a.call("fail", rules="cuDevicePrimaryCtxRetain%!gpushare/hang")
        retaining = [
            a.start(
                "raw",
                function="cuDevicePrimaryCtxRetain",
                arguments=["out", 0],
                thread=f"t{number}",
            )
            for number in range(8)
        ]
        script.next(ev.Grow)
        with pytest.raises(TimeoutError):
            script.next(ev.Grow, 0.5)
        a.call("fail", rules="")
        for serial in retaining:
            assert a.result(serial)["result"] == 0
        for _ in range(7):
            assert a.call("end_context", how="release")["result"] == 0
        assert a.call("init")["result"] == 0
        assert a.call("alloc", bytes=MIB)["result"] == 0
        assert script.next(ev.Grow).least.context < 2 * MIB
    finally:
        script.close()


def test_a_context_that_was_made_behind_our_back_is_drained(machine: Machine) -> None:
    """As those of OpenGL, and of libraries that take the driver's functions elsewhere."""
    a, b = machine.program("a"), machine.program("b")
    in_a, in_b = a.filled(40 * MIB, 1), b.filled(40 * MIB, 2)
    made = a.call("behind")
    assert made["result"] == 0
    assert a.call("raw", function="cuCtxSetCurrent", arguments=[made["context"]])["result"] == 0
    stream = a.call("stream")["stream"]
    assert a.call("hold", stream=stream)["result"] == 0
    filling = b.start("fill", pointer=in_b, bytes=40 * MIB, value=3)
    machine.until(lambda: machine.group("a")["state"] == "finishing")
    assert b.waits(filling)
    a.call("let_go")
    assert b.result(filling)["result"] == 0
    assert a.holds(in_a, 4, 1)
