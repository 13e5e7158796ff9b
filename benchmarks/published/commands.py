# SPDX-License-Identifier: BSD-3-Clause
"""How much processor time commands take that people run often."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator

from ..harness.figures import Figure, quartile_distance
from ..harness.machine import machine

#: Milliseconds of processor time that a command may take.
TARGET = 150


def run(rounds: int = 10) -> Iterator[Figure]:
    """Measure user and system time of the command and of an interpreter that does nothing."""
    with machine() as here:

        def used(*arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, *arguments],
                env=here.environ,
                stdout=subprocess.DEVNULL,
                check=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

        for command in ("--help", "--version", "status"):
            bare, ours = [], []
            for _ in range(rounds):
                bare.append(used("-c", "pass"))
                ours.append(used("-m", "jupyter_gpushare.cli.main", command))
            yield Figure(
                "command-start",
                f"processor time of gpushare {command}",
                statistics.median(ours),
                "ms",
                statistics.median(bare),
                rounds,
                quartile_distance(ours),
                TARGET,
            )
