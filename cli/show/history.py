# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare history``: who ran, waited and moved in the last minutes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...kernel_provisioner.in_kernel.faults import Failure
from ...kernel_provisioner.in_kernel.tables import History
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from .status import table


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "history",
        help="show who ran, waited and moved in the last minutes",
        description="Show who ran, waited and moved in the last 10 minutes, the last at the end.",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: spans as in docs/contributing/lab-protocol.md, and what is left out",
    )


def run(args: argparse.Namespace) -> int:
    """Print the history."""
    try:
        with ControlClient() as client:
            history = History(client.request("status", timeline=0)["status"], "")
    except (ControlError, Failure) as error:
        return complain(str(error))
    if args.json:
        print(json.dumps(history.data))
        return 0
    rows = [row[1:] for row in history.rows()]
    head = [heading.upper() for heading in History.HEADINGS[1:]]
    # The mark of one's own kernel is not for a terminal.
    right = {column - 1 for column in History.RIGHT}
    print("\n".join([*history.lines(), table(head, rows, right) if rows else history.EMPTY]))
    return 0
