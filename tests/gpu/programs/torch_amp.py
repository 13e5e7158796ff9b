# SPDX-License-Identifier: BSD-3-Clause
"""Automatic mixed precision: fp16 with gradient scaling, and bf16, by turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, Transformer, begin, loss_of, moments, raw, state_of, tokens, torch

if __name__ == "__main__":
    args, device = begin(seed=6)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    # Too large at first: the first steps find infinities and are skipped.
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=3)
    held = Held(device, 256 << 20)

    def train(index: int) -> None:
        """Train for a few batches."""
        for turn in range(4):
            inputs, targets = tokens(device)
            kind = torch.bfloat16 if turn % 2 else torch.float16
            with torch.autocast(device.type, dtype=kind):
                logits = model(inputs)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss_of(logits, targets)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from state_of(device, model, extra=moments(optimizer))
        yield raw(torch.tensor(scaler.get_scale()))
        yield from held.state()

    step.run(args.steps, train, state)
