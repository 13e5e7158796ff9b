# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Numba: shared memory, atomics, two streams, pinned host memory. Managed memory is never used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import step

args = step.arguments()
if args.device == "cpu":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
numpy = step.load("numpy")
if not hasattr(numpy, "row_stack"):
    # NumPy 2.5 dropped the alias, which released versions of numba-cuda still look up.
    numpy.row_stack = numpy.vstack
numba = step.load("numba")
cuda = step.load("numba.cuda")
if args.device != "cpu":
    step.load("numba.cuda.cudaimpl")
if not cuda.is_available():
    step.absent("Numba sees no GPU")


@cuda.jit
def mix(x: Any, y: Any) -> None:
    """Integers that overflow, and neighbours."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * numpy.uint32(1664525) + y[(i * 7919) % y.size]


@cuda.jit
def sums(out: Any, x: Any) -> None:
    """One sum a group of threads, through shared memory, in a fixed order."""
    tile = cuda.shared.array(128, numba.float32)
    at, i = cuda.threadIdx.x, cuda.grid(1)
    tile[at] = numpy.float32(x[i] & numpy.uint32(1023)) if i < x.size else numpy.float32(0)
    cuda.syncthreads()
    width = 64
    while width:
        if at < width:
            tile[at] += tile[at + width]
        cuda.syncthreads()
        width //= 2
    if at == 0:
        out[cuda.blockIdx.x] += tile[0]


@cuda.jit
def count(bins: Any, x: Any) -> None:
    """Integers: the order of atomic additions does not show."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i] >> numpy.uint32(24), 1)


if __name__ == "__main__":
    on_gpu = args.device == "cuda"
    n = 1 << 23 if on_gpu else 1 << 8
    x = cuda.to_device(numpy.arange(n, dtype=numpy.uint32))
    y = cuda.to_device(numpy.arange(n, dtype=numpy.uint32)[::-1].copy())
    out = cuda.to_device(numpy.zeros(n // 128, dtype=numpy.float32))
    bins = cuda.to_device(numpy.zeros(256, dtype=numpy.int32))
    held = [cuda.to_device(numpy.full(n, i, dtype=numpy.uint32)) for i in range(8)]
    side = cuda.stream()
    host = cuda.pinned_array(n, dtype=numpy.uint32) if on_gpu else numpy.zeros(n, numpy.uint32)

    def compute(index: int) -> None:
        """Kernels on one stream, copies through pinned memory on another."""
        for _ in range(30 if on_gpu else 3):
            mix[n // 128, 128](x, y)
            sums[n // 128, 128](out, x)
            count[n // 128, 128](bins, x)
        cuda.synchronize()
        block = held[index % len(held)]
        block.copy_to_host(host, stream=side)
        side.synchronize()
        host[index] += 17
        block.copy_to_device(host, stream=side)
        side.synchronize()
        mix[n // 128, 128](y, block)
        cuda.synchronize()

    def state() -> Iterator[Any]:
        """Return what matters."""
        for array in (x, out, bins):
            yield array.copy_to_host()
        yield y[: 1 << 16].copy_to_host()
        for block in held:
            yield block[: 1 << 16].copy_to_host()

    step.run(args.steps, compute, state)
