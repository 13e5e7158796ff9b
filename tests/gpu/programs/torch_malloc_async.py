# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch with ``backend:cudaMallocAsync``: stream-ordered allocation from the driver's pool."""

from __future__ import annotations

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"

from common_torch import train_eagerly

if __name__ == "__main__":
    train_eagerly(seed=3)
