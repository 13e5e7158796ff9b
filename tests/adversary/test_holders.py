# SPDX-License-Identifier: BSD-3-Clause
"""One user has the GPU and does not give it up: stopped, deaf, or lying about what it holds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from jupyter_gpushare.scheduler.core import messages as ev
from tests.adversary.conftest import TOTAL, UNIT, Begin, Node, obeying, until, works
from tests.support.client import Closed, FakeClient
from tests.support.pool import Table

#: Takes the GPU, says so, and then does what it is told: if it runs.
HOLDER = """
import sys
from pathlib import Path
from jupyter_gpushare.scheduler.core import messages as ev
from tests.support.client import FakeClient
path, group, gpu, ticket, size = sys.argv[1:]
client = FakeClient(Path(path), group, gpu, ticket=ticket)
client.attach()
client.grow(int(size))
client.run()
print("runs", flush=True)
client.expect(ev.Revoke)
client.release()
print("gave", flush=True)
client.evict()
print("moved", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shared_node(begin: Begin) -> Node:
    return begin(revoke_deadline=1.0, quantum=1.0)


@pytest.fixture
def small(node: Node) -> Iterator[FakeClient]:
    with node.client("ben") as client:
        client.grow(UNIT)
        yield client


def reason(node: Node, client: FakeClient) -> str:
    return str((node.group("ben", client.group)["reason"] or {}).get("code"))


def test_a_stopped_process_delays_no_other_user(node: Node) -> None:
    with (
        node.client("ben") as idle,
        node.client("ben") as big,
        node.client("ben") as middle,
        node.process("ada", HOLDER, str(4 * UNIT)) as holder,
    ):
        idle.grow(3 * UNIT)
        works(idle, 1)
        holder.signal(signal.SIGSTOP)
        big.grow(5 * UNIT)
        big.request()
        # It needs what `idle` has, and is not first.
        middle.grow(3 * UNIT)
        middle.request()
        # It may be told more than once: some of what it has, and the rest.
        with obeying(idle):
            until(lambda: reason(node, big) == "stuck")
            middle.take()
            middle.end_burst()
            works_beside = node.client("ben")
            with works_beside:
                works_beside.grow(UNIT // 4)
                works(works_beside)
            middle.release("release")
            with node.user("ben") as seen:
                status = seen.ok("status")["status"]
            # It is named to users who may see it, but its process is not.
            (other,) = (g for g in status["groups"] if g["user"] == "another user")
            assert {client["pid"] for client in other["clients"]} == {0}
            notices = [n for n in status["notices"] if n["group"] == other["id"]]
            assert "stuck" in {notice["code"] for notice in notices}
            assert {notice["params"]["pid"] for notice in notices} == {0}
            holder.signal(signal.SIGCONT)
            assert holder.said() == "gave"
            assert holder.said() == "moved"
            with obeying(middle):
                big.take()
            big.end_burst()
            big.release("release")


def test_a_process_that_reads_nothing_delays_no_other_user(node: Node, small: FakeClient) -> None:
    with node.client("ada") as deaf, node.client("ben") as big:
        deaf.grow(6 * UNIT)
        works(deaf, 1)
        big.grow(4 * UNIT)
        big.request()
        deaf.expect(ev.Evict)
        # It may have been granted the GPU while the memory was thought to be on its way.
        if not big.has(ev.Grant):
            until(lambda: big.has(ev.Grant) or reason(node, big) == "stuck")
        if big.has(ev.Grant):
            big.lease = big.expect(ev.Grant).lease
            big.expect(ev.Revoke)
            big.release("failed")
            big.request()
        until(lambda: reason(node, big) == "stuck")
        works(small)
        # What it asks for itself, it is not granted: it could not give it back.
        deaf.request()
        works(small)
        assert not deaf.has(ev.Grant)
        deaf.close()
        big.take()


def test_a_process_that_ignores_its_revocation_delays_no_other(
    node: Node, small: FakeClient
) -> None:
    with node.client("ada") as liar, node.client("ben") as big:
        liar.grow(6 * UNIT)
        liar.run()
        big.grow(4 * UNIT)
        big.request()
        liar.expect(ev.Revoke)
        # It says all kinds of things, but not that it gave anything back.
        for _ in range(3):
            assert liar.usage is not None
            liar.change(liar.usage)
            liar.send(ev.Burst(liar.number, "end", "cell", time.monotonic()))
            liar.send(ev.Stuck(liar.number, liar.lease, "kernel", time.monotonic()))
            liar.send(ev.Released(liar.number, liar.lease + 1, "revoke"))
            liar.request()
        until(lambda: reason(node, big) == "stuck")
        works(small)


@pytest.mark.parametrize(
    "usage",
    [
        {"resident": 1 << 45, "promised": 1 << 45},
        {"unevictable": 1 << 62},
        {"context": 3 * TOTAL},
        {"resident": 2 * UNIT, "promised": UNIT},
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_impossible_figures_end_the_connection(
    node: Node, small: FakeClient, usage: dict[str, int], again: bool
) -> None:
    absurd = replace(ev.Usage(node.gpu), **usage)
    if again:
        liar = FakeClient(node.path, "absurd", node.gpu, ticket=node.ticket("ada", "absurd"))
        liar.usage = absurd
        with liar, pytest.raises(Closed):
            liar.attach(reattach=True, leased=True, busy=True)
    else:
        with node.client("ada") as liar:
            liar.change(absurd)
            liar.expect_closed()
    works(small)


def test_false_figures_harm_only_their_sender(node: Node, small: FakeClient) -> None:
    with node.client("ada") as liar:
        liar.grow(UNIT)
        liar.run()
        for busy in (1e8, 0.0, 9e8):
            liar.send(ev.Meter(liar.number, node.gpu, busy, 1 << 60, time.monotonic()))
        for at in (0.0, 1e9, time.monotonic() + 1e6):
            liar.send(ev.Burst(liar.number, "begin", "none", at))
            liar.send(ev.Burst(liar.number, "end", "cell", at))
        works(small)


def test_a_false_answer_to_anothers_order_ends_the_connection(node: Node) -> None:
    """Orders of a serial that was not given, answers to another's: the connection ends, the order stands."""
    with node.client("ben") as ben, node.client("ada") as ada, node.client("ben") as waits:
        ben.grow(6 * UNIT)
        works(ben, 1)
        waits.grow(4 * UNIT)
        waits.request()
        order = ben.expect(ev.Evict)
        assert ada.usage is not None
        ada.send(ev.Evicted(ada.number, order.serial, ada.usage, UNIT, UNIT, 0.1, "done"))
        ada.expect_closed()
        assert ben.usage is not None
        size = min(order.bytes, ben.usage.resident)
        ben.usage = replace(ben.usage, resident=ben.usage.resident - size, host=size)
        ben.send(ev.Evicted(ben.number, order.serial, ben.usage, size, size, 0.001, "done"))
        waits.take()


# --- Host memory ------------------------------------------------------------------------------------


def test_host_memory_of_one_user_never_reaches_another(node: Node) -> None:
    with node.client("ada") as ada, node.client("ada") as second, node.client("ben") as ben:
        inodes = []
        for client in (ada, second, ben):
            assert client.pool is not None
            inodes.append(os.fstat(client.pool).st_ino)
        assert inodes[0] == inodes[1] != inodes[2]


def test_a_false_statement_takes_no_host_memory_from_others(node: Node) -> None:
    with node.client("ben") as ben, node.client("ada") as liar:
        assert ben.pool is not None
        table = Table(ben.pool)
        try:
            before = int(table.pool.limit)
            assert liar.usage is not None
            liar.change(replace(liar.usage, host=1 << 49))
            # The sizes are looked at every second.
            deadline = time.monotonic() + 2.5
            while time.monotonic() < deadline:
                assert table.pool.limit > before / 2
                time.sleep(0.05)
        finally:
            table.close()


def test_a_corrupted_pool_harms_only_its_user(node: Node, small: FakeClient) -> None:
    """A process that has a pool can write anything into the table of the pool."""
    with node.client("ada") as ada:
        ada.grow(UNIT)
        assert ada.pool is not None
        table = Table(ada.pool)
        try:
            table.pool.magic = table.pool.version = table.pool.limit = 0xFFFFFFFF
            table.pool.data_offset = 1 << 63
            for index in range(64):
                chunk = table.chunk(index)
                chunk.prepared, chunk.place, chunk.page_locked_by = 7, 0xFFFFFFFF, (1 << 64) - 1
                for unit in range(len(chunk.users)):
                    chunk.users[unit], chunk.used_at[unit] = (1 << 64) - 1, 0xFFFFFFFF
                    chunk.units[unit].generation = (1 << 64) - 1
            table.pool.chunk_count = 0xFFFFFFFF
            time.sleep(1.2)
            works(small)
        finally:
            table.close()
