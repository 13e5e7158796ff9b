# SPDX-License-Identifier: BSD-3-Clause
"""Opens and closes the files of the disk tier in a thread, because on a disk that hangs, these calls block."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .clock import DiskClock
from .files import DiskFile, default_size, open_file
from .store import Store

#: Seconds for which the end waits for files to be closed.
PATIENCE = 1.0


class Opener:
    """Opens and closes files, one after another.

    Parameters
    ----------
    folder
        The administrator's folder.
    clock
        The tier's time.
    checked
        Called in the thread with the default size, if files can be made in the folder.
    opened
        Called in the thread with a store and its file, which is the callee's from then on.
    failed
        Called in the thread with the reason why a file could not be opened.
    """

    def __init__(
        self,
        folder: Path,
        clock: DiskClock,
        checked: Callable[[int], None],
        opened: Callable[[Store, DiskFile], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._checked = checked
        self._opened = opened
        self._failed = failed
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._since: float | None = None
        self._thread = threading.Thread(target=self._run, name="gpushare-files", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Find out whether files can be made in the folder, and its default size."""
        self._tasks.put(self._check)

    def open(self, store: Store) -> None:
        """Make the file of a store."""
        self._tasks.put(functools.partial(self._open, store))

    def close(self, descriptor: int) -> None:
        """Close a file, which frees its part of the disk unless the helper has it open, too."""
        self._tasks.put(functools.partial(os.close, descriptor))

    def is_stuck(self) -> bool:
        """Whether opening a file takes too long. Closing one may: the disk frees its data."""
        since = self._since
        return since is not None and self._clock.is_late(since)

    def stop(self) -> None:
        """End after what was ordered so far, unless the disk hangs."""
        self._tasks.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        self._since = self._clock.now
        try:
            yield
        finally:
            self._since = None

    def _check(self) -> None:
        try:
            with self._timed():
                os.close(open_file(self._folder).descriptor)
                size = default_size(self._folder)
        except OSError as error:
            self._failed(error)
        else:
            self._checked(size)

    def _open(self, store: Store) -> None:
        try:
            with self._timed():
                file = open_file(self._folder)
        except OSError as error:
            self._failed(error)
        else:
            self._opened(store, file)
