# SPDX-License-Identifier: BSD-3-Clause
"""A program that holds device memory, works on it and checks every byte of it: the child of the benchmarks of moves.

One JSON list a line on standard input (command, arguments), one JSON value a line on standard output. It holds its
memory by PyTorch where that is installed and the GPU is real, else by the driver's API. Times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Bytes that are compared at once. The expected values take as much memory, in addition to the data.
PART = 256 << 20
#: Bytes of one page-locked copy, and of the host buffer that it uses.
COPY, BUFFER = 128 << 20, 1 << 30


def _cuda() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    number, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    for name, arguments in {
        "cuMemAlloc_v2": [pointer, size],
        "cuMemFree_v2": [number],
        "cuMemHostAlloc": [pointer, size, ctypes.c_uint],
        "cuMemFreeHost": [pointer],
        "cuMemcpyDtoH_v2": [pointer, number, size],
        "cuMemcpyDtoHAsync_v2": [pointer, number, size, pointer],
        "cuMemcpyHtoDAsync_v2": [number, pointer, size, pointer],
        "cuMemsetD8_v2": [number, ctypes.c_ubyte, size],
    }.items():
        getattr(cuda, name).argtypes = arguments
    return cuda


class DriverMemory:
    """Blocks of `cuMemAlloc`, each filled with one value."""

    def __init__(self) -> None:
        self.cuda = _cuda()
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.blocks: list[tuple[int, int, int]] = []
        self.added = 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver."""
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: CUDA error {result}")

    def hold(self, size: int, seed: int) -> None:
        """Allocate a block and fill it."""
        block = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(block), size)
        self.call("cuMemsetD8_v2", block.value, (seed + self.added) % 256, size)
        self.blocks.append((block.value, size, seed))

    def reserve(self, size: int) -> None:
        """Allocate a block and leave it as it is."""
        block = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(block), size)
        self.blocks.append((block.value, size, 0))

    def drop(self) -> None:
        """Free all."""
        for block, _, _ in self.blocks:
            self.call("cuMemFree_v2", block)
        self.blocks.clear()

    def touch(self) -> None:
        """Work on a little of the memory and wait for the end of it."""
        block, size, seed = self.blocks[0]
        self.call("cuMemsetD8_v2", block, (seed + self.added) % 256, min(size, 4096))

    def add(self) -> None:
        """Add one to every byte."""
        self.added += 1
        self.call("cuCtxSetCurrent", self.context)  # of this thread
        for block, size, seed in self.blocks:
            self.call("cuMemsetD8_v2", block, (seed + self.added) % 256, size)

    def equal(self) -> bool:
        """Whether every byte is what it should be."""
        for block, size, seed in self.blocks:
            found = ctypes.create_string_buffer(size)
            self.call("cuMemcpyDtoH_v2", found, block, size)
            if found.raw != bytes([(seed + self.added) % 256]) * size:
                return False
        return True


