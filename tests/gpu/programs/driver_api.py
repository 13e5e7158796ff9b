# SPDX-License-Identifier: BSD-3-Clause
"""The driver's API itself, without a library: blocks of many sizes, memset, copies, work in flight. Runs everywhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import step

SIZES = (1, 511, 4096, 65_537, 1 << 20, (1 << 20) + 12, 2 << 20, (4 << 20) + 4096)


def check(result: int) -> None:
    """Take an error for the end."""
    if result:
        raise RuntimeError(f"CUDA error {result}")


if __name__ == "__main__":
    args = step.arguments()
    if args.device == "cpu":
        step.absent("there is no driver for the CPU")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        step.absent(str(error))
    u64, size = ctypes.c_uint64, ctypes.c_size_t
    cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, size]
    cuda.cuDeviceTotalMem_v2.argtypes = [ctypes.c_void_p, ctypes.c_int]
    cuda.cuMemFree_v2.argtypes = [u64]
    cuda.cuMemsetD8Async.argtypes = [u64, ctypes.c_ubyte, size, ctypes.c_void_p]
    cuda.cuMemcpyHtoD_v2.argtypes = [u64, ctypes.c_void_p, size]
    cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, u64, size]
    cuda.cuMemcpyDtoDAsync_v2.argtypes = [u64, u64, size, ctypes.c_void_p]
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))

    def allocate(bytes: int) -> int:
        """Return the address of a new block."""
        pointer = u64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), bytes))
        return pointer.value

    total = size()
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    # So much of a GPU of any size that it is worth taking away.
    large = min(16 << 20, total.value >> 8) + 4096
    blocks: list[tuple[int, int]] = []
    for index, length in enumerate((*SIZES * 2, *[large] * 12)):
        address = allocate(length)
        check(cuda.cuMemcpyHtoD_v2(address, bytes([index]) * length, length))
        blocks.append((address, length))

    def change(index: int) -> None:
        """Write parts, copy between blocks, replace one block."""
        for turn in range(20):
            to, length = blocks[(index + turn) % len(blocks)]
            source, other = blocks[(index * 5 + turn * 3 + 1) % len(blocks)]
            part = max(1, min(length, other) // 2)
            if to != source:
                check(cuda.cuMemcpyDtoDAsync_v2(to + length - part, source, part, None))
            check(cuda.cuMemsetD8Async(to, (index * 31 + turn) % 256, max(1, length // 3), None))
        check(cuda.cuCtxSynchronize())
        old, length = blocks.pop(index % len(blocks))
        check(cuda.cuMemFree_v2(old))
        new = allocate(length + index)
        check(cuda.cuMemsetD8Async(new, index % 256, length + index, None))
        blocks.append((new, length + index))
        check(cuda.cuCtxSynchronize())

    def state() -> Iterator[Any]:
        """Return all bytes."""
        for address, length in blocks:
            host = ctypes.create_string_buffer(length)
            check(cuda.cuMemcpyDtoH_v2(host, address, length))
            yield host.raw

    step.run(args.steps, change, state)
