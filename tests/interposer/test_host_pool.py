# SPDX-License-Identifier: BSD-3-Clause
"""The pool of host memory as clients use it: several real processes over one table, with and without a scheduler's."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.interposer.pool_clients import (
    CHUNK,
    DATA,
    HEADER,
    MIB,
    SCHEDULER,
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
    assert len(pool.owned_by(4)) == client.owned == 5
    assert all(client.holds(piece, i + 1) for i, piece in enumerate(pieces))
    for piece in pieces:
        client.call("give", piece)
    assert pool.owned_by(4) == []
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
        want, before = draw.randint(1, 23), client.owned
        if sum(units.values()) + want > 40 * 8:
            continue
        free = before * 8 - sum(units.values())
        piece = client.taken(want * 2 * MIB)
        units[piece] = want
        # The rest of a piece may have to share with what is scattered; it never claims beside room enough.
        claimed = client.owned - before
        assert claimed <= want // 8 + (free < want % 8)


def test_a_take_that_fails_leaves_nothing_behind(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    piece = client.taken(20 * MIB)
    before = pool.owned_by(1)
    assert client.take(44 * MIB + 1) is None
    assert pool.owned_by(1) == before
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
    assert pool.owned_by(1) == []
    said = client.errors().splitlines()
    assert len(said) == 1
    assert "pool of host memory cannot be used" in said[0]


def test_a_place_out_of_range_is_refused(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool, slot=64)
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
    assert len(first.owned_by(2)) == len(second.owned_by(3)) == 2
    assert client.holds(old, 1)
    assert client.holds(new, 2)
    client.call("give", old)
    until(lambda: not client.maps(first))
    assert first.owned_by(2) == first.page_locked_by(1) == []
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
    assert len(pool.owned_by(2)) == 2
    assert client.holds(piece)


def test_the_descriptor_is_closed(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
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
    assert client.owned == 5
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
    assert len(pool.owned_by(1)) == 1
    assert client.owned == 2
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
    until(lambda: len(pool.page_locked_by(0)) == 2)
    piece = client.taken(20 * MIB)
    owned = pool.owned_by(1)
    assert client.call("fork") == "0"
    assert pool.owned_by(1) == owned
    assert client.holds(piece)


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
def test_many_processes_use_one_pool_at_once(
    make_pool: MakePool, make_client: MakeClient, flags: tuple[str, ...]
) -> None:
    """Processes take, fill, compare and give; one dies; the scheduler gives pages back and changes the limit."""
    pool = make_pool(24)
    clients = [make_client(pool, flags=flags) for _ in range(3)]
    for slot, client in enumerate(clients):
        client.offer(pool, slot)
        client.start("stress", slot)
    victim, survivors = clients[0], clients[1:]
    draw = random.Random(3)

    def change_limit() -> None:
        for _ in range(60):
            pool.header(limit=draw.randint(16, 24))
            time.sleep(0.02)

    change_limit()
    until(lambda: pool.owned_by(1) != [])
    victim.process.kill()
    victim.process.wait()
    left = pool.owned_by(1)
    change_limit()
    for client in survivors:
        client.start("stop")
        assert client.answer() == "ok"
        client.call("prepare", 0)
    assert pool.owned_by(1) == left
    assert pool.owned_by(2) == pool.owned_by(3) == []
    # What they page-locked of the dead one's stays so until it is free.
    pool.sweep(0)
    until(lambda: pool.page_locked_by(1) == pool.page_locked_by(2) == [])
    pool.header(limit=24)
    assert survivors[0].holds(survivors[0].taken(24 * CHUNK))
    assert "ThreadSanitizer" not in "".join(client.errors() for client in survivors)


def pool_of(machine: Machine, make_pool: MakePool) -> Pool:
    """Open the pool that the machine's scheduler lends."""
    assert machine.scheduler is not None
    folder = Path(f"/proc/{machine.scheduler.pid}/fd")
    link = next(fd for fd in folder.iterdir() if "memfd:gpushare-pool" in os.readlink(fd))
    fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    return make_pool(HEADER.unpack(os.pread(fd, HEADER.size, 0))[3], fd)


def owners(pool: Pool) -> set[int]:
    return {pool.entry(i)[1] for i in range(pool.chunks)} - {0, SCHEDULER}


def test_evicted_data_is_in_the_users_pool_and_is_freed_with_its_process(
    machine: Machine, make_pool: MakePool
) -> None:
    pool = pool_of(machine, make_pool)
    a, b, c = (machine.program(name) for name in "abc")
    at = {}
    for value, program in enumerate((a, b, c)):
        at[value] = program.filled(160 * UNIT, value)
        program.call("cell", phase="end")
    until(lambda: len(owners(pool)) == 2)
    os.kill(a.pid, signal.SIGKILL)
    until(lambda: len(owners(pool)) == 1)
    assert b.holds(at[1], 160 * UNIT, 1)
    b.call("cell", phase="end")
    assert c.holds(at[2], 160 * UNIT, 2)
    for program in (b, c):
        os.kill(program.pid, signal.SIGKILL)
    until(lambda: owners(pool) == set())
    until(lambda: all(pool.entry(i)[0] == 0 for i in range(pool.chunks)))


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
    until(lambda: owners(earlier) == set())
    # What came in gives its places back a moment after that.
    pool = pool_of(machine, make_pool)
    until(lambda: len(owners(pool)) == 1)
