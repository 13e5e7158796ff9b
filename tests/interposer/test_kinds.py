# SPDX-License-Identifier: BSD-3-Clause
"""
Every kind of memory, as ``docs/contributing/memory-kinds.md`` lists them: each row is a program that runs twice.

Once alone on the simulated driver, once sharing it, with everything taken off the GPU at each ``step()``. A program
asserts what it reads and what it is answered, so that it must be the same both times. ``step(unevictable=n)``
also states how many bytes must stay on the GPU and be counted as such.
"""

from __future__ import annotations

import pytest

from tests.interposer.rows import (
    run_alone,
    run_shared,
)
from tests.support.machine import Machine

ROWS = {
    "small blocks": """
use()
sizes = [int(n) for n in 2 ** np.random.default_rng(7).uniform(0, 17, 120)]
blocks = [filled(size, i) for i, size in enumerate(sizes)]
assert len({int(b) for b in blocks}) == len(blocks)
step()
for block in blocks[::2]:
    ok(driver.cuMemFree(block))
step()
rest = list(zip(blocks[1::2], sizes[1::2]))
assert all(holds(block, size, 2 * i + 1) for i, (block, size) in enumerate(rest))
more = [filled(300, 1000 + i) for i in range(50)]
step()
assert all(holds(block, 300, 1000 + i) for i, block in enumerate(more))
assert all(holds(block, size, 2 * i + 1) for i, (block, size) in enumerate(rest))
""",
    "pitch, copies of two and three dimensions": """
use()
K = driver.CUmemorytype
pointer, pitch = ok(driver.cuMemAllocPitch(1000, 300, 4))
assert pitch >= 1000 and pitch % 512 == 0
data = values(1, 300_000).reshape(300, 1000)
c = driver.CUDA_MEMCPY2D()
c.srcMemoryType, c.srcHost, c.srcPitch = K.CU_MEMORYTYPE_HOST, data.ctypes.data, 1000
c.dstMemoryType, c.dstDevice, c.dstPitch = K.CU_MEMORYTYPE_DEVICE, pointer, pitch
c.WidthInBytes, c.Height = 1000, 300
ok(driver.cuMemcpy2D(c))
step()
cube = ok(driver.cuMemAlloc(500 * 100 * 3))
d = driver.CUDA_MEMCPY3D()
d.srcMemoryType, d.srcDevice, d.srcPitch, d.srcHeight = K.CU_MEMORYTYPE_DEVICE, pointer, pitch, 100
d.dstMemoryType, d.dstDevice, d.dstPitch, d.dstHeight = K.CU_MEMORYTYPE_DEVICE, cube, 500, 100
d.srcXInBytes, d.WidthInBytes, d.Height, d.Depth = 250, 500, 100, 3
ok(driver.cuMemcpy3DAsync(d, NONE))
step()
assert (read(cube, 150_000, np.uint8).reshape(300, 500) == data[:, 250:750]).all()
""",
    "fills": """
use()
pointer = ok(driver.cuMemAlloc(65536))
ok(driver.cuMemsetD8(pointer, 0x11, 65536))
step()
ok(driver.cuMemsetD16(int(pointer) + 1024, 0x2233, 512))
step()
ok(driver.cuMemsetD32Async(int(pointer) + 4096, 0x44556677, 1024, NONE))
step()
ok(driver.cuMemsetD2D8(int(pointer) + 16384, 512, 0x99, 100, 8))
ok(driver.cuMemsetD2D32Async(int(pointer) + 32768, 1024, 7, 10, 4, NONE))
expected = np.full(65536, 0x11, np.uint8)
expected[1024:2048].view(np.uint16)[:] = 0x2233
expected[4096:8192].view(np.uint32)[:] = 0x44556677
expected[16384:20480].reshape(8, 512)[:, :100] = 0x99
expected[32768:36864].view(np.uint32).reshape(4, 256)[:, :10] = 7
step()
assert (read(pointer, 65536, np.uint8) == expected).all()
""",
    "stream-ordered allocation and pools": """
use()
stream = stream_of()
default = ok(driver.cuDeviceGetDefaultMemPool(0))
a = ok(driver.cuMemAllocAsync(3 * MIB, stream))
mine = pool()
b = ok(driver.cuMemAllocFromPoolAsync(2 * MIB, mine, stream))
ok(driver.cuStreamSynchronize(stream))
write(a, values(1, 3 * MIB))
write(b, values(2, 2 * MIB))
assert reserved(default, "USED_MEM_CURRENT") == 3 * MIB
assert reserved(mine, "USED_MEM_CURRENT") == 2 * MIB
step(unevictable=0)
assert holds(a, 3 * MIB, 1) and holds(b, 2 * MIB, 2)
assert int(attribute("MEMPOOL_HANDLE", b)) == int(mine)
assert int(attribute("MEMPOOL_HANDLE", a)) == int(default)
threshold(mine, 8 * MIB)
assert reserved(mine, "RELEASE_THRESHOLD") == 8 * MIB
ok(driver.cuMemFreeAsync(b, stream))
ok(driver.cuMemFree(a))
ok(driver.cuStreamSynchronize(stream))
step(unevictable=0)
assert reserved(mine, "USED_MEM_CURRENT") == 0 and reserved(mine, "USED_MEM_HIGH") == 2 * MIB
assert reserved(mine) >= reserved(mine, "USED_MEM_CURRENT")
ok(driver.cuMemPoolTrimTo(mine, 0))
c = ok(driver.cuMemAllocFromPoolAsync(2 * MIB, mine, stream))
ok(driver.cuMemsetD8Async(c, 5, 2 * MIB, stream))
ok(driver.cuStreamSynchronize(stream))
step(unevictable=0)
assert (read(c, 2 * MIB, np.uint8) == 5).all()
ok(driver.cuMemFreeAsync(c, stream))
ok(driver.cuMemPoolDestroy(mine))
""",
    "a pool that can be shared": """
use()
stream = stream_of()
shared = pool(handles=FD)
threshold(shared, 64 * MIB)
a = ok(driver.cuMemAllocFromPoolAsync(4 * MIB, shared, stream))
ok(driver.cuStreamSynchronize(stream))
write(a, values(1, 4 * MIB))
step(unevictable=4 * MIB)
assert holds(a, 4 * MIB) and ok(driver.cuMemPoolExportToShareableHandle(shared, FD, 0)) > 2
ok(driver.cuMemFreeAsync(a, stream))
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuMemPoolTrimTo(shared, 0))
step(unevictable=0)
ok(driver.cuMemPoolDestroy(shared))
""",
    "the application's own managed memory": """
use()
other = filled(5 * MIB, 9)
pointer = ok(driver.cuMemAllocManaged(4 * MIB, 1))
ok(driver.cuMemsetD8(pointer, 3, 4 * MIB))
ok(driver.cuCtxSynchronize())
step()
assert ctypes.string_at(int(pointer), 4) == bytes([3] * 4) and attribute("IS_MANAGED", pointer)
ok(driver.cuMemPrefetchAsync(pointer, 4 * MIB, at(0), 0, NONE))
step()
assert (read(pointer, 4 * MIB, np.uint8) == 3).all() and holds(other, 5 * MIB, 9)
ok(driver.cuMemFree(pointer))
""",
    "arrays": """
use()
other = filled(5 * MIB, 9)
d = driver.CUDA_ARRAY_DESCRIPTOR()
d.Width, d.Height, d.Format, d.NumChannels = 1024, 1024, driver.CUarray_format.CU_AD_FORMAT_FLOAT, 1
array = ok(driver.cuArrayCreate(d))
K = driver.CUmemorytype
data = np.random.default_rng(1).random((1024, 1024), np.float32)
def copy(to, back=False):
    c = driver.CUDA_MEMCPY2D()
    if back:
        c.srcMemoryType, c.srcArray = K.CU_MEMORYTYPE_ARRAY, array
        c.dstMemoryType, c.dstHost, c.dstPitch = K.CU_MEMORYTYPE_HOST, to.ctypes.data, 4096
    else:
        c.dstMemoryType, c.dstArray = K.CU_MEMORYTYPE_ARRAY, array
        c.srcMemoryType, c.srcHost, c.srcPitch = K.CU_MEMORYTYPE_HOST, to.ctypes.data, 4096
    c.WidthInBytes, c.Height = 4096, 1024
    ok(driver.cuMemcpy2D(c))
copy(data)
step(unevictable=4 * MIB)
out = np.empty_like(data)
copy(out, back=True)
assert (out == data).all() and holds(other, 5 * MIB, 9)
sim = ctypes.CDLL(os.environ.get("GPUSHARE_DRIVER", "libcuda.so.1"))
sim.gpushare_sim_fail(b"cuArrayCreate_v2:1")
assert error(driver.cuArrayCreate(d)) == 2
step(unevictable=4 * MIB)
ok(driver.cuArrayDestroy(array))
step(unevictable=0)
""",
    "texture objects over linear memory": """
device = use()
kernel = function_of(compile('''extern "C" __global__ void fetch(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x);
}'''), "fetch")
stream = stream_of()
data = np.random.default_rng(1).random(256, np.float32)
pointer, out = ok(driver.cuMemAlloc(1024)), ok(driver.cuMemAlloc(1024))
write(pointer, data)
r = driver.CUDA_RESOURCE_DESC()
r.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
r.res.linear.devPtr, r.res.linear.sizeInBytes, r.res.linear.numChannels = pointer, 1024, 1
r.res.linear.format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
texture = ok(driver.cuTexObjectCreate(r, driver.CUDA_TEXTURE_DESC(), None))
for _ in range(2):
    step(unevictable=0)
    assert start(kernel, stream, texture, out, threads=256) == 0
    ok(driver.cuStreamSynchronize(stream))
    assert (read(out, 256) == data).all()
ok(driver.cuTexObjectDestroy(texture))
""",
    "variables of modules": """
device = use()
other = filled(5 * MIB, 9)
code = compile('''__device__ float table[1000];
extern "C" __global__ void get(float *out) { out[threadIdx.x] = table[threadIdx.x]; }''', "&table")
library = driver.CUlibrary(int(code.handle))
address, size = ok(driver.cuLibraryGetGlobal(library, code.symbol_mapping["&table"]))
assert size == 4000
data = np.random.default_rng(1).random(1000, np.float32)
write(address, data)
step()
out = ok(driver.cuMemAlloc(1024))
assert start(function_of(code, "get"), NONE, out, threads=256) == 0
step()
assert (read(out, 256) == data[:256]).all() and (read(address, 1000) == data).all()
assert holds(other, 5 * MIB, 9)
""",
    "modules that are loaded lazily": """
device = use()
out = filled(4096, 1)
code = compile('''extern "C" __global__ void one(int *out) { out[threadIdx.x] = 1; }
extern "C" __global__ void two(int *out) { out[threadIdx.x] += 2; }''')
step()
assert start(function_of(code, "one"), NONE, out, threads=256) == 0
step()
assert start(function_of(code, "two"), NONE, out, threads=256) == 0
step()
assert (read(out, 256, np.int32) == 3).all()
assert (read(int(out) + 1024, 3072, np.uint8) == values(1, 4096)[1024:]).all()
""",
    "host memory, registered and mapped": """
device = use()
other = filled(5 * MIB, 9)
kernel = function_of(compile('''extern "C" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }'''), "twice")
host = int(ok(driver.cuMemHostAlloc(4096, 2)))
own = np.zeros(8192, np.uint8)
numbers = np.arange(256, dtype=np.int32)
page = (own.ctypes.data + 4095) // 4096 * 4096
ok(driver.cuMemHostRegister(page, 4096, 2))
for address in (host, page):
    ctypes.memmove(address, numbers.ctypes.data, 1024)
    seen = ok(driver.cuMemHostGetDevicePointer(address, 0))
    step(unevictable=0)
    assert start(kernel, NONE, seen, threads=256) == 0
    ok(driver.cuCtxSynchronize())
    assert (np.frombuffer(ctypes.string_at(address, 1024), np.int32) == 2 * numbers).all()
ok(driver.cuMemHostUnregister(page))
ok(driver.cuMemFreeHost(host))
assert holds(other, 5 * MIB, 9)
""",
    "graphs of kernels, copies and fills": """
device = use()
kernel = function_of(compile('''extern "C" __global__ void more(int *x) { x[threadIdx.x] += 5; }'''), "more")
stream = stream_of()
M = driver.CUstreamCaptureMode
a, b, address = ok(driver.cuMemAlloc(1024)), ok(driver.cuMemAlloc(3 * MIB)), mapped(2 * MIB)[0]
modes = "GLOBAL", "THREAD_LOCAL", "RELAXED"
for mode in modes:
    ok(driver.cuStreamBeginCapture(stream, getattr(M, "CU_STREAM_CAPTURE_MODE_" + mode)))
    ok(driver.cuMemsetD32Async(a, 7, 256, stream))
    assert start(kernel, stream, a, threads=256) == 0
    ok(driver.cuMemcpyDtoDAsync(b, a, 1024, stream))
    ok(driver.cuMemcpyDtoDAsync(address, b, 1024, stream))
    graph = ok(driver.cuStreamEndCapture(stream))
    replay = ok(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        ok(driver.cuMemsetD8(address, 0, 2 * MIB))
        step(unevictable=0)
        ok(driver.cuGraphLaunch(replay, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (read(address, 256, np.int32) == 12).all()
    ok(driver.cuGraphExecDestroy(replay))
    ok(driver.cuGraphDestroy(graph))
""",
    "a capture that begins while memory is evicted": """
device = use()
stream = stream_of()
a = filled(4 * MIB)
step()
ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(driver.cuMemsetD32Async(a, 7, 256, stream))
b = ok(driver.cuMemAlloc(MIB))
ok(driver.cuMemcpyDtoDAsync(b, a, 1024, stream))
ok(driver.cuMemFree(ok(driver.cuMemAlloc(MIB))))
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
step()
ok(driver.cuGraphLaunch(replay, stream))
ok(driver.cuStreamSynchronize(stream))
step()
assert (read(b, 256, np.int32) == 7).all()
assert (read(a, 4 * MIB, np.uint8)[1024:] == values(1, 4 * MIB)[1024:]).all()
""",
    "graphs that allocate": """
device = use()
other = filled(5 * MIB, 9)
stream = stream_of()
out = ok(driver.cuMemAlloc(4096))
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
ok(driver.cuStreamBeginCapture(stream, GLOBAL))
inner = ok(driver.cuMemAllocAsync(8 * MIB, stream))
ok(driver.cuMemsetD32Async(inner, 41, 2 * MIB, stream))
ok(driver.cuMemcpyDtoDAsync(out, inner, 4096, stream))
ok(driver.cuMemFreeAsync(inner, stream))
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
for _ in range(2):
    ok(driver.cuMemsetD8(out, 0, 4096))
    ok(driver.cuGraphLaunch(replay, stream))
    ok(driver.cuStreamSynchronize(stream))
    step(unevictable=0)  # what is not in use is given back with the lease
    assert (read(out, 1024, np.int32) == 41).all() and holds(other, 5 * MIB, 9)
# Memory that outlives the launch stays where it is.
ok(driver.cuStreamBeginCapture(stream, GLOBAL))
outer = ok(driver.cuMemAllocAsync(8 * MIB, stream))
ok(driver.cuMemsetD32Async(outer, 43, 2 * MIB, stream))
keeping = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
ok(driver.cuGraphLaunch(keeping, stream))
ok(driver.cuStreamSynchronize(stream))
step(unevictable=8 * MIB)
assert (read(outer, 1024, np.int32) == 43).all() and holds(other, 5 * MIB, 9)
ok(driver.cuMemFreeAsync(outer, stream))
ok(driver.cuStreamSynchronize(stream))
step(unevictable=0)
""",
    "questions about addresses": """
use()
a, b = filled(5 * MIB + 100, 1), filled(300, 2)
address, handle = mapped(4 * MIB)
def answers():
    out = []
    for pointer, size in ((a, 5 * MIB + 100), (b, 300)):
        inside = int(pointer) + size - 1
        base, length = ok(driver.cuMemGetAddressRange(inside))
        assert (int(base), length) == (int(pointer), size)
        assert int(attribute("RANGE_START_ADDR", inside)) == int(pointer)
        assert attribute("RANGE_SIZE", inside) == size and attribute("MAPPED", inside)
        assert attribute("MEMORY_TYPE", inside) == 2 and not attribute("IS_MANAGED", inside)
        assert int(attribute("DEVICE_POINTER", inside)) == inside
        assert attribute("DEVICE_ORDINAL", inside) == 0
        assert int(attribute("CONTEXT", inside)) == int(ok(driver.cuCtxGetCurrent()))
        assert attribute("IS_LEGACY_CUDA_IPC_CAPABLE", inside)
        out.append(attribute("BUFFER_ID", inside))
    assert attribute("MEMORY_TYPE", address) == 2 and attribute("MAPPED", address)
    assert not attribute("IS_LEGACY_CUDA_IPC_CAPABLE", address)
    return out
ids = answers()
assert len(set(ids)) == 2
step()
assert answers() == ids
assert error(driver.cuMemGetAddressRange(int(a) + (1 << 36))) != 0
# A GPU that may not touch what is mapped does not know it, whether it is there or evicted.
NONE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
ok(driver.cuMemSetAccess(address, 4 * MIB, [access(0, NONE)], 1))
assert error(driver.cuMemGetAddressRange(int(address) + 7)) == 500
pointer = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
assert error(driver.cuPointerGetAttribute(pointer, int(address) + 7)) == 1
step(unevictable=0)
assert error(driver.cuMemGetAddressRange(int(address) + 7)) == 500
assert error(driver.cuPointerGetAttribute(pointer, int(address) + 7)) == 1
ok(driver.cuMemSetAccess(address, 4 * MIB, [access(0)], 1))
assert int(ok(driver.cuMemGetAddressRange(int(address) + 7))[0]) == int(address)
""",
    "contexts": """
ok(driver.cuInit(0))
primary = ok(driver.cuDevicePrimaryCtxRetain(0))
second = ok(driver.cuCtxCreate(None, 0, 0))
ok(driver.cuCtxSetCurrent(primary))
a = filled(3 * MIB, 1)
address, handle = mapped(4 * MIB, 3)
ok(driver.cuCtxSetCurrent(second))
b = filled(3 * MIB, 2)
own, own_handle = mapped(4 * MIB, 4)
step()
assert holds(a, 3 * MIB, 1) and holds(b, 3 * MIB, 2), "one address space"
step()
ok(driver.cuCtxDestroy(second))
ok(driver.cuCtxSetCurrent(primary))
assert error(driver.cuMemGetAddressRange(b)) != 0, "it went with its context"
step()
assert holds(a, 3 * MIB, 1) and holds(address, 4 * MIB, 3)
assert holds(own, 4 * MIB, 4), "handles outlive contexts"
step()
ok(driver.cuDevicePrimaryCtxReset(0))
assert error(driver.cuMemFree(a)) != 0
primary = ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxSetCurrent(primary))
assert holds(address, 4 * MIB, 3) and holds(own, 4 * MIB, 4)
c = filled(3 * MIB, 5)
step()
assert holds(c, 3 * MIB, 5) and holds(own, 4 * MIB, 4)
""",
    "memory of pools outlives contexts": """
ok(driver.cuInit(0))
sizes = {1: 300, 2: 3 * MIB, 3: 70_000}
def ordered(context):
    ok(driver.cuCtxSetCurrent(context))
    stream = stream_of()
    found = {seed: ok(driver.cuMemAllocAsync(size, stream)) for seed, size in sizes.items()}
    for seed, pointer in found.items():
        write(pointer, values(seed, sizes[seed]))
    return found
def are_whole(found):
    return all(holds(pointer, sizes[seed], seed) for seed, pointer in found.items())
# Another context remains, and takes over what is on the GPU, and what is not.
primary = ok(driver.cuDevicePrimaryCtxRetain(0))
for evicted in (False, True):
    second = ok(driver.cuCtxCreate(None, 0, 0))
    found = ordered(second)
    plain = filled(3 * MIB, 4)
    if evicted:
        step()
    ok(driver.cuCtxDestroy(second))
    ok(driver.cuCtxSetCurrent(primary))
    assert are_whole(found)
    assert error(driver.cuMemGetAddressRange(plain)) != 0, "it went with its context"
    step()
    assert are_whole(found)
    for pointer in found.values():
        ok(driver.cuMemFreeAsync(pointer, driver.CUstream(1)))
    ok(driver.cuCtxSynchronize())
# No context remains for a while.
for evicted in (False, True):
    found = ordered(primary)
    if evicted:
        step()
    ok(driver.cuDevicePrimaryCtxRelease(0))
    primary = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxSetCurrent(primary))
    assert are_whole(found)
    step()
    assert are_whole(found)
    for pointer in found.values():
        ok(driver.cuMemFree(pointer))
# What is freed behind work in a stream that ends with its context is free afterwards.
second = ok(driver.cuCtxCreate(None, 0, 0))
stream = stream_of()
large = ok(driver.cuMemAllocAsync(40 * MIB, stream))
ok(driver.cuMemsetD8Async(large, 7, 40 * MIB, stream))
ok(driver.cuMemFreeAsync(large, stream))
ok(driver.cuCtxDestroy(second))
ok(driver.cuCtxSetCurrent(primary))
again = filled(40 * MIB, 5)
step()
assert holds(again, 40 * MIB, 5)
""",
    "a child by fork": """
use()
a = filled(3 * MIB, 1)
address, handle = mapped(4 * MIB, 3)
step()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
step()
assert holds(a, 3 * MIB, 1) and holds(address, 4 * MIB, 3)
""",
    "threads and per-thread default streams": """
device = use()
context = ok(driver.cuCtxGetCurrent())
PER_THREAD = driver.CUstream(2)
kernel = function_of(compile('''extern "C" __global__ void more(int *x) { x[threadIdx.x] += 1; }'''), "more")
cells = [ok(driver.cuMemAlloc(1024)) for _ in range(4)]
for cell in cells:
    ok(driver.cuMemsetD8(cell, 0, 1024))
segments, wrong = {}, []
def work(i):
    try:
        ok(driver.cuCtxSetCurrent(context))
        for n in range(40):
            assert start(kernel, PER_THREAD, cells[i], threads=256) == 0
            if n % 10 == 0:
                segments[i, n] = mapped(2 * MIB, 100 * i + n)
            if n % 10 == 5:
                address, handle = segments.pop((i, n - 5))
                assert holds(address, 2 * MIB, 100 * i + n - 5)
                ok(driver.cuMemUnmap(address, 2 * MIB))
                ok(driver.cuMemRelease(handle))
            ok(driver.cuStreamSynchronize(PER_THREAD))
            time.sleep(0.01)
    except BaseException as problem:
        wrong.append(repr(problem))
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
for _ in range(3):
    step(busy=True)
for thread in threads:
    thread.join()
assert not wrong, wrong
step()
for cell in cells:
    assert (read(cell, 256, np.int32) == 40).all()
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    assert run_alone(ROWS[row]) == run_shared(machine, ROWS[row]) > 0
