# SPDX-License-Identifier: BSD-3-Clause
"""A kernel that is hibernated again and again: the child of the benchmark of hibernation.

Beside what it holds it keeps what a checkpoint could break: a stream, an event, page-locked host memory and a graph,
whose contents are known at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

from .holder import Commands, DriverMemory, Holder, TorchMemory, main

#: Bytes of what is kept in addition to the blocks.
SMALL = 1 << 20
#: What the driver answers where a wait was ended by an interrupt, and how PyTorch words it.
CANCELLED = ("CUDA error 304", "OS call failed")
#: How a cell may begin.
FIRST = ("touch", "query", "info", "free")


class Beside(Protocol):
    """A stream, an event, page-locked memory and a graph."""

    def query(self) -> None:
        """Ask whether the event was reached."""

    def info(self) -> None:
        """Ask how much memory is free."""

    def spare(self) -> None:
        """Allocate a block that ``free`` frees."""

    def free(self) -> None:
        """Free it."""

    def copy(self) -> bool:
        """Copy from page-locked memory and back; whether it was, and is, as it should be."""

    def stream(self) -> None:
        """Use the stream and the event."""

    def graph(self) -> bool:
        """Launch the graph; whether its result is right."""

    def drop(self, index: int) -> int:
        """Free a block of what is held, and return its size."""


class DriverBeside:
    """By the driver's calls."""

    def __init__(self, memory: DriverMemory) -> None:
        self._memory, self._cuda, self._call = memory, memory.cuda, memory.call
        number, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
        for name, arguments in {
            "cuMemcpyDtoDAsync_v2": [number, number, size, pointer],
            "cuStreamBeginCapture_v2": [pointer, ctypes.c_int],
            "cuGraphInstantiateWithFlags": [pointer, pointer, ctypes.c_uint64],
        }.items():
            getattr(self._cuda, name).argtypes = arguments
        self._stream, self._event, self._host = (ctypes.c_void_p() for _ in range(3))
        self._exec = ctypes.c_void_p()
        self._from, self._to = self._block(), self._block()
        self._spare: int | None = None
        self._value = 1
        self._call("cuStreamCreate", ctypes.byref(self._stream), 1)
        self._call("cuEventCreate", ctypes.byref(self._event), 0)
        self._call("cuMemHostAlloc", ctypes.byref(self._host), SMALL, 0)
        ctypes.memset(self._host, self._value, SMALL)
        graph = ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", self._stream, 2)
        self._call("cuMemcpyDtoDAsync_v2", self._to, self._from, SMALL, self._stream)
        self._call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(self._exec), graph, 0)
        self.stream()

    def _block(self) -> int:
        block = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(block), SMALL)
        return block.value

    def query(self) -> None:
        self._call("cuEventQuery", self._event)

    def info(self) -> None:
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", *map(ctypes.byref, sizes))

    def spare(self) -> None:
        if self._spare is None:
            self._spare = self._block()

    def free(self) -> None:
        if self._spare is not None:
            self._call("cuMemFree_v2", self._spare)
            self._spare = None

    def _is(self, value: int) -> bool:
        return ctypes.string_at(self._host, SMALL) == bytes([value]) * SMALL

    def copy(self) -> bool:
        before = self._is(self._value)
        self._call("cuMemcpyHtoDAsync_v2", self._from, self._host, SMALL, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        ctypes.memset(self._host, 0, SMALL)
        self._call("cuMemcpyDtoHAsync_v2", self._host, self._from, SMALL, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        after = self._is(self._value)
        self._value = self._value % 255 + 1
        ctypes.memset(self._host, self._value, SMALL)
        return before and after

    def stream(self) -> None:
        self._call("cuEventRecord", self._event, self._stream)
        self._call("cuStreamWaitEvent", self._stream, self._event, 0)
        self._call("cuStreamSynchronize", self._stream)

    def graph(self) -> bool:
        self._call("cuMemsetD8_v2", self._to, 0, SMALL)
        self._call("cuGraphLaunch", self._exec, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        found = [ctypes.create_string_buffer(SMALL) for _ in range(2)]
        for buffer, block in zip(found, (self._from, self._to), strict=True):
            self._call("cuMemcpyDtoH_v2", buffer, block, SMALL)
        return found[0].raw == found[1].raw

    def drop(self, index: int) -> int:
        block, size, _ = self._memory.blocks.pop(index)
        self._call("cuMemFree_v2", block)
        return size


class TorchBeside:
    """By PyTorch."""

    def __init__(self, memory: TorchMemory) -> None:
        torch, self._memory = memory.torch, memory
        self._torch = torch
        self._stream, self._event = torch.cuda.Stream(), torch.cuda.Event()
        self._host = torch.zeros(SMALL, dtype=torch.uint8).pin_memory()
        self._copied = torch.zeros(SMALL, dtype=torch.uint8, device=memory.device)
        self._counted = torch.zeros(SMALL, dtype=torch.uint8, device=memory.device)
        self._spare: Any = None
        self._value = self._launches = 0
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._counted.add_(1)
        self.stream()

    def query(self) -> None:
        self._event.query()

    def info(self) -> None:
        self._torch.cuda.mem_get_info()

    def spare(self) -> None:
        # A segment of its own in PyTorch's cache, so that the driver is asked to free it.
        self._spare = self._torch.empty(32 << 20, dtype=self._torch.uint8, device="cuda")

    def free(self) -> None:
        self._spare = None
        self._torch.cuda.empty_cache()

    def _is(self, value: int) -> bool:
        return bool((self._host == value).all())

    def copy(self) -> bool:
        before = self._is(self._value)
        self._copied.copy_(self._host, non_blocking=True)
        self._torch.cuda.synchronize()
        self._host.zero_()
        self._host.copy_(self._copied, non_blocking=True)
        self._torch.cuda.synchronize()
        after = self._is(self._value)
        self._value = (self._value + 1) % 256
        self._host.fill_(self._value)
        return before and after

    def stream(self) -> None:
        with self._torch.cuda.stream(self._stream):
            self._copied.add_(0)
            self._event.record()
        self._torch.cuda.current_stream().wait_event(self._event)
        self._torch.cuda.synchronize()

    def graph(self) -> bool:
        self._graph.replay()
        self._launches += 1
        return bool((self._counted == self._launches % 256).all())

    def drop(self, index: int) -> int:
        block, _ = self._memory.blocks.pop(index)
        return int(block.numel())


class Sleeper(Commands):
    """What the program can be told."""

    def __init__(self, torch: bool) -> None:
        super().__init__(torch)
        self._beside: Beside | None = None
        self._seed = 0

    @contextlib.contextmanager
    def _cell(self) -> Iterator[None]:
        self._tell("begin")
        try:
            yield
        finally:
            self._tell("end")

    def _tell(self, phase: str) -> None:
        if hasattr(self.ours, f"gpushare_cell_{phase}"):
            getattr(self.ours, f"gpushare_cell_{phase}")(None)

    @property
    def beside(self) -> Beside:
        """The state that is kept in addition to the blocks; created at its first use."""
        if self._beside is None:
            memory: Any = self.memory
            kind: Any = TorchBeside if isinstance(memory, TorchMemory) else DriverBeside
            self._beside = kind(memory)
            assert self._beside is not None
        return self._beside

    def start(self, size: int, block: int, seed: int) -> None:
        """Hold ``size`` bytes in blocks of ``block`` bytes, in a cell."""
        with self._cell():
            self.hold(size, block, seed)
        self._seed = seed + 1000

    def cell(self, passes: int) -> tuple[float, float, float]:
        """Add one to every byte in each pass; return when this began, and when the first and the last kernel ended."""
        with self._cell():
            began = time.monotonic()
            self.memory.touch()
            first = time.monotonic()
            for _ in range(passes):
                self.memory.add()
            return began, first, time.monotonic()

    def equal(self) -> bool:
        """Compare every byte, in a cell."""
        with self._cell():
            return super().equal()

    def first(self, call: str) -> bool:
        """Begin a cell with a call of this kind; False if an interrupt ended it."""
        try:
            with self._cell():
                if call == "touch":
                    self.memory.touch()
                else:
                    getattr(self.beside, call)()
        except RuntimeError as error:
            if any(text in str(error) for text in CANCELLED):
                return False
            raise
        return True

    def varied(self, seed: int) -> bool:
        """Run a cell of some random work; whether all that is known of it is right."""
        rng, right = random.Random(seed), True
        with self._cell():
            for _ in range(rng.randint(1, 4)):
                match rng.choice(("add", "replace", "copy", "stream", "graph", "spare", "nothing")):
                    case "add":
                        self.memory.add()
                    case "replace":
                        size = self.beside.drop(rng.randrange(len(self.memory.blocks)))
                        self._seed += 1
                        self.memory.hold(size, self._seed)
                    case "copy":
                        right &= self.beside.copy()
                    case "stream":
                        self.beside.stream()
                    case "graph":
                        right &= self.beside.graph()
                    case "spare":
                        self.beside.spare()
                    case _:
                        pass
        return right


class Kernel(Holder):
    """The parent's end of one."""

    module = __name__


if __name__ == "__main__":
    sys.exit(main(Sleeper))
