# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: chunks of pools whose notebooks have been idle for long go to a disk, and come back when needed.

A thread moves the chunks from place to place (``csrc/pool_disk.h``) and has a helper process (``helper.py``) read
and write. The rest of the scheduler only states which clients' data may go, and which must come (``DiskWishes``).

After the first error, no more data goes to the disk, and what is there comes back as soon as there is room. What could
not be written is still in memory. What could not be read is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...._protocol import lib
from ..pool import SLOTS, Pool
from .clock import DiskClock
from .files import CHUNK, KEY_BYTES, DiskFile, SealTable
from .link import DiskLink
from .messages import Close, Done, Free, Read, Write
from .opener import Opener
from .store import DiskWishes, Store

log = logging.getLogger(__name__)

#: Chunks that are read, and written, at the same time.
UNDER_WAY = 16
#: Chunks whose page-locks end before their turn, because clients look only every second.
MARKED_AHEAD = 32
#: Seconds between two looks: while something is to be moved, and otherwise. Clients are silent about page-locks.
BUSY_LOOK, IDLE_LOOK = 0.02, 0.5
#: Seconds after which a failed read is tried again, and a new helper is started.
PAUSE = 1.0
#: Seconds after which no process is expected any more to end its page-locks. Processes look every second.
STALL = 5.0
#: Seconds in which a helper without data ends.
PATIENCE = 10.0
ALL_SLOTS = (1 << SLOTS) - 1


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The administrator's settings."""

    folder: Path
    #: Bytes of all files together; None: half of what is free at the start.
    size: int | None = None
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """The tier's state.

    Attributes
    ----------
    size, used
        Bytes that may be, and that are, on the disk.
    written, read
        Bytes since the start.
    direct
        Whether the page cache is bypassed; None: no file was made yet.
    encrypted
        Whether data is encrypted.
    fault
        Why no more data goes to the disk; empty: it does.
    """

    size: int
    used: int
    written: int
    read: int
    direct: bool | None
    encrypted: bool
    fault: str


def _bits(slots: Sequence[int]) -> int:
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


