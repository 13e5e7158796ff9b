# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare explain``: why the queue has its order."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...kernel_provisioner.in_kernel.tables import explanation_text
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ..steer.groups import HELP, names


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "explain",
        description="Explain for each notebook that is waiting or throttled which rules put others ahead of it, and "
        "what would move it to the front.",
    )
    group = parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="?",
        help=f"{HELP}; default: all that are waiting or throttled",
    )
    group.completer = names
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


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
