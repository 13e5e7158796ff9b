# SPDX-License-Identifier: BSD-3-Clause
"""Pools whose data goes to a disk, and clients of them that are this process."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.memory.pool import CHUNK, UNIT, Pool
from tests.support.pool import Table

MEMORY, GOING, LEAVING, DISK, COMING, LOST = (
    getattr(lib, f"GPUSHARE_POOL_{name}")
    for name in ("MEMORY", "GOING", "LEAVING", "DISK", "COMING", "LOST")
)
UNITS = CHUNK // UNIT
PATIENCE = 60.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Lab:
    """A pool with clients, each of which has whole chunks of random bytes."""

    def __init__(self, chunks: int = 16, folder_size: int = 64) -> None:
        self.pool = Pool(chunks * CHUNK)
        self.pool.order(limit=chunks * CHUNK, target=0, most=chunks * CHUNK)
        self.data = mmap.mmap(self.pool.descriptor, self.pool.table + chunks * CHUNK)
        self.table = Table(self.pool.descriptor)
        self.expected: dict[int, bytes] = {}

    def close(self) -> None:
        self.table.close()
        self.data.close()
        self.pool.close()

    def write(self, index: int, slot: int, value: int | None = None) -> None:
        """Have a client keep random data in a chunk."""
        chunk, user = self.table.chunk(index), lib.gpushare_pool_user(slot)
        for unit in range(UNITS):
            assert lib.gpushare_pool_claim(chunk, unit, user)
            lib.gpushare_pool_spoil(chunk, unit)
        self.expected[index] = random.Random(index if value is None else value).randbytes(CHUNK)
        start = self.pool.table + index * CHUNK
        self.data[start : start + CHUNK] = self.expected[index]
        lib.gpushare_pool_set_prepared(chunk, True)
        for unit in range(UNITS):
            lib.gpushare_pool_publish(chunk, unit, user, [index + 1, unit, 3, 4], 1)

    def release(self, index: int, slot: int) -> None:
        for unit in range(UNITS):
            lib.gpushare_pool_release(
                self.table.chunk(index), unit, lib.gpushare_pool_user(slot), 2
            )

    def place(self, index: int) -> int:
        return int(lib.gpushare_pool_place(self.table.chunk(index)))

    def places(self, *indices: int) -> list[int]:
        return [self.place(index) for index in indices]

    def is_right(self, index: int) -> bool:
        """Whether a chunk in memory has its bytes."""
        assert self.place(index) in (MEMORY, GOING)
        start = self.pool.table + index * CHUNK
        return self.data[start : start + CHUNK] == self.expected[index]

    def has_pages(self, index: int) -> bool:
        start = self.pool.table + index * CHUNK
        try:
            found = os.lseek(self.pool.descriptor, start, os.SEEK_DATA)
        except OSError:
            return False
        return found < start + CHUNK
