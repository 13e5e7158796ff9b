# SPDX-License-Identifier: BSD-3-Clause
"""Nodes of graphs that are executed if, or as long as, a condition holds."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import NODES, check

Machine = Callable[..., dict[str, str]]

CONDITIONS = (
    NODES
    + """
code = compile('''
extern "C" __global__ void choose(cudaGraphConditionalHandle handle, unsigned value) {
    cudaGraphSetConditional(handle, value);
}
extern "C" __global__ void count(cudaGraphConditionalHandle handle, unsigned *at) {
    *at += 1;
    cudaGraphSetConditional(handle, *at < 5);
}
extern "C" __global__ void bump(unsigned *at, unsigned by) { *at += by; }
''', "choose", "count", "bump")
choose, count, bump = (function_of(code, name) for name in ("choose", "count", "bump"))
here = ok(driver.cuCtxGetCurrent())
C = driver.CUgraphConditionalNodeType
IF, WHILE, SWITCH = (getattr(C, "CU_GRAPH_COND_TYPE_" + name) for name in ("IF", "WHILE", "SWITCH"))
cells = ok(driver.cuMemAlloc(4096))

def cell(index):
    return int(cells) + 4 * index

def value(index):
    return int(read(cell(index), 1, np.uint32)[0])

def clear():
    ok(driver.cuMemsetD8(cells, 0, 4096))

def empty():
    return ok(driver.cuGraphCreate(0))

def handle(graph, first=0, flags=1):
    return ok(driver.cuGraphConditionalHandleCreate(graph, here, first, flags))

def conditional(graph, one, kind, size=1, behind=()):
    p = of("CONDITIONAL")()
    p.conditional.handle, p.conditional.type, p.conditional.size, p.conditional.ctx = one, kind, size, here
    result = driver.cuGraphAddNode(graph, list(behind), None, len(behind), p)
    if error(result) != 0:
        return error(result)
    first = ctypes.c_uint64.from_address(p.getPtr() + 16 + 16).value
    return result[1], [driver.CUgraph(g) for g in (ctypes.c_uint64 * size).from_address(first)]

def loop():
    '''Return a new graph whose only node is a loop, the handle of its condition, and its body.'''
    graph = empty()
    again = handle(graph, 1)
    _, (body,) = conditional(graph, again, WHILE)
    return graph, again, body

kept = []
def kernel(graph, function, *values, behind=()):
    held, pointers = pack(*values)
    kept.append((held, pointers))
    p = driver.CUDA_KERNEL_NODE_PARAMS()
    p.func, p.gridDimX, p.gridDimY, p.gridDimZ = function, 1, 1, 1
    p.blockDimX, p.blockDimY, p.blockDimZ, p.kernelParams = 1, 1, 1, ctypes.addressof(pointers)
    return ok(driver.cuGraphAddKernelNode(graph, list(behind), len(behind), p)), p

def number(n):
    return ctypes.c_uint32(n)

clear()
"""
)


def test_a_condition_decides_which_part_of_a_graph_is_executed(machine: Machine) -> None:
    check(
        machine(),
        CONDITIONS
        + """
graph = empty()
chosen = handle(graph, 1)
first, p = kernel(graph, choose, chosen, number(0))
either, bodies = conditional(graph, chosen, IF, 2, [first])
kernel(bodies[0], bump, cell(0), number(1))
kernel(bodies[1], bump, cell(1), number(1))
last, _ = kernel(graph, bump, cell(2), number(1), behind=[either])
assert types(graph) == [0, 13, 0]
assert int(ok(driver.cuGraphNodeGetType(either))) == 13
replay = executable(graph)
go(replay)
assert [value(i) for i in range(3)] == [0, 1, 1]
held, pointers = pack(chosen, number(3))
p.kernelParams = ctypes.addressof(pointers)
ok(driver.cuGraphExecKernelNodeSetParams(replay, first, p))
go(replay)
assert [value(i) for i in range(3)] == [1, 1, 2]

# As many bodies as one likes; none where there are fewer than the value.
graph = empty()
which = handle(graph)
first, p = kernel(graph, choose, which, number(2))
_, bodies = conditional(graph, which, SWITCH, 3, [first])
for i, body in enumerate(bodies):
    kernel(body, bump, cell(10 + i), number(1))
replay = executable(graph)
go(replay)
assert [value(10 + i) for i in range(3)] == [0, 0, 1]
held, pointers = pack(which, number(3))
p.kernelParams = ctypes.addressof(pointers)
ok(driver.cuGraphExecKernelNodeSetParams(replay, first, p))
go(replay)
assert [value(10 + i) for i in range(3)] == [0, 0, 1]
""",
    )


def test_a_body_is_repeated_as_long_as_its_condition_holds(machine: Machine) -> None:
    check(
        machine(),
        CONDITIONS
        + """
