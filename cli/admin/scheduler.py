# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare scheduler``: run the scheduler alone, without Jupyter."""

from __future__ import annotations

import argparse
from typing import Any

from ...scheduler import __main__ as process


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "scheduler",
        help="run the scheduler (JupyterLab starts one by itself)",
        description="Share this machine's GPUs among this user's processes, until ended.",
    )
    process.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until told to end."""
    return process.run(args)
