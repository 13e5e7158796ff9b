# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: chunks of pools whose notebooks have been idle for long go to a disk, and come back when needed.

A thread moves the chunks from place to place (``csrc/pool_disk.h``) and has a helper process (``disk_helper.py``) read
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
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._protocol import ffi, lib
from .disk_files import CHUNK, KEY_BYTES, DiskFile, SealTable, open_file
from .disk_messages import MOST, Close, Done, Free, Open, Read, Request, Write, decode_done, encode
from .pool import SLOTS, UNIT, Pool

log = logging.getLogger(__name__)

#: Chunks that are read, and written, at the same time.
UNDER_WAY = 16
#: Chunks whose page-locks end before their turn, because clients look only every second.
MARKED_AHEAD = 32
#: Seconds between two looks: while something is to be moved, and otherwise. Clients are silent about page-locks.
BUSY_LOOK, IDLE_LOOK = 0.02, 0.5
#: Seconds after which a failed read is tried again, and a new helper is started.
PAUSE = 1.0
#: Seconds in which a helper without data ends.
PATIENCE = 10.0
ALL_SLOTS = (1 << SLOTS) - 1


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The administrator's settings."""

    folder: Path
    #: Bytes of all files together.
    size: int
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class DiskWishes:
    """What is to happen to one pool's chunks."""

    #: The slots of clients whose data may go, those first that have been idle the longest; and how many of them go even
    #: if host memory is not needed.
    spill: tuple[int, ...] = ()
    at_once: int = 0
    #: The slots of clients whose data is to come back, in this order.
    fetch: tuple[int, ...] = ()
    #: Chunks that may be in memory; and of these, how many should be free.
    budget: int = 0
    free: int = 0


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


