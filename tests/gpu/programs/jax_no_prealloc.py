# SPDX-License-Identifier: BSD-3-Clause
"""JAX that grows as it needs."""

from __future__ import annotations

from common_jax import train

if __name__ == "__main__":
    train(preallocate=False)
