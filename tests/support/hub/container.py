#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command as a container engine would: a root, mounts and processes of its own, another user, and no docker.

`python container.py settings.json -- command…`; `Container` has the settings, and variables stand in the file's name.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from os.path import expandvars
from pathlib import Path

# <linux/sched.h>, <sys/mount.h>, <sys/prctl.h>
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    *(1, 2, 4, 32, 4096, 16384),
    1 << 18,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

#: Exit status where the machine permits no namespaces (EX_NOPERM).
FORBIDDEN = 77

libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Container:
    """What a container is like.

    Attributes
    ----------
    read_only, volumes
        Paths of the host, and where they lie inside; ``$HOME`` is the user's.
    uid
        Whose processes are inside. Of somebody who is not root, it is the name of their own uid inside.
    environment
        Further variables inside.
    remapped
        Whether that user is root inside, and nobody else exists there, as where users' numbers are remapped.
    """

    read_only: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    uid: int = 1000
    remapped: bool = False

    def save(self, file: Path) -> None:
        """Write it down."""
        file.write_text(json.dumps(asdict(self)))


def begin(file: Path) -> list[str]:
    """Return the beginning of the command that runs another one in the container of a file."""
    return [sys.executable, __file__, str(file), "--"]


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


def mount(source: str, target: Path, kind: str = "", flags: int = 0) -> None:
    call("mount", source.encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), None)


def bind(source: str, target: Path, *, read_only: bool) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        # What was forbidden outside has to be so inside.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV)
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def enter_user(inside: int) -> None:
    """Be the only user of a namespace of users."""
    outside, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside} {outside} 1")
    Path("/proc/self/gid_map").write_text(f"{inside} {group} 1")


def fork_and_wait(rest: Callable[[], None]) -> None:
    """Let a child do the rest, as the first process of its namespace; pass signals on, and end as it ends."""
    child = os.fork()
    if child == 0:
        # Whatever becomes of us, it ends, and all that it started.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        rest()
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: os.kill(child, got))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


def enter(container: Container, command: list[str]) -> None:
    """Replace this process by the command, in the container."""
    try:
        if os.geteuid() != 0:
            enter_user(container.uid)
        call("unshare", CLONE_NEWNS | CLONE_NEWPID)
        mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    except OSError as error:
        print(f"this machine permits no namespaces: {error}", file=sys.stderr)
        sys.exit(FORBIDDEN)

    def inside() -> None:
        # Hides the host's, in this namespace alone.
        root = Path("/mnt")
        mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV)
        for name in ("usr", "bin", "lib", "lib64", "sbin", "etc"):
            there = Path("/", name)
            if there.is_symlink():
                (root / name).symlink_to(os.readlink(there))
            elif there.is_dir():
                bind(str(there), root / name, read_only=True)
        for name in ("null", "zero", "full", "random", "urandom"):
            bind(f"/dev/{name}", root / "dev" / name, read_only=False)
        (root / "dev" / "shm").mkdir()
        for name in ("tmp", "run", "proc"):
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "dev" / "fd").symlink_to("/proc/self/fd")
        for source, target in container.read_only.items():
            bind(expandvars(source), root / expandvars(target).lstrip("/"), read_only=True)
        for source, target in container.volumes.items():
            bind(expandvars(source), root / expandvars(target).lstrip("/"), read_only=False)
        mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV)
        # The old root comes to lie on the new one, from where it goes.
        os.chdir(root)
        call("syscall", ctypes.c_long(PIVOT_ROOT), b".", b".")
        call("umount2", b".", MNT_DETACH)
        os.chdir("/")
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(container.uid, container.uid, container.uid)
            os.setresuid(container.uid, container.uid, container.uid)
            # Else /proc/self stays root's.
            libc.prctl(PR_SET_DUMPABLE, 1)
        if container.remapped:
            try:
                enter_user(0)
            except OSError as error:
                print(f"this machine permits no namespaces of users: {error}", file=sys.stderr)
                sys.exit(FORBIDDEN)
        os.environ.update(container.environment)
        os.chdir(os.environ.get("HOME", "/"))
        os.execvp(command[0], command)

    fork_and_wait(inside)


PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]


if __name__ == "__main__":
    mark = sys.argv.index("--")
    file = Path(expandvars(sys.argv[1]))
    enter(Container(**json.loads(file.read_text())), sys.argv[mark + 1 :])
