# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare libraries``: copy the interposer to a folder that containers mount."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...scheduler.gpu.drivers import DriverError
from ...scheduler.node.arguments import complain


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "libraries",
        description="Copy the interposer's libraries to a folder on this machine. Containers mount the folder "
        "read-only and name it in GPUSHARE_LIBRARIES. Run this again after an upgrade; running containers keep using "
        "the old libraries.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="folder to copy to; created if it does not exist"
    )


def run(args: argparse.Namespace) -> int:
    """Copy the libraries."""
    from ...deploy.libraries import LibrariesError, install_libraries

    try:
        install_libraries(args.folder)
    except (DriverError, LibrariesError) as error:
        return complain(str(error))
    print(f"Copied the libraries to {args.folder}.")
    return 0
