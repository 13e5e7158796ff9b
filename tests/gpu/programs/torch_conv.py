# SPDX-License-Identifier: BSD-3-Clause
"""A convolutional network with cuDNN, deterministic: its workspaces come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, begin, moments, state_of, torch


class Residual(torch.nn.Module):
    """Two convolutions and what goes past them. No pooling: its backward is not deterministic."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, groups=2, bias=False),
            nn.BatchNorm2d(after),
        )
        self.past = nn.Conv2d(before, after, 1, stride=2)

    def forward(self, x: Any) -> Any:
        """Add both ways."""
        return torch.relu(self.body(x) + self.past(x))


if __name__ == "__main__":
    args, device = begin(seed=10)
    size, batch = (128, 32) if device.type == "cuda" else (32, 2)
    body = torch.nn.Sequential(*(Residual(*pair) for pair in ((3, 64), (64, 128), (128, 256))))
    head = torch.nn.Linear(256, 10)
    model = torch.nn.ModuleList([body, head]).to(device)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    held = Held(device, 256 << 20)

    def train(index: int) -> None:
        """Train for a few batches, of another size in every other step."""
        for _ in range(3):
            pictures = torch.randn(batch + index % 2, 3, size, size, device=device)
            labels = torch.randint(10, (len(pictures),), device=device)
            loss = torch.nn.functional.cross_entropy(head(body(pictures).mean(dim=(2, 3))), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from state_of(device, model, extra=moments(optimizer))
        yield from held.state()

    step.run(args.steps, train, state)
