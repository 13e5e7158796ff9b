# SPDX-License-Identifier: BSD-3-Clause
"""Arrays, textures and surfaces, copies in batches, and descriptors of address ranges."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import check

Machine = Callable[..., dict[str, str]]

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
