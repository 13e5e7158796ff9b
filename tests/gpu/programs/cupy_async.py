# SPDX-License-Identifier: BSD-3-Clause
"""CuPy with the driver's stream-ordered pool."""

from __future__ import annotations

from typing import Any

from common_cupy import compute


def choose(cupy: Any) -> None:
    """Allocate with cudaMallocAsync."""
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)


if __name__ == "__main__":
    compute(choose, lambda cupy: None)
