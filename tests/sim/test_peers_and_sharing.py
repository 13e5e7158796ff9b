# SPDX-License-Identifier: BSD-3-Clause
"""Memory that several devices or processes use: peers, IPC, pools that are shared."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import check
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
