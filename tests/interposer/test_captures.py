# SPDX-License-Identifier: BSD-3-Clause
"""
Graphs and captures, whose addresses the driver looks up: not only when they run.

The simulated driver is as strict as the real one: copies and fills that become nodes must name memory that is mapped.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.rows import (
    NODES,
    MakeMachine,
    Runner,
    await_unevictable,
    drive,
    evict,
    run_alone,
    run_shared,
)
from tests.support.machine import UNIT, Machine, Scripted
from tests.support.workshop import Patch, Workshop

ADDED = """
a, b, c = filled(4 * MIB, 1), filled(4 * MIB, 2), mapped(2 * MIB, 3)[0]
whole = values(1, 4 * MIB)
graph = ok(driver.cuGraphCreate(0))
step()
first = ok(driver.cuGraphAddMemcpyNode(graph, [], 0, copying(b, a, 4 * MIB), context))
step()
second = ok(driver.cuGraphAddMemsetNode(graph, [first], 1, filling(c, 7, 256), context))
step()
third = ok(driver.cuGraphAddNode(graph, [second], None, 1, node_of(copying(b, c, 1024))))
step()
fourth = ok(driver.cuGraphAddNode(graph, [third], None, 1, node_of(filling(c, 8, 128))))
"""

ROWS = {
    "nodes that are added": NODES
    + ADDED
    + """
step()
replay = ok(driver.cuGraphInstantiate(graph, 0))
step(unevictable=0)
run(replay, stream)
step()
assert (read(b, 256, np.int32) == 7).all() and (read(c, 128, np.int32) == 8).all()
assert (read(b, 4 * MIB, np.uint8)[1024:] == whole[1024:]).all()
assert (read(int(c) + 512, 128, np.int32) == 7).all()
""",
    "nodes that are changed": NODES
    + ADDED
    + """
step()
ok(driver.cuGraphMemcpyNodeSetParams(first, copying(b, int(a) + MIB, 2 * MIB)))
step()
ok(driver.cuGraphMemsetNodeSetParams(second, filling(c, 9, 256)))
step()
ok(driver.cuGraphNodeSetParams(third, node_of(copying(int(b) + 1024, c, 1024))))
step()
ok(driver.cuGraphNodeSetParams(fourth, node_of(filling(c, 6, 64))))
replay = ok(driver.cuGraphInstantiate(graph, 0))
step()
run(replay, stream)
assert (read(b, 1024, np.uint8) == whole[MIB:MIB + 1024]).all()
assert (read(int(b) + 1024, 256, np.int32) == 9).all()
assert (read(b, 2 * MIB, np.uint8)[2048:] == whole[MIB + 2048:3 * MIB]).all()
assert (read(int(b) + 2 * MIB, MIB, np.uint8) == values(2, 4 * MIB)[2 * MIB:3 * MIB]).all()
assert (read(c, 64, np.int32) == 6).all() and (read(int(c) + 256, 192, np.int32) == 9).all()
""",
    "nodes that are changed in an executable graph": NODES
    + ADDED
    + """
replay = ok(driver.cuGraphInstantiate(graph, 0))
step()
ok(driver.cuGraphExecMemcpyNodeSetParams(replay, first, copying(b, int(a) + MIB, MIB), context))
step()
ok(driver.cuGraphExecMemsetNodeSetParams(replay, second, filling(c, 9, 256), context))
step()
ok(driver.cuGraphExecNodeSetParams(replay, third, node_of(copying(int(b) + 1024, c, 1024))))
step()
ok(driver.cuGraphExecNodeSetParams(replay, fourth, node_of(filling(c, 6, 64))))
step()
run(replay, stream)
assert (read(b, 1024, np.uint8) == whole[MIB:MIB + 1024]).all()
assert (read(int(b) + 1024, 256, np.int32) == 9).all() and (read(c, 64, np.int32) == 6).all()
step()
ok(driver.cuGraphExecUpdate(replay, graph))
step()
run(replay, stream)
assert (read(b, 256, np.int32) == 7).all() and (read(c, 128, np.int32) == 8).all()
""",
    "an executable graph that is changed before each launch, as by JAX": NODES
    + """
