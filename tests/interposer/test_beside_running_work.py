# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is allocated or freed while work runs, fails or is over."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.interposer.rows import FAULT, HOLDS, MAPPED_EMPTY, Runner, run_shared
from tests.support.machine import UNIT, Machine, Script
from tests.support.sim import LIBRARIES

#: Frees in the order of a stream, and what the program waits for then.
FREES_IN_ORDER = """
use()
stream = stream_of()
default = ok(driver.cuDeviceGetDefaultMemPool(0))
event = ok(driver.cuEventCreate(0))
waits = (
    lambda: driver.cuStreamSynchronize(stream),
    lambda: driver.cuCtxSynchronize(),
    lambda: driver.cuEventSynchronize(event),
)
for wait in waits:
    block = ok(driver.cuMemAllocAsync(40 * MIB, stream))
    ok(driver.cuMemsetD8Async(block, 1, 40 * MIB, stream))
    ok(driver.cuMemFreeAsync(block, stream))
    ok(driver.cuEventRecord(event, stream))
    ok(wait())
    say("freed")
    hear()
"""

#: Another process's kernel that fails.
FAILS_LATER = (
    FAULT
    + """
kept = filled(40 * MIB)
say()
hear()
fail_for_good()
say("failed")
hear()
"""
)

#: A kernel runs already when the memory is allocated that it is told to write to.
DELIVERS = """
use()
stream = stream_of()
code = compile('''extern "C" __global__ void deliver(volatile unsigned long long *mailbox) {
    while (!mailbox[0]) {}
    *(volatile unsigned *)(mailbox[0] + mailbox[1]) = 42;
}''')
function = function_of(code, "deliver")
host = ok(driver.cuMemHostAlloc(4096, 0))
mailbox = np.frombuffer((ctypes.c_char * 4096).from_address(int(host)), np.uint64)
ok(driver.cuMemAlloc(512))
for size in (512, 4 * MIB, 30 * MIB):
    mailbox[:] = 0
    assert start(function, stream, host) == 0
    say("runs")
    hear()
    block = int(allocate(size))
    mailbox[1] = size - 4
    mailbox[0] = block
    ok(driver.cuStreamSynchronize(stream))
    assert read(driver.CUdeviceptr(block + size - 4), 1, np.uint32)[0] == 42
"""


@pytest.mark.parametrize(
    "allocate",
    [
        "ok(driver.cuMemAlloc(size))",
        "ok(driver.cuMemAllocAsync(size, stream_of()))",
        "mapped_empty(max(size, 2 * MIB))",
    ],
)
def test_memory_allocated_during_a_revocation_is_accessible_to_running_work(
    machine: Machine, allocate: str
) -> None:
    other = machine.program("b")
    pointer = other.filled(150 * UNIT, 1)
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    code = MAPPED_EMPTY + f"\ndef allocate(size):\n    return {allocate}\n" + DELIVERS
    runner = Runner(environ, code)
    try:
        while runner.heard() == "runs":
            # The memory of b stays until there is no room for what a allocates.
            for name, state in (("b", "idle"), ("a", "finishing")):
                machine.control("release", group=name)
                machine.until(lambda name=name, state=state: machine.group(name)["state"] == state)
            runner.tell()
        assert other.holds(pointer, 150 * UNIT, 1)
    finally:
        runner.close()


@pytest.mark.parametrize(
    "allocate", ["ok(driver.cuMemAlloc(size))", "mapped_empty(max(size, 2 * MIB))"]
)
def test_new_memory_is_accessible_to_running_work_although_all_room_is_promised(
    machine: Machine, allocate: str
) -> None:
    """The next program already fills the GPU; free memory is taken all the same."""
    machine.kill_scheduler()
    script = Script(machine)
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    code = DELIVERS.replace("(512, 4 * MIB, 30 * MIB)", "(4 * MIB, 30 * MIB)")
    code = MAPPED_EMPTY + f"\ndef allocate(size):\n    return {allocate}\n" + code
    runner = Runner(environ, code)
    try:
        for _ in range(2):
            script.growth = "resident"
            script.next(ev.Request)
            script.send(*script.grant(filling=False))
            assert runner.heard() == "runs"
            script.growth = "swapped"
            runner.tell()
            assert script.next(ev.Released).cause == "growth"
        script.next(ev.Request)
        script.send(*script.grant(filling=False))
        assert runner.heard() is None
    finally:
        runner.close()
        script.close()


