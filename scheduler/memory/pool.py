# SPDX-License-Identifier: BSD-3-Clause
"""A user's pool of host memory for swapped data (``csrc/pool.h``): making, lending, sizing and cleaning up.

Clients claim, share and release units of it by themselves. The pool's owner bounds the number of chunks (``limit``),
prepares the pages of some before they are needed, and gives unwanted pages back to the system. It also releases the
units of ended processes. A client's slot in the pool is bound to its process, because a connection may end and come
back.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Any

from ..._protocol import ffi, lib
from ..protocol.processes import start_time

CHUNK: int = lib.GPUSHARE_POOL_CHUNK
UNIT: int = lib.GPUSHARE_POOL_UNIT
SLOTS: int = lib.GPUSHARE_POOL_SLOTS
#: The priority of the thread that prepares pages: below everything else on this machine.
_LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes of a pool."""

    size: int
    #: Bytes that may be used now.
    limit: int
    #: Bytes of the chunks in memory that contain data which is nowhere else.
    in_use: int
    #: Bytes whose pages exist, in use or not.
    prepared: int
    #: Bytes that are page-locked by a driver.
    page_locked: int
    #: Bytes of copies of data that is on a GPU again; they are given up as soon as room is needed.
    kept: int = 0
    #: Bytes that several clients have in one place, without the first client's.
    shared: int = 0
    #: Bytes of the chunks that contain such data and are on the disk.
    on_disk: int = 0