a = filled(8 * MIB, 1)
whole = values(1, 8 * MIB)
out = [filled(MIB, 10 + i) for i in range(4)]
graph = ok(driver.cuGraphCreate(0))
node = ok(driver.cuGraphAddMemcpyNode(graph, [], 0, copying(out[0], a, MIB), context))
replay = ok(driver.cuGraphInstantiate(graph, 0))
for i, to in enumerate(out):
    if i:
        step(unevictable=0)
        new = copying(to, int(a) + i * MIB, MIB)
        ok(driver.cuGraphExecMemcpyNodeSetParams(replay, node, new, context))
    if i % 2:
        step(unevictable=0)
    run(replay, stream)
step()
for i, to in enumerate(out):
    assert (read(to, MIB, np.uint8) == whole[i * MIB:(i + 1) * MIB]).all()
""",
    "captures that begin while the memory is out": NODES
    + """
a, b, c = filled(4 * MIB, 1), filled(4 * MIB, 2), mapped(2 * MIB, 3)[0]
host = int(ok(driver.cuMemHostAlloc(4096, 0)))
whole = values(1, 4 * MIB)
def two_dimensions(to, source):
    d = driver.CUDA_MEMCPY2D()
    d.srcMemoryType, d.srcDevice, d.srcPitch = D, source, 1024
    d.dstMemoryType, d.dstDevice, d.dstPitch = D, to, 512
    d.WidthInBytes, d.Height = 512, 64
    return d
for mode in ("GLOBAL", "THREAD_LOCAL", "RELAXED"):
    step()
    ok(driver.cuStreamBeginCapture(stream, getattr(M, "CU_STREAM_CAPTURE_MODE_" + mode)))
    ok(driver.cuMemsetD8Async(c, 3, 1024, stream))
    ok(driver.cuMemsetD16Async(int(c) + 1024, 4, 512, stream))
    ok(driver.cuMemsetD32Async(int(c) + 2048, 5, 256, stream))
    ok(driver.cuMemsetD2D8Async(int(c) + 4096, 256, 6, 64, 4, stream))
    ok(driver.cuMemcpyDtoDAsync(b, a, 4 * MIB, stream))
    ok(driver.cuMemcpyDtoHAsync(host, a, 4096, stream))
    ok(driver.cuMemcpyHtoDAsync(int(b) + 4096, host, 4096, stream))
    ok(driver.cuMemcpyAsync(int(b) + 8192, c, 1024, stream))
    ok(driver.cuMemcpy2DAsync(two_dimensions(int(c) + MIB, a), stream))
    ok(driver.cuMemcpy3DAsync(copying(int(b) + 16384, int(c) + 2048, 1024), stream))
    graph = ok(driver.cuStreamEndCapture(stream))
    step()
    replay = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuMemsetD8(b, 0, 4 * MIB))
    ok(driver.cuMemsetD8(c, 0, 2 * MIB))
    step(unevictable=0)
    run(replay, stream)
    step()
    seen = read(b, 4 * MIB, np.uint8)
    expected = whole.copy()
    expected[4096:8192] = whole[:4096]
    expected[8192:9216] = 3
    expected[16384:17408].view(np.int32)[:] = 5
    assert (seen == expected).all(), mode
    seen = read(c, 2 * MIB, np.uint8)
    assert (seen[:1024] == 3).all() and (seen[1024:2048].view(np.uint16) == 4).all()
    assert (seen[4096:5120].reshape(4, 256)[:, :64] == 6).all() and not seen[4160:4352].any()
    rows = whole[:64 * 1024].reshape(64, 1024)[:, :512].reshape(-1)
    assert (seen[MIB:MIB + 32768] == rows).all()
""",
    "kinds of handles that are tried one after the other, as by PyTorch": NODES
    + """
