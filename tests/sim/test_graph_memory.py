# SPDX-License-Identifier: BSD-3-Clause
"""Memory that graphs allocate and free, and the nodes of graphs."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import GRAPHS, check

Machine = Callable[..., dict[str, str]]


def test_captured_allocations_live_in_the_graph(machine: Machine) -> None:
    check(
        machine(memory="64MiB", context="1MiB"),
        GRAPHS
        + """
before = free()
begin()
block = ok(driver.cuMemAllocAsync(8 * MIB, stream))
ok(driver.cuMemsetD32Async(block, 0, 1024, stream))
add_to(block, 3)
ok(driver.cuMemcpyDtoHAsync(host.ctypes.data, block, 4096, stream))
ok(driver.cuMemFreeAsync(block, stream))
graph = end()
assert types(graph) == [10, 2, 0, 1, 11], types(graph)
assert ok(driver.cuMemGetAddressRange(block))[1] == 8 * MIB
replay = ok(driver.cuGraphInstantiate(graph, 0))
assert free() == before and graph_memory("RESERVED_MEM_CURRENT") == 0, "nothing before the first launch"
assert error(driver.cuGraphInstantiate(graph, 0)) == 801, "only one at a time"
assert error(driver.cuGraphClone(graph)) == 801
for _ in range(3):
    host[:] = 0
    go(replay)
    assert (host == 3).all()
assert free() == before - 8 * MIB
assert graph_memory("USED_MEM_CURRENT") == graph_memory("RESERVED_MEM_HIGH") == 8 * MIB
ok(driver.cuDeviceGraphMemTrim(0))
assert free() == before and graph_memory("RESERVED_MEM_CURRENT") == 0
go(replay)
ok(driver.cuGraphExecDestroy(replay))
ok(driver.cuGraphDestroy(graph))
assert graph_memory("USED_MEM_CURRENT") == 0 and free() == before - 8 * MIB, "the pool keeps it"
ok(driver.cuDeviceGraphMemTrim(0))
ok(driver.cuDeviceSetGraphMemAttribute(0, ATTRIBUTE.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, driver.cuuint64_t(0)))
assert free() == before and graph_memory("RESERVED_MEM_HIGH") == 0
begin()
ok(driver.cuMemAllocAsync(60 * MIB, stream))
ok(driver.cuMemAllocAsync(60 * MIB, stream))
large = ok(driver.cuGraphInstantiate(end(), 0))
assert error(driver.cuGraphLaunch(large, stream)) == 2, "it never fits"
assert error(driver.cuStreamSynchronize(stream)) == 0
""",
    )


def test_a_graphs_memory_cannot_be_touched_outside_its_life(machine: Machine) -> None:
    check(
        machine(),
        GRAPHS
        + """
begin()
block = ok(driver.cuMemAllocAsync(4096, stream))
ok(driver.cuMemsetD32Async(block, 0, 1024, stream))
ok(driver.cuMemFreeAsync(block, stream))
go(ok(driver.cuGraphInstantiate(end(), 0)))
assert error(driver.cuMemFreeAsync(block, stream)) == 1, "the graph has freed it"
add_to(block, 1)
assert error(driver.cuStreamSynchronize(stream)) == 700
""",
    )


def test_memory_that_a_graph_leaves_is_freed_outside(machine: Machine) -> None:
    check(
        machine(memory="64MiB", context="1MiB"),
        GRAPHS
        + """
before = free()
graph = ok(driver.cuGraphCreate(0))
p = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
p.poolProps.allocType, p.poolProps.location, p.bytesize = PINNED, at(0), 4096
first = ok(driver.cuGraphAddMemAllocNode(graph, [], 0, p))
block = p.dptr
assert int(ok(driver.cuGraphMemAllocNodeGetParams(first)).dptr) == int(block)
fill = driver.CUDA_MEMSET_NODE_PARAMS()
fill.dst, fill.elementSize, fill.width, fill.height, fill.value = block, 4, 1024, 1, 7
second = ok(driver.cuGraphAddMemsetNode(graph, [first], 1, fill, ok(driver.cuCtxGetCurrent())))
other = ok(driver.cuGraphCreate(0))
release = ok(driver.cuGraphAddMemFreeNode(other, [], 0, block))
assert int(ok(driver.cuGraphMemFreeNodeGetParams(release))) == int(block)
assert error(driver.cuGraphAddMemFreeNode(graph, [second], 1, block)) == 1, "freed elsewhere"
plain = ok(driver.cuMemAlloc(64))
assert error(driver.cuGraphAddMemFreeNode(graph, [second], 1, plain)) == 1
assert error(driver.cuGraphDestroyNode(second)) == 801
replay, releaser = ok(driver.cuGraphInstantiate(graph, 0)), ok(driver.cuGraphInstantiate(other, 0))
assert error(driver.cuGraphLaunch(releaser, stream)) == 1, "nothing to free yet"
# By a stream, by the host, and by another graph.
for free_it in (
    lambda: ok(driver.cuMemFreeAsync(block, stream)),
    lambda: ok(driver.cuMemFree(block)),
    lambda: ok(driver.cuGraphLaunch(releaser, stream)),
):
    go(replay)
    assert (read(block, 1024, np.uint32) == 7).all(), "it outlives the graph's execution"
    assert error(driver.cuGraphLaunch(replay, stream)) == 1, "not while it is there"
    free_it()
    ok(driver.cuStreamSynchronize(stream))
