# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile: forward and backward as Triton kernels that Inductor made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

# Its pool of compiling processes takes longer to start than all there is to compile.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import step
from common_torch import Held, Transformer, begin, loss_of, moments, state_of, tokens, torch

if __name__ == "__main__":
    args, device = begin(seed=5)
    if device.type == "cuda":
        step.load("triton")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        step.absent("torch.compile needs a C compiler")
    model = Transformer(layers=2).to(device)
    inductor = step.load("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        # No choice among kernels by how long they took.
        inductor.deterministic = True
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held = Held(device, 256 << 20)

    def train(index: int) -> None:
        """Train for a few batches."""
        for _ in range(4):
            inputs, targets = tokens(device)
            loss = loss_of(compiled(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from state_of(device, model, extra=moments(optimizer))
        yield from held.state()

    step.run(args.steps, train, state)
