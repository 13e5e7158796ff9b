# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare history``: what notebooks and programs did in the last minutes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...kernel_provisioner.in_kernel.faults import Failure
from ...kernel_provisioner.in_kernel.tables import History
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ..terminal import columns, console, table


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "history",
        description="Show when notebooks and programs ran, waited, or were evicted or restored in the last 10 "
        "minutes, in chronological order.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


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
    # The first column marks the own kernel, which a terminal does not have.
    right = {column - 1 for column in History.RIGHT}
    out = console()
    for line in history.lines():
        out.print(line)
    out.print(table(head, rows, right, columns()) if rows else history.EMPTY)
    return 0
