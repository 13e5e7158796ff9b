# SPDX-License-Identifier: BSD-3-Clause
"""Each user's pool of host memory: whose it is, how much of all it may be, and what a liar can do with it."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jupyter_gpushare._protocol import ffi, lib
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.memory import pool_manager as lending
from jupyter_gpushare.scheduler.memory.budget import Survey
from jupyter_gpushare.scheduler.memory.pool import CHUNK
from jupyter_gpushare.scheduler.memory.pool_manager import PoolManager
from tests.support.client import PATIENCE

GIB = 1 << 30
BUDGET = GIB


class Lab:
    """Processes of two users, ada and ben; the test's own process belongs to the first that claims it."""

    def __init__(self, **options: Any) -> None:
        self.quotas: dict[str, int] = {}
        self.pools = PoolManager(
            BUDGET, apart=True, quota=lambda user: self.quotas.get(user, 0), **options
        )
        self.pools.start()
        self.pools.measure()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.maps: list[Any] = []

    def process(self) -> int:
        self.processes.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        return self.processes[-1].pid

    def client(self, number: int, user: str) -> tuple[int, int, int]:
        """Return its process, the descriptor of its pool and its slot."""
        self.pools.join(number, user)
        pid = self.process()
        lent = self.pools.lend(number, pid, again=False)
        assert lent is not None
        self.pools.watch(number, lent[1])
        return (pid, *lent)

    def table(self, descriptor: int) -> Any:
        """The pool as a client maps it."""
        mapped = mmap.mmap(descriptor, 1 << 21)
        buffer = ffi.from_buffer(mapped)
        self.maps.append((mapped, buffer))
        return ffi.cast("struct gpushare_pool *", buffer)

    def has_settled(self) -> bool:
        """Whether the threads of the pools have made and given back as many chunks as they have been told to."""
        pools = [account.pool for account in self.pools._accounts.values() if account.pool]
        return all(
            pool._orders.target <= pool.figures().prepared // CHUNK <= pool._orders.most
            for pool in pools
        )

    def close(self) -> None:
        self.pools.stop()
        for mapped, buffer in self.maps:
            ffi.release(buffer)
            mapped.close()
        for process in self.processes:
            process.kill()
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def lab(test: Callable[[Lab], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        made = Lab(**options)
        try:
            await test(made)
        finally:
            made.close()

    asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not come")


def size(lent: int) -> int:
    return os.fstat(lent).st_blocks * 512


def test_a_pool_belongs_to_one_user_and_ends_with_their_last_process() -> None:
    async def test(lab: Lab) -> None:
        pid, ada, _ = lab.client(1, "ada")
        _, again, slot = lab.client(2, "ada")
        _, ben, _ = lab.client(3, "ben")
        assert ada == again != ben
        assert os.fstat(ada).st_ino != os.fstat(ben).st_ino
        table = lab.table(ada)
        assert lib.gpushare_pool_claim(table.chunks, 0, lib.gpushare_pool_user(slot))
        inode = os.fstat(ada).st_ino
        lab.pools.forget(1)
        lab.pools.forget(2)
        lab.pools.reap()
        # Connections end and come back: what counts is that a process lives.
        lab.pools.join(4, "ada")
        found = lab.pools.lend(4, pid, again=True)
        assert found is not None
        assert os.fstat(found[0]).st_ino == inode
        lab.pools.forget(4)
        for process in lab.processes[:2]:
            process.kill()
        await until(lambda: lab.pools.status("ada") is None)
        assert lab.pools.status("ben") is not None
        _, new, _ = lab.client(5, "ada")
        assert os.fstat(new).st_ino != inode
        assert lib.gpushare_pool_chunk_users(lab.table(new).chunks) == 0

    lab(test)


def test_users_share_the_budget_and_none_exceeds_the_limit() -> None:
    async def test(lab: Lab) -> None:
        lab.quotas["ada"] = 256 << 20
        _, ada, slot = lab.client(1, "ada")
        _, ben, _ = lab.client(2, "ben")
        adas, bens = lab.table(ada), lab.table(ben)
        assert adas.limit == (256 << 20) // CHUNK
        assert bens.limit == BUDGET // CHUNK
        for index in range(4):
            assert lib.gpushare_pool_claim(adas.chunks + index, 0, lib.gpushare_pool_user(slot))
        lab.pools.measure()
        lab.pools.prepare(0)
        assert bens.limit == BUDGET // CHUNK - 4
        lab.quotas.clear()
        lab.pools.measure()
        lab.pools.prepare(0)
        assert adas.limit == BUDGET // CHUNK

    lab(test)


def test_pages_are_prepared_for_users_with_memory_to_move() -> None:
    async def test(lab: Lab) -> None:
        _, ada, _ = lab.client(1, "ada")
        _, ben, _ = lab.client(2, "ben")
        lab.pools.update_usage(1, ev.Usage("GPU-0", promised=3 * GIB, resident=3 * GIB))
        lab.pools.update_usage(2, ev.Usage("GPU-0", promised=GIB, resident=GIB))
        lab.pools.prepare(128 << 20)
        await until(lambda: size(ada) >= 96 << 20 and size(ben) >= 32 << 20)
        assert size(ada) < 128 << 20
        assert size(ben) < 64 << 20

    lab(test)


def test_a_false_statement_takes_no_host_memory_from_others() -> None:
    async def test(lab: Lab) -> None:
        lab.client(1, "ada")
        _, ben, _ = lab.client(2, "ben")
        lab.pools.update_usage(1, ev.Usage("GPU-0", promised=0, host=1 << 49))
        lab.pools.measure()
        lab.pools.prepare(0)
        # What it was promised, and what whole chunks round it up by.
        assert lab.table(ben).limit >= (BUDGET - 8 * CHUNK) // CHUNK

    lab(test)


def test_pages_without_a_user_are_freed(caplog: pytest.LogCaptureFixture) -> None:
    async def test(lab: Lab) -> None:
        _, ada, _ = lab.client(1, "ada")
        table = lab.table(ada)
        lying = mmap.mmap(ada, table.data_offset + 8 * CHUNK)
        for chunk in range(8):
            start = table.data_offset + chunk * CHUNK
            lying[start : start + CHUNK] = bytes(CHUNK)
        assert size(ada) >= 8 * CHUNK
        # An honest one is at this chunk.
        table.chunks[2].users[0] = 1
        lab.pools.measure()
        assert size(ada) < 2 * CHUNK
        assert "outside the limits of the pool" in caplog.text
        lying.close()

    lab(test)


def test_a_user_above_the_limit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(lab: Lab) -> None:
        lab.quotas["ada"] = 2 * CHUNK
        _, ada, slot = lab.client(1, "ada")
        table = lab.table(ada)
        for index in range(4):
            table.chunks[index].users[0] = lib.gpushare_pool_user(slot)
        for _ in range(3):
            lab.pools.measure()
            lab.pools.prepare(0)
        assert caplog.text.count("ada uses") == 1

    lab(test)


def test_pages_are_prepared_for_processes_that_must_not_prepare_them() -> None:
    async def test(lab: Lab) -> None:
        _, ada, slot = lab.client(1, "ada")
        table = lab.table(ada)
        assert table.prepared_only == 1
        lab.pools.update_usage(1, ev.Usage("GPU-0", promised=GIB, resident=4 * CHUNK))
        await until(lambda: lab.pools.status("ada")["prepared"] == 4 * CHUNK)  # type: ignore[index]
        ready = [i for i in range(64) if lib.gpushare_pool_is_prepared(table.chunks + i)]
        assert len(ready) == 4
        for index in ready[:2]:
            assert lib.gpushare_pool_claim(table.chunks + index, 0, lib.gpushare_pool_user(slot))
        lab.pools.update_usage(
            1, ev.Usage("GPU-0", promised=GIB, resident=2 * CHUNK, host=2 * CHUNK)
        )
        await until(lambda: lab.pools.status("ada")["prepared"] == 6 * CHUNK)  # type: ignore[index]

    lab(test, prepared_only=True)


def test_two_schedulers_that_prepare_pages_leave_room_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two schedulers measure a machine at the same time, and each finds all that is left."""
    spare = 40 * CHUNK
    monkeypatch.setattr(lending, "LEAST_STEP", CHUNK)

    async def test(lab: Lab) -> None:
        others = Lab()
        labs = (lab, others)
        pools = [each.client(1, "ada")[1] for each in labs]

        def taken() -> int:
            return sum(map(size, pools)) // CHUNK * CHUNK

        def budget(setting: int | None, held: int, seen: Survey) -> int:
            return held + spare - taken()

        monkeypatch.setattr(lending, "host_budget", budget)
        for each in labs:
            each.pools.update_usage(1, ev.Usage("GPU-0", promised=GIB, resident=GIB))
        try:
            for left in (20, 10, 6, 2, 2, 2):
                for each in labs:
                    each.pools.measure()
                for each in labs:
                    each.pools.prepare(spare)
                await until(lambda left=left: taken() >= spare - left * CHUNK)
                await until(lambda: all(each.has_settled() for each in labs))
                # Where no more than one least step is left, each takes it; a chunk in the making is not measured yet.
                assert taken() <= spare + len(labs) * CHUNK
        finally:
            others.close()

    lab(test)
