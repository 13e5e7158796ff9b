# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare explain``: which rule put whom before whom."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...kernel_provisioner.in_kernel.tables import explanation_text
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "explain",
        help="say which rule put whom before whom",
        description="Say for those that wait, or are held back, which rule put whom before them, "
        "and what it would take to be next.",
    )
    parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="?",
        help="its id, a beginning of it, or its name; default: all that wait or are held back",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as in docs/reference/control.md"
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    try:
        with ControlClient() as client:
            asked = {} if args.group is None else {"group": args.group}
            explanation = client.request("explain", text=True, **asked)["explanation"]
    except ControlError as error:
        return complain(str(error))
    print(json.dumps(explanation) if args.json else explanation_text(explanation))
    return 0
