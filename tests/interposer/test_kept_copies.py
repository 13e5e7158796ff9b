# SPDX-License-Identifier: BSD-3-Clause
"""What the pool of host memory keeps of restored data, and shares between processes: real processes over one table."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.memory.disk.store import DiskWishes
from jupyter_gpushare.scheduler.memory.disk.tier import DiskOptions, DiskTier
from jupyter_gpushare.scheduler.memory.pool import Pool as SchedulerPool
from tests.interposer.pool_clients import (
    CHUNK,
    EXCLUSIVE,
    UNIT,
    Client,
    MakeClient,
    MakePool,
    Pool,
    until,
)


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool(4)


@pytest.fixture
def a(pool: Pool, make_client: MakeClient) -> Client:
    client = make_client(pool)
    client.offer(pool, slot=1)
    return client


@pytest.fixture
def b(pool: Pool, make_client: MakeClient) -> Client:
    client = make_client(pool)
    client.offer(pool, slot=2)
    return client


def test_unchanged_data_is_not_written_again(a: Client, pool: Pool) -> None:
    values = range(1, 13)
    assert a.evict(0, *values) == (0, 0, 0, 12)
    assert a.owned == 12
    a.call("restore", 0)
    assert a.owned == 0
    assert pool.users() == set()
    assert a.evict(0, *values) == (0, 12, 0, 0)
    assert a.owned == 12


def test_only_what_has_changed_is_written_and_to_the_same_place(a: Client, pool: Pool) -> None:
    a.evict(0, *range(1, 17))
    before = pool.used_by(1)
    values = [*range(1, 17)]
    for changed, value in ((4, 98), (9, 99)):
        a.call("restore", 0)
        values[changed] = value
        assert a.evict(0, *values) == (0, 15, 0, 1)
        assert pool.used_by(1) == before


def test_zeros_are_neither_written_nor_stored(a: Client) -> None:
    assert a.evict(0, 0, 0, 0) == (3, 0, 0, 0)
    assert a.owned == 0
    a.call("restore", 0)
    assert a.evict(0, 0, 5, 0) == (2, 0, 0, 1)
    assert a.owned == 1


def test_equal_data_of_two_processes_is_stored_once_until_one_changes_it(
    a: Client, b: Client, pool: Pool
) -> None:
    assert a.evict(0, *range(1, 9)) == (0, 0, 0, 8)
    assert b.evict(0, *range(1, 9)) == (0, 0, 8, 0)
    assert a.call("shared") == b.call("shared") == "8"
    assert a.owned == b.owned == 8
    assert len(set(pool.used_by(1)) | set(pool.used_by(2))) == 1
    b.call("restore", 0)
    assert b.evict(0, 99, *range(2, 9)) == (0, 7, 0, 1)
    assert a.call("has_data", 0) == b.call("has_data", 0) == "1"
    assert b.call("shared") == "7"
    a.process.kill()
    a.process.wait()
    pool.sweep(1)
    assert b.call("has_data", 0) == "1"
    b.call("restore", 0)


def test_equal_data_within_a_process_is_stored_once(a: Client) -> None:
    """Even if it leaves at once, when no part of it has a digest yet."""
    assert a.evict(0, 7, 7, 7, 7) == (0, 0, 0, 4)
    assert a.owned == 1
    assert a.evict(1, 7, 8) == (0, 0, 1, 1)
    assert a.owned == 2
    a.call("restore", 0)
    assert a.owned == 2
    assert a.call("has_data", 1) == "1"
    a.call("restore", 1)
    assert a.owned == 0


def test_data_of_two_pools_is_not_shared(make_pool: MakePool, make_client: MakeClient) -> None:
    """Each user has a pool."""
    pools = make_pool(4), make_pool(4)
    clients = [make_client(pool) for pool in pools]
    for client, pool in zip(clients, pools, strict=True):
        client.offer(pool, slot=1)
        assert client.evict(0, *range(1, 9)) == (0, 0, 0, 8)


def test_kept_copies_make_room_for_others_the_oldest_first(
    a: Client, b: Client, pool: Pool
) -> None:
    a.evict(0, *range(1, 9))
    a.evict(1, *range(11, 19))
    a.call("restore", 0)
    time.sleep(0.25)  # the times in the pool are rounded down
    a.call("restore", 1)
    assert b.evict(0, *range(21, 37)) == (0, 0, 0, 16)  # beside the copies
    assert b.evict(1, *range(41, 49)) == (0, 0, 0, 8)  # in place of the older copy
    assert a.evict(1, *range(11, 19)) == (0, 8, 0, 0)
    assert a.evict(0, *range(1, 9)) is None
    b.call("restore", 0)
    assert a.evict(0, *range(1, 9)) == (0, 0, 0, 8)
    assert a.call("has_data", 0) == a.call("has_data", 1) == b.call("has_data", 1) == "1"


def test_copies_beyond_the_limit_are_not_used_again(a: Client, pool: Pool) -> None:
    a.evict(0, *range(1, 17))
    a.evict(1, *range(21, 29))
    a.call("restore", 0)
    assert pool.used_by(1) == [2]
    pool.header(limit=1)
    assert a.evict(0, *range(1, 17)) is None
    assert pool.used_by(1) == [2]
    assert a.evict(2, *range(1, 9)) == (0, 0, 8, 0)
    assert a.call("has_data", 2) == a.call("has_data", 1) == "1"


def test_dropped_data_is_given_up_first(a: Client, b: Client) -> None:
    a.evict(0, *range(1, 9))
    a.call("restore", 0)
    time.sleep(0.25)
    a.evict(1, *range(11, 19))
    a.call("restore", 1)
    a.call("drop", 1)
    b.evict(0, *range(21, 45))
    assert a.evict(0, *range(1, 9)) == (0, 8, 0, 0)


def test_what_a_process_was_writing_when_it_died_is_not_used(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    made = SchedulerPool(4 * CHUNK)
    try:
        made.order(limit=4 * CHUNK, target=0, most=4 * CHUNK)
        pool = make_pool(4, os.dup(made.descriptor))
        client = make_client(pool)
        slot = made.lend(client.process.pid)
        assert slot is not None
        client.offer(pool, slot)
        client.evict(0, *range(1, 9))
        client.call("restore", 0)
        # As if it had been killed between the claim and the publication.
        bit, users = 1 << slot, pool.entry(0)
        pool.set_users(0, [bit | EXCLUSIVE] * 4 + [0] * 4)
        client.process.kill()
        client.process.wait()
        until(lambda: made.reap() is not None and not made.lent)
        assert pool.users() == set()
        other = make_client(pool)
        other.offer(pool, slot)
        assert other.evict(0, *range(1, 9)) == (0, 0, 4, 4)
        assert len(users) == 4
    finally:
        made.close()


@pytest.fixture
def made() -> Iterator[SchedulerPool]:
    made = SchedulerPool(24 * CHUNK)
    yield made
    made.close()


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
def test_many_processes_use_one_pool_at_once(
    made: SchedulerPool, make_pool: MakePool, make_client: MakeClient, flags: tuple[str, ...]
) -> None:
    """Processes evict, compare, restore and change data; two die; the scheduler frees pages and changes the limit.

    The data of a unit has one of 32 values, so that much of it is shared. Each process compares all data that it has
    after each eviction and at each restore.
    """
    made.order(limit=24 * CHUNK, target=0, most=24 * CHUNK)
    pool = make_pool(24, os.dup(made.descriptor))
    clients = [make_client(pool, flags=flags) for _ in range(4)]
    slots = []
    for number, client in enumerate(clients):
        slot = made.lend(client.process.pid)
        assert slot is not None
        slots.append(slot)
        client.offer(pool, slot)
        client.start("stress", number)
    draw = random.Random(3)
    seen = False

    def change_sizes() -> None:
        nonlocal seen
        for _ in range(60):
            limit = draw.randint(8, 24)
            most, kept = draw.randint(0, limit), draw.randint(0, limit)
            made.order(limit=limit * CHUNK, target=0, most=most * CHUNK, kept=kept * CHUNK)
            seen = seen or (made.figures().shared > 0 and made.figures().kept > 0)
            time.sleep(0.02)
        # What is in use beyond a limit lowers it until the next order.
        made.order(limit=24 * CHUNK, target=0, most=24 * CHUNK)

    for victim, slot in zip(clients[:2], slots, strict=False):
        change_sizes()
        assert victim.process.poll() is None, victim.errors()
        until(lambda slot=slot: pool.used_by(slot) != [])  # type: ignore[misc]
        victim.process.kill()
        victim.process.wait()
        until(lambda slot=slot: made.reap() is not None and slot not in made.lent)  # type: ignore[misc]
        assert pool.used_by(slot) == []
    change_sizes()
    for client in clients[2:]:
        client.start("stop")
        assert client.answer() == "ok"
        client.call("prepare", 0)
    assert seen
    assert pool.users() == set()
    until(lambda: all(pool.entry(i)[1] == 0 for i in range(24)))
    made.order(limit=24 * CHUNK, target=0, most=24 * CHUNK)
    assert clients[2].holds(clients[2].taken(24 * CHUNK))
    assert "ThreadSanitizer" not in "".join(client.errors() for client in clients[2:])


def test_the_scheduler_frees_copies_only_when_it_needs_their_room(
    made: SchedulerPool, make_pool: MakePool, make_client: MakeClient
) -> None:
    made.order(limit=24 * CHUNK, target=0, most=24 * CHUNK)
    pool = make_pool(24, os.dup(made.descriptor))
    client = make_client(pool)
    client.offer(pool, 0)
    for piece in range(2):
        client.evict(piece, *range(piece * 20 + 1, piece * 20 + 17))
    client.taken(CHUNK)
    for piece in range(2):
        client.call("restore", piece)
        time.sleep(0.25)
    assert made.figures().kept == 32 * UNIT
    until(lambda: pool.page_locked_by(0) == pool.used_by(0))
    made.order(limit=24 * CHUNK, target=0, most=0, kept=24 * CHUNK)
    made.order(limit=24 * CHUNK, target=0, most=0, kept=3 * CHUNK)
    until(lambda: made.figures().kept == 16 * UNIT)
    assert client.evict(1, *range(21, 37)) == (0, 16, 0, 0)
    assert client.evict(0, *range(1, 17)) == (0, 0, 0, 16)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="plain"),
        pytest.param(("-fsanitize=thread",), id="thread", marks=pytest.mark.slow),
    ],
)
def test_data_goes_to_a_disk_and_back_meanwhile(
    made: SchedulerPool,
    make_pool: MakePool,
    make_client: MakeClient,
    tmp_path: Path,
    flags: tuple[str, ...],
) -> None:
    """Whenever a process rests, its data goes; and it comes back at once. One process dies."""
    made.order(limit=24 * CHUNK, target=0, most=24 * CHUNK)
    pool = make_pool(24, os.dup(made.descriptor))
    tier = DiskTier(DiskOptions(tmp_path, 24 * CHUNK))
    try:
        tier.add(made)
        clients = [make_client(pool, flags=flags) for _ in range(3)]
        for number, client in enumerate(clients):
            slot = made.lend(client.process.pid)
            assert slot is not None
            client.offer(pool, slot)
            client.start("stress", number, 1)
        slots = tuple(made.lent)
        tier.set_wishes(made, DiskWishes(slots, len(slots), slots, budget=24))
        until(lambda: tier.status().read > 64 * CHUNK)
        clients[0].process.kill()
        clients[0].process.wait()
        made.reap()
        read = tier.status().read
        until(lambda: tier.status().read > read + 32 * CHUNK)
        for client in clients[1:]:
            client.start("stop")
            assert client.answer() == "ok"
            assert "ThreadSanitizer" not in client.errors()
        made.reap()
        until(lambda: tier.status().used == 0)
        assert tier.status().fault == ""
    finally:
        tier.stop()
