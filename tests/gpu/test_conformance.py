# SPDX-License-Identifier: BSD-3-Clause
"""The same as ``python -m tests.gpu.run`` for pytest; nothing is collected where there is no NVIDIA GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.benchmarks.published.conformance import PATIENCE, Suite
from tests.gpu.run import PROGRAMS

if not Path("/dev/nvidiactl").exists():
    pytest.skip("no NVIDIA GPU here", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(4 * PATIENCE)]


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_results_are_bit_identical_under_constant_eviction(program: Path) -> None:
    (verdict,) = Suite(os.environ).run([program])
    if verdict.absent:
        pytest.skip(verdict.runs["plain"].text)
    assert not verdict.problem, verdict.as_json()
