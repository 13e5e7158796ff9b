# SPDX-License-Identifier: BSD-3-Clause
"""Checks the disk to which host memory of idle notebooks may go."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...scheduler.views.words.amounts import size
from .finding import Finding

TOPIC = "disk"
#: File systems that are not a local disk.
IN_MEMORY = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "fuse.sshfs", "glusterfs", "lustre")
#: What to do about a folder that is missing.
CREATE = "create it, then restart the scheduler"


def check_disk(disk: dict[str, Any] | None) -> Iterator[Finding]:
    """Check the disk, given its state in the scheduler's status; None: there is none."""
    if disk is None:
        return
    if disk["fault"]:
        is_missing = disk["fault"].endswith(os.strerror(errno.ENOENT))
        yield Finding(
            TOPIC,
            "fail",
            f"no more data goes to the disk: {disk['fault']}. No data is lost",
            CREATE if is_missing else "correct this, then restart the scheduler",
        )
        return
    folder = Path(disk["folder"])
    found = f"{folder}: {size(disk['used'])} of {size(disk['size'])} in use"
    if disk["encrypted"]:
        found += ", encrypted"
    concerns = list(_concerns(folder, disk))
    if not concerns:
        yield Finding(TOPIC, "ok", found)
    for concern, remedy in concerns:
        yield Finding(TOPIC, "warn", f"{found}; {concern}", remedy)


def _concerns(folder: Path, disk: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what is wrong, and what to do about it."""
    if disk["direct"] is False:
        yield (
            "its file system has no direct I/O, so data passes through the page cache",
            "use a folder on a local disk with ext4 or XFS",
        )
    try:
        mode, space = folder.stat().st_mode, os.statvfs(folder)
    except FileNotFoundError:
        yield "it does not exist any more", CREATE
        return
    except PermissionError:
        yield "this user cannot check it", "run gpushare doctor as root"
        return
    except OSError as error:
        yield f"it cannot be checked ({error.strerror})", "check the disk"
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield "every user can write to it", f"run: chmod o-w {folder}"
    kind = file_system(folder)
    if kind in IN_MEMORY:
        yield f"it is in memory ({kind})", "use a folder on a local disk"
    elif kind in REMOTE:
        yield f"it is on the network ({kind})", "use a folder on a local disk"
    free = space.f_bavail * space.f_frsize
    if free < disk["size"] - disk["used"]:
        yield (
            f"its disk has only {size(free)} free",
            "free space on it, or set a smaller disk_size",
        )


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system of a folder; empty: not known."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0]
    return ""