def test_memory_of_a_context_that_has_failed_is_free_for_others_at_once(machine: Machine) -> None:
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    runner = Runner(environ, FAILS_LATER)
    try:
        assert runner.heard() == "ready"
        runner.tell()
        assert runner.heard() == "failed"
        machine.until(lambda: machine.group("a")["gpus"][0]["footprint"] == 0)
        other = machine.program("b")
        pointer = other.filled(224 * UNIT, 5)
        assert other.holds(pointer, 224 * UNIT, 5)
        assert machine.group("a")["totals"]["evicted"] == 0
    finally:
        runner.close()


def test_a_program_that_restarts_after_a_failure_finds_no_old_state(machine: Machine) -> None:
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    runner = Runner(environ, FAILS_LATER)
    assert runner.heard() == "ready"
    runner.tell()
    assert runner.heard() == "failed"
    runner.close()
    again = machine.program("a")
    pointer = again.filled(224 * UNIT, 5)
    assert again.holds(pointer, 224 * UNIT, 5)


def test_memory_freed_in_stream_order_is_not_counted_once_the_free_has_run(
    machine: Machine,
) -> None:
    runner = Runner(machine.environment("a"), FREES_IN_ORDER)
    try:
        for _ in range(3):
            assert runner.heard() == "freed"
            machine.until(lambda: machine.group("a")["gpus"][0]["footprint"] == 0)
            runner.tell()
        assert runner.heard() is None
    finally:
        runner.close()


def test_memory_freed_in_stream_order_is_not_moved(machine: Machine) -> None:
    """Although the program that freed it never calls the driver again."""
    code = FREES_IN_ORDER.replace("ok(wait())", "")
    runner = Runner(machine.environment("a"), code)
    try:
        assert runner.heard() == "freed"
        other = machine.program("b")
        pointer = other.filled(224 * UNIT, 5)
        assert other.holds(pointer, 224 * UNIT, 5)
        assert machine.group("a")["gpus"][0]["footprint"] == 0
        assert machine.group("a")["totals"]["evicted"] == 0
    finally:
        runner.close()


def test_frees_behind_a_busy_stream_do_not_query_each_other(machine: Machine) -> None:
    """Each asks for the first of its stream: a rule that takes effect later than that many calls never does."""
    code = (
        HOLDS
        + """
busy, count = stream_of(), 2000
ok(driver.cuMemFreeAsync(ok(driver.cuMemAllocAsync(4096, busy)), busy))
hold(busy)
sim = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
assert sim.gpushare_sim_fail(f"cuEventQuery:{12 * count}+/0ms".encode()) == 0
blocks = [ok(driver.cuMemAllocAsync(4096, busy)) for _ in range(count)]
for block in blocks:
    ok(driver.cuMemFreeAsync(block, busy))
    ok(driver.cuMemFreeAsync(ok(driver.cuMemAllocAsync(4096, busy)), busy))
counted = Counters()
sim.gpushare_sim_counters(ctypes.byref(counted), ctypes.sizeof(counted))
assert counted.injected == 0
let_go()
ok(driver.cuStreamSynchronize(busy))
assert sim.gpushare_sim_fail(b"") == 0
step()
"""
    )
    assert run_shared(machine, code) == 1


def test_allocations_and_frees_query_nothing_while_no_work_can_fail(machine: Machine) -> None:
    code = (
        HOLDS
        + """
sim = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
counted = Counters()

def asked():
    sim.gpushare_sim_counters(ctypes.byref(counted), ctypes.sizeof(counted))
    return counted.injected

kept = filled(4096)
rule = b"cuEventQuery%!gpushare/0ms,cuCtxSynchronize%!gpushare/0ms"
assert sim.gpushare_sim_fail(rule) == 0
for size in (4096, 200 << 10, 4 * MIB):
    ok(driver.cuMemsetD8(kept, 1, 4096))
    ok(driver.cuCtxSynchronize())
    before = asked()
    for _ in range(100):
        ok(driver.cuMemFree(ok(driver.cuMemAlloc(size))))
        ok(driver.cuMemGetInfo())
    # The first free may wait for the work that the synchronisation has waited for.
    assert asked() - before <= 1, (size, asked() - before)
assert sim.gpushare_sim_fail(b"") == 0
step()
"""
    )
    assert run_shared(machine, code) == 1
