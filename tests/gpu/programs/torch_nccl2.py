# SPDX-License-Identifier: BSD-3-Clause
"""Two ranks on two GPUs train one model through NCCL: no rank may wait for memory that the other holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import step
from common_torch import Held, Transformer, begin, loss_of, raw, state_of, tokens, torch


def rank(number: int, port: int, meet: Any, parsed: Any) -> None:
    """Train as one of two ranks. The first reports the results."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cuda = parsed.device == "cuda"
    device = torch.device("cuda", number) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    torch.distributed.init_process_group("nccl" if cuda else "gloo", rank=number, world_size=2)
    torch.manual_seed(12)
    model = Transformer(dropout=0.0).to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    held = Held(device, 256 << 20)
    torch.manual_seed(13 + number)

    def train(index: int) -> None:
        # While the first rank waits until all memory has been evicted, a collective of the second would occupy the GPU.
        meet.wait()
        for _ in range(3):
            inputs, targets = tokens(device)
            loss = loss_of(parallel(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held.step(index)
        sums = torch.stack([block.sum(dtype=torch.int64) for block in held.blocks])
        torch.distributed.all_reduce(sums)
        seen[:] = [sums]

    def state() -> Iterator[Any]:
        yield from state_of(device, model, extra=seen)
        yield from held.state()

    seen: list[Any] = []
    if number == 0:
        step.run(parsed.steps, train, state)
    else:
        for index in range(parsed.steps):
            train(index)
            step.digests(map(raw, seen))
    # The memory may still be on its way to the host after the last step, too.
    meet.wait()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    args, device = begin()
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        step.absent("there is one GPU")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    meet = torch.multiprocessing.get_context("spawn").Barrier(2)
    torch.multiprocessing.spawn(rank, args=(port, meet, args), nprocs=2)
