# SPDX-License-Identifier: BSD-3-Clause
"""Graphs with events, values in memory and conditions, whose memory is evicted. Rows as in ``test_kinds.py``."""

from __future__ import annotations

import pytest

from tests.interposer.rows import HOLDS, Runner, run_alone, run_shared
from tests.support.machine import UNIT, Machine
from tests.support.sim import LIBRARIES

NODES = (
    HOLDS
    + """
stream, other = stream_of(), stream_of()
cells = ok(driver.cuMemAlloc(4096))
ok(driver.cuMemsetD8(cells, 0, 4096))
block = filled(8 * MIB, 1)
M = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
K = driver.CUgraphNodeType
C = driver.CUgraphConditionalNodeType
EXTERNAL = 1

def cell(index):
    return int(cells) + 4 * index

def told(index):
    return int(read(cell(index), 1, np.uint32)[0])

def event():
    return ok(driver.cuEventCreate(2))

def captured(record):
    ok(driver.cuStreamBeginCapture(stream, M))
    record()
    return ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))

def loop(kernel, *values):
    # A graph that executes the kernel as long as a condition holds: the kernel's first argument.
    graph = ok(driver.cuGraphCreate(0))
    context = ok(driver.cuCtxGetCurrent())
    p = driver.CUgraphNodeParams()
    p.type = K.CU_GRAPH_NODE_TYPE_CONDITIONAL
    c = p.conditional
    c.handle = ok(driver.cuGraphConditionalHandleCreate(graph, context, 1, 1))
    c.type, c.size, c.ctx = C.CU_GRAPH_COND_TYPE_WHILE, 1, context
    ok(driver.cuGraphAddNode(graph, None, None, 0, p))
    body = driver.CUgraph(ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(p.getPtr() + 32).value).value)
    held, pointers = pack(c.handle, *values)
    k = driver.CUDA_KERNEL_NODE_PARAMS()
    k.func = kernel
    k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1
    k.kernelParams = ctypes.addressof(pointers)
    ok(driver.cuGraphAddKernelNode(body, None, 0, k))
    return graph, body
"""
)

