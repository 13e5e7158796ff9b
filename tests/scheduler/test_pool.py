# SPDX-License-Identifier: BSD-3-Clause
"""The pool of host memory, with real pages and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.memory.pool import CHUNK, SLOTS, Pool
from tests.support.client import PATIENCE, FakeClient
from tests.support.pool import Table
from tests.support.scheduler import Start

#: Claims units with the slot that it is told, says so, and waits to be ended.
HOLDER = """
import mmap, sys
from jupyter_gpushare._protocol import ffi, lib
descriptor, slot = int(sys.argv[1]), int(sys.stdin.readline())
buffer = ffi.from_buffer(mmap.mmap(descriptor, 1 << 21))
table = ffi.cast("struct gpushare_pool *", buffer)
for i in 1, 3:
    assert lib.gpushare_pool_claim(table.chunks + i, 6, lib.gpushare_pool_user(slot))
    lib.gpushare_pool_set_page_locked(table.chunks + i, slot, True)
lib.gpushare_pool_set_page_locked(table.chunks + 5, slot, True)
print("holds", flush=True)
sys.stdin.read()
"""


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(64 * CHUNK)
    yield pool
    pool.close()


@pytest.fixture
def table(pool: Pool) -> Iterator[Table]:
    table = Table(pool.descriptor)
    yield table
    table.close()


def test_a_new_pool_takes_no_memory_and_lends_none(pool: Pool, table: Table) -> None:
    assert table.pool.magic == lib.GPUSHARE_POOL_MAGIC
    assert table.pool.chunk_count == 64
    assert table.pool.limit == 0
    assert os.fstat(pool.descriptor).st_size == table.pool.data_offset + 64 * CHUNK
    assert pool.allocated() < CHUNK


def test_no_process_can_shrink_the_pool(pool: Pool) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(pool.descriptor, 4096)


def test_pages_are_prepared_up_to_the_target_and_freed(pool: Pool, table: Table) -> None:
    pool.order(limit=32 * CHUNK, target=8 * CHUNK - 1, most=32 * CHUNK)
    until(lambda: pool.figures().prepared == 8 * CHUNK)
    assert 8 * CHUNK <= pool.allocated() < 9 * CHUNK
    assert table.claim(0, 0)
    lib.gpushare_pool_set_page_locked(table.chunk(2), 0, True)
    pool.order(limit=32 * CHUNK, target=0, most=0)
    until(lambda: pool.allocated() < 3 * CHUNK)
    # In use, and page-locked: these keep their pages.
    assert pool.allocated() >= 2 * CHUNK
    assert lib.gpushare_pool_is_prepared(table.chunk(2))
    assert not lib.gpushare_pool_is_prepared(table.chunk(3))
    lib.gpushare_pool_unclaim(table.chunk(0), 0)
    lib.gpushare_pool_set_page_locked(table.chunk(2), 0, False)
    until(lambda: pool.allocated() < CHUNK)


def test_chunks_in_use_beyond_the_limit_reduce_it(pool: Pool, table: Table) -> None:
    pool.order(limit=32 * CHUNK, target=0, most=0)
    assert table.pool.limit == 32
    for index in (20, 30, 31):
        assert table.claim(index, 0)
    pool.order(limit=10 * CHUNK, target=0, most=0)
    assert table.pool.limit == 7
    pool.order(limit=2 * CHUNK, target=0, most=0)
    assert table.pool.limit == 0


def test_a_target_beyond_the_limit_is_lowered(pool: Pool) -> None:
    pool.order(limit=3 * CHUNK, target=20 * CHUNK, most=20 * CHUNK)
    until(lambda: pool.figures().prepared == 3 * CHUNK)


def test_a_process_keeps_its_slot_until_it_is_dead(pool: Pool, table: Table) -> None:
    pool.order(limit=32 * CHUNK, target=0, most=32 * CHUNK)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(pool.descriptor)],
        pass_fds=[pool.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        mine, slot = pool.lend(os.getpid()), pool.lend(holder.pid)
        assert mine is not None
        assert slot is not None
        assert mine != slot
        holder.stdin.write(f"{slot}\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "holds\n"
        assert table.claim(0, mine)
        lib.gpushare_pool_set_page_locked(table.chunk(1), mine, True)
        assert pool.lend(holder.pid, again=True) == slot
        pool.reap()
        assert pool.figures().in_use == 3 * CHUNK
        holder.kill()
        # The death is noticed without a query of the status.
        until(lambda: pool.reap() or slot not in pool.lent)
        assert pool.figures().in_use == CHUNK
        assert table.users(0) == {mine}
        assert lib.gpushare_pool_page_locked_by(table.chunk(1)) == 1 << mine
        assert lib.gpushare_pool_page_locked_by(table.chunk(5)) == 0


def test_a_process_that_executes_another_program_keeps_its_slot_but_no_units(
    pool: Pool, table: Table
) -> None:
    pool.order(limit=32 * CHUNK, target=0, most=32 * CHUNK)
    slot = pool.lend(os.getpid())
    assert slot is not None
    assert table.claim(0, slot)
    assert pool.lend(os.getpid(), again=True) == slot
    assert table.users(0) == {slot}
    assert pool.lend(os.getpid()) == slot
    assert table.users(0) == set()


def test_without_pidfds_the_start_time_identifies_a_process(
    monkeypatch: pytest.MonkeyPatch, pool: Pool
) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        slot = pool.lend(holder.pid)
        assert slot is not None
        pool.reap()
        assert slot in pool.lent
        holder.kill()
        until(lambda: pool.reap() or slot not in pool.lent)
        assert pool.lend(holder.pid) is None


def test_slots_are_limited_and_lent_again(pool: Pool) -> None:
    holders = [
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(SLOTS)
    ]  # fmt: skip
    try:
        assert {pool.lend(h.pid) for h in holders} == set(range(SLOTS))
        assert pool.lend(os.getpid()) is None
        holders[7].kill()
        until(lambda: pool.lend(os.getpid()) == 7)
    finally:
        for holder in holders:
            holder.kill()
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait()


def test_the_pool_is_sent_with_the_welcome(start: Start) -> None:
    scheduler = start("--host-memory", "1G")
    with scheduler.client("a") as client, FakeClient(scheduler.path, "b", backend="plain") as other:
        assert client.pool is not None
        table = Table(client.pool)
        try:
            assert table.pool.magic == lib.GPUSHARE_POOL_MAGIC
            assert table.pool.limit == (1 << 30) // CHUNK
        finally:
            table.close()
        other.attach()
        assert other.pool is None


def test_host_memory_is_prepared_when_contention_is_expected(start: Start) -> None:
    """The GPU has 8 GiB."""
    scheduler = start("--host-memory", "1G")

    def pool() -> Any:
        with scheduler.control() as control:
            return control.request("status")["status"]["host"]["pool"]

    with scheduler.client("a") as a:
        a.grow(6 << 30)
        assert pool()["prepared"] == 0
        with scheduler.client("b") as b:
            b.grow(1 << 30)
            assert b.usage is not None
            assert a.usage is not None
            # What is on the GPU may have to leave it: the newcomer has nothing there yet.
            a.change(replace(a.usage, resident=6 << 30))
            assert a.expect(ev.Prepare).bytes == 1 << 30
            b.change(replace(b.usage, resident=1 << 30))
            assert b.expect(ev.Prepare).bytes == 1 << 30
            until(lambda: pool()["prepared"] == 1 << 30)
            assert (pool()["limit"], pool()["in_use"], pool()["page_locked"]) == (1 << 30, 0, 0)
    # The processes are alive, but none uses the pool.
    until(lambda: pool()["prepared"] == 0)
