# SPDX-License-Identifier: BSD-3-Clause
"""The pool of host memory as clients use it: several real processes over one table, with and without a scheduler's."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.interposer.pool_clients import (
    CHUNK,
    DATA,
    HEADER,
    MIB,
    MakeClient,
    MakePool,
    Pool,
    until,
)
from tests.support.machine import UNIT, Machine


def test_small_pieces_share_chunks(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(16)
    client = make_client(pool)
    client.offer(pool, slot=3)
    pieces = []
    for i in range(4):
        taken = client.take(20 * MIB - 512, value=i + 1)
        assert taken is not None
        pieces.append(taken[0])
        assert sum(taken[1]) == 20 * MIB - 512
        assert all(0 < extent <= CHUNK for extent in taken[1])
    assert len(pool.used_by(3)) == 5
    assert client.owned == 40
    assert all(client.holds(piece, i + 1) for i, piece in enumerate(pieces))
    for piece in pieces:
        client.call("give", piece)
    assert pool.used_by(3) == []
    assert client.owned == 0


def test_pieces_of_many_sizes_waste_little(make_pool: MakePool, make_client: MakeClient) -> None:
    """Whatever was freed in between, free space in our own chunks is used before another is claimed."""
    pool = make_pool(40)
    client = make_client(pool)
    client.offer(pool)
    draw = random.Random(7)
    units: dict[int, int] = {}
    for _ in range(300):
        if units and draw.random() < 0.45:
            piece = draw.choice(list(units))
            client.call("give", piece)
            del units[piece]
            continue
        want, before = draw.randint(1, 23), len(pool.used_by(0))
        if sum(units.values()) + want > 40 * 8:
            continue
        free = before * 8 - sum(units.values())
        piece = client.taken(want * 2 * MIB)
        units[piece] = want
        # The rest of a piece may have to share with what is scattered; it never claims beside room enough.
        claimed = len(pool.used_by(0)) - before
        assert claimed <= want // 8 + (free < want % 8)


def test_a_take_that_fails_leaves_nothing_behind(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    piece = client.taken(20 * MIB)
    before = pool.used_by(0)
    assert client.take(44 * MIB + 1) is None
    assert pool.used_by(0) == before
    assert client.take(44 * MIB) is not None
    assert client.holds(piece)


@pytest.mark.parametrize(
    "header",
    [
        {"magic": 1},
        {"version": 1},
        {"chunks": 0},
        {"chunks": 5},
        {"chunks": 1 << 31},
        {"offset": 64},
        {"offset": DATA + 1},
        {"offset": 1 << 62},
        {"directory": 1 << 62},
        {"directory": 0},
        {"directory": 2 * MIB},
        {"buckets": 3},
        {"buckets": 1 << 62},
    ],
)
def test_a_malformed_pool_is_refused(
    make_pool: MakePool, make_client: MakeClient, header: dict[str, int]
) -> None:
    pool = make_pool(4)
    pool.header(**header, limit=4)
    client = make_client(pool)
    client.offer(pool)
    assert client.holds(client.taken(5 * CHUNK))
    assert pool.used_by(0) == []
    said = client.errors().splitlines()
    assert len(said) == 1
    assert "pool of host memory cannot be used" in said[0]


def test_a_place_out_of_range_is_refused(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool, slot=63)
    assert client.holds(client.taken(CHUNK))
    assert not client.maps(pool)


def test_the_pool_of_another_scheduler_replaces_the_first(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    """What is in the earlier pool lives on; then the pool goes."""
    first, second = make_pool(4), make_pool(4)
    client = make_client(first, second)
    client.offer(first, slot=1)
    old = client.taken(20 * MIB, value=1)
    client.offer(second, slot=2)
    new = client.taken(20 * MIB, value=2)
    assert len(first.used_by(1)) == len(second.used_by(2)) == 2
    assert client.holds(old, 1)
    assert client.holds(new, 2)
    client.call("give", old)
    until(lambda: not client.maps(first))
    assert first.used_by(1) == first.page_locked_by(1) == []
    assert client.maps(second)
    assert client.holds(new, 2)


def test_the_same_pool_is_kept_when_sent_again(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool, slot=1)
    piece = client.taken(20 * MIB)
    client.offer(pool, slot=1)
    assert client.maps(pool) == 1
    client.taken(12 * MIB)
    assert len(pool.used_by(1)) == 2
    assert client.holds(piece)


def test_the_descriptor_is_closed(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    assert client.owned == 0  # once it answers, it has started
    before = client.descriptors
    client.offer(pool)
    client.taken(CHUNK)
    pool.header(magic=1)
    client.offer(pool)
    assert client.descriptors == before


def test_without_a_pool_memory_is_private_and_is_freed(make_client: MakeClient) -> None:
    client = make_client()
    client.offer(None)
    before = client.shared_bytes
    piece = client.taken(5 * CHUNK)
    assert client.owned == 40
    assert client.shared_bytes >= before + 5 * CHUNK
    client.call("give", piece)
    assert client.owned == 0
    until(lambda: client.shared_bytes < before + CHUNK)
    assert client.registered == 0


def test_a_scheduler_without_a_pool_may_follow_one_with_a_pool(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    old = client.taken(CHUNK, value=1)
    client.offer(None)
    new = client.taken(CHUNK, value=2)
    assert len(pool.used_by(0)) == 1
    assert client.owned == 16
    client.call("give", old)
    until(lambda: not client.maps(pool))
    assert client.holds(new, 2)


def test_a_forked_child_has_no_part_of_the_pool(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 2 * CHUNK)
    until(lambda: client.registered == 2)
    piece = client.taken(20 * MIB)
    owned = pool.used_by(0)
    assert client.call("fork") == "0"
    assert pool.used_by(0) == owned
    assert client.holds(piece)


def pool_of(machine: Machine, make_pool: MakePool) -> Pool:
    """Open the pool that the machine's scheduler lends."""
    assert machine.scheduler is not None
    folder = Path(f"/proc/{machine.scheduler.pid}/fd")
    link = next(fd for fd in folder.iterdir() if "memfd:gpushare-pool" in os.readlink(fd))
    fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    return make_pool(HEADER.unpack(os.pread(fd, HEADER.size, 0))[5], fd)


