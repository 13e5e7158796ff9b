# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose memory is in host memory, and what becomes of plans to bring it back."""

from __future__ import annotations

from tests.support.machine import UNIT, Machine, Program

SIZE = 96 * UNIT
#: Bytes per second: a restore takes half a second.
SLOW = {"GPUSHARE_SIM_BANDWIDTH": "50000000"}


def swapped(machine: Machine, name: str, size: int = SIZE) -> tuple[Program, int]:
    """Return a program whose memory is in host memory, and where on the GPU it was."""
    program = machine.program(name)
    pointer = program.filled(size, 7)
    machine.evict(name)
    return program, pointer


def results(machine: Machine, kind: str, name: str) -> list[str]:
    """Return the results in the history of a program's prefetches or reservations."""
    events = machine.control("history")["events"]
    found = [e for e in events if (e["kind"], e["group"]) == (kind, f"group-{name}")]
    return [event["result"] for event in found]
