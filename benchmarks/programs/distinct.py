# SPDX-License-Identifier: BSD-3-Clause
"""A holder whose memory has no two equal parts, so that all of it is stored and moved.

Two holders with the same seeds hold the same data.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys

from .holder import Commands, DriverMemory, Holder, main

#: Bytes of the smallest part of which the driver's client stores one copy.
UNIT = 2 << 20


class DistinctMemory(DriverMemory):
    """Blocks of random bytes, with a number in each unit."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        self._random = bytearray(random.Random(UNIT).randbytes(UNIT))

    def _unit(self, seed: int, offset: int) -> bytes:
        struct.pack_into("=QQ", self._random, 0, seed, offset)
        return bytes(self._random)

    def hold(self, size: int, seed: int) -> None:
        """Allocate a block and fill it."""
        block = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(block), size)
        for offset in range(0, size, UNIT):
            part = self._unit(seed, offset)
            length = min(UNIT, size - offset)
            self.call("cuMemcpyHtoD_v2", block.value + offset, part, length)
        self.blocks.append((block.value, size, seed))

    def touch(self) -> None:
        """Write one byte that is there already, and wait for the end of that."""
        block, _, seed = self.blocks[0]
        self.call("cuMemsetD8_v2", block, self._unit(seed, 0)[0], 1)

    def equal(self) -> bool:
        """Whether every byte is what it should be."""
        found = ctypes.create_string_buffer(UNIT)
        for block, size, seed in self.blocks:
            for offset in range(0, size, UNIT):
                length = min(UNIT, size - offset)
                self.call("cuMemcpyDtoH_v2", found, block + offset, length)
                if found.raw[:length] != self._unit(seed, offset)[:length]:
                    return False
        return True


class DistinctCommands(Commands):
    """What this program can be told."""

    def __init__(self, torch: bool) -> None:
        super().__init__(False)
        self.memory = DistinctMemory()


class DistinctHolder(Holder):
    """The parent's end of one."""

    module = __name__


if __name__ == "__main__":
    sys.exit(main(DistinctCommands))
