# SPDX-License-Identifier: BSD-3-Clause
"""A program that shares the GPU, for tests of commands that affect it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.client import PATIENCE
from tests.support.notebook import SETUP
from tests.support.scheduler import Scheduler

#: Prints for each line of its input whether its data is unchanged, in a cell like those of Jupyter kernels.
PROGRAM = f"""
import sys
{SETUP}
gpushare = ctypes.CDLL(None)
for line in sys.stdin:
    gpushare.gpushare_cell_begin(b"cell")
    same = data.read() == known
    gpushare.gpushare_cell_end(b"cell")
    print(same, flush=True)
"""


class Program:
    """A program that uses the GPU on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def use(self) -> bool:
        """Have it use the GPU, and return whether it found its data."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline() == "True\n"


@pytest.fixture
def program(scheduler: Scheduler, environ: dict[str, str]) -> Iterator[Program]:
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "run", "--name", "work"]
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", PROGRAM],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        program = Program(process)
        try:
            assert program.use()
            yield program
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
