# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose work in flight waits for what they have yet to submit give the GPU up, and finish."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import UNIT, Machine


@pytest.mark.parametrize("others", [0, 3])
def test_a_thread_launches_while_it_holds_a_lock_that_a_host_function_needs(
    machine: Machine, others: int
) -> None:
    """``others``: threads that submit, too, and that nothing waits for."""
    a, b = machine.program("a"), machine.program("b")
    in_a, in_b = a.filled(150 * UNIT, 1), b.filled(150 * UNIT, 2)
    stream = a.call("stream")["stream"]
    assert a.call("lock", stream=stream)["result"] == 0
    filling = b.start("fill", pointer=in_b, bytes=150 * UNIT, value=3)
    machine.until(lambda: machine.group("a")["state"] == "yielding")
    beside = [
        a.start("repeat", pointer=in_a, bytes=4, seconds=1, gap=0.001, thread=f"other {number}")
        for number in range(others)
    ]
    launching = a.start(
        "launch_and_unlock", pointer=in_a, bytes=UNIT, stream=stream, count=25, thread="launches"
    )
    assert b.result(filling)["result"] == 0
    assert a.result(launching)["result"] == 0
    assert all(a.result(serial)["result"] == 0 for serial in beside)
    assert a.call("synchronize")["result"] == 0
    if not others:
        assert a.holds(in_a, UNIT, 24)
    assert b.holds(in_b, 150 * UNIT, 3)
