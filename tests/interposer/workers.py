# SPDX-License-Identifier: BSD-3-Clause
"""Processes of one notebook whose work waits for each other."""

from __future__ import annotations

from tests.support.machine import UNIT, Machine, Program


def wait_for_a_worker(machine: Machine, **environ: str) -> list[Program]:
    """Have a parent's work wait for a worker's, which comes while the parent's lease is given back."""
    parent = machine.program("parent", group="g", **environ)
    other = machine.program("other", CUDA_VISIBLE_DEVICES="0", **environ)
    at_other = other.filled(160 * UNIT, 2)
    at_parent = parent.filled(128 * UNIT, 1)
    assert parent.call("hold")["result"] == 0
    filling = other.start("fill", pointer=at_other, bytes=160 * UNIT, value=3)
    machine.until(lambda: machine.group("parent")["state"] == "finishing")
    machine.until(lambda: "stuck" in {e["kind"] for e in machine.control("history")["events"]})
    # The parent's work ends when the worker's is done, and the worker has no lease of its own.
    worker = machine.program("parent", group="g", **environ)
    at_worker = worker.filled(16 * UNIT, 4)
    assert worker.holds(at_worker, 16 * UNIT, 4)
    assert other.waits(filling, 0.05)
    assert parent.call("let_go")["result"] == 0
    assert other.result(filling)["result"] == 0
    assert parent.holds(at_parent, 128 * UNIT, 1)
    assert worker.holds(at_worker, 16 * UNIT, 4)
    assert other.holds(at_other, 160 * UNIT, 3)
    return [parent, other, worker]