class TorchMemory:
    """Tensors of random bytes."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cuda")
        torch.zeros(1, device=self.device).add_(1)
        torch.cuda.synchronize()
        self.blocks: list[tuple[Any, int]] = []
        self.added = 0

    def _parts(self, block: Any, seed: int) -> Any:
        generator = self.torch.Generator(self.device).manual_seed(seed)
        for part in block.split(PART):
            made = self.torch.empty_like(part)
            made.random_(0, 256, generator=generator)
            yield part, made

    def hold(self, size: int, seed: int) -> None:
        """Allocate a tensor and fill it."""
        block = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        for part, made in self._parts(block, seed):
            part.copy_(made).add_(self.added % 256)
        self.torch.cuda.synchronize()
        self.blocks.append((block, seed))

    def reserve(self, size: int) -> None:
        """Allocate a tensor and leave it as it is."""
        self.blocks.append((self.torch.empty(size, dtype=self.torch.uint8, device=self.device), 0))

    def drop(self) -> None:
        """Free all."""
        self.blocks.clear()
        self.torch.cuda.empty_cache()

    def touch(self) -> None:
        """Work on a little of the memory and wait for the end of it."""
        self.blocks[0][0][:4096].add_(0)
        self.torch.cuda.synchronize()

    def add(self) -> None:
        """Add one to every byte."""
        self.added += 1
        for block, _ in self.blocks:
            block.add_(1)
        self.torch.cuda.synchronize()

    def equal(self) -> bool:
        """Whether every byte is what it should be."""
        return all(
            bool(self.torch.equal(part, made.add_(self.added % 256)))
            for block, seed in self.blocks
            for part, made in self._parts(block, seed)
        )


class Commands:
    """What the program can be told."""

    def __init__(self, torch: bool) -> None:
        self.memory = TorchMemory() if torch else DriverMemory()
        self.ours: Any = ctypes.CDLL(None)
        self._stop = threading.Event()
        self._worker: threading.Thread | None = None

    @contextlib.contextmanager
    def _cell(self) -> Iterator[None]:
        """Run the body as a cell: after work outside of cells, the next program has to wait for a pause."""
        shared = hasattr(self.ours, "gpushare_cell_begin")
        if shared:
            self.ours.gpushare_cell_begin(None)
        try:
            yield
        finally:
            if shared:
                self.ours.gpushare_cell_end(None)

    def hold(self, size: int, block: int, seed: int) -> None:
        """Hold ``size`` bytes in blocks of ``block`` bytes."""
        while size > 0:
            self.memory.hold(min(size, block), seed)
            size -= block
            seed += 1

    def reserve(self, size: int) -> None:
        """Hold one block that nothing is written to."""
        self.memory.reserve(size)

    def drop(self) -> None:
        """Free all."""
        self.memory.drop()

    def touch(self) -> tuple[float, float]:
        """One small kernel: when it was launched and when it was over. A cell of its own."""
        with self._cell():
            start = time.monotonic()
            self.memory.touch()
            end = time.monotonic()
        return start, end

    def add(self) -> None:
        """Add one to every byte, once. A cell of its own."""
        with self._cell():
            self.memory.add()

    def equal(self) -> bool:
        """Compare every byte."""
        return self.memory.equal()

    def work(self) -> None:
        """Begin to add one to every byte, again and again."""

        def run() -> None:
            while not self._stop.is_set():
                self.memory.add()

        self._stop.clear()
        self._worker = threading.Thread(target=run)
        self._worker.start()

    def rest(self) -> int:
        """End that; how often it was done."""
        self._stop.set()
        if self._worker is not None:
            self._worker.join()
        return self.memory.added

    def page_locked(self, size: int) -> dict[str, float]:
        """Return the bytes per second of copies between page-locked host memory and the device: each way, and both."""
        cuda = _cuda()
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        streams = [ctypes.c_void_p(), ctypes.c_void_p()]

        def call(name: str, *arguments: Any) -> None:
            if (result := getattr(cuda, name)(*arguments)) != 0:
                raise RuntimeError(f"{name}: CUDA error {result}")

        copy = min(COPY, size)
        # Either way has its half of the buffer, of whole copies; or there is room for one copy only.
        buffer = max(1, min(BUFFER, size) // (2 * copy) * 2) * copy
        call("cuMemHostAlloc", ctypes.byref(host), buffer, 0)
        call("cuMemAlloc_v2", ctypes.byref(device), buffer)
        for stream in streams:
            call("cuStreamCreate", ctypes.byref(stream), 1)

        def run(ways: int) -> float:
            start = time.monotonic()
            for i in range(size // copy):
                at = i * copy % buffer
                if ways & 1:
                    out = (address + at, device.value + at, copy, streams[0])
                    call("cuMemcpyDtoHAsync_v2", *out)
                if ways & 2:
                    at = (at + buffer // 2) % buffer if buffer > copy else at
                    back = (device.value + at, address + at, copy, streams[1])
                    call("cuMemcpyHtoDAsync_v2", *back)
            for stream in streams:
                call("cuStreamSynchronize", stream)
            return (2 if ways == 3 else 1) * (size // copy) * copy / (time.monotonic() - start)

        address = host.value or 0
        run(3)
        found = {"out": run(1), "back": run(2), "both": run(3)}
        call("cuMemFree_v2", device)
        call("cuMemFreeHost", host)
        return found


def end(process: subprocess.Popen[str]) -> None:
    """End a process, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class Holder:
    """The parent's end of one.

    Parameters
    ----------
    environ
        Of the process.
    torch
        Whether it uses PyTorch.
    started
        Is told of the process before that is waited for.
    """

    #: What runs in the process.
    module = __name__

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        torch: bool,
        started: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    ) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                self.module,
                *(["--torch"] if torch else []),
            ],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        started(self.process)
        self.read()

    def send(self, *command: Any) -> None:
        """Start a command; ``read`` gets its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")

    def read(self) -> Any:
        """Return the answer to the oldest command that has none yet."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the holder ended with status {self.process.wait()}")
        return json.loads(line)

    def call(self, *command: Any) -> Any:
        """Carry out a command and return its answer."""
        self.send(*command)
        return self.read()

    def close(self) -> None:
        """End the process."""
        end(self.process)


def torch_can(simulated: bool) -> bool:
    """Whether holders use PyTorch: it is installed and the driver is a real one."""
    return not simulated and importlib.util.find_spec("torch") is not None


def serve(commands: object) -> int:
    """Carry out what comes on standard input until it ends."""
    print("true", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(commands, name)(*arguments)), flush=True)
    return 0


def main(kind: type[Commands] = Commands) -> int:
    """Carry out commands."""
    if os.environ.get("GPUSHARE_SIM") != "1" and os.environ.get("GPUSHARE_FORBID_MANAGED") != "1":
        print("holder: set GPUSHARE_FORBID_MANAGED=1 on a real GPU", file=sys.stderr)
        return 2
    return serve(kind("--torch" in sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
