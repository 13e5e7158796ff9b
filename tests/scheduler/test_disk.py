# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: a real helper process, real files, and every byte compared."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.memory.disk.files import open_file
from jupyter_gpushare.scheduler.memory.disk.store import DiskWishes
from jupyter_gpushare.scheduler.memory.disk.tier import DiskOptions, DiskTier
from jupyter_gpushare.scheduler.memory.pool import CHUNK
from jupyter_gpushare.scheduler.memory.pool_manager import PoolManager
from tests.scheduler.disk_tiers import (
    BUDGET,
    FAULTY,
    MakeTier,
    fetch,
    file_of,
    helper_of,
    spill,
)
from tests.support.disk import COMING, DISK, GOING, LEAVING, LOST, MEMORY, Lab, until


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_data_goes_to_the_disk_and_comes_back(
    lab: Lab, make_tier: MakeTier, tmp_path: Path, encrypted: bool
) -> None:
    for index in range(6):
        lab.write(index, slot=index // 3)
    tier = make_tier(encrypted=encrypted)
    spill(lab, tier, 0)
    until(lambda: lab.places(0, 1, 2) == [DISK] * 3)
    until(lambda: tier.held(lab.pool) == {0: 3 * CHUNK})
    assert not any(lab.has_pages(index) for index in range(3))
    assert lab.places(3, 4, 5) == [MEMORY] * 3
    assert lab.pool.figures().on_disk == 3 * CHUNK
    assert lab.pool.figures().in_use == 3 * CHUNK
    assert tier.status().used == tier.status().written == 3 * CHUNK
    assert os.listdir(tmp_path) == []
    fetch(lab, tier, 0)
    until(lambda: lab.places(0, 1, 2) == [MEMORY] * 3)
    assert all(lab.is_right(index) for index in range(6))
    until(lambda: tier.status().used == 0)
    assert tier.held(lab.pool) == {}
    assert tier.status().fault == ""


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_the_file_has_the_data_only_if_it_is_not_encrypted(
    lab: Lab, make_tier: MakeTier, encrypted: bool
) -> None:
    lab.write(2, slot=0)
    tier = make_tier(encrypted=encrypted)
    spill(lab, tier, 0)
    until(lambda: lab.place(2) == DISK)
    copy = os.open(f"/proc/self/fd/{file_of(tier, lab)}", os.O_RDONLY)
    found = os.pread(copy, CHUNK, 2 * CHUNK)
    os.close(copy)
    assert (found == lab.expected[2]) is not encrypted
    assert found != bytes(CHUNK)


def test_only_as_much_goes_as_memory_lacks_and_the_longest_idle_first(
    lab: Lab, make_tier: MakeTier
) -> None:
    for index in range(8):
        lab.write(index, slot=index // 2)
    tier = make_tier()
    wishes = DiskWishes(spill=(3, 1, 0), budget=8, free=3)
    tier.set_wishes(lab.pool, wishes)
    until(lambda: lab.pool.figures().in_use == 5 * CHUNK)
    assert lab.places(6, 7) == [DISK, DISK]
    assert sorted(lab.places(2, 3)) in ([MEMORY, DISK], [GOING, DISK])
    assert DISK not in lab.places(0, 1, 4, 5)


def test_files_of_all_pools_together_stay_within_the_size(lab: Lab, make_tier: MakeTier) -> None:
    for index in range(6):
        lab.write(index, slot=0)
    other = Lab(BUDGET)
    for index in range(6):
        other.write(index, slot=0)
    tier = make_tier(size=8)
    tier.add(other.pool)
    for one in (lab, other):
        spill(one, tier, 0)
    until(lambda: tier.status().used == 8 * CHUNK)
    on_disk = sum(one.places(*range(6)).count(DISK) for one in (lab, other))
    assert on_disk == 8
    for one in (lab, other):
        fetch(one, tier, 0)
        until(lambda one=one: one.places(*range(6)) == [MEMORY] * 6)
        assert all(one.is_right(index) for index in range(6))
    tier.remove(other.pool)
    other.close()


def test_a_chunk_stays_while_a_client_moves_or_has_it_page_locked(
    lab: Lab, make_tier: MakeTier
) -> None:
    for index in range(3):
        lab.write(index, slot=index)
    lib.gpushare_pool_set_moving(lab.table.pool, 0, True)
    lib.gpushare_pool_set_page_locked(lab.table.chunk(1), 1, True)
    tier = make_tier()
    spill(lab, tier, 0, 1, 2)
    until(lambda: lab.place(2) == DISK and lab.place(1) == GOING)
    assert lab.place(0) == MEMORY
    assert not lib.gpushare_pool_begin_page_lock(lab.table.chunk(1), 4)
    lib.gpushare_pool_set_page_locked(lab.table.chunk(1), 1, False)
    until(lambda: lab.place(1) == DISK)
    lib.gpushare_pool_set_moving(lab.table.pool, 0, False)
    until(lambda: lab.place(0) == DISK)


def test_what_is_on_the_disk_is_neither_claimed_nor_shared(lab: Lab, make_tier: MakeTier) -> None:
    lab.write(0, slot=0)
    chunk = lab.table.chunk(0)
    # A kept copy beside the data: it is given up.
    lib.gpushare_pool_release(chunk, 7, lib.gpushare_pool_user(0), 5)
    generation = lib.gpushare_pool_generation(chunk, 7)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    assert lib.gpushare_pool_generation(chunk, 7) == generation + 1
    assert not lib.gpushare_pool_claim(chunk, 7, lib.gpushare_pool_user(1))
    assert not lib.gpushare_pool_hold(chunk, 0, lib.gpushare_pool_user(1))
    assert lab.table.users(0) == {0}


def test_data_that_no_client_needs_any_more_leaves_the_disk(lab: Lab, make_tier: MakeTier) -> None:
    lab.write(0, slot=0)
    lab.write(1, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.places(0, 1) == [DISK, DISK])
    lab.release(0, slot=0)
    until(lambda: lab.place(0) == MEMORY)
    assert not lab.has_pages(0)
    until(lambda: tier.status().used == CHUNK)
    descriptor = file_of(tier, lab)
    until(lambda: os.fstat(descriptor).st_blocks * 512 == CHUNK)


# --- Failures -----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for less than 4 chunks."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * CHUNK - 4096}", "gpushare", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let the test mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_the_rest_stays_in_memory(
    lab: Lab, make_tier: MakeTier, small_disk: Path
) -> None:
    for index in range(6):
        lab.write(index, slot=0)
    tier = make_tier(folder=small_disk)
    spill(lab, tier, 0)
    until(lambda: tier.status().fault != "")
    assert tier.status().fault == f"the disk of {small_disk} is full"
    # There is room, so everything comes back.
    until(lambda: lab.places(*range(6)) == [MEMORY] * 6)
    assert all(lab.is_right(index) for index in range(6))


def test_after_a_write_error_the_data_is_in_memory(lab: Lab, make_tier: MakeTier) -> None:
    for index in range(4):
        lab.write(index, slot=0)
    tier = make_tier(command=(*FAULTY, "write"))
    spill(lab, tier, 0)
    until(lambda: tier.status().fault != "")
    assert "Input/output error" in tier.status().fault
    until(lambda: tier.status().used == 0 and lab.places(*range(4)) == [MEMORY] * 4)
    assert all(lab.is_right(index) for index in range(4))


def test_a_failed_read_is_tried_again(lab: Lab, make_tier: MakeTier) -> None:
    lab.write(0, slot=0)
    tier = make_tier(command=(*FAULTY, "read"))
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    fetch(lab, tier, 0)
    until(lambda: lab.place(0) == LOST)
    until(lambda: "reading from" in tier.status().fault)
    until(lambda: lab.place(0) == MEMORY)
    assert lab.is_right(0)


@pytest.mark.parametrize("when", ["write", "read"])
def test_a_helper_that_is_killed_loses_nothing(
    lab: Lab, make_tier: MakeTier, when: str, tmp_path: Path
) -> None:
    for index in range(4):
        lab.write(index, slot=0)
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    tier = make_tier(command=(*FAULTY, f"stop-in-{when}", str(reached)))
    spill(lab, tier, 0)
    if when == "read":
        until(lambda: lab.places(*range(4)) == [DISK] * 4)
        fetch(lab, tier, 0)
    with reached.open("rb") as pipe:
        assert pipe.read(1) == b"x"
    assert (LEAVING if when == "write" else COMING) in lab.places(*range(4))
    os.kill(helper_of(tier), signal.SIGKILL)
    until(lambda: "helper process has ended" in tier.status().fault)
    reached.unlink()
    until(lambda: lab.places(*range(4)) == [MEMORY] * 4)
    assert all(lab.is_right(index) for index in range(4))


# --- After the scheduler's end ------------------------------------------------------------------


def test_whoever_waits_for_the_schedulers_output_does_not_wait_for_the_helper(
    lab: Lab, make_tier: MakeTier
) -> None:
    lab.write(0, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    assert os.readlink(f"/proc/{helper_of(tier)}/fd/1") == os.devnull


def test_after_the_schedulers_end_the_helper_brings_the_data_back(
    lab: Lab, make_tier: MakeTier, tmp_path: Path
) -> None:
    lab.pool.lend(os.getpid())
    for index in range(4):
        lab.write(index, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.places(*range(4)) == [DISK] * 4)
    helper = helper_of(tier)
    tier.stop()
    until(lambda: lab.places(*range(4)) == [MEMORY] * 4)
    assert all(lab.is_right(index) for index in range(4))
    until(lambda: os.waitpid(helper, os.WNOHANG)[0] == helper)
    assert os.listdir(tmp_path) == []


def test_a_helper_that_has_just_ended_is_replaced_at_the_schedulers_end(
    lab: Lab, make_tier: MakeTier
) -> None:
    lab.pool.lend(os.getpid())
    lab.write(0, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    helper = helper_of(tier)
    with tier._lock:
        # The tier's thread does not notice.
        tier._stopping = True
    assert tier._thread is not None
    tier._thread.join()
    tier._stopping = False
    os.kill(helper, signal.SIGKILL)
    os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
    tier.stop()
    until(lambda: lab.place(0) == MEMORY)
    assert lab.is_right(0)


def test_after_the_schedulers_end_the_helper_ends_with_the_clients(
    lab: Lab, make_tier: MakeTier
) -> None:
    client = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert lab.pool.lend(client.pid) == 0
    lab.write(0, slot=0)
    tier = make_tier(command=(*FAULTY, "no-room"))
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    helper = helper_of(tier)
    beat = lab.table.pool.disk_beat
    tier.stop()
    until(lambda: lab.table.pool.disk_beat > beat + 5)
    assert os.waitpid(helper, os.WNOHANG) == (0, 0)
    client.kill()
    client.communicate()
    until(lambda: os.waitpid(helper, os.WNOHANG)[0] == helper)


def test_a_folder_that_cannot_be_used_is_reported(
    lab: Lab, make_tier: MakeTier, tmp_path: Path
) -> None:
    tier = make_tier(folder=tmp_path / "missing")
    missing = f"{tmp_path / 'missing'} cannot be used: No such file or directory"
    until(lambda: tier.status().fault == missing)


def test_a_folder_that_is_missing_is_reported_at_the_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    async def begin() -> str:
        pools = PoolManager(None, apart=True, disk=DiskOptions(missing))
        pools.start()
        try:
            while not (fault := pools.disk_status()["fault"]):  # type: ignore[index]
                await asyncio.sleep(0.01)
        finally:
            pools.stop()
        return str(fault)

    found = asyncio.run(begin())
    assert found == f"{missing} cannot be used: No such file or directory"


def test_clients_without_a_place_in_a_pool_are_known(tmp_path: Path) -> None:
    async def find() -> tuple[int, ...]:
        pools = PoolManager(None, disk=DiskOptions(tmp_path, BUDGET * CHUNK))
        pools.start()
        for client in (1, 2):
            pools.join(client, "")
        assert pools.lend(2, os.getpid(), again=False) is not None
        found = pools.on_disk()
        pools.stop()
        return found.apart

    assert asyncio.run(find()) == (1,)


def test_without_a_size_half_of_what_is_free_is_used(tmp_path: Path) -> None:
    tier = DiskTier(DiskOptions(tmp_path))
    assert tier.status().size == 0
    tier.start()
    until(lambda: tier.status().size > 0)
    assert os.listdir(tmp_path) == []
    tier.stop()


def test_files_have_no_name_and_belong_to_one_user(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    assert os.fstat(file.descriptor).st_mode & 0o777 == 0o600
    assert os.fstat(file.descriptor).st_nlink == 0
    assert os.listdir(tmp_path) == []
    os.close(file.descriptor)


def test_a_file_system_without_unnamed_files_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE or flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    file = open_file(tmp_path)
    assert not file.direct
    assert os.fstat(file.descriptor).st_nlink == 0
    assert os.listdir(tmp_path) == []
    os.close(file.descriptor)


# --- Races --------------------------------------------------------------------------------------


class Clients:
    """Clients that use their data and are idle in turn, while everything idle goes to the disk."""

    def __init__(self, lab: Lab, tier: DiskTier, count: int) -> None:
        self.lab, self.tier, self.count = lab, tier, count
        self.active: set[int] = set()
        self.lock = threading.Lock()
        #: How often a client found a chunk on its way to the disk, and on the disk.
        self.found = Counter[int]()

    def _wish(self) -> None:
        idle = tuple(slot for slot in range(self.count) if slot not in self.active)
        fetch = tuple(sorted(self.active))
        self.tier.set_wishes(
            self.lab.pool, DiskWishes(idle, len(idle), fetch, budget=self.count, free=1)
        )

    def _await_memory(self, index: int) -> None:
        self.found[self.lab.place(index)] += 1
        until(lambda: self.lab.place(index) in (MEMORY, GOING))

    def use(self, slot: int, rounds: int) -> None:
        draw = random.Random(slot)
        for _ in range(rounds):
            with self.lock:
                self.active.add(slot)
                self._wish()
            lib.gpushare_pool_set_moving(self.lab.table.pool, slot, True)
            self._await_memory(slot)
            assert self.lab.is_right(slot)
            if draw.random() < 0.3:
                # The data is on the GPU again and changes; the next eviction writes it.
                self.lab.release(slot, slot)
                self.lab.write(slot, slot, value=draw.getrandbits(32))
            lib.gpushare_pool_set_moving(self.lab.table.pool, slot, False)
            with self.lock:
                self.active.discard(slot)
                self._wish()
            time.sleep(draw.random() * 0.05)


def test_data_is_right_whenever_a_client_uses_it(lab: Lab, make_tier: MakeTier) -> None:
    for slot in range(4):
        lab.write(slot, slot)
    tier = make_tier()
    clients = Clients(lab, tier, 4)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(clients.use, slot, 30) for slot in range(4)]:
            done.result()
    assert clients.found[LEAVING] > 0
    assert clients.found[DISK] + clients.found[COMING] > 0
    assert tier.status().fault == ""
