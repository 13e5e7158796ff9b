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
    PEERS,
    MakeMachine,
    Runner,
    await_unevictable,
    drive,
    evict,
    run_alone,
    run_shared,
)
from tests.support.machine import Machine
from tests.support.sim import MIB

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
    "the application's own mappings": """
use()
other = filled(5 * MIB, 9)
address, handle = mapped(8 * MIB)
step(unevictable=0)
# From the records, while it is evicted.
assert int(ok(driver.cuMemGetAccess(at(0), address))) == 3
again = ok(driver.cuMemRetainAllocationHandle(int(address) + 4 * MIB))
assert int(again) == int(handle)
ok(driver.cuMemRelease(again))
p = ok(driver.cuMemGetAllocationPropertiesFromHandle(handle))
assert p.location.id == 0 and p.type == PINNED
assert error(driver.cuMemAddressFree(address, 8 * MIB)) != 0, "something is mapped there"
assert attribute("MEMORY_TYPE", address) == 2 and attribute("DEVICE_ORDINAL", address) == 0
second = reserve(8 * MIB)
ok(driver.cuMemMap(second, 8 * MIB, 0, handle, 0))
assert error(driver.cuMemMap(second, 8 * MIB, 0, handle, 0)) != 0, "it is taken"
assert error(driver.cuMemMap(int(second) + (1 << 36), 8 * MIB, 0, handle, 0)) != 0, "not reserved"
assert int(ok(driver.cuMemGetAccess(at(0), second))) == 0
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
ok(driver.cuMemSetAccess(second, 8 * MIB, [access(0, READ)], 1))
assert holds(address, 8 * MIB) and holds(second, 8 * MIB), "one memory, two addresses"
write(int(address) + MIB, values(2, MIB))
assert holds(int(second) + MIB, MIB, 2)
step(unevictable=0)
assert holds(int(second) + MIB, MIB, 2) and int(ok(driver.cuMemGetAccess(at(0), second))) == 1
ok(driver.cuMemUnmap(address, 8 * MIB))
ok(driver.cuMemAddressFree(address, 8 * MIB))
step(unevictable=0)
ok(driver.cuMemUnmap(second, 8 * MIB))
step(unevictable=0)  # now without any mapping
third = reserve(8 * MIB)
ok(driver.cuMemMap(third, 8 * MIB, 0, handle, 0))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemSetAccess(third, 8 * MIB, [access(0)], 1))
step(unevictable=0)
assert holds(third, MIB, 1) and holds(int(third) + MIB, MIB, 2) and holds(other, 5 * MIB, 9)
before = free()
ok(driver.cuMemUnmap(third, 8 * MIB))
ok(driver.cuMemAddressFree(third, 8 * MIB))
assert free() >= before + 8 * MIB, "the last mapping held it"
""",
    "a mapping of part of a handle": """
use()
address, handle = mapped(16 * MIB)
ok(driver.cuMemUnmap(address, 16 * MIB))
step(unevictable=0)
part = reserve(6 * MIB)
ok(driver.cuMemMap(part, 6 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(part, 6 * MIB, [access(0)], 1))
step(unevictable=0)
assert (read(part, 6 * MIB, np.uint8) == values(1, 16 * MIB)[:6 * MIB]).all()
write(int(part) + 3 * MIB, values(2, MIB))
step(unevictable=0)
ok(driver.cuMemMap(address, 16 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(address, 16 * MIB, [access(0)], 1))
expected = values(1, 16 * MIB)
expected[3 * MIB:4 * MIB] = values(2, MIB)
assert (read(address, 16 * MIB, np.uint8) == expected).all()
""",
    "a segment that grows and shrinks": """
use()
P = properties()
P.requestedHandleTypes = FD
base, part = reserve(64 * MIB), 4 * MIB
handles = {}
def grow(*which):
    for i in which:
        handles[i] = ok(driver.cuMemCreate(part, P, 0))
        ok(driver.cuMemMap(int(base) + i * part, part, 0, handles[i], 0))
    ok(driver.cuMemSetAccess(int(base) + which[0] * part, len(which) * part, [access(0)], 1))
def shrink(i):
    ok(driver.cuMemUnmap(int(base) + i * part, part))
    ok(driver.cuMemRelease(handles.pop(i)))
grow(0, 1, 2)
write(base, values(1, 3 * part))
step(unevictable=0)
grow(3, 4)
write(int(base) + 3 * part, values(2, 2 * part))
assert holds(base, 3 * part)
step(unevictable=0)
shrink(1)
assert error(driver.cuMemUnmap(int(base), 2 * part)) != 0, "there is a gap"
step(unevictable=0)
grow(1)
write(int(base) + part, values(3, part))
step(unevictable=0)
whole = read(base, 5 * part, np.uint8)
expected = np.concatenate([values(1, 3 * part), values(2, 2 * part)])
expected[part:2 * part] = values(3, part)
assert (whole == expected).all()
ok(driver.cuMemUnmap(base, 5 * part))
for handle in handles.values():
    ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(base, 64 * MIB))
""",
    "what is exported": """
use()
other = filled(5 * MIB, 9)
P = properties()
P.requestedHandleTypes = FD
address, handle = mapped(6 * MIB, of=P)
step(unevictable=0)
fd = ok(driver.cuMemExportToShareableHandle(handle, FD, 0))
step(unevictable=6 * MIB)
twin = ok(driver.cuMemImportFromShareableHandle(fd, FD))
there = reserve(6 * MIB)
ok(driver.cuMemMap(there, 6 * MIB, 0, twin, 0))
ok(driver.cuMemSetAccess(there, 6 * MIB, [access(0)], 1))
assert holds(there, 6 * MIB)
write(there, values(2, 6 * MIB))
step(unevictable=6 * MIB)
assert holds(address, 6 * MIB, 2) and holds(other, 5 * MIB, 9)
ok(driver.cuMemUnmap(there, 6 * MIB))
ok(driver.cuMemRelease(twin))
ok(driver.cuMemUnmap(address, 6 * MIB))
ok(driver.cuMemRelease(handle))
step(unevictable=0)
""",
    "memory for other devices": """
import mmap
use()
other = filled(5 * MIB, 9)
a, b, c = filled(2 * MIB, 1), filled(3 * MIB, 4), mapped(2 * MIB, 6)[0]
step(unevictable=0)
DMA_BUF = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
seen = []
for pointer in a, c:
    fd = ctypes.c_int()
    take = ctypes.CDLL("libcuda.so.1").cuMemGetHandleForAddressRange
    take.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64
    assert take(ctypes.byref(fd), int(pointer), 2 * MIB, int(DMA_BUF), 0) == 0
    seen.append(np.frombuffer(mmap.mmap(fd.value, 2 * MIB), np.uint8))
assert (seen[0] == values(1, 2 * MIB)).all() and (seen[1] == values(6, 2 * MIB)).all()
step(unevictable=4 * MIB)
write(a, values(2, 2 * MIB))
write(c, values(7, 2 * MIB))
ok(driver.cuCtxSynchronize())
assert (seen[0] == values(2, 2 * MIB)).all() and (seen[1] == values(7, 2 * MIB)).all()
SYNC_MEMOPS = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
ok(driver.cuPointerSetAttribute(1, SYNC_MEMOPS, b))
step(unevictable=8 * MIB)
assert holds(b, 3 * MIB, 4) and holds(other, 5 * MIB, 9)
ok(driver.cuMemFree(a))
ok(driver.cuMemFree(b))
step(unevictable=2 * MIB)
""",
    "handles of host memory": """
use()
other = filled(5 * MIB, 9)
P = properties()
P.location.type = T.CU_MEM_LOCATION_TYPE_HOST
address, handle = mapped(4 * MIB, 1, P)
before = free()
step(unevictable=0)
assert holds(address, 4 * MIB) and holds(other, 5 * MIB, 9) and free() == before
assert ok(driver.cuMemGetAllocationPropertiesFromHandle(handle)).location.type == T.CU_MEM_LOCATION_TYPE_HOST
ok(driver.cuMemUnmap(address, 4 * MIB))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(address, 4 * MIB))
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
    "multicast": """
