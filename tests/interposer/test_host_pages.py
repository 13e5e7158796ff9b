# SPDX-License-Identifier: BSD-3-Clause
"""The pages of a pool of host memory: page-locked in advance, prepared, populated and large."""

from __future__ import annotations

import errno
import os
import time

import pytest

from jupyter_gpushare.scheduler.memory.pool import Pool as SchedulerPool
from tests.interposer.pool_clients import (
    CHUNK,
    EXCLUSIVE,
    GOING,
    MIB,
    MakeClient,
    MakePool,
    until,
)
from tests.support.machine import UNIT


def test_memory_page_locked_in_advance_is_used_for_a_move(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool, slot=5)
    client.call("prepare", 4 * CHUNK)
    until(lambda: client.registered == 4)
    assert pool.used_by(5) == []
    client.taken(4 * CHUNK)
    assert client.page_locked_late == 0
    assert pool.used_by(5) == pool.page_locked_by(5)
    client.taken(CHUNK)
    assert client.page_locked_late == 1
    assert len(pool.page_locked_by(5)) == client.registered == 5


def test_page_locking_in_advance_continues_while_the_application_computes(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("gate", 1)
    client.call("prepare", 3 * CHUNK)
    until(lambda: client.registered == 3)


def test_chunks_of_others_are_page_locked_in_advance_and_stay_theirs(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(12)
    away, holder = make_client(pool), make_client(pool)
    away.offer(pool, slot=1)
    holder.offer(pool, slot=3)
    piece = away.taken(12 * CHUNK, value=7)
    holder.call("gate", 1)
    holder.call("prepare", 10 * CHUNK)
    until(lambda: holder.registered == 10)
    assert len(pool.page_locked_by(3)) == 10
    assert away.holds(piece, value=7)
    assert pool.used_by(1) == list(range(12))
    # The one comes back, and the other leaves to where that was.
    away.call("give", piece)
    left = holder.taken(10 * CHUNK, value=8)
    assert holder.page_locked_late == 0
    assert holder.holds(left, value=8)
    assert pool.used_by(3) == pool.page_locked_by(3)
    holder.call("give", left)
    holder.call("prepare", 0)
    until(lambda: pool.page_locked_by(3) == [])
    assert holder.registered == 0


def test_chunks_that_the_scheduler_frees_are_not_page_locked(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    # The scheduler is freeing these, after a look at which processes page-locked them.
    for chunk in range(4):
        pool.put(chunk, users=EXCLUSIVE, prepared=1)
    client.call("prepare", 4 * CHUNK)
    time.sleep(0.6)
    # It sets a chunk's bit before it looks whose that is.
    until(lambda: pool.page_locked_by(0) == [])
    assert client.registered == 0


def test_chunks_above_the_target_are_unlocked(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 6 * CHUNK)
    until(lambda: client.registered == 6)
    kept = client.taken(2 * CHUNK)
    client.call("prepare", 3 * CHUNK)
    until(lambda: client.registered == 3)
    client.call("prepare", 0)
    until(lambda: pool.page_locked_by(0) == pool.used_by(0))
    assert client.registered == 2
    assert client.holds(kept)
    client.call("give", kept)
    until(lambda: pool.page_locked_by(0) == [])
    assert client.registered == 0


def test_free_chunks_beyond_the_limit_are_unlocked_and_not_claimed(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(6)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 6 * CHUNK)
    until(lambda: client.registered == 6)
    pool.header(limit=2)
    until(lambda: pool.page_locked_by(0) == [0, 1])
    piece = client.taken(2 * CHUNK)
    assert client.take(MIB) is None
    assert pool.used_by(0) == [0, 1]
    assert client.holds(piece)


def test_chunks_are_taken_prepared_then_page_locked_by_others_then_empty(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(6)
    pool.put(2, prepared=1, page_locked_by=1 << 9)
    pool.put(4, prepared=1)
    pool.put(1, users=EXCLUSIVE)
    client = make_client(pool)
    client.offer(pool)
    order = []
    for _ in range(5):
        before = set(pool.used_by(0))
        client.taken(CHUNK)
        order += [i for i in pool.used_by(0) if i not in before]
    assert order == [4, 2, 0, 3, 5]
    assert set(order) <= set(pool.prepared())
    assert client.take(CHUNK) is None


def test_a_driver_may_refuse_to_page_lock(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("refuse", 1)
    pieces = [client.taken(3 * CHUNK, value=i) for i in range(2)]
    client.call("prepare", 8 * CHUNK)
    assert all(client.holds(piece, i) for i, piece in enumerate(pieces))
    assert pool.page_locked_by(0) == []
    said = client.errors().splitlines()
    assert len(said) == 1
    assert "slower" in said[0]


def test_chunks_in_use_stay_page_locked_if_the_driver_refuses_others(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    piece = client.taken(2 * CHUNK)
    client.call("refuse", 1)
    client.call("prepare", 4 * CHUNK)
    time.sleep(0.6)
    assert pool.page_locked_by(0) == pool.used_by(0) == [0, 1]
    assert client.holds(piece)


def test_only_pages_that_the_scheduler_prepares_are_used(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    pool.header(limit=8, prepared_only=1)
    for i in (1, 4):
        pool.put(i, prepared=1)
    client = make_client(pool)
    client.offer(pool)
    # Nor for what is page-locked ahead.
    client.call("prepare", 8 * CHUNK)
    assert client.take(3 * CHUNK) is None
    piece = client.taken(2 * CHUNK)
    assert pool.used_by(0) == pool.prepared() == [1, 4]
    assert client.take(UNIT) is None
    pool.put(6, prepared=1)
    client.taken(UNIT)
    client.call("give", piece)
    assert pool.prepared() == [1, 4, 6]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize("prepared", [0, 1])
def test_a_moves_chunks_are_populated_by_several_threads(
    make_pool: MakePool, make_client: MakeClient, prepared: int
) -> None:
    pool = make_pool(8)
    for i in range(8):
        pool.put(i, prepared=prepared)
    client = make_client(pool)
    client.offer(pool)
    before = client.threads
    client.call("company", 2)
    piece = client.taken(7 * CHUNK + MIB)
    assert client.call("company", 0) == "1"
    assert client.holds(piece)
    assert client.page_locked_late == client.registered == 8
    assert client.owned == 7 * 8 + 1
    assert pool.prepared() == pool.page_locked_by(0) == list(range(8))
    until(lambda: client.threads == before)


def test_an_eviction_gets_chunks_ready_ahead_of_its_pieces(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(12)
    client = make_client(pool)
    client.offer(pool, slot=2)
    client.call("prepare", 2 * CHUNK)
    until(lambda: client.registered == 2)
    before = client.threads
    client.call("expect", 8 * CHUNK)
    # What is page-locked is used first, so only the rest is claimed ahead.
    until(lambda: client.registered == 8)
    assert len(pool.used_by(2)) == 6
    pieces = [client.taken(3 * CHUNK + MIB, value=i) for i in range(2)]
    assert all(client.holds(piece, i) for i, piece in enumerate(pieces))
    assert client.registered == 8
    assert set(pool.used_by(2)) <= set(pool.page_locked_by(2))
    client.call("expect_no_more")
    # The second piece's last part is beside the first one's.
    assert client.owned == 2 * (3 * 8 + 1)
    assert len(pool.used_by(2)) == 7
    until(lambda: client.threads == before)
    client.call("prepare", 0)
    until(lambda: pool.page_locked_by(2) == pool.used_by(2))


def test_no_more_is_claimed_ahead_than_fits(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(6)
    pool.header(limit=4)
    client, other = make_client(pool), make_client(pool)
    client.offer(pool, slot=1)
    other.offer(pool, slot=2)
    taken = other.taken(CHUNK, value=5)
    client.call("expect", 6 * CHUNK)
    until(lambda: client.registered == 3)
    assert other.take(CHUNK) is None
    client.taken(3 * CHUNK)
    assert client.take(CHUNK) is None
    client.call("expect_no_more")
    assert other.holds(taken, 5)
    assert pool.used_by(1) == pool.page_locked_by(1)


def test_page_locks_are_dropped_while_all_memory_is_away(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool, slot=3)
    client.call("prepare", 5 * CHUNK)
    until(lambda: client.registered == 5)
    piece = client.taken(3 * CHUNK)
    client.call("away", 1)
    # The locks are dropped after 15 s.
    client.call("later", 5)
    client.call("prepare", 6 * CHUNK)
    until(lambda: client.registered == 6)
    client.call("later", 11)
    until(lambda: pool.page_locked_by(3) == [])
    assert client.registered == 0
    assert client.holds(piece)
    # Nothing is page-locked before the next restore.
    client.call("prepare", 5 * CHUNK)
    assert client.call("rest", 0) == "1"
    assert client.registered == 0
    client.call("away", 0)
    client.call("prepare", 5 * CHUNK)
    until(lambda: client.registered == 5)


def test_page_locks_end_during_a_move_if_a_chunk_is_to_leave_memory(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    for i in range(4):
        pool.put(i, users=1 << 5, prepared=1)
    client = make_client(pool)
    client.offer(pool, slot=3)
    client.call("prepare", 3 * CHUNK)
    until(lambda: client.registered == 3)
    client.call("moving", 1)
    leaving, *others = pool.page_locked_by(3)
    pool.set_place(leaving, GOING)
    until(lambda: pool.page_locked_by(3) == others)
    client.call("moving", 0)


def test_pages_stay_if_the_driver_does_not_end_a_page_lock(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(3)
    client = make_client(pool)
    client.offer(pool)
    client.call("give", client.taken(2 * CHUNK))
    locked = pool.page_locked_by(0)
    assert client.registered == 2
    client.call("refuse_to_unlock", 1)
    client.call("end_context")
    client.call("refuse_to_unlock", 0)
    # For others, they are page-locked as before. What it copies there itself is not.
    piece = client.taken(3 * CHUNK, value=2)
    assert client.holds(piece, value=2)
    assert pool.page_locked_by(0) == [0, 1, 2]
    assert client.registered == 3
    client.call("give", piece)
    client.call("prepare", 0)
    client.call("later", 2)
    until(lambda: client.registered == 2)
    assert pool.page_locked_by(0) == locked


def test_page_locks_are_dropped_before_a_process_is_parked(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    piece = client.taken(4 * CHUNK)
    assert client.registered == 4
    # The process is needed meanwhile, and stays as it was.
    assert client.call("rest", 2) == "0"
    until(lambda: client.registered == 4)
    assert client.call("rest", 0) == "1"
    assert client.registered == 0
    assert pool.page_locked_by(0) == []
    assert client.holds(piece)


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
@pytest.mark.parametrize("nth", [1, 3])
def test_an_eviction_continues_where_the_host_had_no_pages_ahead(
    make_pool: MakePool, make_client: MakeClient, nth: int, flags: tuple[str, ...]
) -> None:
    pool = make_pool(8)
    client = make_client(pool, flags=flags)
    client.offer(pool)
    client.call("fail_populating", nth, errno.ENOMEM)
    client.call("expect", 6 * CHUNK)
    until(lambda: len(pool.prepared()) >= nth - 1)
    while (piece := client.take(6 * CHUNK, value=3)) is None:
        pass
    assert client.holds(piece[0], value=3)
    client.call("expect_no_more")
    assert len(pool.used_by(0)) == 6
    assert "ThreadSanitizer" not in client.errors()


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
@pytest.mark.parametrize("nth", [1, 2, 4, 6])
@pytest.mark.parametrize("prepared", [0, 1])
def test_one_chunk_that_cannot_be_populated_fails_the_take(
    make_pool: MakePool,
    make_client: MakeClient,
    nth: int,
    prepared: int,
    flags: tuple[str, ...],
) -> None:
    pool = make_pool(8)
    for i in range(8):
        pool.put(i, prepared=prepared)
    client = make_client(pool, flags=flags)
    client.offer(pool)
    kept = client.taken(2 * CHUNK)
    client.call("fail_populating", nth, errno.ENOMEM)
    assert client.take(6 * CHUNK) is None
    assert len(pool.used_by(0)) == 2
    assert client.owned == 2 * 8
    piece = client.taken(6 * CHUNK, value=2)
    assert client.holds(kept)
    assert client.holds(piece, value=2)
    assert client.registered == 8
    assert "ThreadSanitizer" not in client.errors()


def test_an_operating_system_without_populate_is_supported(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("fail_populating", 1, errno.EINVAL)
    piece = client.taken(4 * CHUNK)
    client.call("prepare", 6 * CHUNK)
    until(lambda: client.registered == 6)
    assert client.holds(piece)


def test_pages_are_large_where_the_operating_system_supports_it(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    if client.call("makes_large_pages") == "0":
        pytest.skip("this machine has no large pages for shared memory now")
    client.offer(pool)
    piece = client.taken(4 * CHUNK)
    assert client.large_bytes > 0
    assert client.holds(piece)
    # Without a scheduler's pool, too.
    alone = make_client()
    alone.offer(None)
    piece = alone.taken(4 * CHUNK)
    assert alone.large_bytes > 0
    assert alone.holds(piece)


def test_pages_that_the_scheduler_prepares_are_large(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    made = SchedulerPool(8 * CHUNK)
    try:
        made.order(limit=8 * CHUNK, target=4 * CHUNK, most=8 * CHUNK)
        until(lambda: made.figures().prepared == 4 * CHUNK)
        pool = make_pool(8, os.dup(made.descriptor))
        client = make_client(pool)
        if client.call("makes_large_pages") == "0":
            pytest.skip("this machine has no large pages for shared memory now")
        client.offer(pool)
        tried = client.call("no_large_pages", 0)
        piece = client.taken(4 * CHUNK)
        assert client.call("no_large_pages", 0) == tried
        assert client.large_bytes > 0
        assert client.holds(piece)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("error", "tries"), [(errno.EINVAL, 1), (errno.ENOMEM, 2)], ids=["never", "none now"]
)
def test_without_large_pages_the_system_is_rarely_asked_again(
    make_pool: MakePool, make_client: MakeClient, error: int, tries: int
) -> None:
    pool = make_pool(100)
    client = make_client(pool)
    client.offer(pool)
    client.call("no_large_pages", error)
    pieces = [client.taken(CHUNK) for _ in range(66)]
    assert int(client.call("no_large_pages", error)) == tries
    assert client.large_bytes == 0
    assert all(client.holds(piece) for piece in pieces)


def test_page_locks_end_with_their_context(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 4 * CHUNK)
    until(lambda: client.registered == 4)
    piece = client.taken(2 * CHUNK)
    client.call("end_context")
    assert pool.page_locked_by(0) == []
    assert client.registered == 0
    assert client.holds(piece)
    client.call("give", piece)
    client.taken(2 * CHUNK)
    until(lambda: client.registered == 4)
