# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of ``answers.py`` about memory: what each kind is, whose it is, and what has no bytes."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tests.gpu.bare_calls import MIB, Answers, Driver

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
