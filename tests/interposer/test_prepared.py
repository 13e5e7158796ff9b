# SPDX-License-Identifier: BSD-3-Clause
"""Programs that move their data only to pages that the scheduler made: `NodeScheduler.prepare_host_memory`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.machine import UNIT, Machine


def test_prepared_pages_lose_no_data_and_no_others_are_used(
    make_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    settings = {"state_dir": str(tmp_path / "state"), "prepare_host_memory": True}
    config.write_text(json.dumps({"NodeScheduler": settings}))
    config.chmod(0o600)
    machine = make_machine("--config", str(config), GPUSHARE_BACKEND="swap")
    a, b, c = (machine.program(name) for name in "abc")
    at = [p.filled(150 * UNIT, i + 1) for i, p in enumerate((a, b, c))]
    for _ in range(2):
        for i, program in enumerate((a, b, c)):
            assert program.holds(at[i], 150 * UNIT, i + 1)
            program.call("cell", phase="end")
    pool = machine.control("status")["status"]["host"]["pool"]
    assert 0 < pool["in_use"] <= pool["prepared"]
    assert not any(
        "the host has too little free memory" in line for p in (a, b, c) for line in p.errors
    )