FABRIC = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
P = properties()
base = reserve(16 * MIB)
before = free()
for i in range(4):
    P.requestedHandleTypes = FABRIC
    assert error(driver.cuMemCreate(4 * MIB, P, 0)) == 800, "not permitted"
    assert error(driver.cuMemCreate(4 * MIB, P, 0)) == 800, "the second time too"
    assert free() == before - i * 4 * MIB
    step(unevictable=0)
    P.requestedHandleTypes = FD
    handle = ok(driver.cuMemCreate(4 * MIB, P, 0))
    ok(driver.cuMemMap(int(base) + i * 4 * MIB, 4 * MIB, 0, handle, 0))
    ok(driver.cuMemSetAccess(int(base) + i * 4 * MIB, 4 * MIB, [access(0)], 1))
    write(int(base) + i * 4 * MIB, values(i, 4 * MIB))
    step(unevictable=0)
assert all(holds(int(base) + i * 4 * MIB, 4 * MIB, i) for i in range(4))
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver_while_another_takes_the_gpu(
    machine: Machine, row: str
) -> None:
    other = machine.program("b")
    pointer = other.call("alloc", bytes=224 * UNIT)["pointer"]
    turns = 0

    def other_has_the_gpu() -> None:
        nonlocal turns
        turns += 1
        filled = other.call("fill", pointer=pointer, bytes=224 * UNIT, value=turns)
        assert filled["result"] == 0
        machine.control("release", group="b")

    runner = Runner(machine.environment("a"), ROWS[row])
    try:
        assert drive(machine, "a", runner, other_has_the_gpu) == run_alone(ROWS[row]) > 0
        machine.until(lambda: machine.group("b")["totals"]["evicted"] > 0)
        assert other.holds(pointer, UNIT, turns)
    finally:
        runner.close()


def test_a_kind_of_handle_that_is_refused_is_not_counted(machine: Machine) -> None:
    code = (
        NODES
        + """
a = filled(4 * MIB)
say()
hear()
P = properties()
P.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
for _ in range(5):
    assert error(driver.cuMemCreate(4 * MIB, P, 0)) == 800
say()
hear()
"""
    )
    runner = Runner(machine.environment("a"), code)
    try:
        assert runner.heard() == "ready"
        evict(machine, "a", busy=False)
        footprint = machine.group("a")["gpus"][0]["footprint"]
        runner.tell()
        assert runner.heard() == "ready"
        await_unevictable(machine, "a", 0)
        assert machine.group("a")["gpus"][0]["footprint"] == footprint
        runner.tell()
        assert runner.heard() is None
    finally:
        runner.close()


def refuses_what_waits_for_itself(machine: Machine) -> None:
    """The other works on, so that the memory comes with the next lease: what would wait for itself is told so."""
    other = machine.program("b")
    other.filled(96 * UNIT, 1)
    assert other.call("hold")["result"] == 0
    code = (
        NODES
        + """
beside = stream_of()
a = filled(8 * MIB, 1)
ok(driver.cuStreamBeginCapture(stream, M.CU_STREAM_CAPTURE_MODE_RELAXED))
c = ok(driver.cuMemAlloc(36 * MIB))
ok(driver.cuMemcpyDtoDAsync(int(a) + 4 * MIB, a, MIB, stream))
assert error(driver.cuMemsetD32Async(c, 5, 256, beside)) == 2
say("refused")
hear()
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
ok(driver.cuMemsetD32Async(c, 5, 256, beside))
ok(driver.cuStreamSynchronize(beside))
run(replay, stream)
assert (read(c, 256, np.int32) == 5).all()
assert (read(int(a) + 4 * MIB, MIB, np.uint8) == values(1, 8 * MIB)[:MIB]).all()
"""
    )
    runner = Runner(machine.environment("a"), code)
    try:
        assert runner.heard() == "refused"
        assert other.call("let_go")["result"] == 0
        runner.tell()
        assert runner.heard() is None
        assert "End the capture before you submit other work" in runner.errors
    finally:
        runner.close()


