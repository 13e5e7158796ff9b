# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare reserve`` and ``reservations``: take a place in the queue ahead of use."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import duration
from ...scheduler.views.words.groups import STATES
from ..terminal import columns, console, table
from .groups import add_group, ask, groups

RESERVE = """\
Reserve the GPU for a notebook or program that will use it soon. It waits in the queue at its normal rank while its
program does something else. When its turn comes, its memory is restored, and the GPU is kept for it for a minute
by default.
A reservation that is not used in time lapses. The time for which the GPU was kept counts as GPU time.
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    parser = subparsers.add_parser("reserve", description=RESERVE)
    add_group(parser)
    parser.add_argument("--cancel", action="store_true", help="cancel the reservation")
    parser = subparsers.add_parser(
        "reservations",
        description="List the notebooks and programs that have a reservation or wait for one.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Send the request, and print the outcome."""
    try:
        with ControlClient() as client:
            if args.command == "reservations":
                return _list(groups(client), as_json=args.json)
            reply, before = ask(client, "reserve", args.group, on=not args.cancel)
    except ControlError as error:
        return complain(str(error))
    name, state, found = before["name"], reply["state"], reply["reservation"]
    if args.cancel:
        cancelled = before.get("reservation") is not None
        print(
            f"Cancelled the reservation of {name}." if cancelled else f"{name} has no reservation."
        )
    elif found is None:
        print(f"{name} already has the GPU or is in the queue: {STATES.get(state, state)}.")
    elif found["state"] == "ready":
        print(f"The GPU is reserved for {name} for another {duration(found['until_in'])}.")
    else:
        print(f"{name} is in the queue. Run `gpushare reservations` to see when it has the GPU.")
    return 0


def _list(known: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print the reservations, and return the exit status."""
    having = [group for group in known if group.get("reservation") is not None]
    if as_json:
        print(
            json.dumps([{k: g[k] for k in ("id", "name", "state", "reservation")} for g in having])
        )
    elif not having:
        print("No notebook or program has a reservation.")
    else:
        rows = [(group["name"], *_row(group["reservation"])) for group in having]
        console().print(table(("NAME", "RESERVATION", "LAPSES IN"), rows, {2}, columns()))
    return 0


def _row(found: dict[str, Any]) -> tuple[str, str]:
    until = found["until_in"]
    return found["state"], "" if until is None else duration(until)