class DiskTier:
    """Moves chunks of pools to files in a folder and back.

    Parameters
    ----------
    options
        The settings.
    changed
        Called in the tier's thread after data was moved, or the tier has failed.
    command
        The command of the helper, to which the number of its socket is added; None: this package's.
    """

    def __init__(
        self,
        options: DiskOptions,
        changed: Callable[[], None] = lambda: None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.options = options
        self._changed = changed
        self._clock = DiskClock()
        self._link = DiskLink(
            command or (sys.executable, "-m", "jupyter_gpushare.scheduler.memory.disk.helper"),
            self._clock,
        )
        self._opener = Opener(
            options.folder, self._clock, self._checked, self._opened, self._not_opened
        )
        self._size = options.size or 0
        self._stores: dict[int, Store] = {}
        self._of_pool: dict[Pool, Store] = {}
        self._last_number = 0
        #: Guards the stores between this tier's thread and the callers.
        self._lock = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._start_at = 0.0
        self._fault = ""
        self._written = self._read = 0
        self._direct: bool | None = None
        self._dirty = False

    # --- For the scheduler ------------------------------------------------------------------------

    def start(self) -> None:
        """Find out whether the folder can be used. If it cannot, the tier has failed."""
        self._opener.check()
        self._start_thread()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpushare-disk", daemon=True)
            self._thread.start()

    def add(self, pool: Pool) -> None:
        """Let data of a pool go to the disk. If that cannot be, the tier has failed."""
        with self._lock:
            if self._fault or self._stopping:
                return
            try:
                key, seals = self._make_key(), SealTable(pool.care.chunk_count)
            except OSError as error:
                self._fail(f"the list of what is there cannot be made: {error.strerror}")
                return
            except ImportError:
                self._fail("the package cryptography is not installed")
                return
            self._last_number += 1
            store = Store(self._last_number, pool, seals, key)
            for slot, process in pool.lent.items():
                seals.set_process(slot, process.pid)
            self._stores[store.number] = self._of_pool[pool] = store
            self._opener.open(store)
            self._start_thread()

    def _make_key(self) -> bytes:
        if not self.options.encrypted:
            return b""
        import cryptography  # noqa: F401

        return secrets.token_bytes(KEY_BYTES)

    def _checked(self, size: int) -> None:
        with self._lock:
            if self.options.size is None:
                self._size, self._dirty = size, True

    def _opened(self, store: Store, file: DiskFile) -> None:
        with self._lock:
            if self._fault or self._stopping or self._stores.get(store.number) is not store:
                os.close(file.descriptor)
                return
            store.file, self._direct = file, file.direct
            self._open_in_helper(store)
            os.eventfd_write(self._wake, 1)

    def _not_opened(self, error: OSError) -> None:
        with self._lock:
            self._fail(f"{self.options.folder} cannot be used: {error.strerror}")

    def remove(self, pool: Pool) -> None:
        """Stop using a pool that no process uses any more. The helper ends what it is doing there."""
        with self._lock:
            store = self._of_pool.pop(pool, None)
            if store is None:
                return
            del self._stores[store.number]
            if store.file is not None:
                self._link.send(Close(store.number))
            self._close(store)

    def _close(self, store: Store) -> None:
        store.seals.close()
        if store.file is not None:
            self._opener.close(store.file.descriptor)

    def note_process(self, pool: Pool, slot: int, pid: int) -> None:
        """Note the process of a slot, for the time after this scheduler."""
        store = self._of_pool.get(pool)
        if store is not None:
            store.seals.set_process(slot, pid)

    def set_wishes(self, pool: Pool, wishes: DiskWishes) -> None:
        """Set what is to happen to a pool's chunks."""
        # Without the lock, under which a round of the thread may take long. It reads the wishes at once.
        store = self._of_pool.get(pool)
        if store is None or store.wishes == wishes:
            return
        store.wishes = wishes
        os.eventfd_write(self._wake, 1)

    def held(self, pool: Pool) -> dict[int, int]:
        """Return the bytes of each slot that are on the disk."""
        store = self._of_pool.get(pool)
        return {} if store is None else store.held

    def status(self) -> DiskStatus:
        """Return the tier's state."""
        return DiskStatus(
            size=self._size,
            used=sum(store.used for store in list(self._stores.values())) * CHUNK,
            written=self._written,
            read=self._read,
            direct=self._direct,
            encrypted=self.options.encrypted,
            fault=self._fault,
        )

    def stop(self) -> None:
        """Stop moving data. The helper brings back what is on the disk, and then ends."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            # The helper may have ended since the last look.
            self._receive()
            is_needed = any(store.used for store in self._stores.values())
            if is_needed and self._link.has_gone(PAUSE):
                self._start()
        self._link.leave(0 if is_needed else PATIENCE)
        for pool in list(self._of_pool):
            self.remove(pool)
        self._opener.stop()
        os.close(self._wake)

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        busy = True
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            connection = self._link.connection
            if connection is not None:
                # Another thread may close it now.
                with contextlib.suppress(ValueError):
                    poll.register(connection, select.POLLIN)
            poll.poll((BUSY_LOOK if busy else IDLE_LOOK) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            with self._lock:
                if self._stopping:
                    return
                try:
                    self._receive()
                    busy = self._step()
                except Exception:
                    # Clients may be waiting for their data, so this goes on.
                    if not self._fault:
                        log.exception("the disk tier has a defect")
                    self._fail("a defect of the scheduler, see its log")
                dirty, self._dirty = self._dirty, False
            if dirty:
                self._changed()

    def _step(self) -> bool:
        """Begin what can be begun now; return whether more is to be done soon."""
        busy = False
        self._clock.look()
        stuck = self._link.is_stuck() or self._opener.is_stuck()
        if stuck:
            self._give_up()
        for store in self._stores.values():
            self._free_unused(store)
            busy |= self._fetch(store)
            if not self._fault:
                busy |= self._spill(store)
            if (store.used or store.writing) and self._link.connection is not None and not stuck:
                lib.gpushare_pool_beat(store.care)
        return busy

    def _give_up(self) -> None:
        """Expect nothing more from the disk, which may hang forever."""
        self._fail(f"the disk of {self.options.folder} does not respond")
        for store in self._stores.values():
            if store.writing:
                store.abandon_writes()
                self._count(store)

    def _count(self, store: Store) -> None:
        store.count()
        self._dirty = True

    def _free_unused(self, store: Store) -> None:
        index, freed = 0, False
        while store.used and len(store.freeing) < UNDER_WAY:
            index = lib.gpushare_pool_drop_unused(store.care, index)
            if index < 0:
                break
            store.used -= 1
            self._free(store, index)
            freed = True
        if freed:
            self._count(store)

    def _free(self, store: Store, index: int) -> None:
        """Free a chunk of the file."""
        if self._link.send(Free(store.number, index)):
            store.freeing.add(index)

    # --- From the disk ----------------------------------------------------------------------------

    def _fetch(self, store: Store) -> bool:
        """Begin to read; return whether something is still to be read."""
        if store.used == 0:
            return False
        now = time.monotonic()
        wished = [slot for slot in store.wishes.fetch if slot in store.held]
        # After a failure, all comes back.
        groups = [1 << slot for slot in wished] + ([ALL_SLOTS] if self._fault else [])
        if not groups or now < store.again_at or not self._ensure_helper():
            return bool(groups)
        figures = store.pool.figures()
        room = (store.wishes.budget * CHUNK - figures.in_use) // CHUNK
        for whose in groups:
            while len(store.reading) < UNDER_WAY and (
                room > 0 or (whose != ALL_SLOTS and self._is_stuck(store))
            ):
                index = lib.gpushare_pool_begin_coming(store.care, whose, 0)
                if index < 0:
                    break
                lib.gpushare_pool_set_limit(store.care, store.wishes.budget)
                store.reading.add(index)
                if not self._link.send(Read(store.number, index)):
                    return True
                room -= 1
        return True

    def _is_stuck(self, store: Store) -> bool:
        """Whether no room will appear. Then the budget is exceeded, because the client cannot go on."""
        if store.reading or store.writing:
            return False
        stalled = store.stalled_since
        if stalled is not None and self._clock.now - stalled > STALL:
            return True
        can_spill = not self._fault and self._room_on_disk() > 0
        return not (
            can_spill and lib.gpushare_pool_can_leave(store.care, _bits(store.wishes.spill))
        )

    # --- To the disk ------------------------------------------------------------------------------

    def _room_on_disk(self) -> int:
        """Return how many more chunks may be on the disk."""
        used = sum(store.used + len(store.writing) for store in self._stores.values())
        return self._size // CHUNK - used

    def _spill(self, store: Store) -> bool:
        """Begin to write; return whether something is still to be written."""
        if store.file is None:
            return False
        tries = self._write_some(store)
        if not tries or store.writing:
            store.stalled_since = None
        elif store.stalled_since is None:
            store.stalled_since = self._clock.now
        return tries

    def _write_some(self, store: Store) -> bool:
        wishes = store.wishes
        lacking = self._lacking(store)
        may = _bits(wishes.spill) if lacking or wishes.at_once else 0
        going = lib.gpushare_pool_review_going(store.care, may)
        room = self._room_on_disk()
        if not may or room <= 0:
            return False
        marked = self._mark(store, may, lacking, min(room, lacking + MARKED_AHEAD) - going)
        if going + marked == 0 or not self._ensure_helper():
            return False
        for place, slot in enumerate(wishes.spill):
            at_once = place < wishes.at_once
            begun = self._write_of(store, 1 << slot, may, room if at_once else min(room, lacking))
            room -= begun
            lacking -= begun
            if room <= 0 or (lacking <= 0 and not at_once):
                break
        return True

    def _write_of(self, store: Store, whose: int, may: int, most: int) -> int:
        """Begin to write chunks of one client; return their number."""
        begun = index = 0
        while len(store.writing) < UNDER_WAY and begun < most:
            index = lib.gpushare_pool_begin_leaving(store.care, whose, may, index)
            if index < 0:
                break
            if index in store.freeing:
                lib.gpushare_pool_set_place(store.care.pool.chunks + index, lib.GPUSHARE_POOL_GOING)
                index += 1
                continue
            store.writing.add(index)
            if not self._link.send(Write(store.number, index)):
                break
            begun += 1
        return begun

    def _lacking(self, store: Store) -> int:
        """Return how many chunks have to leave, so that there is room in memory."""
        wishes, figures = store.wishes, store.pool.figures()
        coming = min(
            sum(store.held.get(slot, 0) for slot in wishes.fetch) // CHUNK, wishes.budget // 2
        )
        lacking = figures.in_use // CHUNK + wishes.free + coming - wishes.budget
        return max(0, lacking - len(store.writing))

    def _mark(self, store: Store, may: int, lacking: int, most: int) -> int:
        """Have clients end the page-locks of chunks that go next; return the number of chunks."""
        marked = 0
        for place, slot in enumerate(store.wishes.spill):
            if marked >= most or (lacking == 0 and place >= store.wishes.at_once):
                break
            marked += int(lib.gpushare_pool_mark_going(store.care, 1 << slot, may, most - marked))
        return marked

    # --- Answers ----------------------------------------------------------------------------------

    def _receive(self) -> None:
        for done in self._link.receive():
            self._conclude(done)
        status = self._link.ended()
        if status is not None:
            self._helper_ended(status)

    def _conclude(self, done: Done) -> None:
        store = self._stores.get(done.request.pool)
        if store is None:
            return
        index, descriptor = done.request.index, store.pool.descriptor
        match done.request:
            case Write() if index in store.abandoned:
                store.abandoned.discard(index)
                self._free(store, index)
            case Write():
                store.writing.discard(index)
                written = done.error == 0
                if written:
                    self._written += CHUNK
                else:
                    self._fail(_write_failure(self.options.folder, done))
                if lib.gpushare_pool_end_leaving(store.care, descriptor, index, written):
                    store.used += 1
                else:
                    self._free(store, index)
            case Read():
                store.reading.discard(index)
                lib.gpushare_pool_end_coming(store.care, descriptor, index, done.error == 0)
                if done.error == 0:
                    self._read += CHUNK
                    store.used -= 1
                    self._free(store, index)
                else:
                    store.again_at = time.monotonic() + PAUSE
                    self._fail(f"reading from {self.options.folder} failed: {done.text}")
            case Free():
                store.freeing.discard(index)
        self._count(store)

    def _fail(self, fault: str) -> None:
        if not self._fault:
            log.error("no more data goes to the disk: %s. No data is lost", fault)
            self._fault = fault
            self._dirty = True

    # --- The helper -------------------------------------------------------------------------------

    def _ensure_helper(self) -> bool:
        if self._link.process is None and time.monotonic() >= self._start_at:
            self._start()
        return self._link.connection is not None

    def _start(self) -> None:
        try:
            self._link.start()
        except OSError as error:
            self._start_at = time.monotonic() + PAUSE
            self._fail(f"the helper process could not be started: {error.strerror}")
            return
        for store in self._stores.values():
            self._open_in_helper(store)

    def _open_in_helper(self, store: Store) -> None:
        opening = store.open_message()
        if opening is not None:
            self._link.send(*opening)

    def _helper_ended(self, status: int) -> None:
        self._start_at = time.monotonic() + PAUSE
        for store in self._stores.values():
            store.settle()
            self._count(store)
        self._fail(f"the helper process has ended with status {status}")


def _write_failure(folder: Path, done: Done) -> str:
    if done.error in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder} is full"
    return f"writing to {folder} failed: {done.text}"
