# SPDX-License-Identifier: BSD-3-Clause
"""The path of the scheduler's socket, and the checks that no other user can replace it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Longest path that fits into ``sockaddr_un`` with its terminating NUL.
MAX_PATH = 107
#: Exit status of a scheduler where another one serves the socket already (EX_TEMPFAIL).
TAKEN = 75

#: Modes with which other users may connect to a socket. Such a socket belongs to a node's scheduler.
_OPEN = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class AddressError(Exception):
    """The socket's path cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which users may connect to the socket of a node's scheduler."""

    #: 0o660: members of ``group``; 0o666: all users.
    mode: int = 0o660
    #: The gid of the socket; None: the group of the scheduler's process.
    group: int | None = None


def socket_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the scheduler's socket: ``GPUSHARE_SOCKET``, otherwise in the runtime folder, otherwise in ``/tmp``."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("GPUSHARE_SOCKET"):
        return Path(chosen).absolute()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "gpushare", "scheduler.sock").absolute()
    return Path(f"/tmp/gpushare-{os.getuid()}/scheduler.sock")


def too_long(path: str | Path, setting: str = "GPUSHARE_SOCKET") -> str:
    """Return the sentence for a path that no socket can have, or nothing.

    Parameters
    ----------
    path
        The path of the socket.
    setting
        The setting with which the user chooses another path.
    """
    length = len(os.fsencode(path))
    if length <= MAX_PATH:
        return ""
    return (
        f"the path of the scheduler's socket has {length} bytes, but the maximum is {MAX_PATH}: "
        f"{path}; set {setting} to a shorter path"
    )


def is_own_place(path: Path) -> bool:
    """Whether a personal scheduler may be started there: the folder belongs to this user, or can be made.

    A node scheduler's socket is never a personal one, even for root, because the service starts that scheduler.
    """
    folder = path.parent
    try:
        if _is_open_socket(path):
            return False
        if not folder.exists():
            there = next(above for above in folder.parents if above.exists())
            return os.access(there, os.W_OK | os.X_OK)
        # Even root cannot write to a read-only mount, such as a node scheduler's folder in a container.
        return folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def _is_open_socket(path: Path) -> bool:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISSOCK(found.st_mode) and bool(found.st_mode & _OPEN)


def prepare(path: Path, access: Access | None = None) -> None:
    """Make the socket's folder, and check that no other user can replace a socket with this path.

    Parameters
    ----------
    path
        The path of the socket.
    access
        Which users may connect to it; None: only its owner, in a private folder.

    Raises
    ------
    AddressError
        The path is too long, or is not a socket; or other users could replace it; or users who may connect to it
        cannot reach it.
    """
    if trouble := too_long(path):
        raise AddressError(trouble)
    if access is None and _is_open_socket(path):
        raise AddressError(
            f"{path} is the socket of the node's scheduler, which a system service starts; "
            "to run your own scheduler, set GPUSHARE_SOCKET to another path"
        )
    folder = path.parent
    try:
        _make(folder, access)
        found = folder.lstat()
    except OSError as error:
        raise AddressError(
            f"cannot create the socket's folder {folder}: {error.strerror}"
        ) from error
    if stat.S_ISLNK(found.st_mode):
        # A link of root's (such as /var/run) cannot be turned elsewhere by another user.
        if found.st_uid not in (0, os.getuid()):
            raise AddressError(
                f"{folder} is a symbolic link that belongs to another user (uid {found.st_uid}); remove it"
            )
        found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise AddressError(
            f"{folder} is not a folder, so the scheduler's socket cannot be created in it"
        )
    if found.st_uid not in (0, os.getuid()):
        raise AddressError(
            f"{folder} belongs to another user (uid {found.st_uid}); "
            "set GPUSHARE_SOCKET to a path in a folder that you own"
        )
    if access is None:
        _keep_private(folder, found)
    else:
        _keep_passable(folder, found, access)
    try:
        present = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(present.st_mode):
        raise AddressError(
            f"{path} exists and is not a socket; remove it or set GPUSHARE_SOCKET to another path"
        )


def bind(path: Path, access: Access | None = None) -> socket.socket:
    """Make the socket, in place of an old one. The caller holds the lock, and listens.

    Raises
    ------
    AddressError
        It cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        if access is not None:
            # In this order, so that no other user can connect before the socket has its group.
            if access.group is not None:
                os.chown(path, -1, access.group)
            path.chmod(access.mode)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot create the socket {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    return listener


def _make(folder: Path, access: Access | None) -> None:
    if access is None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not folder.exists():
        folder.mkdir(mode=0o755, parents=True)
        # Regardless of the umask.
        folder.chmod(0o755)


def _keep_private(folder: Path, found: os.stat_result) -> None:
    others_may_write = found.st_mode & _OPEN
    if others_may_write and not found.st_mode & stat.S_ISVTX:
        if found.st_uid != os.getuid() or not _is_ours_alone(folder):
            raise AddressError(
                f"other users can write to {folder}; "
                "set GPUSHARE_SOCKET to a path in a private folder"
            )
        folder.chmod(0o700)
    elif _is_ours_alone(folder) and found.st_uid == os.getuid() and found.st_mode & _OTHERS:
        folder.chmod(0o700)


def _keep_passable(folder: Path, found: os.stat_result, access: Access) -> None:
    if found.st_mode & _OPEN:
        # This includes sticky folders: a user who makes a socket there first would block the scheduler.
        raise AddressError(
            f"users other than uid {found.st_uid} can write to {folder}, the folder of all users' scheduler; "
            f"run: chmod go-w {folder}"
        )
    group = os.getgid() if access.group is None else access.group
    of_group = access.mode & stat.S_IWOTH == 0 and group == found.st_gid
    if found.st_mode & (stat.S_IXOTH | (stat.S_IXGRP if of_group else 0)):
        return
    if found.st_uid != os.getuid() or not _is_ours_alone(folder):
        raise AddressError(
            f"the scheduler's users cannot reach a socket in {folder}; run: chmod a+x {folder}"
        )
    folder.chmod(0o755)


def _is_ours_alone(folder: Path) -> bool:
    """Whether the folder exists only for the socket, so that the scheduler may set its mode."""
    return folder.name in ("gpushare", f"gpushare-{os.getuid()}")