@pytest.mark.parametrize("beside", ["the thread that captures", "another thread"])
def test_a_capture_begins_while_another_thread_allocates(
    make_script: Callable[..., Scripted], beside: str
) -> None:
    """There is no room before the lease is given back, and once it is known of the capture, there is."""
    script, a, _ = make_script()
    pointer = a.call("alloc", bytes=UNIT)["pointer"]
    filling = a.start("fill", pointer=pointer, bytes=UNIT, value=1)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert a.result(filling)["result"] == 0
    stream = a.call("stream")["stream"]
    script.growth = None
    allocating = a.start("alloc", bytes=8 * UNIT, thread="allocates")
    growth = script.next(ev.Grow)
    assert not growth.urgent
    assert a.call("raw", function="cuStreamBeginCapture_v2", arguments=[stream, 2])["result"] == 0
    script.growth = "resident"
    script.send(protocol.grown(growth.serial, "swapped", growth.most))
    where = {} if beside == "the thread that captures" else {"thread": "submits"}
    assert a.call("fill", pointer=pointer, bytes=UNIT, value=2, **where)["result"] == 0, a.errors
    assert script.next(ev.Grow).urgent
    assert a.result(allocating)["result"] == 0
    with pytest.raises(TimeoutError):
        script.next(ev.Released, 0.1)
    ending = a.call("raw", function="cuStreamEndCapture", arguments=[stream, "out"])
    assert ending["result"] == 0
    assert script.next(ev.Released).cause == "growth"


def test_an_allocation_of_a_capture_without_room_fails(make_machine: MakeMachine) -> None:
    refuses_what_waits_for_itself(make_machine("--quantum", "600"))


# --- Bugs that were put in ------------------------------------------------------------------------

BUGS: dict[str, tuple[Patch, str]] = {
    "captures begin without a lease": (
        (
            "interposer/hooks/capture.c",
            "    CUresult result = gs_gate_enter(&opening->entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);\n",
            "    opening->entered = NULL;\n    CUresult result = CUDA_SUCCESS;\n",
        ),
        "captures that begin while the memory is out",
    ),
    "parameters of nodes without a lease": (
        (
            "driver_api.csv",
            "cuGraphExecMemcpyNodeSetParams,,g,gate,waits,the driver looks up the addresses",
            "cuGraphExecMemcpyNodeSetParams,,g,pass,waits,",
        ),
        "an executable graph that is changed before each launch, as by JAX",
    ),
    "kinds of handles are not tried": (
        (
            "interposer/memory/vmm.c",
            "    result = try_out(properties, granularity);\n",
            "    (void)try_out;\n",
        ),
        "kinds of handles that are tried one after the other, as by PyTorch",
    ),
}


_INCLUDED = "#include <stddef.h>\n"
#: The thread that allocates wakes up after the helper has read on, but before it has begun to release.
LATE: tuple[Patch, ...] = (
    ("interposer/client/growth.c", _INCLUDED, f"{_INCLUDED}#include <unistd.h>\n"),
    ("interposer/client/lease.c", _INCLUDED, f"{_INCLUDED}#include <unistd.h>\n"),
    (
        "interposer/client/growth.c",
        "    struct pending_growth **link = &growths;\n",
        "    gs_mutex_unlock(&gs_client_lock);\n    usleep(100000);\n    gs_mutex_lock(&gs_client_lock);\n"
        "    struct pending_growth **link = &growths;\n",
    ),
    (
        "interposer/client/lease.c",
        "    lease.release_polls++;\n",
        "    if (lease.release_polls++ == 0)\n        usleep(200000);\n",
    ),
)


@pytest.mark.slow
def test_an_allocation_of_a_capture_without_room_fails_late(
    workshop: Workshop, make_machine: Callable[..., Machine]
) -> None:
    machine = make_machine("--quantum", "600")
    machine.libraries = workshop.build(LATE)
    refuses_what_waits_for_itself(machine)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(
    workshop: Workshop, make_machine: Callable[..., Machine], bug: str
) -> None:
    patch, row = BUGS[bug]
    machine = make_machine()
    machine.libraries = workshop.build((patch,))
    with pytest.raises(AssertionError, match=r"CUDA_ERROR_INVALID_VALUE|not permitted"):
        run_shared(machine, ROWS[row])
