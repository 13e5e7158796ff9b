# SPDX-License-Identifier: BSD-3-Clause
"""JAX that takes its share of the GPU at the start."""

from __future__ import annotations

from common_jax import train

if __name__ == "__main__":
    train(preallocate=True)
