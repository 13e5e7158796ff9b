# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose work in flight waits for what they have yet to submit give the GPU up, and finish."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import UNIT, Machine, Scripted


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
    machine.until(lambda: machine.group("a")["state"] == "finishing")
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


@pytest.mark.parametrize("how", ["memory", "array", "mipmapped array"])
@pytest.mark.parametrize("revoked", [False, True])
def test_a_thread_allocates_while_it_holds_a_lock_that_a_host_function_needs(
    machine: Machine, revoked: bool, how: str
) -> None:
    """What it allocates has no room before another program's memory is evicted."""
    held, more = (120, 20) if revoked else (50, 100)
    machine.until_able()
    a, b = machine.program("a"), machine.program("b")
    in_b = b.filled(150 * UNIT, 2)
    b.call("cell", phase="end")
    in_a = a.filled(held * UNIT, 1)
    stream = a.call("stream")["stream"]
    assert a.call("lock", stream=stream)["result"] == 0
    if revoked:
        filling = b.start("fill", pointer=in_b, bytes=150 * UNIT, value=3)
        machine.until(lambda: machine.group("a")["state"] == "finishing")
    allocating = a.start("alloc_and_unlock", bytes=more * UNIT, how=how, thread="allocates")
    allocated = a.result(allocating)
    assert allocated["result"] == 0, a.errors
    assert a.call("synchronize")["result"] == 0
    if revoked:
        assert b.result(filling)["result"] == 0
    assert a.holds(in_a, held * UNIT, 1)
    if how == "memory":
        assert a.holds(allocated["pointer"], more * UNIT, 7)
    assert b.holds(in_b, 150 * UNIT, 3 if revoked else 2)


def test_a_restore_fails_for_a_thread_that_holds_a_lock_that_a_host_function_needs(
    machine: Machine,
) -> None:
    """The lease is given back although no scheduler wants it."""
    a = machine.program("a")
    in_a = a.filled(50 * UNIT, 1)
    stream = a.call("stream")["stream"]
    assert a.call("lock", stream=stream)["result"] == 0
    a.call("fail", rules="cuMemCreate%!gpushare:1")
    allocated = a.call("alloc_and_unlock", bytes=100 * UNIT, how="memory", thread="allocates")
    assert allocated["result"] == 0, a.errors
    assert a.call("synchronize")["result"] == 0
    assert a.holds(allocated["pointer"], 100 * UNIT, 7)
    assert a.holds(in_a, 50 * UNIT, 1)


def test_a_waiting_thread_submits_although_the_lease_is_revoked_at_once(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, _ = make_script()
    pointer = a.call("alloc", bytes=UNIT)["pointer"]
    filling = a.start("fill", pointer=pointer, bytes=UNIT, value=1)
    script.next(ev.Request)
    grant = script.grant(filling=False)
    script.send(*grant, protocol.revoke(script.lease))
    assert a.result(filling)["result"] == 0
    script.next(ev.Released)
