# SPDX-License-Identifier: BSD-3-Clause
"""Contexts are charged with what they take, whatever they were admitted with, and are no other program's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interposer.conftest import Machine
from tests.scheduler.consistency import check

MIB = 1 << 20
#: Of what NVML says of a process, the part that the driver may hold besides.
BESIDE = 1 / 64


@pytest.mark.parametrize(
    ("memory", "context", "count"), [("8GiB", 448 * MIB, 2), ("640MiB", 655360, 6)]
)
def test_contexts_are_charged_with_what_they_take(
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
        # Before the driver was asked what each process holds.
        assert status()["gpus"][0]["contexts"] >= context
    most = count * context * (1 + BESIDE) + count

    def measured() -> bool:
        return bool(count * context <= status()["gpus"][0]["contexts"] <= most)

    machine.until(measured)
    shares = [group["gpus"][0] for group in status()["groups"]]
    assert all(context <= share["context"] <= most / count for share in shares)
    for program in machine.programs:
        program.close()
    machine.until(lambda: machine.control("status")["status"]["gpus"][0]["used"] == 0)


def test_what_a_context_takes_is_admitted_for_the_next(
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
