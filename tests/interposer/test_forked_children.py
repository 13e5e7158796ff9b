# SPDX-License-Identifier: BSD-3-Clause
"""Children by ``fork`` of programs that use the GPU: CUDA does not work in them."""

from __future__ import annotations

import os
import signal

from jupyter_gpushare.scheduler.core import messages as ev
from tests.interposer.rows import Runner
from tests.support.machine import UNIT, Machine, Script


def test_a_forked_child_gets_an_error_and_the_parent_continues(machine: Machine) -> None:
    a = machine.program("a")
    at_a = a.filled(16 * UNIT, 1)
    forked = a.call("fork")
    os.kill(forked["child"], signal.SIGKILL)
    assert forked["result"] != 0
    said = (
        "this process was forked from one that had already used CUDA, so CUDA does not work in it"
    )
    assert sum(said in line for line in a.errors) == 1
    assert a.holds(at_a, 16 * UNIT, 1)


def test_a_forked_child_has_none_of_its_parents_memory(machine: Machine) -> None:
    """Host memory is not inherited, and a block of it is freed as soon as the stream is past the free."""
    a = machine.program("a")
    at_a = a.filled(16 * UNIT, 1)
    in_order = a.call("alloc_async", bytes=16 * UNIT)["pointer"]
    assert a.call("fill", pointer=in_order, bytes=16 * UNIT, value=2)["result"] == 0
    machine.evict("a")
    a.call("fail", rules="cuEventQuery=600")
    assert a.call("free_async", pointer=in_order)["result"] == 0
    freed = a.call("free_in_child", pointer=at_a)
    assert (freed["status"], freed["results"]) == (0, [3, 3])
    a.call("fail", rules="")
    assert a.holds(at_a, 16 * UNIT, 1)


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(machine: Machine) -> None:
    """One of them is making the device's context, and waits for the scheduler: the child is not to wait for that."""
    machine.kill_scheduler()
    script = Script(machine)
    try:
        a = machine.program("a", init=False)
        script.send = lambda *frames: None  # type: ignore[method-assign]
        making = a.start("init", thread="t1")
        script.next(ev.Grow)
        assert a.call("retain_in_child")["status"] == 1
        assert a.waits(making, 0.1)
    finally:
        script.close()


#: A thread of ours is in the driver, with our locks, when the process forks.
FORKS = """
use()
context = ok(driver.cuCtxGetCurrent())
kept = filled(4096)
sim = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
sim.gpushare_sim_fail(b"cuEventCreate%gpushare/hang,cuCtxRecordEvent%gpushare/hang")
say("submitted")
hear()
before = Counters()
while not before.injected:
    sim.gpushare_sim_counters(ctypes.byref(before), ctypes.sizeof(before))
child = os.fork()
if child == 0:
    signal.alarm(20)
    calls = (
        driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(0), driver.cuCtxCreate(None, 0, 0),
        driver.cuMemAlloc(4096), driver.cuMemFree(kept), driver.cuCtxSynchronize(),
        driver.cuCtxSetCurrent(context), driver.cuCtxDestroy(context),
        driver.cuDevicePrimaryCtxReset(0), driver.cuDevicePrimaryCtxRelease(0),
    )
    os._exit(0 if {error(call) for call in calls} == {3} else 1)
status = os.waitpid(child, 0)[1]
sim.gpushare_sim_fail(b"")
assert status == 0, status
assert holds(kept, 4096)
"""


def test_a_forked_child_is_answered_although_a_thread_held_a_lock(
    machine: Machine,
) -> None:
    runner = Runner(machine.environment("a"), FORKS)
    try:
        assert runner.heard() == "submitted"
        machine.control("release", group="a")
        runner.tell()
        assert runner.heard() is None
    finally:
        runner.close()
