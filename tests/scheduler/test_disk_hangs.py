# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier with a disk that hangs: the scheduler does not wait for it, and clients notice it."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare._protocol import lib
from jupyter_gpushare.scheduler.memory.disk import clock, opener
from jupyter_gpushare.scheduler.memory.disk import tier as disk_tier
from jupyter_gpushare.scheduler.memory.disk.files import open_file
from jupyter_gpushare.scheduler.memory.disk.store import DiskWishes
from tests.scheduler.disk_tiers import (
    BUDGET,
    FAULTY,
    MakeTier,
    await_hang,
    fetch,
    file_of,
    helper_of,
    open_pools,
    spill,
)
from tests.support.disk import COMING, DISK, GOING, LEAVING, MEMORY, Lab, until


def beats(lab: Lab) -> bool:
    """Whether clients see that data can be read, within more than two looks of the tier."""
    before = lab.table.pool.disk_beat
    time.sleep(1.2)
    return bool(lab.table.pool.disk_beat != before)


def test_clients_see_beats_while_the_first_chunks_are_being_written(
    lab: Lab, make_tier: MakeTier, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "DEADLINE", 3600.0)
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
    for index in range(4):
        lab.write(index, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-write", str(pipe)))
    spill(lab, tier, 0)
    await_hang(pipe)
    monkeypatch.setattr(clock, "DEADLINE", 0.3)
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
    for index in range(2):
        lab.write(index, slot=0)
    tier = make_tier(command=(*FAULTY, "hang-in-read", str(pipe)))
    spill(lab, tier, 0)
    until(lambda: lab.places(0, 1) == [DISK, DISK])
    fetch(lab, tier, 0)
    await_hang(pipe)
    monkeypatch.setattr(clock, "DEADLINE", 0.3)
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
    monkeypatch.setattr(clock, "DEADLINE", 0.3)
    works = threading.Event()
    calls = []

    def hang(folder: Path) -> Any:
        calls.append(folder)
        works.wait()
        return open_file(folder)

    monkeypatch.setattr(opener, "open_file", hang)
    tier = make_tier()
    until(lambda: "does not respond" in tier.status().fault)
    other = Lab(BUDGET)
    tier.add(other.pool)
    descriptors = len(os.listdir("/proc/self/fd"))
    works.set()
    tier._opener.stop()
    tier._opener._thread.join()
    # The file is not needed any more.
    assert len(calls) == 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert tier.status().direct is None
    other.close()


def test_too_many_open_files_are_a_fault(
    lab: Lab, make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(disk_tier, "SealTable", refuse)
    tier = make_tier()
    assert "Too many open files" in tier.status().fault
    assert tier.held(lab.pool) == {}


def test_a_pool_is_removed_although_the_disk_hangs(
    lab: Lab, make_tier: MakeTier, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "DEADLINE", 3600.0)
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


def test_a_process_that_keeps_its_page_locks_holds_nobody_up_for_long(
    lab: Lab, make_tier: MakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_tier, "STALL", 0.3)
    lab.write(0, slot=0)
    tier = make_tier()
    spill(lab, tier, 0)
    until(lambda: lab.place(0) == DISK)
    # A stopped process.
    for index in (1, 2):
        lab.write(index, slot=1)
        lib.gpushare_pool_set_page_locked(lab.table.chunk(index), 1, True)
    tier.set_wishes(lab.pool, DiskWishes(spill=(1,), fetch=(0,), budget=2))
    until(lambda: lab.place(0) == MEMORY)
    assert lab.is_right(0)
    assert lab.place(1) in (MEMORY, GOING)
    assert tier.status().fault == ""


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
