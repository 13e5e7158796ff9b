# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch, eager: a transformer with dropout and AdamW, and allocations of odd sizes."""

from __future__ import annotations

from common_torch import train_eagerly

if __name__ == "__main__":
    train_eagerly(seed=1)
