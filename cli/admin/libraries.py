# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare libraries``: put the interposer where containers get it from."""

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
        help="put the interposer into a folder that containers mount",
        description="Copy the interposer's libraries into a folder of this machine, which containers mount read-only "
        "and name in GPUSHARE_LIBRARIES. Do it again after an upgrade: what runs keeps what it has. "
        "See docs/how-to/admin/jupyterhub.md.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="made if it is not there")


def run(args: argparse.Namespace) -> int:
    """Copy them, and return the exit status."""
    from ...deploy.libraries import LibrariesError, install_libraries

    try:
        install_libraries(args.folder)
    except (DriverError, LibrariesError) as error:
        return complain(str(error))
    return 0
