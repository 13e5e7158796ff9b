# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: a real helper process, real files, and every byte compared."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.memory import disk, disk_clock, disk_opener
from jupyter_gpushare.scheduler.memory.disk import DiskOptions, DiskTier
from jupyter_gpushare.scheduler.memory.disk_files import open_file
from jupyter_gpushare.scheduler.memory.disk_store import DiskWishes
from jupyter_gpushare.scheduler.memory.pool import CHUNK
from tests.support.disk import COMING, DISK, GOING, LEAVING, LOST, MEMORY, Lab, until

FAULTY = (sys.executable, str(Path(__file__).parent / "faulty_disk_helper.py"))
BUDGET = 16


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(BUDGET)
    yield made
    made.close()


@pytest.fixture
def make_tier(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., DiskTier]]:
    tiers: list[DiskTier] = []

    def make(
        *, size: int = BUDGET, folder: Path = tmp_path, encrypted: bool = False, **settings: Any
    ) -> DiskTier:
        tier = DiskTier(DiskOptions(folder, size * CHUNK, encrypted), **settings)
        tiers.append(tier)
        tier.add(lab.pool)
        return tier

    yield make
    for tier in tiers:
        tier.stop()


MakeTier = Callable[..., DiskTier]


def spill(lab: Lab, tier: DiskTier, *slots: int) -> None:
    tier.set_wishes(lab.pool, DiskWishes(spill=slots, at_once=len(slots), budget=BUDGET))


def fetch(lab: Lab, tier: DiskTier, *slots: int, budget: int = BUDGET) -> None:
    tier.set_wishes(lab.pool, DiskWishes(fetch=slots, budget=budget))


def helper_of(tier: DiskTier) -> int:
    process = tier._link.process
    assert process is not None
    return process.pid


def open_pools(tier: DiskTier) -> int:
    """Return how many pools the helper has open."""
    found = set()
    for descriptor in os.scandir(f"/proc/{helper_of(tier)}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "gpushare-pool" in os.readlink(descriptor.path):
                found.add(os.stat(descriptor.path).st_ino)
    return len(found)


def file_of(tier: DiskTier, lab: Lab) -> int:
    file = tier._of_pool[lab.pool].file
    assert file is not None
    return file.descriptor


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


# --- A disk that hangs --------------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """By which a helper shows that a call hangs; the call goes on once it is removed."""
    made = tmp_path / "pipe"
    os.mkfifo(made)
    return made


def await_hang(pipe: Path) -> None:
    with pipe.open("rb") as reached:
        assert reached.read(1) == b"x"


def beats(lab: Lab) -> bool:
    """Whether clients see that data can be read, within more than two looks of the tier."""
    before = lab.table.pool.disk_beat
    time.sleep(1.2)
    return bool(lab.table.pool.disk_beat != before)


def test_clients_see_beats_while_the_first_chunks_are_being_written(
    lab: Lab, make_tier: MakeTier, pipe: Path
) -> None:
    lab.write(0, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-write", str(pipe)))
    spill(lab, tier, 0)
    await_hang(pipe)
    assert lab.place(0) == LEAVING
    before = lab.table.pool.disk_beat
    until(lambda: lab.table.pool.disk_beat != before)
    pipe.unlink()
    until(lambda: lab.place(0) == DISK)


def test_what_a_disk_that_hangs_should_write_stays_in_memory(
    lab: Lab, make_tier: MakeTier, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_clock, "DEADLINE", 0.3)
    for index in range(4):
        lab.write(index, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-write", str(pipe)))
    spill(lab, tier, 0)
    await_hang(pipe)
    until(lambda: tier.status().fault != "")
    assert tier.status().fault == f"the disk of {tier.options.folder} does not respond"
    until(lambda: lab.places(*range(4)) == [MEMORY] * 4)
    lab.release(0, slot=0)
    lab.write(0, slot=0, value=7)
    pipe.unlink()
    store = tier._of_pool[lab.pool]
    until(lambda: not (store.abandoned or store.freeing))
    assert lab.places(*range(4)) == [MEMORY] * 4
    assert all(lab.is_right(index) for index in range(4))
    assert tier.status().used == 0
    assert os.fstat(file_of(tier, lab)).st_blocks == 0


def test_clients_see_that_a_disk_hangs_and_that_it_works_again(
    lab: Lab, make_tier: MakeTier, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_clock, "DEADLINE", 0.3)
    for index in range(2):
        lab.write(index, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-read", str(pipe)))
    spill(lab, tier, 0)
    until(lambda: lab.places(0, 1) == [DISK, DISK])
    fetch(lab, tier, 0)
    await_hang(pipe)
    until(lambda: "does not respond" in tier.status().fault)
    assert not beats(lab)
    assert lab.places(0, 1) == [COMING, COMING]
    pipe.unlink()
    until(lambda: lab.places(0, 1) == [MEMORY, MEMORY])
    assert lab.is_right(0)
    assert lab.is_right(1)


def test_opening_a_file_on_a_disk_that_hangs_blocks_nobody(
    lab: Lab, make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_clock, "DEADLINE", 0.3)
    works = threading.Event()
    calls = []

    def hang(folder: Path) -> Any:
        calls.append(folder)
        works.wait()
        return open_file(folder)

    monkeypatch.setattr(disk_opener, "open_file", hang)
    tier = make_tier()
    until(lambda: "does not respond" in tier.status().fault)
    other = Lab(BUDGET)
    tier.add(other.pool)
    descriptors = len(os.listdir("/proc/self/fd"))
    works.set()
    tier._opener.stop()
    # Nobody needs the file any more.
    assert len(calls) == 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert tier.status().direct is None
    other.close()


def test_too_many_open_files_are_a_fault(
    lab: Lab, make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(disk, "SealTable", refuse)
    tier = make_tier()
    assert "Too many open files" in tier.status().fault
    assert tier.held(lab.pool) == {}


def test_a_pool_is_removed_although_the_disk_hangs(
    lab: Lab, make_tier: MakeTier, pipe: Path
) -> None:
    lab.write(0, slot=0)
    lab.write(1, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-write", str(pipe)))
    other = Lab(BUDGET)
    tier.add(other.pool)
    spill(lab, tier, 0)
    await_hang(pipe)
    until(lambda: open_pools(tier) == 2)
    tier.remove(lab.pool)
    assert tier.held(lab.pool) == {}
    other.write(0, slot=0)
    pipe.unlink()
    spill(other, tier, 0)
    until(lambda: other.place(0) == DISK)
    until(lambda: open_pools(tier) == 1)
    assert tier.status().fault == ""
    fetch(other, tier, 0)
    until(lambda: other.place(0) == MEMORY)
    assert other.is_right(0)
    tier.remove(other.pool)
    other.close()


def test_clients_see_that_there_is_no_helper(lab: Lab, make_tier: MakeTier) -> None:
    lab.write(0, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    tier._link._command = ["/missing"]
    os.kill(helper_of(tier), signal.SIGKILL)
    until(lambda: "helper process has ended" in tier.status().fault)
    fetch(lab, tier, 0)
    assert not beats(lab)
    assert lab.place(0) == DISK


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
        for done in [threads.submit(clients.use, slot, 100) for slot in range(4)]:
            done.result()
    assert clients.found[LEAVING] > 0
    assert clients.found[DISK] + clients.found[COMING] > 0
    assert tier.status().fault == ""
