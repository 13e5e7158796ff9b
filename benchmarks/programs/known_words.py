# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose memory can be checked word by word: a notebook with pauses, and a rank of a job.

The benchmark ``two_gpus`` starts them::

    python -m jupyter_gpushare.benchmarks.programs.known_words notebook KIND BYTES SEED SECONDS
    python -m jupyter_gpushare.benchmarks.programs.known_words rank NUMBER RANKS PORT BYTES SECONDS

KIND is ``torch`` or ``small``. Each program prints lines of JSON: when it is ready, after each cell with the seconds
that it took, and at the end, whether all words are right. It waits for a line of input before the first cell.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
import uuid
from typing import Any

#: Maximum number of words in a tensor. The first value of a word is its index plus the seed, in 32 bits.
PART = 1 << 30
WORD = 0xFFFFFFFF


def report(**what: Any) -> None:
    """Report to the benchmark, as a line of JSON."""
    print(json.dumps(what), flush=True)


def device_uuid() -> str:
    """Return the UUID of this program's first device."""
    cuda, found = ctypes.CDLL("libcuda.so.1"), (ctypes.c_uint8 * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGetUuid_v2(found, 0):
        raise SystemExit("CUDA does not start")
    return str(uuid.UUID(bytes=bytes(found)))


def after(passes: int, seed: int) -> tuple[int, int]:
    """Return ``factor`` and ``term``: after these passes, a word ``x`` is ``factor * x + term``, in 32 bits.

    ``seed`` is the value of ``term`` before the first pass.
    """
    factor, term = 1, seed
    for _ in range(passes):
        factor, term = factor * 3 & WORD, (term * 3 + 1) & WORD
    return factor, term


def signed(word: int) -> int:
    """Return the signed number that a 32-bit word represents."""
    return word - (1 << 32) if word >> 31 else word


class TorchData:
    """Integers on the GPU. A pass triples each of them and adds one, so that the value of every word is known."""

    def __init__(self, size: int, seed: int) -> None:
        import torch

        self.torch, self.seed = torch, seed
        self.parts = []
        for start in range(0, size // 4, PART):
            words = min(PART, size // 4 - start)
            part = torch.arange(words, dtype=torch.int32, device="cuda")
            self.parts.append(part.add_(seed))

    def compute(self, passes: int) -> None:
        """Make this number of passes over all words."""
        for _ in range(passes):
            for part in self.parts:
                part.mul_(3).add_(1)
        self.torch.cuda.synchronize()

    def is_right(self, passes: int) -> bool:
        """Return whether each word has the expected value."""
        factor, term = map(signed, after(passes, self.seed))
        torch, block = self.torch, 1 << 26
        for part in self.parts:
            for start in range(0, len(part), block):
                found = part[start : start + block]
                words = torch.arange(
                    start, start + len(found), dtype=torch.int32, device=part.device
                )
                if not torch.equal(found, words.mul_(factor).add_(term)):
                    return False
        return True


class SmallData:
    """The same without PyTorch: a pass fills all words with their next value."""

    def __init__(self, size: int, seed: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.cuda.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]
        self.cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        self._ok(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._ok(self.cuda.cuCtxSetCurrent(context))
        self._ok(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), size))
        self.at, self.size, self.seed = pointer.value, size, seed
        self.passes = 0
        self.compute(0)

    @staticmethod
    def _ok(result: int) -> None:
        if result:
            raise SystemExit(f"the driver returned {result}")

    def compute(self, passes: int) -> None:
        """Make this number of passes over all words."""
        for _ in range(max(1, passes)):
            self.passes += passes > 0
            word = after(self.passes, self.seed)[1]
            self._ok(self.cuda.cuMemsetD32_v2(self.at, word, self.size // 4))
        self._ok(self.cuda.cuCtxSynchronize())

    def is_right(self, passes: int) -> bool:
        """Return whether each word has the expected value."""
        host = (ctypes.c_uint32 * (self.size // 4))()
        self._ok(self.cuda.cuMemcpyDtoH_v2(host, self.at, self.size))
        expected = after(passes, self.seed)[1].to_bytes(4, sys.byteorder) * (self.size // 4)
        return memoryview(host).cast("B") == expected


def notebook(kind: str, size: int, seed: int, seconds: float) -> None:
    """Compute in bursts, with pauses to think, as a person with a notebook does."""
    # In a Jupyter kernel, hooks report when cells begin and end.
    ours = ctypes.CDLL("libcuda.so.1")
    where = device_uuid()
    data: TorchData | SmallData = (TorchData if kind == "torch" else SmallData)(size, seed)
    report(event="ready", device=where)
    sys.stdin.readline()
    rng, done, cell = random.Random(seed), 0, 0
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        cell += 1
        ours.gpushare_cell_begin(f"cell-{cell}".encode())
        passes = rng.randint(4, 20)
        data.compute(passes)
        done += passes
        ours.gpushare_cell_end(f"cell-{cell}".encode())
        report(event="cell", seconds=time.monotonic() - began, passes=passes)
        time.sleep(rng.uniform(0.5, 3.0) if kind == "torch" else rng.uniform(0.0, 0.1))
    report(event="end", right=data.is_right(done), passes=done)


def rank(number: int, ranks: int, port: int, size: int, seconds: float) -> None:
    """Train as one of several ranks, in miniature: at each step, they add up their words and continue with the sum."""
    import torch
    from torch import distributed

    torch.cuda.set_device(number)
    distributed.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks
    )
    ballast = torch.full((size // 4,), 0xA0 + number, dtype=torch.int32, device="cuda")
    words = torch.full((16 << 20,), number + 1, dtype=torch.int32, device="cuda")
    over = torch.zeros(1, dtype=torch.int32, device="cuda")
    distributed.all_reduce(over)
    torch.cuda.synchronize()
    report(event="ready", device=str(torch.cuda.get_device_properties(number).uuid))
    sys.stdin.readline()
    step, end = 0, time.monotonic() + seconds
    while not int(over.item()):
        began = time.monotonic()
        for _ in range(50):
            step += 1
            distributed.all_reduce(words)
            words.add_(step + number)
            ballast.add_(1)
        over.fill_(int(number == 0 and time.monotonic() >= end))
        distributed.broadcast(over, 0)
        torch.cuda.synchronize()
        report(event="cell", seconds=time.monotonic() - began, passes=50)
    expected = expected_words(ranks, step)[number]
    right = bool((words == signed(expected)).all()) and bool(
        (ballast == signed((0xA0 + number + step) & WORD)).all()
    )
    report(event="end", right=right, passes=step)
    distributed.barrier()
    distributed.destroy_process_group()


def expected_words(ranks: int, steps: int) -> list[int]:
    """Return the word that each rank has after these steps."""
    words = [number + 1 for number in range(ranks)]
    for step in range(1, steps + 1):
        total = sum(words)
        words = [(total + step + number) & WORD for number in range(ranks)]
    return words


def main(arguments: list[str]) -> None:
    """Run one of the programs."""
    program, *given = arguments
    if program == "notebook":
        notebook(given[0], int(given[1]), int(given[2]), float(given[3]))
    else:
        number, ranks, port, size = map(int, given[:4])
        rank(number, ranks, port, size, float(given[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
