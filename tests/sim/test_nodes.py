# SPDX-License-Identifier: BSD-3-Clause
"""Nodes of graphs for events and values in memory."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import NODES, check
from tests.support.sim import TOOLS, Talker

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]


def test_a_record_node_is_reached_inside_its_graph(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
done, other = event(), stream_of()
begin()
fill(3)
ok(driver.cuEventRecordWithFlags(done, stream, IN_CAPTURE))
hold(0)
fill(4)
graph = end()
assert types(graph) == [2, 7, 12, 2], types(graph)
assert error(driver.cuEventQuery(done)) == 0, "nothing was recorded"
replay = executable(graph)
assert error(driver.cuEventQuery(done)) == 0
for _ in range(2):
    word(0).value = 0
    hold(1)
    assert launch_it(replay) == 0
    assert error(driver.cuEventQuery(done)) == 600, "it is pending from the launch on"
    assert error(driver.cuStreamWaitEvent(other, done, 0)) == 0
    assert idle(other) == 600
    word(1).value = 1
    assert error(driver.cuEventSynchronize(done)) == 0 and idle() == 600
    assert error(driver.cuStreamSynchronize(other)) == 0
    assert content() == 3
    word(0).value = 1
    ok(driver.cuStreamSynchronize(stream))
    assert content() == 4
    word(1).value = 0
""",
    )


def test_a_wait_node_waits_for_what_was_recorded_before_the_launch(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
ready, other = event(), stream_of()
begin()
ok(driver.cuStreamWaitEvent(stream, ready, IN_CAPTURE))
fill(7)
graph = end()
assert types(graph) == [6, 2], types(graph)
replay = executable(graph)
assert launch_it(replay) == 0
ok(driver.cuStreamSynchronize(stream))
assert content() == 7, "an event that was never recorded is no reason to wait"
hold(0, other)
fill(8, other)
ok(driver.cuEventRecord(ready, other))
assert launch_it(replay) == 0
hold(1, other)
ok(driver.cuEventRecord(ready, other))
assert idle() == 600
word(0).value = 1
ok(driver.cuStreamSynchronize(stream))
assert content() == 7 and idle(other) == 600, "a later record is for later launches"
word(1).value = 1
ok(driver.cuStreamSynchronize(other))
""",
    )


def test_records_and_waits_order_two_graphs(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
there, back, other = event(), event(), stream_of()
begin()
hold(0)
fill(1)
ok(driver.cuEventRecordWithFlags(there, stream, IN_CAPTURE))
ok(driver.cuStreamWaitEvent(stream, there, IN_CAPTURE))
first = executable(end())
begin()
ok(driver.cuStreamWaitEvent(stream, there, IN_CAPTURE))
add_to(block, 1)
ok(driver.cuEventRecordWithFlags(back, stream, IN_CAPTURE))
second = executable(end())
assert launch_it(first) == 0 and launch_it(second, other) == 0
assert idle(other) == 600
word(0).value = 1
assert error(driver.cuEventSynchronize(back)) == 0
ok(driver.cuStreamSynchronize(stream))
assert abs(read(block, 1)[0] - 1) < 1e-6
""",
    )


