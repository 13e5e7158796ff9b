# SPDX-License-Identifier: BSD-3-Clause
"""CUDA graphs: training steps replayed from a graph; another is captured halfway, and both go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import step
from common_torch import Held, Transformer, begin, loss_of, moments, state_of, tokens, torch


class Embedding(torch.nn.Embedding):
    """Looks up by a matrix product: the usual backward may ask the device how many words differ."""

    def forward(self, words: Any) -> Any:
        """Return a row of the weights for each word."""
        numbers = torch.arange(len(self.weight), device=words.device)
        return (words[..., None] == numbers).to(self.weight.dtype) @ self.weight


if __name__ == "__main__":
    args, device = begin(seed=7)
    model = Transformer()
    model.embedding = Embedding(*model.embedding.weight.shape)
    model.to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, capturable=device.type == "cuda", foreach=True
    )
    held = Held(device, 256 << 20)
    inputs, targets = (part.clone() for part in tokens(device))
    loss = torch.zeros((), device=device)

    def work() -> None:
        """Take one step on what lies in the static inputs."""
        optimizer.zero_grad(set_to_none=True)
        found = loss_of(model(inputs), targets)
        found.backward()
        optimizer.step()
        loss.copy_(found.detach())

    def captured() -> Callable[[], None]:
        """Return a replay of ``work``, in a memory pool of its own."""
        if device.type == "cpu":
            return work
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    replays = [captured()]

    def train(index: int) -> None:
        """Replay for a few batches."""
        if index == args.steps // 2:
            replays.append(captured())
        for turn in range(6):
            new_inputs, new_targets = tokens(device)
            inputs.copy_(new_inputs)
            targets.copy_(new_targets)
            replays[turn % len(replays)]()
        held.step(index)

    def state() -> Iterator[Any]:
        """Return what matters."""
        yield from state_of(device, model, extra=[*moments(optimizer), loss])
        yield from held.state()

    step.run(args.steps, train, state)
