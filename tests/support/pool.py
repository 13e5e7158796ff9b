# SPDX-License-Identifier: BSD-3-Clause
"""The pool of host memory, as a client of the scheduler maps it."""

from __future__ import annotations

import mmap
from typing import Any

from jupyter_gpushare._protocol import ffi, lib


class Table:
    """A pool as a client maps it."""

    def __init__(self, descriptor: int) -> None:
        self.map = mmap.mmap(descriptor, 1 << 21)
        self.buffer = ffi.from_buffer(self.map)
        self.pool = ffi.cast("struct gpushare_pool *", self.buffer)

    def chunk(self, index: int) -> Any:
        return self.pool.chunks + index

    def claim(self, index: int, slot: int, unit: int = 0) -> bool:
        return bool(lib.gpushare_pool_claim(self.chunk(index), unit, lib.gpushare_pool_user(slot)))

    def users(self, index: int) -> set[int]:
        """Return the slots that use units of a chunk."""
        bits = lib.gpushare_pool_chunk_users(self.chunk(index))
        return {slot for slot in range(lib.GPUSHARE_POOL_SLOTS) if bits >> slot & 1}

    def close(self) -> None:
        ffi.release(self.buffer)
        self.map.close()
