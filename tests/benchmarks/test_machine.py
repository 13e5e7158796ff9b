# SPDX-License-Identifier: BSD-3-Clause
"""The machine of the benchmarks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jupyter_gpushare.benchmarks.harness import machine as harness
from jupyter_gpushare.benchmarks.harness.machine import Machine


def test_a_scheduler_that_is_started_again_shares_as_much_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The programs hold memory by then, which is not to be added to the room."""
    free = iter((["--reserve", "100"], ["--reserve", "50"]))
    started: list[tuple[str, ...]] = []

    def start(socket: Path, environ: object, *flags: str) -> None:
        started.append(flags)

    monkeypatch.setattr(Machine, "all_but", lambda here, size: next(free))
    monkeypatch.setattr(harness, "start_scheduler", start)
    here = Machine({"GPUSHARE_SIM": "1"})
    here.driver = dataclasses.replace(here.driver, simulated=False)
    here.start_scheduler("--quantum", "1")
    here.start_scheduler()
    here.close()
    assert started == [("--reserve", "100", "--quantum", "1"), ("--reserve", "100")]
