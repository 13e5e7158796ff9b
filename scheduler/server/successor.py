# SPDX-License-Identifier: BSD-3-Clause
"""Starts the next scheduler of a service as a child of this one, so that it can take over without a gap."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .succession import Succession

log = logging.getLogger(__name__)

#: Seconds in which the next scheduler must stand by; and seconds between two checks.
PATIENCE, LOOK = 60.0, 0.05
#: What systemd passes to one process only.
_OWN = ("WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Successor:
    """Starts the next scheduler with the command line of this one, and ends this one once the next one stands by.

    Parameters
    ----------
    path
        The socket.
    succession
        Knows the schedulers that stand by.
    end
        Ends this scheduler with an exit status.
    """

    def __init__(self, path: Path, succession: Succession, end: Callable[[int], None]) -> None:
        self._path, self._succession, self._end = path, succession, end
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process of the next scheduler, if it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the next scheduler, unless one is being started."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in _OWN}
        try:
            self._process = process = _spawn(_command(self._path), environ)
        except OSError as error:
            log.error("cannot start the next scheduler: %s; this one continues", error)
            return
        deadline = time.monotonic() + PATIENCE
        while not self._succession.heirs:
            if process.poll() is not None:
                log.error(
                    "the next scheduler exited with status %d; this one continues",
                    process.returncode,
                )
                return
            if time.monotonic() >= deadline:
                process.kill()
                log.error(
                    "the next scheduler was not ready within %g s; this one continues", PATIENCE
                )
                return
            await asyncio.sleep(LOOK)
        self._end(0)


def _spawn(command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that survives this one. Asyncio would kill its children when the loop ends."""
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)


def _command(path: Path) -> list[str]:
    """Return the command line of this process, with which the next one stands by."""
    words = [sys.executable, *sys.orig_argv[1:]]
    if "--stand-by" not in words:
        # With systemd's socket, only this process knows the path.
        words += ["--stand-by", "--socket", str(path)]
    return words
