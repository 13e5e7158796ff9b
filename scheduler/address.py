# SPDX-License-Identifier: BSD-3-Clause
"""Where the scheduler's socket lies, and the checks that make the place private."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

#: Longest path that fits into ``sockaddr_un`` with its terminating NUL.
MAX_PATH = 107


class AddressError(Exception):
    """The socket's path cannot be used; the message is one sentence for the user."""


def socket_path(environ: Mapping[str, str] | None = None) -> Path:
    """The scheduler's socket: ``GPUSHARE_SOCKET``, else in the runtime folder, else in ``/tmp``."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("GPUSHARE_SOCKET"):
        return Path(chosen).absolute()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "gpushare", "scheduler.sock").absolute()
    return Path(f"/tmp/gpushare-{os.getuid()}/scheduler.sock")


def prepare(path: Path) -> None:
    """Make the socket's folder, and check that the path can become a private socket.

    Raises
    ------
    AddressError
        If the path is too long, is something else than a socket, or lies where others could
        replace it.
    """
    length = len(os.fsencode(path))
    if length > MAX_PATH:
        raise AddressError(
            f"the socket's path may have {MAX_PATH} bytes and has {length}: {path}; "
            "set GPUSHARE_SOCKET to a shorter one"
        )
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise AddressError(f"cannot make the socket's folder {folder}: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        # A link of root's (such as /var/run) cannot be turned elsewhere by another user.
        if found.st_uid not in (0, os.getuid()):
            raise AddressError(
                f"{folder} is a symbolic link of another user's (uid {found.st_uid}); remove it"
            )
        found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise AddressError(f"{folder} is not a folder; the scheduler's socket cannot lie there")
    if found.st_uid not in (0, os.getuid()):
        raise AddressError(
            f"{folder} belongs to another user (uid {found.st_uid}); "
            "set GPUSHARE_SOCKET to a path in a folder of yours"
        )
    others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_may_write and not found.st_mode & stat.S_ISVTX:
        if found.st_uid != os.getuid() or not _is_ours_alone(folder):
            raise AddressError(
                f"other users may write to {folder}; "
                "set GPUSHARE_SOCKET to a path in a private folder"
            )
        folder.chmod(0o700)
    elif _is_ours_alone(folder) and found.st_uid == os.getuid() and found.st_mode & 0o077:
        folder.chmod(0o700)
    try:
        present = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(present.st_mode):
        raise AddressError(
            f"{path} exists and is not a socket; remove it or set GPUSHARE_SOCKET to another path"
        )


def _is_ours_alone(folder: Path) -> bool:
    """Whether the folder exists for the socket alone, so that its mode is ours to set."""
    return folder.name in ("gpushare", f"gpushare-{os.getuid()}")
