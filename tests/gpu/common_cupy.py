# SPDX-License-Identifier: BSD-3-Clause
"""What the programs for CuPy share. Managed memory (``cupy.cuda.malloc_managed``) is never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import step

RAW = r"""
extern "C" __global__ void mix(unsigned *x, const unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1664525u + y[(i * 7919LL) % n];
}
"""


def compute(choose: Callable[[Any], object], collect: Callable[[Any], object]) -> None:
    """Compute with the allocator that ``choose`` sets; ``collect`` is called between steps."""
    args = step.arguments()
    if args.device == "cpu":
        step.absent("CuPy needs a GPU")
    cupy = step.load("cupy")
    numpy = step.load("numpy")
    choose(cupy)
    try:
        # CuPy loads cuRAND, cuBLAS and cuFFT when they are first used.
        random = cupy.random.RandomState(7)
        square = cupy.ones((16, 16), dtype=cupy.float32)
        cupy.fft.rfft(square @ square, axis=1)
    except ImportError as error:
        step.absent(f"CuPy lacks a library: {str(error).splitlines()[0]}")
    n = 1 << 22
    x = cupy.arange(n, dtype=cupy.uint32)
    y = cupy.arange(n, dtype=cupy.uint32)[::-1].copy()
    held = [cupy.full(8 << 20, i, dtype=cupy.uint32) for i in range(8)]
    a = random.random_sample((1024, 1024), dtype=cupy.float32)
    spectrum = cupy.zeros(1, dtype=cupy.complex64)
    kernel = cupy.RawKernel(RAW, "mix")
    side = cupy.cuda.Stream(non_blocking=True)
    kept: list[Any] = []

    def work(index: int) -> None:
        nonlocal a, spectrum
        for _ in range(8):
            kernel((n // 256,), (256,), (x, y, numpy.int32(n)))
            y[:] = cupy.sort(x ^ y)
            a = a @ a.T
            a /= cupy.abs(a).max()
            a += random.random_sample((1024, 1024), dtype=cupy.float32)
        cupy.cuda.Stream.null.synchronize()
        with side:
            held[index % len(held)] += x.sum(dtype=cupy.uint32)
            spectrum = cupy.fft.rfft(a, axis=1)
            kept.append(cupy.full((index + 1) * 300_007, index, dtype=cupy.int64).cumsum())
        side.synchronize()
        if len(kept) > 3:
            kept.pop(0)
        collect(cupy)

    def state() -> Iterator[Any]:
        for array in (x, y, a, spectrum, *kept):
            yield cupy.ascontiguousarray(array).get().reshape(-1).view(numpy.uint8)
        for array in held:
            yield array.sum(dtype=cupy.uint64).get().tobytes()
            yield array[::1024].get()

    step.run(args.steps, work, state)
