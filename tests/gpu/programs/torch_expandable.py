# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch with ``expandable_segments:True``: its allocator maps memory by itself (the application's own VMM)."""

from __future__ import annotations

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

from common_torch import train_eagerly

if __name__ == "__main__":
    train_eagerly(seed=2)
