# SPDX-License-Identifier: BSD-3-Clause
"""``python -m tests.gpu.answers``: what the driver answers where a program goes wrong, bare and with the interposer.

Each scenario is a process of its own, since some of them leave it without a usable context. The answers of an NVIDIA
H200 with driver 580 are in ``answers.json``: the simulated driver is held to them, and so is the interposer.

Exit status 0 if all answers are those recorded, and those with the interposer are the bare driver's but for the
documented differences in ``KINDER``; 1 if not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
#: Seconds; a scenario takes less than one.
PATIENCE = 120.0
MIB = 1 << 20
#: Calls that the driver refuses and the interposer accepts, on purpose (docs/contributing/conformance.md).
#: They end a capture on the bare driver.
KINDER = {
    f"{mode}, {thread}: {call}"
    for mode, thread in (
        ("global", "its thread"),
        ("global", "another thread"),
        ("thread local", "its thread"),
    )
    for call in ("cuMemAllocAsync", "cuMemFreeAsync")
}
#: The interposer makes stream-ordered memory of ordinary memory, to which streams may write values.
KINDER |= {
    f"{context}{kind}: cuStream{call}Value{bits}"
    for context in ("", "another context: ")
    for kind in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync")
    for call in ("Write", "Wait")
    for bits in (32, 64)
}

INVALID_IMAGE = 200
GLOBAL, THREAD_LOCAL, RELAXED = range(3)

#: ``spin_until`` ends once the number that it is given is not 0.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store_nowhere(.param .u64 a) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [a];
    mov.u32 %v, 7;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry trap_now(.param .u64 a) { trap; }
.visible .entry spin_until(.param .u64 a) {
    .reg .u64 %a; .reg .u32 %v; .reg .pred %p;
    ld.param.u64 %a, [a];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, 0;
    @%p bra again;
    ret;
}
"""
SOURCE = b"""
extern "C" __global__ void store_nowhere(unsigned *a) { *a = 7; }
extern "C" __global__ void trap_now(unsigned *a) { *(volatile unsigned *)16 = 7; }
extern "C" __global__ void spin_until(volatile unsigned *a) { while (*a == 0); }
"""


