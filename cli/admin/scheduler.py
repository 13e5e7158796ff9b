# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare scheduler``: run the scheduler without Jupyter."""

from __future__ import annotations

import argparse
from typing import Any

from ...scheduler import __main__ as process


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "scheduler",
        description="Run the scheduler, which shares this machine's GPUs among the processes of this user, until it is "
        "stopped. JupyterLab starts a scheduler automatically; use this command if you do not use JupyterLab, or to "
        "run the scheduler of a shared machine with --config.",
    )
    process.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    return process.run(args)
