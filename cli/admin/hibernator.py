# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare hibernator``: run the privileged hibernator, which hibernates processes in containers."""

from __future__ import annotations

import argparse
import os
import pwd
from pathlib import Path
from typing import Any

from ...scheduler.gpu.drivers import DriverError, find_driver, libraries
from ...scheduler.node.arguments import complain

SOCKET = Path("/run/gpushare-hibernator/hibernator.sock")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "hibernator",
        description="Run the privileged hibernator of this machine. The node's scheduler, which has no privileges, "
        "uses it to hibernate processes of other users and in containers. It needs root or CAP_SYS_PTRACE, and the PID "
        "namespace of the machine.",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        default=SOCKET,
        metavar="PATH",
        help=f"path of the socket for the scheduler (default: {SOCKET})",
    )
    parser.add_argument(
        "--allow-user",
        type=_uid,
        metavar="USER",
        help="name or uid of the scheduler's user (default: the user who runs this command)",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by the hibernator, which is a small program without Python."""
    try:
        driver, program = find_driver(), libraries().hibernator
    except DriverError as error:
        return complain(str(error))
    if driver is None:
        return complain("no NVIDIA driver found; check with nvidia-smi whether it is loaded")
    path = args.socket.absolute()
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            # Whatever the umask is: a scheduler that is another user reaches its socket.
            path.parent.chmod(0o755)
        found = path.parent.stat()
    except OSError as error:
        return complain(f"cannot create the folder {path.parent}: {error.strerror}")
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
        return complain(
            f"other users can write to {path.parent}; choose a folder of root or of your own with --socket"
        )
    allowed = [] if args.allow_user is None else [str(args.allow_user)]
    command = [str(program), "--driver", str(driver.cuda), "--listen", str(path), *allowed]
    try:
        os.execv(program, command)
    except OSError as error:
        return complain(f"{program} cannot be run: {error.strerror}")


def _uid(text: str) -> int:
    if text.isdecimal() and int(text) < 2**32 - 1:
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"unknown user {text!r}; use a name or a uid") from None