def test_event_nodes_are_added_read_and_changed(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
one, two = event(), event()
graph = ok(driver.cuGraphCreate(0))
record = ok(driver.cuGraphAddEventRecordNode(graph, None, 0, one))
wait = ok(driver.cuGraphAddEventWaitNode(graph, [record], 1, one))
p = of("EVENT_RECORD")()
p.eventRecord.event = two
generic = ok(driver.cuGraphAddNode(graph, [wait], None, 1, p))
q = of("WAIT_EVENT")()
q.eventWait.event = two
ok(driver.cuGraphAddNode(graph, [generic], None, 1, q))
assert types(graph) == [7, 6, 7, 6]
named = driver.cuGraphEventRecordNodeGetEvent
assert int(ok(named(record))) == int(one) and int(ok(named(generic))) == int(two)
assert error(named(wait)) == 1 and error(driver.cuGraphEventWaitNodeGetEvent(record)) == 1
assert int(ok(driver.cuGraphEventWaitNodeGetEvent(wait))) == int(one)
nothing = driver.CUevent(0)
assert error(driver.cuGraphAddEventRecordNode(graph, None, 0, nothing)) == 1
assert error(driver.cuGraphAddEventWaitNode(graph, None, 0, nothing)) == 1
assert error(driver.cuGraphEventRecordNodeSetEvent(record, nothing)) == 400
assert error(driver.cuGraphEventRecordNodeSetEvent(wait, one)) == 1
replay = executable(graph)
ok(driver.cuGraphEventRecordNodeSetEvent(record, two))
assert int(ok(named(record))) == int(two)
ok(driver.cuGraphEventWaitNodeSetEvent(wait, two))
ok(driver.cuGraphExecEventRecordNodeSetEvent(replay, generic, one))
ok(driver.cuGraphExecEventWaitNodeSetEvent(replay, wait, one))
assert error(driver.cuGraphExecEventRecordNodeSetEvent(replay, generic, nothing)) == 1
q.eventWait.event = one
ok(driver.cuGraphNodeSetParams(wait, q))
assert int(ok(driver.cuGraphEventWaitNodeGetEvent(wait))) == int(one)
p.eventRecord.event = two
ok(driver.cuGraphExecNodeSetParams(replay, generic, p))
clone = ok(driver.cuGraphClone(graph))
assert types(clone) == [7, 6, 7, 6]
hold(0)
assert launch_it(replay) == 0
assert [error(driver.cuEventQuery(e)) for e in (one, two)] == [600, 600]
word(0).value = 1
ok(driver.cuEventSynchronize(two))
ok(driver.cuStreamSynchronize(stream))

# A flag for captures, and none for anything else.
assert error(driver.cuEventRecordWithFlags(one, stream, IN_CAPTURE)) == 1
assert error(driver.cuStreamWaitEvent(stream, one, IN_CAPTURE)) == 1

# A launch that is captured is a graph in a graph, with its events.
begin()
assert launch_it(executable(clone)) == 0
outer = end()
assert types(outer) == [4]
inner = ok(driver.cuGraphChildGraphNodeGetGraph(ok(driver.cuGraphGetNodes(outer, 1))[0][0]))
assert types(inner) == [7, 6, 7, 6]
go(executable(outer))

ok(driver.cuEventDestroy(one))
assert launch_it(executable(clone)) == 400, "an event that was destroyed is not recognised"
again = event()
assert launch_it(executable(clone)) == 400, "nor is another one that has its place"
""",
    )


def test_event_nodes_take_the_time(machine: Machine) -> None:
    check(
        machine(kernel_ns=20_000_000),
        NODES
        + """
first, last = event(), event()
begin()
ok(driver.cuEventRecordWithFlags(first, stream, IN_CAPTURE))
add_to(block, 1)
ok(driver.cuEventRecordWithFlags(last, stream, IN_CAPTURE))
go(executable(end()))
took = ok(driver.cuEventElapsedTime(first, last))
assert 20 <= took, took
""",
    )


def test_a_record_that_fails_with_its_graph_is_not_waited_for(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
done, other = event(), stream_of()
begin()
hold(0)
add_to(1 << 20, 1)
ok(driver.cuEventRecordWithFlags(done, stream, IN_CAPTURE))
replay = executable(end())
assert launch_it(replay) == 0
ok(driver.cuStreamWaitEvent(other, done, 0))
word(0).value = 1
assert error(driver.cuEventSynchronize(done)) == 700
assert error(driver.cuStreamSynchronize(other)) == 700
""",
    )


def test_event_nodes_order_processes(machine: Machine, talk: Talk) -> None:
    environment = machine()
    recorder = talk(
        environment,
        TOOLS
        + NODES
        + """
E = driver.CUevent_flags
done = ok(driver.cuEventCreate(int(E.CU_EVENT_INTERPROCESS | E.CU_EVENT_DISABLE_TIMING)))
begin()
hold(0)
ok(driver.cuEventRecordWithFlags(done, stream, IN_CAPTURE))
replay = executable(end())
assert launch_it(replay) == 0
say(raw(ok(driver.cuIpcGetEventHandle(done))).hex())
hear()
word(0).value = 1
hear()
""",
    )
    waiter = talk(
        environment,
        TOOLS
        + NODES
        + f"""
done = ok(driver.cuIpcOpenEventHandle(made(driver.CUipcEventHandle, {recorder.heard()!r})))
begin()
ok(driver.cuStreamWaitEvent(stream, done, IN_CAPTURE))
assert launch_it(executable(end())) == 0
assert idle() == 600
say()
ok(driver.cuStreamSynchronize(stream))
say("over")
hear()
""",
    )
    assert waiter.heard() == "ready"
    recorder.tell()
    assert waiter.heard() == "over"
    recorder.tell()
    waiter.tell()
    assert recorder.close() == 0
    assert waiter.close() == 0


