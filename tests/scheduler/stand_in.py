# SPDX-License-Identifier: BSD-3-Clause
"""A hibernator over a driver that fails, hangs and dies as it is told, and processes for it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Deadlines, Hibernator, Outcome
from jupyter_gpushare.scheduler.gpu.drivers import Driver
from tests.support.checkpoints import StandIn, build_stand_in

PATIENCE = 60.0


@pytest.fixture(scope="session")
def stand_in_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(stand_in_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    monkeypatch.setattr(hibernator, "PAUSES", (0.01, 0.01, 0.01))
    return StandIn(tmp_path, stand_in_library)


Make = Callable[..., Hibernator]


@pytest.fixture
async def make_hibernator(stand_in: StandIn) -> AsyncIterator[Make]:
    made = []

    def one(deadlines: Deadlines | None = None, **options: object) -> Hibernator:
        driver = Driver(stand_in.library, None, False)
        made.append(Hibernator(driver, deadlines=deadlines, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for step in ("state", "lock", "checkpoint", "restore", "unlock"):
        (stand_in.folder / step).unlink(missing_ok=True)
    for each in made:
        await each.close()


@pytest.fixture
def processes() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started = []

    def one() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def pid(processes: Callable[[], subprocess.Popen[bytes]]) -> int:
    return processes().pid


async def wait_for(met: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not met():
        assert loop.time() < deadline
        await asyncio.sleep(0.01)


def helper_of(one: Hibernator) -> int:
    """The helper's process."""
    assert one._helper is not None
    return one._helper.process.pid


def said(outcome: Outcome) -> tuple[bool, str]:
    assert outcome.seconds >= 0
    assert bool(outcome.text) != outcome.ok
    assert "\n" not in outcome.text
    return outcome.ok, outcome.code


FINE = (True, "")


def put_program(folder: Path, *lines: str) -> Path:
    program = folder / "program"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o700)
    return program
