# SPDX-License-Identifier: BSD-3-Clause
"""The helper of the disk tier in this process, with one thread whose first request ends when the test says so."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.memory.disk import helper as disk_helper
from jupyter_gpushare.scheduler.memory.disk.files import SealTable, open_file
from jupyter_gpushare.scheduler.memory.disk.helper import Copier, Helper
from jupyter_gpushare.scheduler.memory.disk.messages import Done, Open, Read, Request, Write, encode
from jupyter_gpushare.scheduler.memory.pool import CHUNK
from tests.support.disk import COMING, DISK, MEMORY, PATIENCE, Lab, until

ALL = (1 << 63) - 1


class Gate(Copier):
    """Holds the first request up until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()
        #: The errno of the first request; 0: it is carried out.
        self.error = 0

    def carry_out(self, store: Any, request: Any) -> Done:
        if not self.reached.is_set():
            self.reached.set()
            self.released.wait()
            if self.error:
                return Done(request, self.error, os.strerror(self.error))
        return super().carry_out(store, request)


class Scene:
    """A helper that serves one pool, whose scheduler is this test."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.gate = lab, Gate()
        self.file = open_file(folder)
        self.seals = SealTable(lab.pool.care.chunk_count)
        self.seals.set_process(0, os.getpid())
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.helper = Helper(theirs, [self.gate])
        self.thread = threading.Thread(target=self.helper.run, daemon=True)
        self.thread.start()
        care = lab.pool.care
        message = Open(1, care.data_offset, care.chunk_count, self.file.direct)
        descriptors = [lab.pool.descriptor, self.file.descriptor, self.seals.descriptor]
        socket.send_fds(self.connection, [encode(message)], descriptors)

    def send(self, *requests: Request) -> None:
        for request in requests:
            self.connection.send(encode(request))

    def begin_writing(self, index: int) -> None:
        care = self.lab.pool.care
        lib.gpushare_pool_set_place(self.lab.table.chunk(index), lib.GPUSHARE_POOL_GOING)
        assert lib.gpushare_pool_begin_leaving(care, ALL, ALL, index) == index

    def put(self, index: int) -> None:
        """Put a chunk on the disk."""
        pool = self.lab.pool
        self.begin_writing(index)
        start = pool.table + index * CHUNK
        data = memoryview(self.lab.data)[start : start + CHUNK]
        assert os.pwritev(self.file.descriptor, [data], index * CHUNK) == CHUNK
        data.release()
        assert lib.gpushare_pool_end_leaving(pool.care, pool.descriptor, index, True)

    def begin_reading(self, index: int) -> None:
        assert lib.gpushare_pool_begin_coming(self.lab.pool.care, ALL, index) == index

    def end_scheduler(self) -> None:
        """End the connection; the helper notices."""
        self.connection.close()
        until(self.helper._requests.empty)

    def close(self) -> None:
        self.gate.released.set()
        self.connection.close()
        self.thread.join(PATIENCE)
        self.seals.close()
        os.close(self.file.descriptor)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(disk_helper, "host_budget", lambda *_: 16 * CHUNK)
    lab = Lab(16)
    lab.write(0, slot=0)
    lab.write(1, slot=0)
    made = Scene(lab, tmp_path)
    yield made
    made.close()
    lab.close()


def test_a_read_under_way_at_the_schedulers_end_is_done_again(scene: Scene) -> None:
    lab = scene.lab
    scene.put(0)
    scene.put(1)
    scene.begin_reading(0)
    scene.begin_reading(1)
    scene.send(Read(1, 0))
    scene.gate.reached.wait()
    # It waits behind the first one, and the helper drops it when the scheduler has ended.
    scene.send(Read(1, 1))
    until(lambda: not scene.helper._requests.empty())
    scene.end_scheduler()
    assert lab.places(0, 1) == [COMING, COMING]
    scene.gate.released.set()
    until(lambda: not scene.thread.is_alive())
    assert lab.places(0, 1) == [MEMORY, MEMORY]
    assert lab.is_right(0)
    assert lab.is_right(1)


def test_a_write_that_fails_after_the_schedulers_end_loses_nothing(scene: Scene) -> None:
    lab = scene.lab
    scene.put(0)
    scene.begin_writing(1)
    scene.gate.error = errno.EIO
    scene.send(Write(1, 1))
    scene.gate.reached.wait()
    scene.send(Write(1, 2))
    until(lambda: not scene.helper._requests.empty())
    scene.end_scheduler()
    assert lab.place(0) == DISK
    scene.gate.released.set()
    until(lambda: not scene.thread.is_alive())
    assert lab.places(0, 1) == [MEMORY, MEMORY]
    assert lab.is_right(0)
    assert lab.is_right(1)


def test_what_was_being_written_is_in_memory_although_the_disk_hangs(scene: Scene) -> None:
    lab = scene.lab
    scene.begin_writing(0)
    scene.send(Write(1, 0))
    scene.gate.reached.wait()
    scene.connection.close()
    until(lambda: lab.place(0) == MEMORY)
    assert not scene.gate.released.is_set()
    assert lab.is_right(0)
