# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of an idle GPU's power, in a process of its own: a process reads one simulated machine only."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_idle_power_falls_when_the_last_context_hibernates() -> None:
    command = ["-m", "jupyter_gpushare.cli.main", "bench", "idle-power", "--seconds", "0.3"]
    done = subprocess.run(
        [sys.executable, *command, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    before, with_context, after, _ = (
        json.loads(line)["value"] for line in done.stdout.splitlines()
    )
    assert before == pytest.approx(72.0, abs=1.0)
    assert with_context == pytest.approx(121.0, abs=1.0)
    assert after == pytest.approx(72.0, abs=1.0)
