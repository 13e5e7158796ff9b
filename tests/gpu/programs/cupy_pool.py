# SPDX-License-Identifier: BSD-3-Clause
"""CuPy with its own memory pool, which is emptied now and then."""

from __future__ import annotations

from typing import Any

from common_cupy import compute


def empty(cupy: Any) -> None:
    """Give back what is cached."""
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


if __name__ == "__main__":
    compute(lambda cupy: None, empty)
