# SPDX-License-Identifier: BSD-3-Clause
"""The locks that make a scheduler the only one of its socket, and of its folder for what outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from ..protocol.address import AddressError

#: Bytes of a lock's file that are read: the owner's process and its token.
_CONTENTS = 64


class TakenError(Exception):
    """Another scheduler serves the socket."""


class Locks:
    """Locks that are taken and released together.

    The file of each lock contains the process and the token of its last owner.

    Parameters
    ----------
    paths
        The paths that they protect, in the order in which the locks are taken.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._descriptors: list[int] = []
        #: A scheduler that takes over recognises the last owner by this token.
        self.token = secrets.token_hex(8)
        #: The token of the owner before, of the last lock; empty: there was none.
        self.predecessor = ""

    def take(self) -> None:
        """Take all of them, or none.

        Raises
        ------
        TakenError
            Another process holds one.
        AddressError
            The file of one cannot be opened.
        """
        try:
            for path in self._paths:
                self._take(path)
        except (TakenError, AddressError):
            self.release()
            raise

    def try_to_take(self) -> bool:
        """Take all of them, or none; return whether they were taken."""
        with contextlib.suppress(TakenError):
            self.take()
            return True
        return False

    def release(self) -> None:
        """Release them. The last one comes first, so that the first one decides between others that wait."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self, path: Path) -> None:
        file = path.with_name(path.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(file, flags, 0o600)
        except OSError as error:
            raise AddressError(f"cannot open the lock {file}: {error.strerror}") from error
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner, _ = _owner(descriptor)
            raise TakenError(f"another scheduler (pid {owner}) serves {path}") from None
        _, self.predecessor = _owner(descriptor)
        # In this order, so that others always read an owner.
        written = os.pwrite(descriptor, f"{os.getpid()} {self.token}\n".encode(), 0)
        os.ftruncate(descriptor, written)


def _owner(descriptor: int) -> tuple[str, str]:
    """Return the process and the token of the last owner. Earlier releases wrote no token."""
    words = os.pread(descriptor, _CONTENTS, 0).decode("ascii", "replace").split()
    process, token, *_ = [*words, "", ""]
    return process or "unknown", token
