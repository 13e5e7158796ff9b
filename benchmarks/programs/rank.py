# SPDX-License-Identifier: BSD-3-Clause
"""One process of several that compute together: each step, all add up what each has on its GPU.

What stands for the collective operation's kernel is work of the stream that does not end before all others have come as
far. As with the real one, steps are submitted ahead of what is done.

Run as ``rank DEVICE RANK RANKS STEPS FILE BYTES``, on the simulated driver: FILE is what the processes share (512 bytes
for how far each has come, then 4 times ``WORDS`` words for each: what it has said, and heard, in this step and the
next), BYTES is what each holds in addition. It waits for a line before the steps, and prints one when it is ready and
one with its result.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time

WORDS = 256
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cuda.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]
cuda.cuMemsetD32Async.argtypes = [
    ctypes.c_uint64,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_void_p,
]
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
cuda.cuMemcpyDtoHAsync_v2.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
]
cuda.cuMemcpyHtoDAsync_v2.argtypes = [
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
]
cuda.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
cuda.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def ok(result: int) -> None:
    """End the program with what went wrong."""
    if result:
        raise SystemExit(f"the driver answered {result}")


class Rank:
    """One of the processes."""

    def __init__(self, device: int, rank: int, ranks: int, path: str, size: int) -> None:
        self.rank, self.ranks = rank, ranks
        ok(cuda.cuInit(0))
        context = ctypes.c_void_p()
        ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        ok(cuda.cuCtxSetCurrent(context))
        self.size = size
        self.ballast = self.allocate(size)
        ok(cuda.cuMemsetD32_v2(self.ballast, 0xA0 + rank, size // 4))
        self.words = self.allocate(4 * WORDS)
        ok(cuda.cuMemsetD32_v2(self.words, rank + 1, WORDS))
        descriptor = os.open(path, os.O_RDWR)
        length = os.fstat(descriptor).st_size
        self.memory = mmap.mmap(descriptor, length)
        os.close(descriptor)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ok(cuda.cuMemHostRegister_v2(self.base, length, 0))
        self.reached = (ctypes.c_int64 * ranks).from_buffer(self.memory)
        self.keep: list[object] = []

    @staticmethod
    def allocate(size: int) -> int:
        pointer = ctypes.c_uint64()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), size))
        return int(pointer.value)

    def at(self, rank: int, half: int, heard: bool) -> int:
        """Return the address of what one has said, or heard, in this step."""
        return self.base + 512 + 4 * WORDS * (4 * rank + 2 * half + heard)

    def meet(self, step: int) -> None:
        """Wait for the others' parts of a step, and add them up."""
        self.reached[self.rank] = step
        while min(self.reached) < step:
            time.sleep(0.0005)
        half = step % 2
        first = (ctypes.c_uint32 * WORDS).from_address(self.at(0, half, False))
        total = sum(
            (ctypes.c_uint32 * WORDS).from_address(self.at(other, half, False))[0]
            for other in range(self.ranks)
        )
        heard = (ctypes.c_uint32 * WORDS).from_address(self.at(self.rank, half, True))
        assert len(set(first)) == 1
        heard[:] = [(total + step + self.rank) & 0xFFFFFFFF] * WORDS

    def submit(self, step: int) -> None:
        """Submit a step without waiting for it."""
        half = step % 2
        function = HOST_FUNCTION(lambda _: self.meet(step))
        self.keep.append(function)
        said, heard = self.at(self.rank, half, False), self.at(self.rank, half, True)
        ok(cuda.cuMemcpyDtoHAsync_v2(said, self.words, 4 * WORDS, None))
        ok(cuda.cuLaunchHostFunc(None, function, None))
        ok(cuda.cuMemcpyHtoDAsync_v2(self.words, heard, 4 * WORDS, None))
        ok(cuda.cuMemsetD32Async(self.ballast, 0xA0 + self.rank, self.size // 64, None))

    def run(self, steps: int) -> dict[str, object]:
        """Do all steps, and say what is on the GPU then."""
        for step in range(1, steps + 1):
            self.submit(step)
            if step % 8 == 0:
                ok(cuda.cuCtxSynchronize())
        ok(cuda.cuCtxSynchronize())
        words = (ctypes.c_uint32 * WORDS)()
        ok(cuda.cuMemcpyDtoH_v2(words, self.words, 4 * WORDS))
        ballast = (ctypes.c_uint32 * (self.size // 4))()
        ok(cuda.cuMemcpyDtoH_v2(ballast, self.ballast, self.size))
        whole = set(memoryview(ballast).cast("B").cast("I")) == {0xA0 + self.rank}
        return {"word": words[0], "alike": len(set(words)) == 1, "ballast": whole}


def main() -> None:
    """Compute."""
    device, rank, ranks, steps = map(int, sys.argv[1:5])
    one = Rank(device, rank, ranks, sys.argv[5], int(sys.argv[6]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(one.run(steps)), flush=True)


if __name__ == "__main__":
    main()
