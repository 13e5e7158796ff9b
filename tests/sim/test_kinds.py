# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of memory beside plain allocations: peers, graphs, IPC, pools, arrays, batches."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import GRAPHS, check
from tests.support.sim import TOOLS, Talker

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]


PEERS = """
ok(driver.cuInit(0))
contexts = [ok(driver.cuDevicePrimaryCtxRetain(device)) for device in (0, 1)]
ok(driver.cuCtxSetCurrent(contexts[0]))
assert ok(driver.cuDeviceCanAccessPeer(0, 1)) == 1 and ok(driver.cuDeviceCanAccessPeer(0, 0)) == 0
code = compile('''extern "C" __global__ void copy(float *to, const float *from) {
    to[threadIdx.x] = from[threadIdx.x];
}''')
function = function_of(code, "copy")
stream = stream_of()
data = np.arange(64, dtype=np.float32)
ok(driver.cuCtxSetCurrent(contexts[1]))
far = ok(driver.cuMemAlloc(256))
write(far, data)
ok(driver.cuCtxSetCurrent(contexts[0]))
near = ok(driver.cuMemAlloc(256))
def fails():
    assert start(function, stream, near, far, threads=64) == 0
    return error(driver.cuStreamSynchronize(stream))
"""


def test_peer_access_opens_another_devices_memory(machine: Machine) -> None:
    check(
        machine(devices=2),
        PEERS
        + """
enable, disable = driver.cuCtxEnablePeerAccess, driver.cuCtxDisablePeerAccess
assert error(enable(contexts[0], 0)) == 101 or error(enable(contexts[0], 0)) == 201
assert error(enable(contexts[1], 1)) == 1
assert error(disable(contexts[1])) == 705
assert error(enable(contexts[1], 0)) == 0 and error(enable(contexts[1], 0)) == 704
assert fails() == 0
assert (read(near, 64) == data).all()
assert error(disable(contexts[1])) == 0
assert fails() == 700, "access was taken back"
P = driver.CUdevice_P2PAttribute
assert ok(driver.cuDeviceGetP2PAttribute(P.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1)) == 1
assert error(driver.cuDeviceGetP2PAttribute(P.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 2)) == 101
""",
    )


def test_without_peer_access_kernels_fault_and_copies_work(machine: Machine) -> None:
    check(
        machine(devices=2),
        PEERS
        + """
ok(driver.cuMemcpyPeer(near, contexts[0], far, contexts[1], 128))
assert (read(near, 32) == data[:32]).all()
ok(driver.cuMemsetD8(near, 0, 256))
ok(driver.cuMemcpyPeerAsync(near, contexts[0], far, contexts[1], 256, stream))
ok(driver.cuStreamSynchronize(stream))
assert (read(near, 64) == data).all()
c = driver.CUDA_MEMCPY3D_PEER()
c.srcMemoryType = c.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
c.srcContext, c.dstContext, c.srcDevice, c.dstDevice = contexts[1], contexts[0], far, near
c.srcPitch, c.dstPitch, c.WidthInBytes, c.Height, c.Depth = 32, 64, 32, 4, 1
ok(driver.cuMemsetD8(near, 0, 256))
ok(driver.cuMemcpy3DPeer(c))
rows = read(near, 64).reshape(4, 16)
assert (rows[:, :8] == data[:32].reshape(4, 8)).all() and (rows[:, 8:] == 0).all()
assert fails() == 700
""",
    )


def test_mappings_and_pools_have_access_for_each_device(machine: Machine) -> None:
    check(
        machine(devices=2),
        PEERS
        + """
size = 2 * MIB
address = ok(driver.cuMemAddressReserve(size, 0, 0, 0))
handle = ok(driver.cuMemCreate(size, properties(1), 0))
ok(driver.cuMemMap(address, size, 0, handle, 0))
ok(driver.cuMemSetAccess(address, size, [access(0), access(1)], 2))
assert [int(ok(driver.cuMemGetAccess(at(d), address))) for d in (0, 1)] == [3, 3]
write(address, data)
far = address
assert fails() == 0 and (read(near, 64) == data).all()
shared = pool(at(1))
block = ok(driver.cuMemAllocFromPoolAsync(256, shared, stream))
ok(driver.cuStreamSynchronize(stream))
write(block, data + 1)
assert int(ok(driver.cuMemPoolGetAccess(shared, at(0)))) == 0
assert error(driver.cuMemPoolSetAccess(shared, [access(1, NEITHER)], 1)) == 1
ok(driver.cuMemPoolSetAccess(shared, [access(0)], 1))
assert int(ok(driver.cuMemPoolGetAccess(shared, at(0)))) == 3
far = block
assert fails() == 0 and (read(near, 64) == data + 1).all()
ok(driver.cuMemSetAccess(address, size, [access(0, NEITHER)], 1))
assert [int(ok(driver.cuMemGetAccess(at(d), address))) for d in (0, 1)] == [0, 3]
far = address
assert fails() == 700
""",
    )


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


