# SPDX-License-Identifier: BSD-3-Clause
"""DataLoader workers: processes forked from one that uses the GPU, pinned memory, copies without waiting."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, begin, moments, state_of, torch

from torch.utils.data import DataLoader, Dataset  # isort: skip


class Images(Dataset):
    """Pictures that are computed on the CPU from their index."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Any, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % 10


if __name__ == "__main__":
    # Python 3.12 warns of forks while threads run, which is what DataLoader does by default.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    args, device = begin(seed=8)
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 64 * 64, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    held = Held(device, 256 << 20)
    # GPU memory first, workers then: they are forked from a process with a context.
    held.step(0)
    pinned = device.type == "cuda"

    def batches(persistent: bool) -> Any:
        """Return a loader with two workers."""
        order = torch.Generator().manual_seed(9)
        return DataLoader(
            Images(),
            batch_size=64,
            shuffle=True,
            generator=order,
            num_workers=2,
            pin_memory=pinned,
            persistent_workers=persistent,
        )

    kept = batches(persistent=True)

    def train(index: int) -> None:
        """Train for an epoch; every third has new workers."""
        for pictures, labels in batches(persistent=False) if index % 3 == 2 else kept:
            pictures = pictures.to(device, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(
                model(pictures), labels.to(device, non_blocking=True)
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from state_of(device, model, extra=moments(optimizer))
        yield from held.state()

    step.run(args.steps, train, state)