class Process:
    """A process whose end can be seen even if its number is used again.

    Raises
    ------
    ProcessLookupError
        There is no process with this number.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor: int | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            # An old Linux kernel, or a sandbox that forbids the call.
            self._started = start_time(pid)
            if self._started is None:
                raise ProcessLookupError(f"there is no process {pid}") from None

    def has_ended(self) -> bool:
        """Whether it has ended and its memory is free."""
        if self._descriptor is None:
            return start_time(self.pid) != self._started
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        return bool(ready.poll(0))

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when it ends, if the system has such descriptors."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _clock() -> int:
    """Return the time as ``used_at`` of a unit states it (``gpushare_pool_clock``)."""
    return int(lib.gpushare_pool_clock(time.monotonic_ns()))


class Pool:
    """A pool, mapped and not lent to any process yet.

    Parameters
    ----------
    size
        The largest size in bytes. Pages do not exist until they are used.
    prepared_only
        Whether clients must only use pages that this process has prepared.

    Raises
    ------
    OSError
        The system provides none.
    """

    def __init__(self, size: int, *, prepared_only: bool = False) -> None:
        count = max(1, min(-(-size // CHUNK), lib.GPUSHARE_POOL_MOST_CHUNKS))
        offset = lib.gpushare_pool_data_offset(count)
        self.descriptor = os.memfd_create("gpushare-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, offset + count * CHUNK)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            os.close(self.descriptor)
            raise
        #: Bytes of the table, which is before the data.
        self.table: int = offset
        self._map = mmap.mmap(self.descriptor, offset)
        self._buffer = ffi.from_buffer(self._map)
        self._pool: Any = ffi.cast("struct gpushare_pool *", self._buffer)
        self._pool.magic = lib.GPUSHARE_POOL_MAGIC
        self._pool.version = lib.GPUSHARE_POOL_VERSION
        self._pool.data_offset = offset
        self._pool.directory_offset = lib.gpushare_pool_directory_offset(count)
        self._pool.directory_buckets = lib.gpushare_pool_directory_buckets(count)
        ffi.memmove(
            self._pool.key, os.urandom(ffi.sizeof(self._pool.key)), ffi.sizeof(self._pool.key)
        )
        self._pool.chunk_count = count
        self._pool.prepared_only = self._prepared_only = prepared_only
        #: The pool for the functions of pool_care.h and pool_disk.h.
        self.care: Any = ffi.new(
            "struct gpushare_pool_care *",
            {"pool": self._pool, "data_offset": offset, "chunk_count": count},
        )
        self._slots: dict[int, Process] = {}
        self._orders: Any = ffi.new("struct gpushare_pool_orders *")
        self._figures: Any = ffi.new("struct gpushare_pool_figures *")
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread and release the pool. Clients keep what they have mapped."""
        if self._thread is not None:
            self._orders.stop = 1
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for process in self._slots.values():
            process.close()
        self._slots.clear()
        ffi.release(self._buffer)
        self._map.close()
        os.close(self._wake)
        os.close(self.descriptor)

    # --- Lending ------------------------------------------------------------------------------

    def lend(self, pid: int, *, again: bool = False) -> int | None:
        """Return the slot of a process, or None if there is none left.

        Parameters
        ----------
        pid
            The process's number.
        again
            Whether it keeps its data in a pool. If not, and if it has a slot, it now runs another program.
        """
        self.reap()
        for slot, process in self._slots.items():
            if process.pid == pid:
                if not again:
                    lib.gpushare_pool_sweep(self.care, slot, _clock())
                return slot
        slot = next((s for s in range(SLOTS) if s not in self._slots), -1)
        if slot < 0:
            return None
        with contextlib.suppress(ProcessLookupError):
            self._slots[slot] = Process(pid)
            return slot
        return None

    @property
    def lent(self) -> dict[int, Process]:
        """The processes that have a slot, by slot."""
        return self._slots

    def reap(self) -> list[int]:
        """Free what ended processes held; return the descriptors by which they were watched, which are closed now."""
        closed = []
        for slot in [s for s, p in self._slots.items() if p.has_ended()]:
            process = self._slots.pop(slot)
            lib.gpushare_pool_sweep(self.care, slot, _clock())
            descriptor = process.fileno()
            if descriptor is not None:
                closed.append(descriptor)
            process.close()
        return closed

    # --- Size ---------------------------------------------------------------------------------

    def figures(self) -> Figures:
        """Return the pool's present figures."""
        found = self._figures
        lib.gpushare_pool_survey(self.care, found)
        return Figures(
            size=self.care.chunk_count * CHUNK,
            limit=min(self._pool.limit, self.care.chunk_count) * CHUNK,
            in_use=found.in_use * CHUNK,
            prepared=found.prepared * CHUNK,
            page_locked=found.page_locked * CHUNK,
            kept=found.kept * UNIT,
            shared=found.shared * UNIT,
            on_disk=found.on_disk * CHUNK,
        )

    def allocated(self) -> int:
        """Return the bytes of host memory that the pool takes now."""
        return os.fstat(self.descriptor).st_blocks * 512

    def trim(self) -> int:
        """Give back pages that no process has reported as prepared; return how many bytes."""
        return int(lib.gpushare_pool_trim(self.care, self.descriptor)) * CHUNK

    def order(
        self, *, limit: int, target: int, most: int, kept: int | None = None, ahead: int = 0
    ) -> None:
        """Set the size of the pool.

        Parameters
        ----------
        limit
            Bytes that may be in use.
        target
            Bytes whose pages must exist, in use or not.
        most
            If the pages take more than this many bytes, unused pages are released that are not page-locked and
            contain no kept copies.
        kept
            If they take more than this many bytes, pages with kept copies are released, too; default: `most`.
        ahead
            Bytes whose pages must exist beyond what is in use.
        """
        chunks = max(0, limit) // CHUNK
        lib.gpushare_pool_set_limit(self.care, min(chunks, self.care.chunk_count))
        self._orders.target = min(-(-max(0, target) // CHUNK), chunks)
        self._orders.most = min(-(-max(0, most) // CHUNK), chunks)
        self._orders.kept = min(-(-max(0, most if kept is None else kept) // CHUNK), chunks)
        self._orders.ahead = -(-max(0, ahead) // CHUNK)
        if self._thread is None and (target > 0 or ahead > 0 or self.allocated() > most):
            # It is a daemon thread, so that the end of the process does not wait for a chunk to be prepared.
            self._thread = threading.Thread(target=self._tend, name="gpushare-pool", daemon=True)
            self._thread.start()
        os.eventfd_write(self._wake, 1)

    def _tend(self) -> None:
        # If clients do not prepare pages themselves, moves wait for this thread.
        if not self._prepared_only:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        lib.gpushare_pool_tend(self.care, self.descriptor, self._wake, self._orders)
