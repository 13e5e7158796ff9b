# SPDX-License-Identifier: BSD-3-Clause
"""``python -m jupyter_gpushare.scheduler.memory.disk.helper``: reads and writes the files of the disk tier.

A process of its own, because a disk that fails may block its callers, and because data on the disk must outlive the
scheduler. Once the scheduler has ended, the helper reads back what clients need, and ends when there is nothing left.
It changes the state of pools (``csrc/pool_disk.h``) only then; before, only the scheduler does.

``io_uring`` would save threads, but many containers forbid it. With 8 threads, each with one chunk of 16 MiB under way,
the disk always has enough to do.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...._protocol import ffi, lib
from ..budget import host_budget
from ..pool import Process
from .files import CHUNK, NONCE_BYTES, SLOTS, SealTable
from .messages import (
    MOST,
    Answer,
    Begun,
    Close,
    Done,
    Free,
    Open,
    Read,
    Request,
    Write,
    decode_request,
    encode,
)

#: Threads, each of which reads or writes one chunk at a time.
THREADS = 8
#: The order in which waiting requests are served: a notebook waits for what is read.
_PRIORITY = {Read: 0, Write: 1, Free: 2, Close: 3}
#: The exit status after a defect (EX_SOFTWARE).
BROKEN = 70
#: Seconds between two looks at pools whose scheduler has ended.
LOOK = 0.05
#: Bytes beyond a buffer for ``update_into``, which wants room for one more block.
SPARE = 4096


class _Store:
    """One pool and its file."""

    def __init__(self, message: Open, pool: int, file: int, table: int) -> None:
        self.message = message
        self.descriptors = (pool, file)
        self.pool, self.file = pool, file
        self.seals = SealTable(message.chunk_count, table)
        size = message.data_offset + message.chunk_count * CHUNK
        self._map = mmap.mmap(pool, size)
        self._view = memoryview(self._map)
        self._buffer = ffi.from_buffer(self._map)
        shared = ffi.cast("struct gpushare_pool *", self._buffer)
        self.care: Any = ffi.new(
            "struct gpushare_pool_care *",
            {
                "pool": shared,
                "data_offset": message.data_offset,
                "chunk_count": message.chunk_count,
            },
        )
        self.small: Any = ffi.new("uint32_t *")
        #: The number of its unfinished tasks; and whether the last of them closes it, as the scheduler has asked.
        self.tasks = 0
        self.unneeded = False

    def chunk(self, index: int) -> memoryview:
        start = self.message.data_offset + index * CHUNK
        return self._view[start : start + CHUNK]

    def keep_written(self) -> None:
        """Let clients use what is being written. Their data is still in memory, and only read there."""
        chunks = self.care.pool.chunks
        for index in range(self.message.chunk_count):
            if lib.gpushare_pool_place(chunks + index) == lib.GPUSHARE_POOL_LEAVING:
                lib.gpushare_pool_set_place(chunks + index, lib.GPUSHARE_POOL_MEMORY)

    def close(self) -> None:
        self._view.release()
        ffi.release(self._buffer)
        self._map.close()
        self.seals.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


class _Task(NamedTuple):
    """A request, the pool, and who gets the answers."""

    request: Write | Read | Free | Close
    store: _Store
    answer: Callable[[Answer], None]


class Copier:
    """Copies one chunk at a time between a pool and its file; one for each thread."""

    def __init__(self) -> None:
        self._scratch: list[memoryview] = []

    def _buffers(self) -> list[memoryview]:
        # O_DIRECT needs aligned memory.
        while len(self._scratch) < 2:
            self._scratch.append(memoryview(mmap.mmap(-1, CHUNK + SPARE)))
        return self._scratch

    def write(self, store: _Store, index: int) -> None:
        """Write a chunk to the file."""
        data = store.chunk(index)
        if store.message.key:
            plain, data = data, self._buffers()[0]
            nonce = os.urandom(NONCE_BYTES)
            encryptor = _cipher(store.message.key, nonce).encryptor()
            encryptor.update_into(plain, data)
            encryptor.finalize()
            store.seals.set_seal(index, nonce, encryptor.tag)
            data = data[:CHUNK]
        _transfer(os.pwritev, store.file, data, index * CHUNK)
        if not store.message.direct:
            # The data leaves memory in order to save memory, and an error has to show now.
            os.fdatasync(store.file)
            os.posix_fadvise(store.file, index * CHUNK, CHUNK, os.POSIX_FADV_DONTNEED)

    def read(self, store: _Store, index: int) -> None:
        """Read a chunk from the file."""
        if not lib.gpushare_pool_make_pages(store.care, store.pool, index, store.small):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        data = store.chunk(index)
        if not store.message.key:
            _transfer(os.preadv, store.file, data, index * CHUNK)
            return
        from cryptography.exceptions import InvalidTag

        sealed, plain = self._buffers()
        _transfer(os.preadv, store.file, sealed[:CHUNK], index * CHUNK)
        nonce, tag = store.seals.seal(index)
        decryptor = _cipher(store.message.key, nonce, tag).decryptor()
        decryptor.update_into(sealed[:CHUNK], plain)
        try:
            decryptor.finalize()
        except InvalidTag:
            raise OSError(
                errno.EBADMSG, "the data on the disk is not what was written there"
            ) from None
        data[:] = plain[:CHUNK]

    def carry_out(self, store: _Store, request: Write | Read | Free) -> Done:
        """Carry out a request, and return the answer."""
        try:
            match request:
                case Write():
                    self.write(store, request.index)
                case Read():
                    self.read(store, request.index)
                case Free():
                    # If the file system cannot do this, the file keeps its size.
                    lib.gpushare_pool_punch_file(store.file, request.index)
        except OSError as error:
            return Done(request, error.errno or errno.EIO, error.strerror or str(error))
        return Done(request)


def _cipher(key: bytes, nonce: bytes, tag: bytes | None = None) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.GCM(nonce, tag))


def _transfer(call: Any, file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < CHUNK:
        count = call(file, [data[done:]], offset + done)
        if count <= 0:
            raise OSError(errno.EIO, "the file ends too early")
        done += count


class Helper:
    """Serves the scheduler, and then the pools that it has left.

    Parameters
    ----------
    connection
        The socket to the scheduler.
    copiers
        What each thread copies with.
    """

    def __init__(self, connection: socket.socket, copiers: list[Copier] | None = None) -> None:
        self._connection = connection
        self._stores: dict[int, _Store] = {}
        self._requests: queue.PriorityQueue[tuple[int, int, int, _Task]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        #: Guards the numbers of tasks.
        self._lock = threading.Lock()
        for copier in copiers or [Copier() for _ in range(THREADS)]:
            threading.Thread(target=self._work, args=(copier,), daemon=True).start()

    def run(self) -> None:
        """Serve until nothing is left to do."""
        while (received := self._receive()) is not None:
            request, descriptors = received
            match request:
                case Open():
                    self._stores[request.pool] = _Store(request, *descriptors)
                case Close():
                    # The last task closes it: on a disk that hangs, closing blocks the thread.
                    self._submit(request, self._answer)
                    del self._stores[request.pool]
                case _:
                    self._submit(request, self._answer)
        self._drop_waiting()
        for store in self._stores.values():
            store.keep_written()
        # A disk that hangs may keep this from going on.
        self._requests.join()
        for store in self._stores.values():
            lib.gpushare_pool_settle(store.care)
        self._bring_back()

    def _receive(self) -> tuple[Request, list[int]] | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, MOST, 3)
        except OSError:
            return None
        return (decode_request(data), descriptors) if data else None

    def _submit(
        self, request: Write | Read | Free | Close, answer: Callable[[Answer], None]
    ) -> None:
        """Have a request carried out. Whoever submits it gets the answers, also after the scheduler's end."""
        task = _Task(request, self._stores[request.pool], answer)
        with self._lock:
            task.store.tasks += 1
            task.store.unneeded |= isinstance(request, Close)
        index = 0 if isinstance(request, Close) else request.index
        self._requests.put((_PRIORITY[type(request)], index, next(self._numbers), task))

    def _answer(self, answer: Answer) -> None:
        # After the scheduler's end, the answer is not needed.
        with contextlib.suppress(OSError):
            self._connection.send(encode(answer))

    def _drop_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._end(self._requests.get_nowait()[-1])

    def _work(self, copier: Copier) -> None:
        while True:
            task = self._requests.get()[-1]
            self._carry_out(task, copier)
            self._end(task)

    def _carry_out(self, task: _Task, copier: Copier) -> None:
        request, store, answer = task
        if isinstance(request, Close):
            return
        answer(Begun(request))
        if store.unneeded:
            answer(Done(request, errno.ECANCELED, os.strerror(errno.ECANCELED)))
        else:
            answer(copier.carry_out(store, request))

    def _end(self, task: _Task) -> None:
        store = task.store
        with self._lock:
            store.tasks -= 1
            is_last = store.unneeded and store.tasks == 0
        if is_last:
            store.close()
        self._requests.task_done()

    # --- After the scheduler's end ----------------------------------------------------------------

    def _bring_back(self) -> None:
        """Read back what clients need, and in any case what there is room for."""
        processes = {
            (number, slot): process
            for number, store in self._stores.items()
            for slot, process in _processes(store.seals)
        }
        answers: queue.SimpleQueue[Done] = queue.SimpleQueue()

        def note(answer: Answer) -> None:
            if isinstance(answer, Done):
                answers.put(answer)

        while any(self._stands(number, store, processes) for number, store in self._stores.items()):
            under_way = 0
            for number, store in self._stores.items():
                lib.gpushare_pool_beat(store.care)
                under_way += self._read_some(number, store, note)
            failed = False
            for _ in range(under_way):
                done = answers.get()
                store = self._stores[done.request.pool]
                lib.gpushare_pool_end_coming(
                    store.care, store.pool, done.request.index, done.error == 0
                )
                if done.error == 0:
                    lib.gpushare_pool_punch_file(store.file, done.request.index)
                failed |= done.error != 0
            if failed or under_way == 0:
                time.sleep(LOOK)

    def _stands(
        self, number: int, store: _Store, processes: dict[tuple[int, int], Process]
    ) -> bool:
        """Clean up after clients that have ended; return whether any client has data on the disk."""
        for (of, slot), process in list(processes.items()):
            if of == number and process.has_ended():
                lib.gpushare_pool_sweep(
                    store.care, slot, lib.gpushare_pool_clock(time.monotonic_ns())
                )
                process.close()
                del processes[of, slot]
        for slot in range(SLOTS):
            # A client whose process is not known any more has ended before the scheduler noticed.
            if (number, slot) not in processes:
                lib.gpushare_pool_sweep(
                    store.care, slot, lib.gpushare_pool_clock(time.monotonic_ns())
                )
        units = ffi.new("uint32_t[]", SLOTS)
        lib.gpushare_pool_count_on_disk(store.care, units)
        return any(units)

    def _read_some(self, number: int, store: _Store, answer: Callable[[Answer], None]) -> int:
        """Begin to read chunks of one pool, and return their number."""
        moving = lib.gpushare_pool_moving(store.care)
        room = host_budget(None, 0) // CHUNK
        begun = 0
        while begun < THREADS:
            # A client that waits cannot go on without its data; the rest needs room.
            index = lib.gpushare_pool_begin_coming(store.care, moving, 0) if moving else -1
            if index < 0 and begun < room:
                index = lib.gpushare_pool_begin_coming(store.care, (1 << SLOTS) - 1, 0)
            if index < 0:
                break
            self._submit(Read(number, index), answer)
            begun += 1
        return begun


def _processes(seals: SealTable) -> Iterator[tuple[int, Process]]:
    for slot in range(SLOTS):
        pid = seals.process(slot)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                yield slot, Process(pid)


def _break(error: threading.ExceptHookArgs) -> None:
    """End the process after a defect. Without its thread, a request would never be answered."""
    sys.__excepthook__(error.exc_type, error.exc_value or error.exc_type(), error.exc_traceback)
    os._exit(BROKEN)


def main(copiers: list[Copier] | None = None) -> int:
    """Serve the socket whose descriptor is the argument."""
    # The scheduler's end is what ends this process, so that a terminal's or systemd's signal loses no data.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _break
    Helper(socket.socket(fileno=int(sys.argv[1])), copiers).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
