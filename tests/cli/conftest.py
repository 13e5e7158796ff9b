# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support import fork_server
from tests.support.client import PATIENCE
from tests.support.scheduler import environ, scheduler, start

__all__ = ["environ", "scheduler", "start"]

#: What most commands import.
MODULES = [
    f"jupyter_gpushare.{name}"
    for name in (
        "cli.doctor.command",
        "cli.main",
        "cli.recordings.record",
        "cli.recordings.replay",
        "cli.show.explain",
        "cli.show.history",
        "cli.show.report",
        "cli.show.status",
        "cli.steer.adjust",
        "cli.steer.ready",
        "cli.steer.release",
        "cli.steer.reserve",
        "cli.steer.settings",
        "cli.steer.shares",
        "cli.admin.administer",
    )
]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpushare(environ: dict[str, str]) -> Command:
    """Run the command."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return fork_server.run(
            ["-m", "jupyter_gpushare.cli.main", *arguments],
            environ=environ,
            modules=MODULES,
            timeout=PATIENCE,
        )

    return run