def test_memory_operations_are_nodes(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
K = driver.CUstreamBatchMemOpType
def operation(kind, index, value, condition=0):
    p = driver.CUstreamBatchMemOpParams()
    one = p.waitValue if "WAIT" in kind else p.writeValue
    one.operation = p.operation = getattr(K, "CU_STREAM_MEM_OP_" + kind)
    one.address, one.flags = at_word(index), condition
    if kind.endswith("64"):
        one.value64 = driver.cuuint64_t(value)
    else:
        one.value = driver.cuuint32_t(value)
    return p

def batch(*operations, context=None):
    p = driver.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    p.ctx = context or ok(driver.cuCtxGetCurrent())
    p.count, p.paramArray, p.flags = len(operations), list(operations), 0
    return p

def told(node):
    # Kinds and values: the bindings do not know how long an array of the driver's is.
    found = ok(driver.cuGraphBatchMemOpNodeGetParams(node))
    assert int(found.ctx) == int(p.ctx) and found.flags == 0
    first = ctypes.c_uint64.from_address(found.getPtr() + 16).value
    items = [(ctypes.c_uint64 * 6).from_address(first + 48 * i) for i in range(found.count)]
    return [(item[0] & 0xffffffff, item[2]) for item in items]

WAIT, WRITE = "WAIT_VALUE_32", "WRITE_VALUE_32"
graph = ok(driver.cuGraphCreate(0))
p = batch(operation(WAIT, 0, 1, 1), operation(WRITE, 1, 5), operation("WRITE_VALUE_64", 2, 1 << 40))
node = ok(driver.cuGraphAddBatchMemOpNode(graph, None, 0, p))
assert types(graph) == [12]
assert told(node) == [(1, 1), (2, 5), (5, 1 << 40)], told(node)

def values(index):
    return word(index).value

replay = executable(graph)
for _ in range(2):
    word(0).value = word(1).value = 0
    assert launch_it(replay) == 0
    assert idle() == 600 and values(1) == 0
    word(0).value = 1
    ok(driver.cuStreamSynchronize(stream))
    assert values(1) == 5 and values(2) == 0 and values(3) == 1 << 8

# A launch that is under way keeps what it has; kinds and number stay as they are.
word(0).value = 0
assert launch_it(replay) == 0
change = driver.cuGraphExecBatchMemOpNodeSetParams
other = batch(operation(WAIT, 0, 2, 0), operation(WRITE, 1, 6), operation("WRITE_VALUE_64", 2, 7))
ok(change(replay, node, other))
assert error(change(replay, node, batch(operation(WAIT, 0, 2, 0)))) == 1
kinds = [operation(WRITE, 0, 2), operation(WRITE, 1, 6), operation("WRITE_VALUE_64", 2, 7)]
assert error(change(replay, node, batch(*kinds))) == 1
word(0).value = 1
ok(driver.cuStreamSynchronize(stream))
assert values(1) == 5
word(0).value = 2
go(replay)
assert values(1) == 6 and values(2) == 7
assert told(node)[1] == (2, 5), "the node is as it was"

ok(driver.cuGraphBatchMemOpNodeSetParams(node, batch(operation(WRITE, 4, 9))))
assert told(node) == [(2, 9)]
go(executable(graph))
assert values(4) == 9
assert error(driver.cuGraphExecUpdate(replay, graph)) == 910

# Another way to add and change it.
g = of("BATCH_MEM_OP")()
g.memOp.ctx, g.memOp.count, g.memOp.paramArray = p.ctx, 1, [operation(WRITE, 5, 1)]
generic = ok(driver.cuGraphAddNode(graph, [node], None, 1, g))
g.memOp.paramArray = [operation(WRITE, 5, 2)]
ok(driver.cuGraphNodeSetParams(generic, g))
replay = executable(graph)
go(replay)
assert values(5) == 2
g.memOp.paramArray = [operation(WRITE, 5, 3)]
ok(driver.cuGraphExecNodeSetParams(replay, generic, g))
go(replay)
assert values(5) == 3

add_batch = driver.cuGraphAddBatchMemOpNode
wild = operation(WRITE, 0, 1)
wild.writeValue.address = driver.CUdeviceptr(4096)
assert error(add_batch(graph, None, 0, batch(wild))) == 1, "nothing is there"
wild.writeValue.address = driver.CUdeviceptr(int(words) + 2)
assert error(add_batch(graph, None, 0, batch(wild))) == 1, "misaligned"
assert error(add_batch(graph, None, 0, batch())) == 1
assert error(driver.cuGraphBatchMemOpNodeGetParams(ok(driver.cuGraphAddEmptyNode(graph, None, 0)))) == 1

# Captured, as all calls of their family are.
begin()
ok(driver.cuStreamWriteValue32(stream, at_word(6), 1, 0))
ok(driver.cuStreamBatchMemOp(stream, 2, [operation(WRITE, 7, 1), operation(WAIT, 6, 1, 1)], 0))
captured = end()
assert types(captured) == [12, 12]
go(executable(captured))
assert values(6) == 1 and values(7) == 1
""",
    )


def test_a_wait_for_a_value_ends_with_its_context(machine: Machine) -> None:
    check(
        machine(),
        NODES
        + """
other = stream_of()
begin()
hold(0)
replay = executable(end())
assert launch_it(replay) == 0
assert start(add, other, 1 << 20, ctypes.c_float(1), ctypes.c_int(1)) == 0
assert error(driver.cuStreamSynchronize(stream)) == 700
""",
    )
