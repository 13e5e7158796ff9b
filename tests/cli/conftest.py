# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.client import PATIENCE
from tests.support.scheduler import environ, scheduler, start

__all__ = ["environ", "scheduler", "start"]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpushare(environ: dict[str, str]) -> Command:
    """Run the command."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare.cli.main", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )

    return run