use()
p = driver.CUmulticastObjectProp()
p.numDevices, p.size = 1, 2 * MIB
name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
assert ok(driver.cuDeviceGetAttribute(name, 0)) == 0
step()
assert error(driver.cuMulticastCreate(p)) == 801
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


FETCHES = """
function = function_of(compile('''extern "C" __global__ void copy(float *to, const float *from) {
    to[threadIdx.x] = from[threadIdx.x];
}'''), "copy")
def fetch(pointer):
    ok(driver.cuMemsetD8(near, 0, 256))
    assert start(function, stream, near, pointer, threads=64) == 0
    result = error(driver.cuStreamSynchronize(stream))
    return result or int(not (read(near, 64) == data).all())
"""

TWO_DEVICES = {
    "copies between two GPUs": PEERS
    + """
for _ in range(2):
    ok(driver.cuMemsetD8(near, 0, 256))
    step()
    ok(driver.cuMemcpyPeer(near, contexts[0], far, contexts[1], 128))
    assert (read(near, 32) == data[:32]).all()
    step()
    ok(driver.cuMemcpyPeerAsync(near, contexts[0], far, contexts[1], 256, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert (read(near, 64) == data).all()
""",
    "peer access": PEERS
    + FETCHES
    + """
step()
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
assert fetch(far) == 0
step()
assert fetch(far) == 0
ok(driver.cuCtxSetCurrent(contexts[1]))
later = ok(driver.cuMemAlloc(4 * MIB))
write(later, data)
address = reserve(2 * MIB)
ok(driver.cuMemMap(address, 2 * MIB, 0, ok(driver.cuMemCreate(2 * MIB, properties(1), 0)), 0))
step()
ok(driver.cuMemSetAccess(address, 2 * MIB, [access(0), access(1)], 2))
write(address, data)
ok(driver.cuMemPoolSetAccess(ok(driver.cuDeviceGetDefaultMemPool(1)), [access(0)], 1))
pooled = ok(driver.cuMemAllocAsync(256, NONE))
ok(driver.cuCtxSynchronize())
write(pooled, data)
ok(driver.cuCtxSetCurrent(contexts[0]))
for _ in range(2):
    assert [fetch(p) for p in (later, address, pooled)] == [0, 0, 0]
    step()
assert [int(ok(driver.cuMemGetAccess(at(d), address))) for d in (0, 1)] == [3, 3]
ok(driver.cuMemSetAccess(address, 2 * MIB, [access(0, NEITHER)], 1))
step()
assert int(ok(driver.cuMemGetAccess(at(0), address))) == 0
assert fetch(later) == 0
assert fetch(address) == 700, "access was taken back"
""",
    "peer access of a context that ends": PEERS
    + """
own = ok(driver.cuCtxCreate(None, 0, 0))
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
step()
ok(driver.cuCtxDestroy(own))
step()
ok(driver.cuCtxSetCurrent(contexts[0]))
"""
    + FETCHES
    + """
assert fetch(far) == 700
""",
    "peer access of a context that is reset": PEERS
    + """
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
step()
ok(driver.cuDevicePrimaryCtxReset(0))
contexts[0] = ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxSetCurrent(contexts[0]))
near = ok(driver.cuMemAlloc(256))
stream = stream_of()
step()
"""
    + FETCHES
    + """
assert fetch(far) == 700
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    assert run_alone(ROWS[row]) == run_shared(machine, ROWS[row]) > 0


@pytest.mark.parametrize("row", TWO_DEVICES)
def test_programs_behave_as_with_the_bare_driver_on_two_gpus(
    make_machine: MakeMachine, row: str
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    code = TWO_DEVICES[row]
    assert run_alone(code, devices=2) == run_shared(machine, code) > 0


EXPORTER = """
use()
other = filled(5 * MIB, 9)
large, small = filled(12 * MIB, 1), filled(300, 2)
handles = [ok(driver.cuIpcGetMemHandle(pointer)) for pointer in (large, small)]
assert raw(handles[0]) == raw(ok(driver.cuIpcGetMemHandle(int(large) + MIB))), "of the allocation"
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 201, "not in the process itself"
for refused in (mapped(2 * MIB)[0], ok(driver.cuMemAllocAsync(64, NONE))):
    assert error(driver.cuIpcGetMemHandle(refused)) == 1
say(" ".join(raw(handle).hex() for handle in handles))
hear()
assert holds(large, 12 * MIB, 3) and holds(small, 300, 2), "written by the other"
ok(driver.cuMemFree(large))
say("freed")
hear()
"""

IMPORTER = """
use()
own = filled(5 * MIB, 8)
texts = sys.stdin.readline().split()
handles = [made(driver.CUipcMemHandle, text) for text in texts]
assert error(driver.cuIpcOpenMemHandle(handles[0], 0)) == 1
large, small = (ok(driver.cuIpcOpenMemHandle(handle, 1)) for handle in handles)
assert int(ok(driver.cuIpcOpenMemHandle(handles[0], 1))) == int(large), "opened twice, mapped once"
base, size = ok(driver.cuMemGetAddressRange(int(large) + 5 * MIB))
assert (int(base), size) == (int(large), 12 * MIB)
say("opened")
hear()
assert holds(large, 12 * MIB, 1) and holds(small, 300, 2)
write(large, values(3, 12 * MIB))
say("written")
hear()
assert holds(large, 12 * MIB, 3), "it is there as long as it is open"
ok(driver.cuIpcCloseMemHandle(large))
ok(driver.cuIpcCloseMemHandle(large))
assert error(driver.cuIpcCloseMemHandle(large)) == 1
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 400, "it is gone"
say("closed")
hear()
assert holds(small, 300, 2) and holds(own, 5 * MIB, 8), "its process has ended"
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 400
ok(driver.cuIpcCloseMemHandle(small))
"""


def test_two_jupyter_kernels_share_memory_by_ipc(machine: Machine) -> None:
    exporter = Runner(machine.environment("a"), EXPORTER)
    importer = Runner(machine.environment("b"), IMPORTER)
    try:
        handles = exporter.heard()
        assert handles is not None
        slab = 2 * MIB
        evict(machine, "a", busy=False)
        await_unevictable(machine, "a", 12 * MIB + slab)
        importer.tell(handles)
        assert importer.heard() == "opened"
        evict(machine, "a", busy=False)
        evict(machine, "b", busy=False)
        await_unevictable(machine, "b", 0)
        importer.tell()
        assert importer.heard() == "written"
        evict(machine, "a", busy=False)
        exporter.tell()
        assert exporter.heard() == "freed"
        await_unevictable(machine, "a", slab)
        evict(machine, "b", busy=False)
        importer.tell()
        assert importer.heard() == "closed"
        exporter.close()
        evict(machine, "b", busy=False)
        importer.tell()
        assert importer.heard() is None
    finally:
        exporter.close()
        importer.close()


def test_memory_that_cannot_be_shared_is_refused_in_a_sentence(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_BACKEND="managed")
    code = "use()\nassert error(driver.cuIpcGetMemHandle(filled(5 * MIB))) == 801\nstep()\n"
    runner = Runner(machine.environment("a"), code)
    try:
        drive(machine, "a", runner)
        assert "CUDA IPC is not available" in runner.errors
    finally:
        runner.close()


@pytest.mark.parametrize("backend", ["swap", "managed"])
def test_mappings_of_two_programs_take_turns(make_machine: MakeMachine, backend: str) -> None:
    """Each has more than half of the GPU in handles of its own, in many pieces and in one."""
    machine = make_machine(GPUSHARE_BACKEND=backend)
    code = """
use()
P = properties()
P.requestedHandleTypes = FD
segments = [mapped(18 * MIB, 1), mapped(22 * MIB, 2, P)]
say("filled")
hear()
for _ in range(3):
    for (address, _), size, seed in zip(segments, (18 * MIB, 22 * MIB), (1, 2)):
        assert holds(address, size, seed)
say("read")
hear()
"""
    programs = [Runner(machine.environment(name), code) for name in "ab"]
    try:
        for program in programs:
            assert program.heard() == "filled"
        for program in programs:
            program.tell()
        for program in programs:
            assert program.heard() == "read"
        machine.until(lambda: any(machine.group(g)["totals"]["evicted"] for g in ("a", "b")))
        for program in programs:
            program.tell()
            assert program.heard() is None
    finally:
        for program in programs:
            program.close()


def test_mappings_that_can_never_fit_are_refused(machine: Machine) -> None:
    code = """
use()
address, handle = mapped(40 * MIB)
assert error(driver.cuMemCreate(40 * MIB, properties(), 0)) == 2
assert holds(address, 40 * MIB)
step(unevictable=0)
"""
    runner = Runner(machine.environment("a"), code)
    try:
        assert drive(machine, "a", runner) == 1
        assert "more would make" in runner.errors
    finally:
        runner.close()


FAILING = """
def fail(rules):
    return ctypes.CDLL(os.environ["GPUSHARE_DRIVER"]).gpushare_sim_fail(rules.encode())

use()
address, handle = mapped(16 * MIB)
second = reserve(16 * MIB)
ok(driver.cuMemMap(second, 16 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(second, 16 * MIB, [access(0)], 1))
other = filled(5 * MIB, 9)
say()
while rules := sys.stdin.readline().strip():
    assert fail(rules) == 0
    say()
    hear()
    for _ in range(2):
        assert holds(address, 16 * MIB) and holds(second, 16 * MIB) and holds(other, 5 * MIB, 9)
        say()
        hear()
    assert fail("") == 0
    assert holds(address, 16 * MIB) and holds(second, 16 * MIB) and holds(other, 5 * MIB, 9)
    say("whole")
"""


def evicted(machine: Machine) -> bool:
    """Ask for it again as long as something is left: what failed is not tried again by itself."""
    machine.control("evict", group="a")
    return not any(gpu["resident"] for gpu in machine.group("a")["gpus"])


@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
    ],
)
def test_a_failure_loses_nothing(machine: Machine, call: str) -> None:
    """Whichever call of a move fails: what is mapped twice is whole, on one side or the other."""
    runner = Runner(machine.environment("a"), FAILING)
    try:
        assert runner.heard() == "ready"
        for number in (1, 6):
            runner.tell(f"{call}%gpushare:{number}")
            moved = 0
            while (line := runner.heard()) == "ready":
                machine.control("release", group="a")
                machine.until(lambda: machine.group("a")["state"] == "idle")
                machine.until(lambda: evicted(machine))
                moved += 1
                runner.tell()
            assert (line, moved) == ("whole", 3)
        runner.tell("")
        assert runner.heard() is None
    finally:
        runner.close()
