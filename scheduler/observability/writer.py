# SPDX-License-Identifier: BSD-3-Clause
"""Writes a recording to a file while the scheduler works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from . import recording
from .recording import Entry, RecordedCore, RecordingError

log = logging.getLogger(__name__)

#: Bytes after which a recording ends.
LONGEST = 1 << 30
#: The number of events that may wait to be written. A recording that falls further behind ends.
MOST_PENDING = 200_000
#: Seconds for which it occupies the event loop at most, and after which it checks for more.
SLICE, PAUSE = 0.001, 0.1

End = Literal["stopped", "full", "slow", "failed"]


class Writer:
    """One recording that is being written.

    Parameters
    ----------
    core
        The core, whose kept events come first.
    path
        The file.
    again
        Whether the file may exist: it is then kept as ``PATH.1``, which is replaced. Otherwise, an existing file is an
        error.
    seconds
        For how long to record; 0: only the events that are kept already. None: until it is stopped.
    longest
        Bytes after which it ends.
    on_end
        Called when it ends by itself.

    Raises
    ------
    RecordingError
        The file cannot be made, or no events are kept.
    """

    def __init__(
        self,
        core: RecordedCore,
        path: Path,
        *,
        again: bool = False,
        seconds: float | None = None,
        longest: int = LONGEST,
        on_end: Callable[[Writer], None] = lambda writer: None,
    ) -> None:
        self.path = path
        self.events = self.bytes = 0
        #: How it ended, and its error.
        self.ended: End | None = None
        self.error = ""
        self._core = core
        self._longest, self._on_end = longest, on_end
        self._until = None if seconds is None else time.monotonic() + seconds
        self._header: dict[str, Any] | None = core.header()
        self._pending = deque(core.entries())
        self._full: End | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        try:
            if again:
                with contextlib.suppress(FileNotFoundError):
                    path.replace(path.with_name(path.name + ".1"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise RecordingError(f"cannot write to {path}: {error.strerror}") from None
        if seconds != 0:
            core.sink = self
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, entry: Entry) -> None:
        """Add an event, to be written soon."""
        if len(self._pending) >= MOST_PENDING:
            self._full = "slow"
            self._detach()
            return
        self._pending.append(entry)

    def stop(self) -> None:
        """Write what has arrived so far, and end."""
        self._stopping = True
        self._detach()
        self._wake.set()

    async def close(self) -> None:
        """Stop, and wait until everything is written."""
        self.stop()
        await asyncio.wait([self._task])

    def status(self) -> dict[str, Any]:
        """Return its state as described in docs/reference/control.md."""
        return {
            "file": str(self.path),
            "events": self.events,
            "bytes": self.bytes,
            "ended": self.ended,
            "error": self.error,
        }

    def _detach(self) -> None:
        if self._core.sink is self:
            self._core.sink = None

    async def _run(self) -> None:
        try:
            ended = await self._write()
        except OSError as error:
            ended, self.error = "failed", error.strerror or str(error)
        except Exception as error:
            # Whatever the error is, the users of the GPU must not be affected.
            log.exception("recording to %s", self.path)
            ended, self.error = "failed", str(error)
        finally:
            self._detach()
            os.close(self._descriptor)
        self._pending.clear()
        self.ended = ended
        if ended != "stopped":
            self._on_end(self)

    async def _write(self) -> End:
        assert self._header is not None
        # The state at its beginning may be long.
        await self._put(await asyncio.to_thread(recording.write_header, self._header))
        self._header = None
        while True:
            left = None if self._until is None else self._until - time.monotonic()
            if left is not None and left <= 0:
                self.stop()
            chunk = self._encode()
            if chunk:
                await self._put(chunk)
            if self.bytes >= self._longest:
                return "full"
            if self._pending:
                # This lets one round of the loop pass.
                await asyncio.sleep(0)
            elif self._full is not None:
                return self._full
            elif self._stopping:
                return "stopped"
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    pause = PAUSE if left is None else min(PAUSE, left)
                    await asyncio.wait_for(self._wake.wait(), pause)

    def _encode(self) -> bytes:
        lines = []
        end = time.monotonic() + SLICE
        while self._pending and time.monotonic() < end:
            lines.append(recording.write(self._pending.popleft()))
        self.events += len(lines)
        return b"".join(lines)

    async def _put(self, data: bytes) -> None:
        self.bytes += len(data)
        await asyncio.to_thread(_write_all, self._descriptor, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
