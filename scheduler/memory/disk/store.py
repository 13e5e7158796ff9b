# SPDX-License-Identifier: BSD-3-Clause
"""A pool with its file on the disk, as the disk tier's thread keeps track of it (``tier.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...._protocol import ffi, lib
from ..pool import SLOTS, UNIT, Pool
from .files import DiskFile, SealTable
from .messages import Open


@dataclass(frozen=True, slots=True)
class DiskWishes:
    """What is to happen to one pool's chunks."""

    #: The slots of clients whose data may go, in the order in which it goes; and how many of them go even if host
    #: memory is not needed.
    spill: tuple[int, ...] = ()
    at_once: int = 0
    #: The slots of clients whose data is to come back, in this order.
    fetch: tuple[int, ...] = ()
    #: Chunks that may be in memory; and of these, how many should be free.
    budget: int = 0
    free: int = 0


@dataclass(slots=True, eq=False)
class Store:
    """A pool with its file."""

    number: int
    pool: Pool
    seals: SealTable
    key: bytes
    #: None: it is being opened.
    file: DiskFile | None = None
    wishes: DiskWishes = field(default_factory=DiskWishes)
    writing: set[int] = field(default_factory=set)
    reading: set[int] = field(default_factory=set)
    #: Chunks whose part of the file is being freed, so that nothing may be written there.
    freeing: set[int] = field(default_factory=set)
    #: Chunks in memory that are still being written, for nothing: that took too long.
    abandoned: set[int] = field(default_factory=set)
    #: Chunks on the disk, and bytes of each slot there.
    used: int = 0
    held: dict[int, int] = field(default_factory=dict)
    #: Since when nothing can be written because processes keep their page-locks.
    stalled_since: float | None = None
    #: When failed reads are tried again.
    again_at: float = 0.0

    @property
    def care(self) -> Any:
        """The pool for functions of ``pool_disk.h``."""
        return self.pool.care

    def open_message(self) -> tuple[Open, list[int]] | None:
        """Return the message with which the helper begins to use it, and its descriptors; None: it has no file yet."""
        if self.file is None:
            return None
        care = self.care
        message = Open(self.number, care.data_offset, care.chunk_count, self.file.direct, self.key)
        return message, [self.pool.descriptor, self.file.descriptor, self.seals.descriptor]

    def count(self) -> None:
        """Find out again what is on the disk."""
        units = ffi.new("uint32_t[]", SLOTS)
        lib.gpushare_pool_count_on_disk(self.care, units)
        self.held = {slot: units[slot] * UNIT for slot in range(SLOTS) if units[slot]}
        # The number of chunks that clients may use depends on how many are in memory.
        lib.gpushare_pool_set_limit(self.care, self.wishes.budget)

    def abandon_writes(self) -> None:
        """Let clients use what is being written. Their data is still in memory, and the helper only reads it there."""
        for index in self.writing:
            lib.gpushare_pool_set_place(self.care.pool.chunks + index, lib.GPUSHARE_POOL_MEMORY)
        self.abandoned |= self.writing
        self.writing.clear()

    def settle(self) -> None:
        """Clean up after a helper that has ended."""
        lib.gpushare_pool_settle(self.care)
        for under_way in (self.writing, self.reading, self.freeing, self.abandoned):
            under_way.clear()