class Driver:
    """The driver's API by name: what is no ctypes object is passed as 64 bits."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        self.context = ctypes.c_void_p()

    def __call__(self, name: str, *arguments: Any) -> int:
        passed = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*passed))

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Call what writes its result to its first argument, and return it; an error is the end."""
        found = kind()
        code = self(name, ctypes.byref(found), *arguments)
        if code:
            raise RuntimeError(f"{name} answered {code}")
        return found

    def begin(self) -> None:
        """Make the primary context current."""
        self("cuInit", 0)
        self.device = self.out(ctypes.c_int, "cuDeviceGet", 0)
        self.context = self.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", self.device)
        self("cuCtxSetCurrent", self.context)

    def stream(self) -> Any:
        """Make a stream that does not wait for the legacy one."""
        return self.out(ctypes.c_void_p, "cuStreamCreate", 1)

    def event(self) -> Any:
        """Make an event without times."""
        return self.out(ctypes.c_void_p, "cuEventCreate", 2)

    def memory(self, size: int = MIB) -> Any:
        """Allocate."""
        return self.out(ctypes.c_uint64, "cuMemAlloc_v2", size)

    def ordered(self, stream: Any, size: int = MIB) -> Any:
        """Allocate in a stream's order."""
        return self.out(ctypes.c_uint64, "cuMemAllocAsync", size, stream)

    def allocate(self) -> int:
        """Try to allocate."""
        return self("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), MIB)

    def kernel(self, name: str) -> Any:
        """Load a kernel: compiled for a GPU, or from source on the simulated driver."""
        module = ctypes.c_void_p()
        code = self("cuModuleLoadData", ctypes.byref(module), PTX)
        if code == INVALID_IMAGE:
            code = self("cuModuleLoadData", ctypes.byref(module), compiled())
        if code:
            raise RuntimeError(f"cuModuleLoadData answered {code}")
        return self.out(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode())

    def launch(self, kernel: Any, stream: Any, value: int) -> int:
        """Launch one thread."""
        argument = ctypes.c_uint64(value)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        return self("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)


def compiled() -> bytes:
    """Compile the kernels with NVRTC."""
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"answers.cu", 0, None, None)
    if nvrtc.nvrtcCompileProgram(program, 0, None):
        raise RuntimeError("NVRTC did not compile the kernels")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image.raw


Answers = Iterator[tuple[str, Any]]


def frees(cuda: Driver) -> Answers:
    """Give what memory that is freed twice, by another call or at a wrong address answers."""
    cuda.begin()
    s, t = cuda.stream(), cuda.stream()
    block = cuda.ordered(s)
    yield "cuMemFreeAsync", cuda("cuMemFreeAsync", block, s)
    yield "again", cuda("cuMemFreeAsync", block, s)
    yield "again, in another stream", cuda("cuMemFreeAsync", block, t)
    yield (
        "again, after the stream's end",
        (
            cuda("cuStreamSynchronize", s),
            cuda("cuMemFreeAsync", block, s),
        ),
    )
    yield "its attribute", cuda("cuPointerGetAttribute", ctypes.byref(ctypes.c_uint64()), 2, block)
    yield "a copy to it", cuda("cuMemcpyHtoD_v2", block, b"x" * 64, 64)
    yield "a fill of it", cuda("cuMemsetD8_v2", block, 0, 64)
    yield "nothing has failed", cuda("cuCtxSynchronize")

    waiting = cuda.kernel("spin_until")
    flag = cuda.memory()
    cuda("cuMemsetD32_v2", flag, 0, 1)
    cuda("cuCtxSynchronize")
    cuda.launch(waiting, s, flag.value)
    block = cuda.ordered(s)
    yield "behind a kernel: cuMemFreeAsync", cuda("cuMemFreeAsync", block, s)
    yield "behind a kernel: again", cuda("cuMemFreeAsync", block, s)
    yield "behind a kernel: again, in another stream", cuda("cuMemFreeAsync", block, t)
    cuda("cuMemsetD32Async", flag, 1, 1, t)
    yield "the kernel ends", cuda("cuCtxSynchronize")

    block = cuda.ordered(s)
    cuda("cuStreamSynchronize", s)
    yield "stream-ordered memory: cuMemFree", cuda("cuMemFree_v2", block)
    yield "stream-ordered memory: cuMemFree again", cuda("cuMemFree_v2", block)
    block = cuda.memory()
    yield "cuMemFree of an inner address", cuda("cuMemFree_v2", block.value + 256)
    yield "cuMemFree", cuda("cuMemFree_v2", block)
    yield "cuMemFree again", cuda("cuMemFree_v2", block)
    block = cuda.ordered(s)
    yield "cuMemFreeAsync of an inner address", cuda("cuMemFreeAsync", block.value + 256, s)
    yield "cuMemFree of nothing", cuda("cuMemFree_v2", 0)
    yield "cuMemFreeAsync of nothing", cuda("cuMemFreeAsync", 0, s)
    yield "cuMemFreeAsync of what nobody allocated", cuda("cuMemFreeAsync", 0x1234567000, s)


def handles(cuda: Driver) -> Answers:
    """Give what memory without a handle, and handles that are released, answer."""
    cuda.begin()
    s = cuda.stream()
    for kind, address in (
        ("cuMemAlloc", cuda.memory(4 * MIB).value),
        ("cuMemAllocAsync", cuda.ordered(s).value),
        ("nothing", 0x1234567000),
    ):
        handle = ctypes.c_uint64()
        code = cuda("cuMemRetainAllocationHandle", ctypes.byref(handle), address)
        yield f"cuMemRetainAllocationHandle of {kind}", code
    # An allocation of pinned memory on device 0.
    wanted = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
    physical = cuda.out(ctypes.c_uint64, "cuMemCreate", 2 * MIB, wanted, 0)
    address = cuda.out(ctypes.c_uint64, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    yield "cuMemMap", cuda("cuMemMap", address, 2 * MIB, 0, physical, 0)
    yield "cuMemUnmap", cuda("cuMemUnmap", address, 2 * MIB)
    yield "cuMemRelease", cuda("cuMemRelease", physical)
    yield "cuMemRelease again", cuda("cuMemRelease", physical)
    yield "cuMemAddressFree", cuda("cuMemAddressFree", address, 2 * MIB)
    yield "cuMemAddressFree again", cuda("cuMemAddressFree", address, 2 * MIB)
    yield "nothing has failed", cuda("cuCtxSynchronize")


def captures(cuda: Driver) -> Answers:
    """Give what a capture in each mode makes of calls by its thread and another: their answer, and that of its end."""
    cuda.begin()
    s, t = cuda.stream(), cuda.stream()
    kernel, block = cuda.kernel("store_nowhere"), cuda.memory()
    done, event = cuda.event(), cuda.event()
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    cuda("cuEventRecord", done, t)
    # What the first of a kind would set up for all.
    cuda("cuMemFreeAsync", cuda.ordered(t), t)
    cuda("cuCtxSynchronize")

    def elsewhere(call: Callable[[], int]) -> int:
        found: list[int] = []

        def run() -> None:
            cuda("cuCtxSetCurrent", cuda.context)
            found.append(call())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    text = ctypes.create_string_buffer(64)
    calls: dict[str, Callable[[], int]] = {
        "cuMemAlloc": cuda.allocate,
        "cuMemFree": lambda: cuda("cuMemFree_v2", spare.pop()),
        "cuMemAllocAsync": lambda: cuda("cuMemAllocAsync", ctypes.byref(ctypes.c_uint64()), MIB, t),
        "cuMemFreeAsync": lambda: cuda("cuMemFreeAsync", ordered.pop(), t),
        "cuMemHostAlloc": lambda: cuda("cuMemHostAlloc", ctypes.byref(ctypes.c_void_p()), 4096, 0),
        "cuMemPoolTrimTo": lambda: cuda("cuMemPoolTrimTo", pool, 0),
        "cuMemGetInfo": lambda: cuda(
            "cuMemGetInfo_v2", ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t())
        ),
        "cuMemAddressReserve": lambda: cuda(
            "cuMemAddressReserve", ctypes.byref(ctypes.c_uint64()), 2 * MIB, 0, 0, 0
        ),
        "cuEventCreate": lambda: cuda("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 2),
        "cuEventRecord": lambda: cuda("cuEventRecord", event, t),
        "cuEventQuery": lambda: cuda("cuEventQuery", done),
        "cuEventSynchronize": lambda: cuda("cuEventSynchronize", done),
        "cuStreamCreate": lambda: cuda("cuStreamCreate", ctypes.byref(ctypes.c_void_p()), 1),
        "cuStreamQuery": lambda: cuda("cuStreamQuery", t),
        "cuStreamSynchronize": lambda: cuda("cuStreamSynchronize", t),
        "cuCtxSynchronize": lambda: cuda("cuCtxSynchronize"),
        "cuMemcpyHtoD": lambda: cuda("cuMemcpyHtoD_v2", block, text, 64),
        "cuMemcpyHtoDAsync": lambda: cuda("cuMemcpyHtoDAsync_v2", block, text, 64, t),
        "cuMemsetD8": lambda: cuda("cuMemsetD8_v2", block, 0, 64),
        "cuLaunchKernel": lambda: cuda.launch(kernel, t, block.value),
    }
    # Freed by the calls above, four times in each of three modes.
    spare = [cuda.memory() for _ in range(12)]
    ordered = [cuda.ordered(t) for _ in range(12)]
    cuda("cuStreamSynchronize", t)

    def relaxed(call: Callable[[], int]) -> int:
        mode = ctypes.c_int(RELAXED)
        cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        found = call()
        cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return found

    def run(call: Callable[[], int], calm: bool, other: bool) -> int:
        if calm:
            return run(lambda: relaxed(call), False, other)
        return elsewhere(call) if other else call()

    for name, call in calls.items():
        for mode, title in (
            (GLOBAL, "global"),
            (THREAD_LOCAL, "thread local"),
            (RELAXED, "relaxed"),
        ):
            for other in (False, True):
                for calm in (False, True):
                    # What the call before this one has put into the stream must not decide what a query returns.
                    cuda("cuStreamSynchronize", t)
                    cuda("cuStreamBeginCapture_v2", s, mode)
                    cuda.launch(kernel, s, block.value)
                    code = run(call, calm, other)
                    graph = ctypes.c_void_p()
                    end = cuda("cuStreamEndCapture", s, ctypes.byref(graph))
                    if graph.value:
                        cuda("cuGraphDestroy", graph)
                    who = ("another thread" if other else "its thread") + (
                        ", relaxed" if calm else ""
                    )
                    yield f"{title}, {who}: {name}", (code, end)


def failed(cuda: Driver, kernel: str) -> Answers:
    """Give what a context answers after one of its kernels has failed, and what others of its process do."""
    cuda.begin()
    s, event, block = cuda.stream(), cuda.event(), cuda.memory()
    ordered = cuda.ordered(s)
    pinned = cuda.out(ctypes.c_void_p, "cuMemHostAlloc", 4096, 0)
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    reserved = cuda.out(ctypes.c_uint64, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    function = cuda.kernel(kernel)
    other = cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    of_other = cuda.memory()
    cuda("cuCtxSetCurrent", cuda.context)
    cuda("cuCtxSynchronize")
    yield "the kernel's launch", cuda.launch(function, s, 0x10)
    yield "cuStreamSynchronize", cuda("cuStreamSynchronize", s)
    number, word, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    pointer = ctypes.c_void_p()
    at_number, at_word, at_size, at_pointer = map(ctypes.byref, (number, word, size, pointer))
    wanted = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
    for name, *arguments in (
        ("cuCtxSynchronize",),
        ("cuMemAlloc_v2", at_word, MIB),
        ("cuMemAllocAsync", at_word, MIB, s),
        ("cuMemFree_v2", block),
        ("cuMemFreeAsync", ordered, s),
        ("cuMemGetInfo_v2", at_size, ctypes.byref(ctypes.c_size_t())),
        ("cuMemGetAddressRange_v2", at_word, at_size, block),
        ("cuPointerGetAttribute", at_word, 2, block),
        ("cuMemAddressReserve", at_word, 2 * MIB, 0, 0, 0),
        ("cuMemAddressFree", reserved, 2 * MIB),
        ("cuMemCreate", at_word, 2 * MIB, wanted, 0),
        ("cuMemHostAlloc", at_pointer, 4096, 0),
        ("cuMemFreeHost", pinned),
        ("cuMemPoolGetAttribute", pool, 7, at_word),
        ("cuMemPoolTrimTo", pool, 0),
        ("cuMemcpyHtoD_v2", block, b"x" * 64, 64),
        ("cuMemcpyDtoHAsync_v2", pinned, block, 64, s),
        ("cuMemsetD8_v2", block, 0, 64),
        ("cuStreamQuery", s),
        ("cuStreamCreate", at_pointer, 1),
        ("cuStreamBeginCapture_v2", s, GLOBAL),
        ("cuEventQuery", event),
        ("cuEventCreate", at_pointer, 0),
        ("cuModuleLoadData", at_pointer, PTX),
        ("cuFuncGetAttribute", at_number, 0, function),
        ("cuGraphCreate", at_pointer, 0),
        ("cuDeviceGetAttribute", at_number, 1, cuda.device),
        ("cuDeviceTotalMem_v2", at_size, cuda.device),
        ("cuCtxGetCurrent", at_pointer),
        ("cuCtxGetDevice", at_number),
        ("cuCtxSetCurrent", cuda.context),
        ("cuStreamDestroy_v2", s),
        ("cuEventDestroy_v2", event),
        ("cuCtxCreate_v2", at_pointer, 0, cuda.device),
    ):
        yield name, cuda(name, *arguments)
    yield "cuLaunchKernel", cuda.launch(function, None, block.value)
    cuda("cuCtxSetCurrent", other)
    yield "another context: cuMemAlloc", cuda.allocate()
    yield "another context: cuMemsetD8", cuda("cuMemsetD8_v2", of_other, 0, 64)
    yield "another context: cuCtxSynchronize", cuda("cuCtxSynchronize")
    yield "another context: cuCtxDestroy", cuda("cuCtxDestroy_v2", other)
    cuda("cuCtxSetCurrent", cuda.context)
    yield "cuDevicePrimaryCtxReset", cuda("cuDevicePrimaryCtxReset_v2", cuda.device)
    yield "after it: cuMemAlloc", cuda.allocate()
    yield (
        "after it: cuDevicePrimaryCtxRetain",
        cuda("cuDevicePrimaryCtxRetain", at_pointer, cuda.device),
    )


#: Attributes of an address whose answers depend on the kind of memory, and whether only zero or not is comparable.
ATTRIBUTES = {
    "context": (1, True),
    "memory type": (2, False),
    "host pointer": (4, True),
    "synchronous": (6, False),
    "managed": (8, False),
    "device": (9, False),
    "legacy IPC": (10, False),
    "mapped": (13, False),
    "handle types": (14, False),
    "access": (16, False),
    "pool": (17, True),
}


def memory_of_each_kind(cuda: Driver, stream: Any) -> dict[str, int]:
    """Allocate 2 MiB of each kind that is not managed; return the addresses that a GPU uses."""
    # A pool of pinned memory on device 0: the struct has 88 bytes.
    wanted = (ctypes.c_int * 22)(1, 0, 1, 0)
    pool = cuda.out(ctypes.c_void_p, "cuMemPoolCreate", wanted)
    from_pool = cuda.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", 2 * MIB, pool, stream)
    pinned = cuda.out(ctypes.c_void_p, "cuMemHostAlloc", 2 * MIB, 2)
    physical = cuda.out(ctypes.c_uint64, "cuMemCreate", 2 * MIB, (ctypes.c_int * 8)(1, 0, 1), 0)
    mapped = cuda.out(ctypes.c_uint64, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    cuda("cuMemMap", mapped, 2 * MIB, 0, physical, 0)
    cuda("cuMemSetAccess", mapped, 2 * MIB, (ctypes.c_int * 3)(1, 0, 3), 1)
    return {
        "cuMemAlloc": cuda.memory(2 * MIB).value,
        "cuMemAllocAsync": cuda.ordered(stream, 2 * MIB).value,
        "cuMemAllocFromPoolAsync": from_pool.value,
        "cuMemHostAlloc": cuda.out(
            ctypes.c_uint64, "cuMemHostGetDevicePointer_v2", pinned, 0
        ).value,
        "cuMemMap": mapped.value,
    }


def kinds(cuda: Driver) -> Answers:
    """Give what the driver says of memory of each kind, and which values streams may write to it."""
    cuda.begin()
    s = cuda.stream()
    memory = memory_of_each_kind(cuda, s)
    cuda("cuCtxSynchronize")
    other = cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    t = cuda.stream()
    for context, stream, title in ((cuda.context, s, ""), (other, t, "another context: ")):
        cuda("cuCtxSetCurrent", context)
        for kind, address in memory.items():
            for name, (attribute, only_zero) in ATTRIBUTES.items():
                value = ctypes.c_uint64()
                code = cuda("cuPointerGetAttribute", ctypes.byref(value), attribute, address)
                yield (
                    f"{title}{kind}: {name}",
                    (code, int(value.value != 0) if only_zero else value.value),
                )
            size = ctypes.c_size_t()
            base = ctypes.c_uint64()
            code = cuda(
                "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address + 4096
            )
            yield f"{title}{kind}: range", (code, base.value == address, size.value)
            for call in ("cuStreamWriteValue32", "cuStreamWriteValue64"):
                yield f"{title}{kind}: {call}", cuda(f"{call}_v2", stream, address + 64, 7, 0)
            for call in ("cuStreamWaitValue32", "cuStreamWaitValue64"):
                yield f"{title}{kind}: {call}", cuda(f"{call}_v2", stream, address + 64, 0, 0)
            yield f"{title}{kind}: cuStreamSynchronize", cuda("cuStreamSynchronize", stream)
            yield f"{title}{kind}: a fill", cuda("cuMemsetD8Async", address, 1, 64, stream)
            yield f"{title}{kind}: its end", cuda("cuStreamSynchronize", stream)


def empty(cuda: Driver) -> Answers:
    """Give what calls answer that are about nothing: 0 bytes, 0 rows, no addresses."""
    cuda.begin()
    s, block = cuda.stream(), cuda.memory()
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    pointer, size = ctypes.c_uint64(5), ctypes.c_size_t()
    for name, *arguments in (
        ("cuMemAlloc_v2", 0),
        ("cuMemAllocAsync", 0, s),
        ("cuMemAllocFromPoolAsync", 0, pool, s),
        ("cuMemHostAlloc", 0, 0),
        ("cuMemAllocHost_v2", 0),
        ("cuMemCreate", 0, (ctypes.c_int * 8)(1, 0, 1), 0),
        ("cuMemAddressReserve", 0, 0, 0, 0),
    ):
        pointer.value = 5
        code = cuda(name, ctypes.byref(pointer), *arguments)
        yield name, (code, {0: "zero", 5: "as before"}.get(pointer.value, "an address"))
        if name == "cuMemAllocAsync":
            yield "a free of it", cuda("cuMemFreeAsync", pointer, s)
        if name == "cuMemAllocFromPoolAsync":
            yield "cuMemFree of it", cuda("cuMemFree_v2", pointer)
    for width, height in ((0, 4), (4, 0)):
        name = f"cuMemAllocPitch, {width} by {height}"
        yield (
            name,
            cuda("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(size), width, height, 4),
        )
    for address, where in ((block.value, "memory"), (0, "nothing"), (0x1234567000, "elsewhere")):
        for name, *arguments in (
            ("cuMemcpyHtoD_v2", address, b"x" * 64, 0),
            ("cuMemcpyDtoH_v2", ctypes.create_string_buffer(64), address, 0),
            ("cuMemcpyDtoD_v2", address, block, 0),
            ("cuMemcpyDtoDAsync_v2", block, address, 0, s),
            ("cuMemsetD8_v2", address, 0, 0),
            ("cuMemsetD8Async", address, 0, 0, s),
            ("cuMemsetD2D8_v2", address, 64, 0, 0, 1),
            ("cuMemUnmap", address, 0),
            ("cuMemMap", address, 0, 0, 0, 0),
            ("cuMemSetAccess", address, 0, (ctypes.c_int * 3)(1, 0, 3), 1),
            ("cuMemAddressFree", address, 0),
        ):
            yield f"{where}: {name}", cuda(name, *arguments)
        yield f"{where}: cuStreamSynchronize", cuda("cuStreamSynchronize", s)
    yield "cuMemGetInfo", cuda("cuMemGetInfo_v2", None, None)
    yield "cuMemGetAddressRange", cuda("cuMemGetAddressRange_v2", None, None, block)
    yield "cuPointerGetAttributes", cuda("cuPointerGetAttributes", 0, None, None, block)
    yield "nothing has failed", cuda("cuCtxSynchronize")


def in_stream(
    cuda: Driver, stream: Any, event: Any, block: Any, function: Any, array: Any
) -> Answers:
    """Call what names a stream, an event or an array, whatever context is current."""
    pointer, current = ctypes.c_uint64(), ctypes.c_void_p()
    at_pointer, size = ctypes.byref(pointer), ctypes.byref(ctypes.c_size_t())
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    code = cuda("cuCtxGetCurrent", ctypes.byref(current))
    yield "cuCtxGetCurrent", (code, current.value is not None)
    for name, call in (
        ("a fill", ("cuMemsetD8Async", block, 1, 64, stream)),
        ("a copy", ("cuMemcpyDtoHAsync_v2", ctypes.create_string_buffer(64), block, 64, stream)),
        ("cuMemAllocAsync", ("cuMemAllocAsync", at_pointer, MIB, stream)),
        ("a free of it", ("cuMemFreeAsync", pointer, stream)),
        ("cuMemAllocFromPoolAsync", ("cuMemAllocFromPoolAsync", at_pointer, MIB, pool, stream)),
        ("a free of that", ("cuMemFreeAsync", pointer, stream)),
        ("cuEventRecord", ("cuEventRecord", event, stream)),
        ("cuStreamWaitEvent", ("cuStreamWaitEvent", stream, event, 0)),
        ("cuStreamWriteValue32", ("cuStreamWriteValue32_v2", stream, block, 7, 0)),
        ("cuEventSynchronize", ("cuEventSynchronize", event)),
        ("cuEventQuery", ("cuEventQuery", event)),
        ("cuStreamSynchronize", ("cuStreamSynchronize", stream)),
        ("cuStreamQuery", ("cuStreamQuery", stream)),
        ("cuArrayDestroy", ("cuArrayDestroy", array)),
        ("cuMemGetAddressRange", ("cuMemGetAddressRange_v2", at_pointer, size, block)),
        ("cuPointerGetAttribute", ("cuPointerGetAttribute", at_pointer, 2, block)),
        ("its device pointer", ("cuPointerGetAttribute", at_pointer, 3, block)),
        ("cuMemGetInfo", ("cuMemGetInfo_v2", size, size)),
        ("a fill in no stream", ("cuMemsetD8_v2", block, 1, 64)),
        ("cuMemPoolTrimTo", ("cuMemPoolTrimTo", pool, 0)),
        ("cuMemAllocAsync in no stream", ("cuMemAllocAsync", at_pointer, MIB, None)),
        ("cuMemAlloc", ("cuMemAlloc_v2", at_pointer, MIB)),
        ("its cuMemFree", ("cuMemFree_v2", pointer)),
    ):
        yield name, cuda(*call)
    yield "cuLaunchKernel", cuda.launch(function, stream, block.value)
    yield "its end", cuda("cuStreamSynchronize", stream)


def currents(cuda: Driver) -> Answers:
    """Give what calls answer that name a stream while another context is current, none is, or one that is gone."""
    cuda.begin()
    s, event, block = cuda.stream(), cuda.event(), cuda.memory()
    function = cuda.kernel("spin_until")
    # 16 by 16 floats.
    shape = (ctypes.c_uint64 * 3)(16, 16, 0x20 | 1 << 32)
    arrays = [cuda.out(ctypes.c_void_p, "cuArrayCreate_v2", shape) for _ in range(3)]
    cuda("cuMemsetD8_v2", block, 1, MIB)
    other = cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    cuda("cuCtxSynchronize")
    for title in ("another", "none", "gone"):
        said: list[tuple[str, Any]] = []
        is_set, may_go_on = threading.Event(), threading.Event()

        def thread(context: Any = None if title == "none" else other) -> None:
            if context is not None:
                cuda("cuCtxSetCurrent", context)
            is_set.set()  # noqa: B023
            may_go_on.wait()  # noqa: B023
            said.extend(in_stream(cuda, s, event, block, function, arrays.pop()))  # noqa: B023

        caller = threading.Thread(target=thread)
        caller.start()
        is_set.wait()
        if title == "gone":
            yield "cuCtxDestroy", cuda("cuCtxDestroy_v2", other)
        may_go_on.set()
        caller.join()
        yield from ((f"{title}: {name}", answer) for name, answer in said)
    yield (
        "a fill, where the stream's context is current",
        (
            cuda("cuCtxSetCurrent", cuda.context),
            cuda("cuMemsetD8Async", block, 1, 64, s),
            cuda("cuStreamSynchronize", s),
        ),
    )


def owners(cuda: Driver, title: str) -> Answers:
    """Give what becomes of memory once the context is gone in which it was allocated.

    Parameters
    ----------
    cuda
        The driver.
    title
        What remains: ``beside another``, a context; ``alone``, none, and another is made; ``reset``, the primary
        context is reset and goes on; ``released``, it is released by all and retained again.
    """
    cuda.begin()
    if title == "alone":
        cuda("cuDevicePrimaryCtxRelease_v2", cuda.device)
    owner = cuda.context
    if title in ("beside another", "alone"):
        owner = cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    memory = memory_of_each_kind(cuda, cuda.stream())
    for kind, address in memory.items():
        yield f"{kind}: a fill", cuda("cuMemsetD8_v2", address, 5, 64)
    yield "cuCtxSynchronize", cuda("cuCtxSynchronize")
    if title == "reset":
        yield "cuDevicePrimaryCtxReset", cuda("cuDevicePrimaryCtxReset_v2", cuda.device)
        cuda("cuCtxSetCurrent", cuda.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", cuda.device))
    elif title == "released":
        yield (
            "cuDevicePrimaryCtxRelease",
            cuda("cuDevicePrimaryCtxRelease_v2", cuda.device),
        )
        cuda("cuCtxSetCurrent", cuda.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", cuda.device))
    else:
        yield "cuCtxDestroy", cuda("cuCtxDestroy_v2", owner)
    if title == "alone":
        cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    elif title == "beside another":
        cuda("cuCtxSetCurrent", cuda.context)
    s = cuda.stream()
    for kind, address in memory.items():
        value, found = ctypes.c_uint64(), ctypes.create_string_buffer(1)
        at_value = ctypes.byref(value)
        yield f"gone: {kind}: memory type", cuda("cuPointerGetAttribute", at_value, 2, address)
        yield f"gone: {kind}: context", cuda("cuPointerGetAttribute", at_value, 1, address)
        code = cuda("cuMemcpyDtoH_v2", found, address, 1)
        yield f"gone: {kind}: a copy", (code, found.raw[0])
        if kind != "cuMemAlloc":  # its address may be the driver's own by now
            yield f"gone: {kind}: a fill", cuda("cuMemsetD8Async", address, 6, 64, s)
            yield f"gone: {kind}: its end", cuda("cuStreamSynchronize", s)
        if "Async" in kind:
            yield f"gone: {kind}: cuMemFreeAsync", cuda("cuMemFreeAsync", address, s)
        elif kind == "cuMemAlloc":
            yield f"gone: {kind}: cuMemFree", cuda("cuMemFree_v2", address)
        elif kind == "cuMemHostAlloc":
            yield f"gone: {kind}: cuMemFreeHost", cuda("cuMemFreeHost", address)
        else:
            yield f"gone: {kind}: cuMemUnmap", cuda("cuMemUnmap", address, 2 * MIB)
    yield "nothing has failed", cuda("cuCtxSynchronize")


SCENARIOS: dict[str, Callable[[Driver], Answers]] = {
    "frees": frees,
    "handles": handles,
    "captures": captures,
    "illegal address": lambda cuda: failed(cuda, "store_nowhere"),
    "kinds": kinds,
    "empty": empty,
    "currents": currents,
    "owners beside another": lambda cuda: owners(cuda, "beside another"),
    "owners alone": lambda cuda: owners(cuda, "alone"),
    "owners reset": lambda cuda: owners(cuda, "reset"),
    "owners released": lambda cuda: owners(cuda, "released"),
    "trap": lambda cuda: failed(cuda, "trap_now"),
}


def answers(scenario: str, environ: dict[str, str]) -> dict[str, Any]:
    """Run a scenario in its own process, and report the status of a process that dies."""
    done = subprocess.run(
        [sys.executable, __file__, "--answer", scenario],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    found: dict[str, Any] = dict(json.loads(line) for line in done.stdout.splitlines())
    return found if done.returncode == 0 else found | {"the process": done.returncode}


def differences(
    expected: dict[str, Any], found: dict[str, Any], but: Collection[str] = ()
) -> list[str]:
    """Describe each answer that differs in a line, but those of the calls in ``but``."""
    return [
        f"{call}: {found.get(call, 'nothing')} instead of {expected.get(call, 'nothing')}"
        for call in expected | found
        if call not in but and found.get(call) != expected.get(call)
    ]


def main(argv: list[str] | None = None) -> int:
    """Run all scenarios bare and interposed and print where they differ from what is recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.answers", description=__doc__)
    parser.add_argument("--answer", choices=SCENARIOS, help=argparse.SUPPRESS)
    parser.add_argument("--record", metavar="FILE", help="write the bare driver's answers there")
    args = parser.parse_args(argv)
    if args.answer:
        for call, answer in SCENARIOS[args.answer](Driver()):
            print(json.dumps([call, answer]), flush=True)
        return 0

    from jupyter_gpushare.benchmarks.harness.machine import machine

    with machine() as here:
        bare = {name: answers(name, here.bare_environ()) for name in SCENARIOS}
        ours = {name: answers(name, here.client_environ("answers")) for name in SCENARIOS}
    if args.record:
        Path(args.record).write_text(json.dumps(bare, indent=1) + "\n")
    recorded = json.loads(RECORDED.read_text())
    wrong = 0
    for title, expected, found, documented in (
        ("the bare driver, against what is recorded", recorded, bare, set[str]()),
        ("with the interposer, against the bare driver", bare, ours, KINDER),
    ):
        lines = [
            f"  {name}: {line}"
            for name in SCENARIOS
            for line in differences(expected.get(name, {}), found[name], but=documented)
        ]
        calls = sum(map(len, found.values()))
        print(f"{title}: {calls} answers, {len(lines)} different", *lines, sep="\n")
        wrong += len(lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
