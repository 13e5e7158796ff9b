# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton, which asks for the attributes of every pointer before it launches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, begin, raw, torch

args, device = begin(seed=14)
if device.type == "cpu":
    step.absent("Triton needs a GPU")
triton = step.load("triton")
tl = step.load("triton.language")
if not any(map(shutil.which, ("cc", "gcc", "clang"))):
    step.absent("Triton needs a C compiler")


# Triton looks annotations up and can do with its own only.


@triton.jit
def softmax(out, x, width, BLOCK: tl.constexpr):  # noqa: N803
    """One row a program."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * width + columns, mask=columns < width, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * width + columns, powers / tl.sum(powers, axis=0), mask=columns < width)


@triton.jit
def matmul(out, a, b, n, BLOCK: tl.constexpr):  # noqa: N803
    """One square a program."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(out + rows[:, None] * n + columns[None, :], total)


@triton.jit
def histogram(bins, x, n, BLOCK: tl.constexpr):  # noqa: N803
    """Integers: the order of atomic additions does not show."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(bins + (values * 255).to(tl.int32), 1, mask=at < n)


if __name__ == "__main__":
    n = 1024
    a = torch.rand(n, n, device=device, dtype=torch.float16)
    b = torch.rand(n, n, device=device, dtype=torch.float16)
    c = torch.zeros(n, n, device=device)
    d = torch.zeros(n, n, device=device)
    bins = torch.zeros(256, dtype=torch.int32, device=device)
    held = Held(device, 256 << 20)

    def compute(index: int) -> None:
        """Multiply, normalise, count, and go on with that."""
        for _ in range(60):
            matmul[(n // 64, n // 64)](c, a, b, n, BLOCK=64)
            softmax[(n,)](d, c, n, BLOCK=1024)
            histogram[(n * n // 1024,)](bins, d, n * n, BLOCK=1024)
            a.copy_((c * 0.37 + d).frac_())
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from map(raw, (a, c, d, bins))
        yield from held.state()

    step.run(args.steps, compute, state)
