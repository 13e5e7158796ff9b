# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's autograd with activation checkpointing: layers are computed again in backward, dropout included."""

from __future__ import annotations

from typing import Any

from common_torch import torch, train_eagerly


def checkpointed(block: Any, x: Any) -> Any:
    """Keep no activations of a layer."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(block, x, use_reentrant=False) if torch.is_grad_enabled() else block(x)


if __name__ == "__main__":
    train_eagerly(seed=4, wrap=checkpointed)
