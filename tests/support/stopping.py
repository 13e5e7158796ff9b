# SPDX-License-Identifier: BSD-3-Clause
"""Stops processes, as SIGSTOP does once it has arrived."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0


def stop(pid: int) -> None:
    """Stop a process, and wait until each of its threads has: until one has taken the signal, the others run on.

    Raises
    ------
    TimeoutError
        If they have not within a minute.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while not all(map(_is_stopped, Path(f"/proc/{pid}/task").iterdir())):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.001)


def go_on(pid: int) -> None:
    """Let a process go on that was stopped."""
    os.kill(pid, signal.SIGCONT)


def _is_stopped(task: Path) -> bool:
    try:
        status = (task / "status").read_text()
    except FileNotFoundError:
        return True
    return re.search(r"^State:\s*[TtZX]", status, re.M) is not None


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        go_on(pid)