@dataclass(slots=True, eq=False)
class _Store:
    """A pool with its file."""

    number: int
    pool: Pool
    file: DiskFile
    seals: SealTable
    key: bytes
    wishes: DiskWishes = field(default_factory=DiskWishes)
    writing: set[int] = field(default_factory=set)
    reading: set[int] = field(default_factory=set)
    #: Chunks whose part of the file is being freed, so that nothing may be written there.
    freeing: set[int] = field(default_factory=set)
    #: Chunks on the disk, and bytes of each slot there.
    used: int = 0
    held: dict[int, int] = field(default_factory=dict)
    #: When failed reads are tried again.
    again_at: float = 0.0

    @property
    def care(self) -> Any:
        return self.pool.care

    def open_message(self) -> Open:
        care = self.care
        return Open(self.number, care.data_offset, care.chunk_count, self.file.direct, self.key)

    def close(self) -> None:
        self.seals.close()
        os.close(self.file.descriptor)


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
        self._command = list(
            command or (sys.executable, "-m", "jupyter_gpushare.scheduler.memory.disk_helper")
        )
        self._stores: dict[int, _Store] = {}
        self._of_pool: dict[Pool, _Store] = {}
        self._last_number = 0
        #: Guards the stores between this tier's thread and the callers.
        self._lock = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._helper: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._start_at = 0.0
        self._fault = ""
        self._written = self._read = 0
        self._direct: bool | None = None
        self._dirty = False

    # --- For the scheduler ------------------------------------------------------------------------

    def add(self, pool: Pool) -> None:
        """Let data of a pool go to the disk. If that cannot be, the tier has failed."""
        with self._lock:
            try:
                file = open_file(self.options.folder)
                key = b""
                if self.options.encrypted:
                    import cryptography  # noqa: F401

                    key = secrets.token_bytes(KEY_BYTES)
            except OSError as error:
                self._fail(f"{self.options.folder} cannot be used: {error.strerror}")
                return
            except ImportError:
                os.close(file.descriptor)
                self._fail("the package cryptography is not installed")
                return
            self._last_number += 1
            store = _Store(self._last_number, pool, file, SealTable(pool.care.chunk_count), key)
            for slot, process in pool.lent.items():
                store.seals.set_process(slot, process.pid)
            self._direct = file.direct
            self._stores[store.number] = self._of_pool[pool] = store
            if self._helper is not None:
                self._send(store.open_message(), store)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpushare-disk", daemon=True)
                self._thread.start()

    def remove(self, pool: Pool) -> None:
        """Stop using a pool that no process uses any more. Waits for what is under way."""
        with self._lock:
            store = self._of_pool.get(pool)
            if store is None:
                return
            store.wishes = DiskWishes()
        while True:
            with self._lock:
                if not (store.writing or store.reading or store.freeing):
                    del self._of_pool[pool], self._stores[store.number]
                    self._send(Close(store.number))
                    store.close()
                    return
            time.sleep(BUSY_LOOK)

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
            size=self.options.size,
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
        if self._helper is None and any(store.used for store in self._stores.values()):
            self._start()
        if self._connection is not None:
            self._connection.close()
        if self._helper is not None:
            # It may outlive this process.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._helper.wait(0 if any(s.used for s in self._stores.values()) else PATIENCE)
            self._helper.returncode = 0
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        self._of_pool.clear()
        os.close(self._wake)

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        busy = True
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            if self._connection is not None:
                poll.register(self._connection, select.POLLIN)
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
        for store in self._stores.values():
            self._free_unused(store)
            busy |= self._fetch(store)
            if not self._fault:
                busy |= self._spill(store)
            if store.used:
                lib.gpushare_pool_beat(store.care)
        return busy

    def _count(self, store: _Store) -> None:
        units = ffi.new("uint32_t[]", SLOTS)
        lib.gpushare_pool_count_on_disk(store.care, units)
        store.held = {slot: units[slot] * UNIT for slot in range(SLOTS) if units[slot]}
        # The number of chunks that clients may use depends on how many are in memory.
        lib.gpushare_pool_set_limit(store.care, store.wishes.budget)
        self._dirty = True

    def _free_unused(self, store: _Store) -> None:
        index = 0
        while store.used and (index := lib.gpushare_pool_drop_unused(store.care, index)) >= 0:
            self._free(store, index)
        if index:
            self._count(store)

    def _free(self, store: _Store, index: int) -> None:
        """Free a chunk of the file."""
        store.used -= 1
        if self._send(Free(store.number, index)):
            store.freeing.add(index)

    # --- From the disk ----------------------------------------------------------------------------

    def _fetch(self, store: _Store) -> bool:
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
                if not self._send(Read(store.number, index)):
                    return True
                store.reading.add(index)
                room -= 1
        return True

    def _is_stuck(self, store: _Store) -> bool:
        """Whether no room will appear. Then the budget is exceeded, because the client cannot go on."""
        if store.reading or store.writing:
            return False
        can_spill = not self._fault and self._room_on_disk() > 0
        return not (
            can_spill and lib.gpushare_pool_can_leave(store.care, _bits(store.wishes.spill))
        )

    # --- To the disk ------------------------------------------------------------------------------

    def _room_on_disk(self) -> int:
        """Return how many more chunks may be on the disk."""
        used = sum(store.used + len(store.writing) for store in self._stores.values())
        return self.options.size // CHUNK - used

    def _spill(self, store: _Store) -> bool:
        """Begin to write; return whether something is still to be written."""
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

    def _write_of(self, store: _Store, whose: int, may: int, most: int) -> int:
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
            if not self._send(Write(store.number, index)):
                break
            store.writing.add(index)
            begun += 1
        return begun

    def _lacking(self, store: _Store) -> int:
        """Return how many chunks have to leave, so that there is room in memory."""
        wishes, figures = store.wishes, store.pool.figures()
        coming = min(
            sum(store.held.get(slot, 0) for slot in wishes.fetch) // CHUNK, wishes.budget // 2
        )
        lacking = figures.in_use // CHUNK + wishes.free + coming - wishes.budget
        return max(0, lacking - len(store.writing))

    def _mark(self, store: _Store, may: int, lacking: int, most: int) -> int:
        """Have clients end the page-locks of chunks that go next; return the number of chunks."""
        marked = 0
        for place, slot in enumerate(store.wishes.spill):
            if marked >= most or (lacking == 0 and place >= store.wishes.at_once):
                break
            marked += int(lib.gpushare_pool_mark_going(store.care, 1 << slot, may, most - marked))
        return marked

    # --- Answers ----------------------------------------------------------------------------------

    def _receive(self) -> None:
        while self._connection is not None:
            try:
                data = self._connection.recv(MOST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._helper_ended()
                return
            self._conclude(decode_done(data))

    def _conclude(self, done: Done) -> None:
        store = self._stores.get(done.request.pool)
        if store is None:
            return
        index, descriptor = done.request.index, store.pool.descriptor
        match done.request:
            case Write():
                store.writing.discard(index)
                store.used += 1
                written = done.error == 0
                if written:
                    self._written += CHUNK
                else:
                    self._fail(_write_failure(self.options.folder, done))
                if not lib.gpushare_pool_end_leaving(store.care, descriptor, index, written):
                    self._free(store, index)
            case Read():
                store.reading.discard(index)
                lib.gpushare_pool_end_coming(store.care, descriptor, index, done.error == 0)
                if done.error == 0:
                    self._read += CHUNK
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
        if self._helper is None and time.monotonic() >= self._start_at:
            self._start()
        return self._helper is not None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._helper = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # A signal to the terminal's session must not end it: it has data that is nowhere else.
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._start_at = time.monotonic() + PAUSE
            self._fail(f"the helper process could not be started: {error.strerror}")
            return
        finally:
            theirs.close()
        self._connection = ours
        for store in self._stores.values():
            if not self._send(store.open_message(), store):
                return

    def _send(self, message: Request, store: _Store | None = None) -> bool:
        """Send a message, an ``Open`` with the descriptors. False: the helper has ended."""
        if self._connection is None:
            return False
        descriptors = []
        if store is not None:
            descriptors = [store.pool.descriptor, store.file.descriptor, store.seals.descriptor]
        try:
            # Few messages are under way, so there is always room for one more.
            socket.send_fds(self._connection, [encode(message)], descriptors)
        except OSError:
            self._helper_ended()
            return False
        return True

    def _helper_ended(self) -> None:
        """Handle the end of the helper. Nothing is read or written any more once its process has ended."""
        helper, self._helper = self._helper, None
        assert helper is not None
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        helper.kill()
        status = helper.wait()
        self._start_at = time.monotonic() + PAUSE
        for store in self._stores.values():
            lib.gpushare_pool_settle(store.care)
            store.writing.clear()
            store.reading.clear()
            store.freeing.clear()
            self._count(store)
        self._fail(f"the helper process has ended with status {status}")


def _write_failure(folder: Path, done: Done) -> str:
    if done.error in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder} is full"
    return f"writing to {folder} failed: {done.text}"
