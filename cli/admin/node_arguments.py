# SPDX-License-Identifier: BSD-3-Clause
"""Arguments of the commands that serve a Kubernetes node's kubelet."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

#: Folders that other programs use, too: a container must not get everything in them.
_COMMON = {"/", "/dev/shm", "/home", "/root", "/run", "/tmp", "/var/run", "/var/tmp"}

#: What to do on a node without a driver.
NO_DRIVER = (
    "no NVIDIA driver found; in a container, use NVIDIA's runtime and set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


def absolute(text: str) -> Path:
    """Parse a path on the node."""
    path = Path(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(
            f"invalid path {text!r}; use an absolute path, because it is mounted from the node"
        )
    return path


def is_subdomain(text: str) -> bool:
    """Whether a text is a DNS subdomain, as Kubernetes defines it for names."""
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None


def add_common(parser: argparse.ArgumentParser, program: str) -> None:
    """Add the arguments that the device plugin and the DRA driver have in common."""
    parser.add_argument(
        "--socket",
        type=absolute,
        metavar="PATH",
        help="socket of the node scheduler, in a folder of its own (default: GPUSHARE_SOCKET)",
    )
    parser.add_argument(
        "--library-dir",
        type=absolute,
        metavar="DIR",
        help=f"folder on the node to copy the libraries to, if the {program} itself runs in a container (default: "
        "none; containers mount the installed libraries)",
    )


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level``."""
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level of the messages that are logged to standard error (default: info)",
    )


def socket_trouble(socket: Path) -> str | None:
    """Return what is wrong with the socket of the scheduler, whose folder containers get."""
    if str(socket.parent) not in _COMMON:
        return None
    return (
        f"containers would get access to everything in {socket.parent}; put the scheduler's socket into a "
        "folder of its own, and specify that with --socket"
    )