def test_evicted_data_is_in_the_users_pool_and_is_freed_with_its_process(
    machine: Machine, make_pool: MakePool
) -> None:
    pool = pool_of(machine, make_pool)
    a, b, c = (machine.program(name) for name in "abc")
    at = {}
    for value, program in enumerate((a, b, c), 1):
        at[value] = program.filled(160 * UNIT, value)
        program.call("cell", phase="end")
    until(lambda: len(pool.users()) == 2)
    os.kill(a.pid, signal.SIGKILL)
    until(lambda: len(pool.users()) == 1)
    assert b.holds(at[2], 160 * UNIT, 2)
    b.call("cell", phase="end")
    assert c.holds(at[3], 160 * UNIT, 3)
    for program in (b, c):
        os.kill(program.pid, signal.SIGKILL)
    until(lambda: pool.users() == set())
    until(lambda: all(pool.entry(i)[1] == 0 for i in range(pool.chunks)))


def test_data_in_the_pool_survives_a_dead_scheduler(machine: Machine, make_pool: MakePool) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    at_b = b.filled(192 * UNIT, 2)
    b.call("cell", phase="end")
    earlier = pool_of(machine, make_pool)
    machine.kill_scheduler()
    machine.start_scheduler()
    assert a.holds(at_a, 192 * UNIT, 1)
    a.call("cell", phase="end")
    assert b.holds(at_b, 192 * UNIT, 2)
    until(lambda: earlier.users() == set())
    # What came in gives its places back a moment after that.
    pool = pool_of(machine, make_pool)
    until(lambda: len(pool.users()) == 1)