ROWS = {
    "events of graphs": NODES
    + """
ready, done = event(), event()
replay = captured(lambda: (
    ok(driver.cuStreamWaitEvent(stream, ready, EXTERNAL)),
    ok(driver.cuMemsetD8Async(block, 5, MIB, stream)),
    ok(driver.cuEventRecordWithFlags(done, stream, EXTERNAL)),
    ok(driver.cuMemsetD8Async(int(block) + MIB, 6, MIB, stream)),
))
for number in range(3):
    write(block, values(1, 8 * MIB))
    step()
    assert error(driver.cuEventQuery(done)) == 0
    hold(other)
    ok(driver.cuMemsetD8Async(block, 4, 2 * MIB, other))
    ok(driver.cuEventRecord(ready, other))
    ok(driver.cuGraphLaunch(replay, stream))
    assert error(driver.cuEventQuery(done)) == 600 and error(driver.cuStreamQuery(stream)) == 600
    let_go()
    ok(driver.cuEventSynchronize(done))
    step()
    ok(driver.cuStreamSynchronize(stream))
    assert error(driver.cuEventQuery(done)) == 0
    found = read(block, 8 * MIB, np.uint8)
    assert (found[:MIB] == 5).all() and (found[MIB:2 * MIB] == 6).all()
    assert (found[2 * MIB:] == values(1, 8 * MIB)[2 * MIB:]).all()
ok(driver.cuEventDestroy(ready))
assert error(driver.cuGraphLaunch(replay, stream)) == 400
""",
    "memory operations of graphs": NODES
    + """
T = driver.CUstreamBatchMemOpType
def operation(writes, index, value):
    p = driver.CUstreamBatchMemOpParams()
    one = p.writeValue if writes else p.waitValue
    one.operation = p.operation = (
        T.CU_STREAM_MEM_OP_WRITE_VALUE_32 if writes else T.CU_STREAM_MEM_OP_WAIT_VALUE_32
    )
    one.address, one.value, one.flags = driver.CUdeviceptr(cell(index)), driver.cuuint32_t(value), not writes
    return p
def batch(*operations):
    p = driver.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    p.ctx = ok(driver.cuCtxGetCurrent())
    p.count, p.paramArray, p.flags = len(operations), list(operations), 0
    return p
graph = ok(driver.cuGraphCreate(0))
node = ok(driver.cuGraphAddBatchMemOpNode(graph, None, 0, batch(operation(False, 0, 1), operation(True, 1, 7))))
replay = ok(driver.cuGraphInstantiate(graph, 0))
step()
ok(driver.cuGraphLaunch(replay, stream))
assert error(driver.cuStreamQuery(stream)) == 600
ok(driver.cuStreamWriteValue32(other, cell(0), 1, 0))
ok(driver.cuStreamSynchronize(stream))
step()
assert told(0) == 1 and told(1) == 7
step()
# What is evicted is looked up, too.
change = driver.cuGraphExecBatchMemOpNodeSetParams
ok(change(replay, node, batch(operation(False, 0, 1), operation(True, 2, 8))))
assert error(change(replay, node, batch(operation(False, 0, 1)))) == 1
step()
ok(driver.cuGraphBatchMemOpNodeSetParams(node, batch(operation(True, 3, 9))))
ok(driver.cuGraphLaunch(replay, stream))
step()
ok(driver.cuGraphAddBatchMemOpNode(graph, None, 0, batch(operation(True, 4, 10))))
ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream))
step()
ok(driver.cuStreamSynchronize(stream))
assert [told(i) for i in range(5)] == [1, 7, 8, 9, 10]
wild = operation(True, 0, 1)
wild.writeValue.address = driver.CUdeviceptr(int(block) + 64 * MIB)
assert error(driver.cuGraphAddBatchMemOpNode(graph, None, 0, batch(wild))) == 1
ok(driver.cuMemFree(cells))
gone = error(driver.cuGraphAddBatchMemOpNode(graph, None, 0, batch(operation(True, 4, 10))))
assert gone == 1, "nothing is there any more"
""",
    "conditions of graphs": NODES
    + """
code = compile('''extern "C" __global__ void count(cudaGraphConditionalHandle handle, unsigned *at, unsigned most) {
    *at += 1;
    cudaGraphSetConditional(handle, *at % most);
}''')
graph, body = loop(function_of(code, "count"), cell(0), ctypes.c_uint32(5))
fill = driver.CUDA_MEMSET_NODE_PARAMS()
fill.dst, fill.value, fill.elementSize, fill.width, fill.height = int(block) + MIB, 9, 1, MIB, 1
step()
node = ok(driver.cuGraphAddMemsetNode(body, None, 0, fill, ok(driver.cuCtxGetCurrent())))
step()
replay = ok(driver.cuGraphInstantiate(graph, 0))
for refused in (driver.cuGraphClone(graph), driver.cuGraphInstantiate(graph, 0)):
    assert error(refused) == 801
step()
for number in range(1, 4):
    ok(driver.cuGraphLaunch(replay, stream))
    step()
    ok(driver.cuStreamSynchronize(stream))
    assert told(0) == 5 * number
found = read(block, 8 * MIB, np.uint8)
assert (found[MIB:2 * MIB] == 9).all() and (found[2 * MIB:] == values(1, 8 * MIB)[2 * MIB:]).all()
step()
fill.dst = int(block) + 2 * MIB
ok(driver.cuGraphExecMemsetNodeSetParams(replay, node, fill, ok(driver.cuCtxGetCurrent())))
ok(driver.cuGraphLaunch(replay, stream))
step()
ok(driver.cuStreamSynchronize(stream))
assert (read(int(block) + 2 * MIB, MIB, np.uint8) == 9).all() and told(0) == 20
ok(driver.cuMemFree(block))
ok(driver.cuGraphExecUpdate(replay, graph))
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    assert run_alone(ROWS[row]) == run_shared(machine, ROWS[row]) > 0


WAITING = {
    "a value": """
replay = captured(lambda: (
    ok(driver.cuStreamWaitValue32(stream, cell(0), 7, 1)), ok(driver.cuMemsetD8Async(block, 5, MIB, stream))
))
""",
    "the end of a loop": """
code = compile('''extern "C" __global__ void look(cudaGraphConditionalHandle handle, volatile unsigned *at) {
    cudaGraphSetConditional(handle, *at != 7);
}''')
replay = ok(driver.cuGraphInstantiate(loop(function_of(code, "look"), cell(0))[0], 0))
""",
}


@pytest.mark.parametrize("what", WAITING)
def test_a_graph_waits_for_later_submissions(machine: Machine, what: str) -> None:
    """It is submitted after the GPU was asked for: the drain ends only after it."""
    b = machine.program("b")
    in_b = b.filled(240 * UNIT, 2)
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    code = (
        NODES
        + WAITING[what]
        + """
ok(driver.cuGraphLaunch(replay, stream))
say()
hear()
ok(driver.cuStreamWriteValue32(other, cell(0), 7, 0))
ok(driver.cuStreamSynchronize(stream))
assert told(0) == 7 and (read(block, 8 * MIB, np.uint8)[MIB:] == values(1, 8 * MIB)[MIB:]).all()
"""
    )
    runner = Runner(environ, code)
    try:
        assert runner.heard() == "ready"
        filling = b.start("fill", pointer=in_b, bytes=240 * UNIT, value=3)
        machine.until(lambda: machine.group("a")["state"] == "finishing")
        runner.tell()
        assert b.result(filling)["result"] == 0
        assert runner.heard() is None
    finally:
        runner.close()
    assert b.holds(in_b, 240 * UNIT, 3)
