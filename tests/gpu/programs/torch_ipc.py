# SPDX-License-Identifier: BSD-3-Clause
"""Two processes of one lease group share a CUDA tensor through torch.multiprocessing (legacy IPC)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, begin, raw, torch


def serve(orders: Any, answers: Any) -> None:
    """In the other process: take a tensor, then change it whenever told to."""
    torch.use_deterministic_algorithms(True)
    shared = orders.get()
    own = torch.ones_like(shared)
    answers.put("ready")
    while (order := orders.get()) is not None:
        own.mul_(3).add_(order)
        shared.add_(own)
        if shared.is_cuda:
            torch.cuda.synchronize()
        answers.put("done")


if __name__ == "__main__":
    args, device = begin(seed=11)
    held = Held(device, 256 << 20)
    shared = torch.arange(1 << 20, dtype=torch.int32, device=device)
    context = torch.multiprocessing.get_context("spawn")
    orders, answers = context.Queue(), context.Queue()
    other = context.Process(target=serve, args=(orders, answers), daemon=True)
    other.start()
    try:
        # In a thread of the queue: whether this process may export it is asked here, where it can be said.
        if device.type == "cuda":
            shared.untyped_storage()._share_cuda_()
        orders.put(shared)
    except RuntimeError as error:
        step.refused(error)

    def answer() -> str:
        """Wait for the other process."""
        while True:
            try:
                return str(answers.get(timeout=1.0))
            except Exception:
                if not other.is_alive():
                    step.refused(f"the other process ended with status {other.exitcode}")

    answer()

    def change(index: int) -> None:
        """Change it here, there, and here."""
        for turn in range(5):
            shared.mul_(5)
            if device.type == "cuda":
                torch.cuda.synchronize()
            orders.put(index + turn)
            answer()
            shared.sub_(1)
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield raw(shared)
        yield from held.state()

    step.run(args.steps, change, state)
    orders.put(None)
    other.join(20)