SHARE = """
use()
block = ok(driver.cuMemAlloc(3 * MIB))
data = np.arange(3 * MIB // 4, dtype=np.float32)
write(block, data)
"""


def test_legacy_ipc_shares_memory_and_counts_it_once(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    exporter = talk(
        environment,
        TOOLS
        + SHARE
        + """
handle = ok(driver.cuIpcGetMemHandle(block))
assert raw(handle) == raw(ok(driver.cuIpcGetMemHandle(block)))
assert (read(block, data.size) == data).all(), "it is as it was"
assert error(driver.cuIpcOpenMemHandle(handle, 1)) == 201, "not in the process itself"
pooled = ok(driver.cuMemAllocAsync(64, NONE))
managed = ok(driver.cuMemAllocManaged(4096, 1))
virtual = ok(driver.cuMemAddressReserve(2 * MIB, 0, 0, 0))
ok(driver.cuMemMap(virtual, 2 * MIB, 0, ok(driver.cuMemCreate(2 * MIB, properties(), 0)), 0))
ok(driver.cuMemSetAccess(virtual, 2 * MIB, [access(0)], 1))
for pointer in (pooled, managed, virtual):
    assert error(driver.cuIpcGetMemHandle(pointer)) == 1
capable = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
assert [int(ok(driver.cuPointerGetAttribute(capable, p))) for p in (block, virtual)] == [1, 0]
ok(driver.cuMemUnmap(virtual, 2 * MIB))
say(raw(handle).hex())
hear()
say(f"{read(block, 1)[0]:g}")
hear()
ok(driver.cuMemFree(block))
say("freed")
hear()
""",
    )
    handle = exporter.heard()
    importer = talk(
        environment,
        TOOLS
        + f"""
use()
before = free()
handle = made(driver.CUipcMemHandle, {handle!r})
assert error(driver.cuIpcOpenMemHandle(handle, 0)) == 1
block = ok(driver.cuIpcOpenMemHandle(handle, 1))
assert int(ok(driver.cuIpcOpenMemHandle(handle, 1))) == int(block), "opened twice, mapped once"
assert free() == before, "the exporter pays"
assert ok(driver.cuMemGetAddressRange(block))[1] == 3 * MIB
expected = np.arange(3 * MIB // 4, dtype=np.float32)
assert (read(block, expected.size) == expected).all()
stream = stream_of()
add = function_of(compile(ADD), "add")
assert start(add, stream, block, ctypes.c_float(41), ctypes.c_int(1)) == 0
ok(driver.cuStreamSynchronize(stream))
assert error(driver.cuMemFree(block)) == 1
say("written")
hear()
ok(driver.cuIpcCloseMemHandle(block))
assert read(block, 1)[0] == 41
ok(driver.cuIpcCloseMemHandle(block))
assert error(driver.cuIpcCloseMemHandle(block)) == 1
say("closed")
hear()
assert error(driver.cuIpcOpenMemHandle(handle, 1)) == 400, "it is gone"
say("done")
hear()
""",
    )
    assert importer.heard() == "written"
    exporter.tell()
    assert exporter.heard() == "41"
    importer.tell()
    assert importer.heard() == "closed"
    exporter.tell()
    assert exporter.heard() == "freed"
    importer.tell()
    assert importer.heard() == "done"


def test_memory_is_shared_while_kernels_write_it(machine: Machine) -> None:
    """The file comes behind the memory without the loss of one write."""
    check(
        machine(),
        """
use()
stream = stream_of()
code = compile('''extern "C" __global__ void count(volatile unsigned *x, volatile unsigned *said) {
    unsigned n = 0;
    for (said[0] = 1; !said[1]; n++) x[n % 524288] += 1;
    said[2] = n;
}''')
function = function_of(code, "count")
host = ok(driver.cuMemHostAlloc(4096, 0))
said = np.frombuffer((ctypes.c_char * 4096).from_address(int(host)), np.uint32)
for round in range(3):
    block = ok(driver.cuMemAlloc(2 * MIB))
    ok(driver.cuMemsetD8(block, 0, 2 * MIB))
    said[:] = 0
    assert start(function, stream, block, host) == 0
    deadline = time.monotonic() + 60
    while not said[0]:
        assert time.monotonic() < deadline
    ok(driver.cuIpcGetMemHandle(block))
    said[1] = 1
    ok(driver.cuStreamSynchronize(stream))
    assert said[2] > 0 and read(block, 524288, np.uint32).sum() == said[2]
""",
    )


def test_interprocess_events_order_processes(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    code = """
E = driver.CUevent_flags
use()
stream = stream_of()
"""
    recorder = talk(
        environment,
        TOOLS
        + code
        + """
import threading
assert error(driver.cuEventCreate(int(E.CU_EVENT_INTERPROCESS))) == 1, "without timing only"
event = ok(driver.cuEventCreate(int(E.CU_EVENT_INTERPROCESS | E.CU_EVENT_DISABLE_TIMING)))
plain = ok(driver.cuEventCreate(0))
assert error(driver.cuIpcGetEventHandle(plain)) == 400
say(raw(ok(driver.cuIpcGetEventHandle(event))).hex())
gate = threading.Event()
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (gate.wait(), None)[1])
callback = driver.CUhostFn(ctypes.cast(wait, ctypes.c_void_p).value)
def record():
    gate.clear()
    ok(driver.cuLaunchHostFunc(stream, callback, 0))
    ok(driver.cuEventRecord(event, stream))
    say("recorded")
hear()
record()
hear()
gate.set()
ok(driver.cuEventSynchronize(event))
say("reached")
hear()
record()
hear()
""",
    )
    handle = recorder.heard()
    waiter = talk(
        environment,
        TOOLS
        + code
        + f"""
handle = made(driver.CUipcEventHandle, {handle!r})
event = ok(driver.cuIpcOpenEventHandle(handle))
assert error(driver.cuEventQuery(event)) == 0, "not recorded yet"
say("open")
for _ in range(2):
    hear()
    assert error(driver.cuEventQuery(event)) == 600
    ok(driver.cuStreamWaitEvent(stream, event, 0))
    assert error(driver.cuStreamQuery(stream)) == 600
    say("waits")
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuEventSynchronize(event))
    say("over")
hear()
""",
    )
    assert waiter.heard() == "open"
    recorder.tell()
    assert recorder.heard() == "recorded"
    waiter.tell()
    assert waiter.heard() == "waits"
    recorder.tell()
    assert recorder.heard() == "reached"
    assert waiter.heard() == "over"
    recorder.tell()
    assert recorder.heard() == "recorded"
    waiter.tell()
    assert waiter.heard() == "waits"
    recorder.kill()
    assert waiter.heard() == "over", "no process waits for a dead one"


def test_pools_keep_what_the_threshold_allows(machine: Machine) -> None:
    check(
        machine(memory="64MiB", context="1MiB"),
        """
use()
stream = stream_of()
before = free()
one = pool()
def cycle(size=8 * MIB):
    block = ok(driver.cuMemAllocFromPoolAsync(size, one, stream))
    ok(driver.cuMemFreeAsync(block, stream))
    ok(driver.cuStreamSynchronize(stream))
cycle()
assert reserved(one) == 0 and free() == before, "by default, nothing after a synchronisation"
threshold(one, 6 * MIB)
cycle()
assert reserved(one) == 6 * MIB and free() == before - 6 * MIB
assert reserved(one, "USED_MEM_CURRENT") == 0 and reserved(one, "USED_MEM_HIGH") == 8 * MIB
cycle(4 * MIB)
assert reserved(one) == 6 * MIB, "from what it has"
threshold(one, (1 << 64) - 1)
cycle()
assert reserved(one) == 8 * MIB and reserved(one, "RESERVED_MEM_HIGH") == 8 * MIB
ok(driver.cuMemPoolTrimTo(one, 2 * MIB))
assert reserved(one) == 2 * MIB and free() == before - 2 * MIB
block = ok(driver.cuMemAllocFromPoolAsync(4 * MIB, one, stream))
handle = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
assert int(ok(driver.cuPointerGetAttribute(handle, block))) == int(one)
ok(driver.cuMemPoolTrimTo(one, 0))
assert reserved(one) == reserved(one, "USED_MEM_CURRENT") == 4 * MIB
ok(driver.cuMemsetD32Async(block, 5, 1024, stream))
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuMemPoolDestroy(one))
assert (read(block, 1024, np.uint32) == 5).all(), "allocations outlive their pool"
ok(driver.cuMemFree(block))
assert free() == before
small = pool(most=4 * MIB)
assert error(driver.cuMemAllocFromPoolAsync(5 * MIB, small, stream)) == 2
default = ok(driver.cuDeviceGetDefaultMemPool(0))
assert error(driver.cuMemPoolDestroy(default)) == 1
ok(driver.cuDeviceSetMemPool(0, small))
assert int(ok(driver.cuDeviceGetMemPool(0))) == int(small)
assert error(driver.cuMemAllocAsync(5 * MIB, stream)) == 2, "the current pool is taken"
ok(driver.cuMemPoolDestroy(small))
assert int(ok(driver.cuDeviceGetMemPool(0))) == int(default)
# What the stream frees in time is enough for what follows.
for _ in range(3):
    block = ok(driver.cuMemAllocAsync(50 * MIB, stream))
    ok(driver.cuMemFreeAsync(block, stream))
ok(driver.cuStreamSynchronize(stream))
add = function_of(compile(ADD), "add")
assert start(add, stream, block, ctypes.c_float(1), ctypes.c_int(1)) == 0
assert error(driver.cuStreamSynchronize(stream)) == 700, "freed memory is out of reach"
""",
    )


def test_pools_of_host_and_managed_memory(machine: Machine) -> None:
    check(
        machine(memory="64MiB", context="1MiB"),
        """
use()
stream = stream_of()
before = free()
add = function_of(compile(ADD), "add")
host = driver.CUmemLocation()
host.type = T.CU_MEM_LOCATION_TYPE_HOST
which = driver.CUpointer_attribute
for one, kind, managed in (
    (pool(host), 1, 0),
    (pool(at(0), driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED), 2, 1),
):
    block = ok(driver.cuMemAllocFromPoolAsync(4096, one, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert int(ok(driver.cuPointerGetAttribute(which.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block))) == kind
    assert int(ok(driver.cuPointerGetAttribute(which.CU_POINTER_ATTRIBUTE_IS_MANAGED, block))) == managed
    assert free() == before
    view = np.frombuffer((ctypes.c_char * 4096).from_address(int(block)), np.float32)
    view[:] = 1
    assert start(add, stream, block, ctypes.c_float(1), ctypes.c_int(1024), threads=1024) == 0
    ok(driver.cuStreamSynchronize(stream))
    assert (view == 2).all()
    assert reserved(one, "USED_MEM_CURRENT") == 4096
    ok(driver.cuMemFreeAsync(block, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert reserved(one, "USED_MEM_CURRENT") == 0
""",
    )


def test_pools_are_shared_between_processes(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    exporter = talk(
        environment,
        TOOLS
        + """
import socket
use()
stream = stream_of()
assert error(driver.cuMemPoolExportToShareableHandle(pool(), FD, 0)) == 1, "not made for it"
one = pool(handles=FD)
block = ok(driver.cuMemAllocFromPoolAsync(MIB, one, stream))
ok(driver.cuStreamSynchronize(stream))
data = np.arange(MIB // 4, dtype=np.float32)
write(block, data)
fd = int(ok(driver.cuMemPoolExportToShareableHandle(one, FD, 0)))
server = socket.socket(socket.AF_UNIX)
server.bind("\\0" + os.environ["GPUSHARE_SIM_NAME"])
server.listen()
say(raw(ok(driver.cuMemPoolExportPointer(block))).hex())
socket.send_fds(server.accept()[0], [b"x"], [fd])
hear()
say(f"{read(block, 1)[0]:g}")
hear()
""",
    )
    data = exporter.heard()
    importer = talk(
        environment,
        TOOLS
        + f"""
import socket
use()
stream = stream_of()
before = free()
client = socket.socket(socket.AF_UNIX)
client.connect("\\0" + os.environ["GPUSHARE_SIM_NAME"])
(fd,) = socket.recv_fds(client, 1, 1)[1]
one = ok(driver.cuMemPoolImportFromShareableHandle(fd, FD, 0))
assert error(driver.cuMemAllocFromPoolAsync(64, one, stream)) == 1, "not to be allocated from"
pointer = made(driver.CUmemPoolPtrExportData, {data!r})
block = ok(driver.cuMemPoolImportPointer(one, pointer))
expected = np.arange(MIB // 4, dtype=np.float32)
assert (read(block, expected.size) == expected).all() and free() == before
write(block, np.full(1, 17, np.float32))
assert error(driver.cuMemPoolImportPointer(pool(), pointer)) == 1, "of another pool"
ok(driver.cuMemFreeAsync(block, stream))
ok(driver.cuStreamSynchronize(stream))
say("done")
hear()
""",
    )
    assert importer.heard() == "done"
    exporter.tell()
    assert exporter.heard() == "17"


ARRAYS = """
use()
stream = stream_of()
F = driver.CUarray_format
M = driver.CUmemorytype

def array(width, height=0, depth=0, kind=F.CU_AD_FORMAT_FLOAT, channels=1, flags=0):
    d = driver.CUDA_ARRAY3D_DESCRIPTOR()
    d.Width, d.Height, d.Depth = width, height, depth
    d.Format, d.NumChannels, d.Flags = kind, channels, flags
    return ok(driver.cuArray3DCreate(d))

def fill(target, data):
    '''Copy rows of host memory to an array.'''
    c = driver.CUDA_MEMCPY2D()
    c.srcMemoryType, c.srcHost, c.srcPitch = M.CU_MEMORYTYPE_HOST, data.ctypes.data, data.strides[0]
    c.dstMemoryType, c.dstArray = M.CU_MEMORYTYPE_ARRAY, target
    c.WidthInBytes, c.Height = data.strides[0], data.shape[0]
    return driver.cuMemcpy2D(c)

def texture(resource, filter=0, address=1, flags=0, border=0.0):
    t = driver.CUDA_TEXTURE_DESC()
    t.addressMode = [driver.CUaddress_mode(address)] * 3
    t.filterMode, t.flags, t.borderColor = driver.CUfilter_mode(filter), flags, [border] * 4
    return driver.cuTexObjectCreate(resource, t, None)

def of_array(target):
    r = driver.CUDA_RESOURCE_DESC()
    r.resType, r.res.array.hArray = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY, target
    return r
"""


def test_arrays_are_counted_and_copied(machine: Machine) -> None:
    check(
        machine(memory="64MiB", context="1MiB"),
        ARRAYS
        + """
before = free()
data = np.arange(48 * 100, dtype=np.float32).reshape(48, 100)
two = array(100, 48)
assert before - free() >= data.nbytes
d = ok(driver.cuArrayGetDescriptor(two))
assert (d.Width, d.Height, int(d.Format), d.NumChannels) == (100, 48, 32, 1)
ok(fill(two, data))
# A window of it to device memory, and from there to the host.
pointer, pitch = ok(driver.cuMemAllocPitch(64, 8, 4))
c = driver.CUDA_MEMCPY2D()
c.srcMemoryType, c.srcArray, c.srcXInBytes, c.srcY = M.CU_MEMORYTYPE_ARRAY, two, 40, 3
c.dstMemoryType, c.dstDevice, c.dstPitch = M.CU_MEMORYTYPE_DEVICE, pointer, pitch
c.WidthInBytes, c.Height = 64, 8
ok(driver.cuMemcpy2DAsync(c, stream))
ok(driver.cuStreamSynchronize(stream))
rows = read(pointer, 8 * pitch // 4).reshape(8, pitch // 4)
assert (rows[:, :16] == data[3:11, 10:26]).all()
c.srcY = 41
assert error(driver.cuMemcpy2D(c)) == 1, "beyond its end"
# Three dimensions, to another array and back.
cube = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)
boxes = [array(10, 6, 4) for _ in range(2)]
back = np.zeros_like(cube)
def copy(source, target):
    c = driver.CUDA_MEMCPY3D()
    c.WidthInBytes, c.Height, c.Depth = 40, 6, 4
    for side, end in (("src", source), ("dst", target)):
        if isinstance(end, np.ndarray):
            setattr(c, side + "MemoryType", M.CU_MEMORYTYPE_HOST)
            setattr(c, side + "Host", end.ctypes.data)
            setattr(c, side + "Pitch", 40)
            setattr(c, side + "Height", 6)
        else:
            setattr(c, side + "MemoryType", M.CU_MEMORYTYPE_ARRAY)
            setattr(c, side + "Array", end)
    ok(driver.cuMemcpy3D(c))
copy(cube, boxes[0])
copy(boxes[0], boxes[1])
copy(boxes[1], back)
assert (back == cube).all()
# The linear copies, of one dimension.
line, other = array(64), array(64)
values = np.arange(64, dtype=np.float32)
ok(driver.cuMemcpyHtoA(line, 0, values.ctypes.data, 256))
ok(driver.cuMemcpyAtoA(other, 128, line, 0, 128))
ok(driver.cuMemcpyAtoD(pointer, other, 128, 128))
assert (read(pointer, 32) == values[:32]).all()
ok(driver.cuMemcpyDtoA(line, 64, pointer, 64))
out = np.zeros(64, np.float32)
ok(driver.cuMemcpyAtoHAsync(out.ctypes.data, line, 0, 256, stream))
ok(driver.cuStreamSynchronize(stream))
assert (out[16:32] == values[:16]).all() and (out[32:] == values[32:]).all()
assert error(driver.cuMemcpyAtoH(out.ctypes.data, line, 128, 256)) == 1
assert error(driver.cuMemcpyAtoH(out.ctypes.data, two, 0, 64)) == 1, "not of two dimensions"
d = driver.CUDA_ARRAY3D_DESCRIPTOR()
d.Width, d.Height, d.Format, d.NumChannels = 16, 8, F.CU_AD_FORMAT_FLOAT, 1
mipmap = ok(driver.cuMipmappedArrayCreate(d, 9))
sizes = []
for level in range(5):
    one = ok(driver.cuArrayGetDescriptor(ok(driver.cuMipmappedArrayGetLevel(mipmap, level))))
    sizes.append((one.Width, one.Height))
assert sizes == [(16, 8), (8, 4), (4, 2), (2, 1), (1, 1)]
assert error(driver.cuMipmappedArrayGetLevel(mipmap, 5)) == 1
ok(driver.cuMipmappedArrayDestroy(mipmap))
for one in (two, line, other, *boxes):
    ok(driver.cuArrayDestroy(one))
assert error(driver.cuArrayDestroy(two)) == 400
ok(driver.cuMemFree(pointer))
assert free() == before
# An array with deferred mapping has no memory, and reports how much it would take.
deferred = array(100, 48, flags=0x80)
assert free() == before
requirements = ok(driver.cuArrayGetMemoryRequirements(deferred, 0))
assert requirements.size >= data.nbytes and requirements.alignment == 65536
assert error(fill(deferred, data)) == 1
assert error(driver.cuArrayGetMemoryRequirements(array(8), 0)) == 1
d.Flags = 0x80
mipmap = ok(driver.cuMipmappedArrayCreate(d, 2))
assert ok(driver.cuMipmappedArrayGetMemoryRequirements(mipmap, 0)).size >= 16 * 8 * 4 + 8 * 4 * 4
ok(driver.cuMipmappedArrayDestroy(mipmap))
ok(driver.cuArrayDestroy(deferred))
d.Flags, d.NumChannels = 0, 3
assert error(driver.cuArray3DCreate(d)) == 1
d.Width, d.Height, d.NumChannels = 8192, 8192, 1
assert error(driver.cuArray3DCreate(d)) == 2
""",
    )


def test_kernels_read_textures_and_write_surfaces(machine: Machine) -> None:
    check(
        machine(),
        ARRAYS
        + """
code = compile('''
extern "C" __global__ void fetch(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x);
}
extern "C" __global__ void bytes(cudaTextureObject_t t, int *out) {
    uchar4 c = tex2D<uchar4>(t, threadIdx.x + 0.5f, 1.5f);
    out[threadIdx.x] = c.x + c.y * 256 + c.z * 65536 + (c.w << 24);
}
extern "C" __global__ void plane(cudaTextureObject_t t, const float *at, float *out) {
    out[threadIdx.x] = tex2D<float>(t, at[2 * threadIdx.x], at[2 * threadIdx.x + 1]);
}
extern "C" __global__ void twice(cudaSurfaceObject_t s) {
    int x = threadIdx.x * 4, y = threadIdx.y;
    surf2Dwrite(surf2Dread<float>(s, x, y) * 2, s, x, y);
}
extern "C" __global__ void beyond(cudaSurfaceObject_t s) { surf2Dwrite(1.0f, s, 4000, 0); }
''')
FETCH, BYTES, PLANE, TWICE, BEYOND = [
    function_of(code, name) for name in "fetch bytes plane twice beyond".split()
]
out = ok(driver.cuMemAlloc(4096))
points = ok(driver.cuMemAlloc(4096))
def sample(object, *at):
    write(points, np.array(at, np.float32))
    assert start(PLANE, stream, object, points, out, threads=len(at)) == 0
    ok(driver.cuStreamSynchronize(stream))
    return read(out, len(at)).tolist()
# Linear memory.
line = ok(driver.cuMemAlloc(4096))
write(line, np.arange(1024, dtype=np.float32))
r = driver.CUDA_RESOURCE_DESC()
r.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
r.res.linear.devPtr, r.res.linear.format = line, F.CU_AD_FORMAT_FLOAT
r.res.linear.numChannels, r.res.linear.sizeInBytes = 1, 64
object = ok(texture(r))
assert start(FETCH, stream, object, out, threads=20) == 0
ok(driver.cuStreamSynchronize(stream))
assert read(out, 20).tolist() == [*range(16), 0, 0, 0, 0], "zero beyond the end"
assert int(ok(driver.cuTexObjectGetResourceDesc(object)).res.linear.devPtr) == int(line)
ok(driver.cuTexObjectDestroy(object))
assert error(driver.cuTexObjectGetTextureDesc(object)) == 1
r.res.linear.devPtr = int(line) + 4
assert error(texture(r)) == 1, "not aligned"
# An array: points, and between them.
data = np.arange(32, dtype=np.float32).reshape(4, 8)
plane = array(8, 4, flags=2)
ok(fill(plane, data))
plain = ok(texture(of_array(plane)))
assert sample(plain, (0.5, 0.5), (3.99, 2.1), (-5, 0), (100, 100)) == [0, 19, 0, 31]
border = ok(texture(of_array(plane), address=3, border=-7.0))
assert sample(border, (0.5, 3.5), (8.5, 0), (0, -1)) == [24, -7, -7]
NORMAL = 2
wrapped = ok(texture(of_array(plane), address=0, flags=NORMAL))
assert sample(wrapped, (0.0, 0.0), (1.25, 0.0), (-0.125, 1.0)) == [0, 2, 7]
mirrored = ok(texture(of_array(plane), address=2, flags=NORMAL))
assert sample(mirrored, (1.0, 0.0), (1.125, 0.0), (-0.01, 0.0)) == [7, 6, 0]
linear = ok(texture(of_array(plane), filter=1))
assert sample(linear, (0.5, 0.5), (1.0, 0.5), (1.25, 1.0), (8, 4)) == [0, 0.5, 4.75, 31]
assert int(ok(driver.cuTexObjectGetTextureDesc(linear)).filterMode) == 1
# Pitched memory of several channels.
pitched, pitch = ok(driver.cuMemAllocPitch(16, 2, 4))
colours = np.arange(16, dtype=np.uint8)
write(int(pitched) + pitch, colours)
r = driver.CUDA_RESOURCE_DESC()
r.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
p = r.res.pitch2D
p.devPtr, p.format, p.numChannels = pitched, F.CU_AD_FORMAT_UNSIGNED_INT8, 4
p.width, p.height, p.pitchInBytes = 4, 2, pitch
whole = ok(texture(r, flags=1))
assert start(BYTES, stream, whole, out, threads=4) == 0
ok(driver.cuStreamSynchronize(stream))
assert (read(out, 4, np.uint32) == colours.view(np.uint32)).all()
assert error(texture(r, filter=1, flags=1)) == 1, "integers are not filtered"
assert sample(ok(texture(r)), (0.5, 1.5), (3.5, 1.5)) == [0, float(np.float32(12 / 255))]
# A surface writes what a texture of the same array shows.
surface = ok(driver.cuSurfObjectCreate(of_array(plane)))
assert error(driver.cuSurfObjectCreate(of_array(array(8, 4)))) == 1, "made without surfaces in mind"
held, arguments = pack(surface)
ok(driver.cuLaunchKernel(TWICE, 1, 1, 1, 8, 4, 1, 0, stream, ctypes.addressof(arguments), 0))
ok(driver.cuStreamSynchronize(stream))
assert sample(plain, (7.5, 3.5), (1.5, 0.5)) == [62, 2]
assert start(BEYOND, stream, surface) == 0
assert error(driver.cuStreamSynchronize(stream)) == 700
""",
    )


def test_a_destroyed_texture_faults(machine: Machine) -> None:
    check(
        machine(),
        ARRAYS
        + """
code = compile('''extern "C" __global__ void one(cudaTextureObject_t t, float *out) {
    *out = tex2D<float>(t, 0, 0);
}''')
out = ok(driver.cuMemAlloc(4))
object = ok(texture(of_array(array(8, 4))))
ok(driver.cuTexObjectDestroy(object))
assert start(function_of(code, "one"), stream, object, out) == 0
assert error(driver.cuStreamSynchronize(stream)) == 700
""",
    )


def test_copies_in_batches_work(machine: Machine) -> None:
    check(
        machine(),
        ARRAYS
        + """
data = np.arange(1024, dtype=np.float32)
blocks = [ok(driver.cuMemAlloc(4096)) for _ in range(3)]
A = driver.CUmemcpySrcAccessOrder
def attributes(order):
    a = driver.CUmemcpyAttributes()
    a.srcAccessOrder = order
    return a
LATER = attributes(A.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
NOW = attributes(A.CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
P = driver.CUdeviceptr
source = data.copy()
targets = [P(int(b)) for b in blocks]
def batch(sources, attributes, starts, stream=stream):
    sizes = [4096] * 3
    return driver.cuMemcpyBatchAsync(
        targets, sources, sizes, 3, attributes, starts, len(starts), stream
    )
host = [P(source.ctypes.data)] * 3
ok(batch(host, [NOW, LATER], [0, 2]))
source[:] = -1
ok(driver.cuStreamSynchronize(stream))
assert all((read(b, 1024) == data).all() for b in blocks[:2])
for bad in ([1], [0, 0], [0, 3]):
    assert error(batch(host, [LATER] * len(bad), bad)) == 1
assert error(batch(host, [driver.CUmemcpyAttributes()], [0])) == 1, "an order must be given"
assert error(batch(host, [LATER], [0], NONE)) == 1, "not in the default stream"
ok(driver.cuMemcpyWithAttributesAsync(blocks[2], blocks[0], 4096, LATER, stream))
ok(driver.cuStreamSynchronize(stream))
assert (read(blocks[2], 1024) == data).all()
# To an array and back.
O = driver.CUmemcpy3DOperandType
plane = array(16, 8)
def operation(to_array, pointer):
    op = driver.CUDA_MEMCPY3D_BATCH_OP()
    inside, outside = (op.dst, op.src) if to_array else (op.src, op.dst)
    inside.type, inside.op.array.array = O.CU_MEMCPY_OPERAND_TYPE_ARRAY, plane
    outside.type, outside.op.ptr.ptr = O.CU_MEMCPY_OPERAND_TYPE_POINTER, pointer
    op.extent.width, op.extent.height, op.extent.depth = 16, 8, 1
    op.srcAccessOrder = A.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    return op
def back_in(blank):
    ok(driver.cuMemsetD8Async(blocks[1], blank, 4096, stream))
ok(driver.cuMemcpy3DBatchAsync(1, [operation(True, blocks[0])], 0, stream))
back_in(0)
ok(driver.cuMemcpy3DBatchAsync(1, [operation(False, blocks[1])], 0, stream))
ok(driver.cuStreamSynchronize(stream))
assert (read(blocks[1], 128) == data[:128]).all()
back_in(1)
ok(driver.cuMemcpy3DWithAttributesAsync(operation(False, blocks[1]), 0, stream))
ok(driver.cuStreamSynchronize(stream))
assert (read(blocks[1], 128) == data[:128]).all()
""",
    )


def test_address_ranges_have_descriptors(machine: Machine) -> None:
    check(
        machine(),
        """
import mmap
use()
DMA = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
def look(fd, size):
    with mmap.mmap(fd, size) as view:
        return np.frombuffer(bytes(view), np.float32)
data = np.arange(2048, dtype=np.float32)
plain = ok(driver.cuMemAlloc(8192))
virtual = ok(driver.cuMemAddressReserve(2 * MIB, 0, 0, 0))
ok(driver.cuMemMap(virtual, 2 * MIB, 0, ok(driver.cuMemCreate(2 * MIB, properties(), 0)), 0))
ok(driver.cuMemSetAccess(virtual, 2 * MIB, [access(0)], 1))
for block in (plain, virtual):
    write(block, data)
    fd = int(ok(driver.cuMemGetHandleForAddressRange(block, 8192, DMA, 0)))
    assert (look(fd, 8192) == data).all()
    write(block, data + 1)
    assert (look(fd, 8192) == data + 1).all(), "the memory itself"
    os.close(fd)
assert error(driver.cuMemGetHandleForAddressRange(plain, 100, DMA, 0)) == 1
assert error(driver.cuMemGetHandleForAddressRange(plain, 1 << 20, DMA, 0)) == 1
A = driver.CUdevice_attribute
assert ok(driver.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0)) == 1
assert ok(driver.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0)) == 0
assert error(driver.cuMulticastCreate(driver.CUmulticastObjectProp())) == 801
""",
    )


def test_libraries_are_loaded_on_demand(machine: Machine) -> None:
    code = """
ok(driver.cuInit(0))
LAZY = os.environ.get("CUDA_MODULE_LOADING") != "EAGER"
assert int(ok(driver.cuModuleGetLoadingMode())) == (2 if LAZY else 1)
def modules():
    with open("/proc/self/maps") as maps:
        return "gpushare-sim-module" in maps.read()
device = use()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
source = ADD + "__device__ int answer = 42;"
image = bytes(Program(source, "c++", options).compile("cubin").code)
before = free()
library = ok(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
assert modules() != LAZY
kernel = ok(driver.cuLibraryGetKernel(library, b"add"))
assert modules()
function = ok(driver.cuKernelGetFunction(kernel))
assert int(ok(driver.cuFuncIsLoaded(function))) == (not LAZY)
assert before == free()
block = ok(driver.cuMemAlloc(64))
assert start(function, NONE, block, ctypes.c_float(1), ctypes.c_int(1)) == 0
ok(driver.cuCtxSynchronize())
assert int(ok(driver.cuFuncIsLoaded(function))) == 1
ok(driver.cuMemFree(block))
other = ok(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
symbols = [n for n in (b"answer", b"_ZL6answer") if error(driver.cuLibraryGetGlobal(other, n)) == 0]
address, size = ok(driver.cuLibraryGetGlobal(other, symbols[0]))
assert size == 4 and read(address, 1, np.int32)[0] == 42
unused = ok(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
for one in (library, other, unused):
    ok(driver.cuLibraryUnload(one))
assert error(driver.cuLibraryGetKernel(unused, b"add")) == 400
"""
    environment = machine()
    check(environment, code)
    check(environment | {"CUDA_MODULE_LOADING": "EAGER"}, code)
