# SPDX-License-Identifier: BSD-3-Clause
"""Disk tiers for tests, also with a helper that has a fault, and what is known of them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.memory.disk.store import DiskWishes
from jupyter_gpushare.scheduler.memory.disk.tier import DiskOptions, DiskTier
from jupyter_gpushare.scheduler.memory.pool import CHUNK
from tests.support.disk import Lab

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


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """By which a helper shows that a call hangs; the call goes on once it is removed."""
    made = tmp_path / "pipe"
    os.mkfifo(made)
    return made


def await_hang(pipe: Path) -> None:
    with pipe.open("rb") as reached:
        assert reached.read(1) == b"x"