graph, again, body = loop()
counted, _ = kernel(body, count, again, cell(0))
# Another one inside, with its own condition that starts again at each launch.
inner = handle(body, 1)
inside, (deep,) = conditional(body, inner, IF, 1, [counted])
node, p = kernel(deep, bump, cell(1), number(2))
kernel(deep, choose, inner, number(0), behind=[node])
replay = executable(graph)
go(replay)
assert value(0) == 5 and value(1) == 2, (value(0), value(1))
go(replay)
assert value(0) == 6 and value(1) == 4, "the body is executed once more, since it looks after it"

# A node in a body is changed in the executable, for launches to come.
word(0).value = 0
hold(0)
assert launch_it(replay) == 0
held, pointers = pack(cell(1), number(100))
p.kernelParams = ctypes.addressof(pointers)
ok(driver.cuGraphExecKernelNodeSetParams(replay, node, p))
word(0).value = 1
ok(driver.cuStreamSynchronize(stream))
assert value(1) == 6
go(replay)
assert value(1) == 106
ok(driver.cuGraphExecUpdate(replay, graph))
go(replay)
assert value(1) == 108, "as the nodes are"

# Launches of one executable do not overlap.
other = stream_of()
word(0).value = 0
hold(0)
assert launch_it(replay) == 0 and launch_it(replay, other) == 0
assert idle(other) == 600
word(0).value = 1
ok(driver.cuStreamSynchronize(other))
assert value(1) == 112
""",
    )


def test_a_body_is_captured(machine: Machine) -> None:
    check(
        machine(),
        CONDITIONS
        + """
graph, again, body = loop()
G = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
ok(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, G))
fill(3)
ok(driver.cuMemcpyDtoDAsync(cell(64), block, 256, stream))
assert start(count, stream, again, cell(0)) == 0
assert int(end()) == int(body)
assert types(body) == [2, 1, 0]
go(executable(graph))
assert value(0) == 5 and value(64) == 3 and content() == 3
""",
    )


def test_invalid_conditions_are_refused(machine: Machine) -> None:
    check(
        machine(),
        CONDITIONS
        + """
create = driver.cuGraphConditionalHandleCreate
graph = empty()
assert error(create(graph, here, 0, 2)) == 1
assert error(create(driver.CUgraph(0), here, 0, 1)) == 1
first = handle(graph)
assert error(driver.cuGraphInstantiate(graph, 0)) == 1, "it has no node"
p = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
assert error(driver.cuGraphInstantiateWithParams(graph, p)) == 1
assert int(p.result_out) == 5
assert conditional(graph, first, WHILE, 2) == 1
assert conditional(graph, first, IF, 3) == 1
assert conditional(graph, first, SWITCH, 0) == 1
assert conditional(empty(), first, IF) == 1, "another graph's"
node, (body,) = conditional(graph, first, IF)
kernel(body, bump, cell(0), number(1))
replay = executable(graph)
assert error(driver.cuGraphInstantiate(graph, 0)) == 801, "one at a time"
assert error(driver.cuGraphClone(graph)) == 801
assert error(driver.cuGraphAddChildGraphNode(empty(), None, 0, graph)) == 801
assert error(driver.cuGraphDestroy(body)) == 1 and error(driver.cuGraphInstantiate(body, 0)) == 1
begin()
assert launch_it(replay) == 801
ok(driver.cuGraphDestroy(end()))
q = of("CONDITIONAL")()
q.conditional.handle, q.conditional.type, q.conditional.size, q.conditional.ctx = first, IF, 1, here
assert error(driver.cuGraphNodeSetParams(node, q)) == 801
assert error(driver.cuGraphExecNodeSetParams(replay, node, q)) == 801
ok(driver.cuGraphExecDestroy(replay))
ok(driver.cuGraphExecDestroy(executable(graph)))
ok(driver.cuGraphAddEventRecordNode(body, None, 0, event()))
assert error(driver.cuGraphInstantiate(graph, 0)) == 801, "no events in a body"

# What runs goes on when its graph and its executable are gone.
graph, again, body = loop()
kernel(body, count, again, cell(1))
replay = executable(graph)
hold(0)
assert launch_it(replay) == 0
ok(driver.cuGraphExecDestroy(replay))
ok(driver.cuGraphDestroy(graph))
word(0).value = 1
ok(driver.cuStreamSynchronize(stream))
assert value(1) == 5
""",
    )


def test_a_loop_ends_with_its_context(machine: Machine) -> None:
    check(
        machine(),
        CONDITIONS
        + """
graph, again, body = loop()
kernel(body, bump, cell(0), number(1))
assert launch_it(executable(graph)) == 0
assert idle() == 600
other = stream_of()
assert start(bump, other, 1 << 20, number(1)) == 0
assert error(driver.cuStreamSynchronize(stream)) == 700
""",
    )
