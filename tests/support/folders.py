# SPDX-License-Identifier: BSD-3-Clause
"""Folders for sockets, whose paths can have at most 107 bytes: pytest's own folders are too deep."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds that a scheduler has to end.
PATIENCE = 60.0


@contextlib.contextmanager
def socket_folder() -> Iterator[str]:
    """Make a folder, and remove it once the schedulers in it have ended: until then, they may write files."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield folder
        deadline = time.monotonic() + PATIENCE
        for lock in Path(folder).rglob("*.lock"):
            while _is_held(lock):
                assert time.monotonic() < deadline, f"the scheduler of {lock} does not end"
                time.sleep(0.01)


def _is_held(lock: Path) -> bool:
    """Whether a scheduler has a lock."""
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