ok(driver.cuGraphExecDestroy(releaser))
ok(driver.cuGraphExecDestroy(replay))
AUTO = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
replay = ok(driver.cuGraphInstantiate(graph, int(AUTO)))
assert int(ok(driver.cuGraphExecGetFlags(replay))) == int(AUTO)
for _ in range(3):
    go(replay)
ok(driver.cuGraphExecDestroy(replay))
ok(driver.cuGraphDestroy(graph))
assert (read(block, 1024, np.uint32) == 7).all(), "it outlives the graph"
assert graph_memory("USED_MEM_CURRENT") == 4096
ok(driver.cuMemFree(block))
assert graph_memory("USED_MEM_CURRENT") == 0
assert error(driver.cuMemFree(block)) == 1
""",
    )


def test_nodes_are_read_changed_and_cloned(machine: Machine) -> None:
    check(
        machine(),
        GRAPHS
        + """
block = ok(driver.cuMemAlloc(4096))
begin()
ok(driver.cuMemsetD32Async(block, 0, 1024, stream))
add_to(block, 1)
ok(driver.cuMemcpyDtoHAsync(host.ctypes.data, block, 4096, stream))
graph = end()
nodes = ok(driver.cuGraphGetNodes(graph, 3))[0]
edges = ok(driver.cuGraphGetEdges(graph, 2))
assert [int(n) for n in edges[0]] == [int(n) for n in nodes[:2]]
assert [int(n) for n in edges[1]] == [int(n) for n in nodes[1:]]
clone = ok(driver.cuGraphClone(graph))
twin = ok(driver.cuGraphNodeFindInClone(nodes[1], clone))
p = ok(driver.cuGraphKernelNodeGetParams(nodes[1]))
assert (p.blockDimX, p.gridDimX, int(p.func)) == (1024, 1, int(add))
held, pointers = pack(block, ctypes.c_float(5), ctypes.c_int(1024))
p.kernelParams = ctypes.addressof(pointers)
replay, other = ok(driver.cuGraphInstantiate(graph, 0)), ok(driver.cuGraphInstantiate(clone, 0))
ok(driver.cuGraphExecKernelNodeSetParams(replay, nodes[1], p))
assert error(driver.cuGraphExecKernelNodeSetParams(replay, twin, p)) == 1, "a node of another graph"
go(replay)
assert (host == 5).all()
go(other)
assert (host == 1).all()
fill = ok(driver.cuGraphMemsetNodeGetParams(nodes[0]))
assert (int(fill.dst), fill.elementSize, fill.width, fill.value) == (int(block), 4, 1024, 0)
fill.value = 0x40000000
context = ok(driver.cuCtxGetCurrent())
ok(driver.cuGraphExecMemsetNodeSetParams(replay, nodes[0], fill, context))
copy = ok(driver.cuGraphMemcpyNodeGetParams(nodes[2]))
assert (int(copy.srcDevice), copy.WidthInBytes) == (int(block), 4096)
copy.WidthInBytes = 2048
ok(driver.cuGraphExecMemcpyNodeSetParams(replay, nodes[2], copy, context))
host[:] = 0
go(replay)
assert (host[:512] == 7).all() and (host[512:] == 0).all()
ok(driver.cuGraphKernelNodeSetParams(nodes[1], p))
ok(driver.cuGraphExecUpdate(other, graph))
go(other)
assert (host == 5).all()
params = driver.CUgraphNodeParams()
params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
params.memset.dst, params.memset.elementSize, params.memset.value = block, 4, 0x3F800000
params.memset.width, params.memset.height = 1024, 1
first = ok(driver.cuGraphNodeFindInClone(nodes[0], clone))
ok(driver.cuGraphExecNodeSetParams(other, first, params))
go(other)
assert (host == 6).all()
assert error(driver.cuGraphExecNodeSetParams(other, twin, params)) == 1, "of another type"
parent = ok(driver.cuGraphCreate(0))
params = driver.CUgraphNodeParams()
params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
params.graph.graph = clone
child = ok(driver.cuGraphAddNode(parent, None, None, 0, params))
extra = ok(driver.cuGraphAddKernelNode(parent, [child], 1, p))
assert types(ok(driver.cuGraphChildGraphNodeGetGraph(child))) == [2, 0, 1]
assert types(parent) == [4, 0]
go(ok(driver.cuGraphInstantiate(parent, 0)))
assert (host == 1).all() and (read(block, 1024) == 6).all()
assert error(driver.cuGraphExecUpdate(other, parent)) == 910
ok(driver.cuGraphDestroyNode(extra))
assert types(parent) == [4]
""",
    )


def test_a_broken_capture_leaves_the_applications_graph(machine: Machine) -> None:
    check(
        machine(),
        GRAPHS
        + """
graph = ok(driver.cuGraphCreate(0))
mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
block = ok(driver.cuMemAlloc(4096))
ok(driver.cuStreamBeginCaptureToGraph(stream, graph, None, None, 0, mode))
ok(driver.cuMemsetD32Async(block, 3, 1024, stream))
assert error(driver.cuStreamSynchronize(stream)) == 900
assert error(driver.cuStreamEndCapture(stream)) == 901
assert types(graph) == [2]
go(ok(driver.cuGraphInstantiate(graph, 0)))
assert (read(block, 1024, np.uint32) == 3).all()
ok(driver.cuGraphDestroy(graph))
""",
    )
