# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare shares``: what users, and teams of users, are entitled to."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...kernel_provisioner.in_kernel.verbs import parse_memory, parse_part, parse_weight
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import percent, size
from ..show.status import table
from .adjust import parsed


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "shares",
        help="show or set what users and teams may have of the GPUs",
        description="Show or set what users, and teams of users, are entitled to. Time is a part "
        "of one GPU's, over 10 s. What is left out stays as it is.",
    )
    parser.add_argument(
        "whose",
        metavar="user:NAME|team:NAME",
        nargs="?",
        help="user:*: each user of whom nothing else is stated",
    )
    for name, metavar, parse, text in (
        ("request", "N%|off", parse_part, "guaranteed time"),
        ("limit", "N%|off", parse_part, "most time"),
        ("weight", "N", parse_weight, "part of the time that is spare; 1 is the usual"),
        (
            "memory",
            "SIZE|off",
            lambda text: parse_memory(text)["memory"],
            "most memory on each GPU, in all",
        ),
        ("gpus", "N|off", _count, "most GPUs on which their notebooks may have the lease at once"),
        (
            "host",
            "SIZE|off",
            lambda text: parse_memory(text)["memory"],
            "most memory over all GPUs, which may all have to lie in host memory",
        ),
    ):
        parser.add_argument(
            f"--{name}", metavar=metavar, type=parsed(parse), help=text.replace("%", "%%")
        )
    parser.add_argument(
        "--member", metavar="USER", action="append", help="who is in the team; once for each"
    )
    parser.add_argument("--off", action="store_true", help="entitle them to nothing in particular")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as in docs/reference/control.md"
    )


def run(args: argparse.Namespace) -> int:
    """Set what is given, and print all shares."""
    given = {
        name: value
        for name in ("request", "limit", "weight", "memory", "gpus", "host")
        if (value := getattr(args, name)) is not None
    }
    if args.member is not None:
        given["members"] = args.member
    if args.whose is None and (given or args.off):
        return complain("say whose: user:NAME or team:NAME")
    try:
        with ControlClient() as client:
            shares = client.request("shares")["shares"]
            if args.whose is not None and (given or args.off):
                known = {} if args.off else shares.get(args.whose, {})
                stated = {name: value for name, value in known.items() if name != "used"}
                shares = client.request("entitle", whose=args.whose, **{**stated, **given})[
                    "shares"
                ]
    except ControlError as error:
        return complain(str(error))
    if args.json:
        print(json.dumps(shares))
    elif not shares:
        print("nobody is entitled to anything in particular: all have the same")
    else:
        print(_table(shares))
    return 0


def _table(shares: dict[str, Any]) -> str:
    head = ("WHOSE", "REQUEST", "LIMIT", "WEIGHT", "MEMORY", "GPUS", "HOST", "USED", "MEMBERS")
    rows = [
        (
            whose,
            percent(found["request"]) if found["request"] else "",
            percent(found["limit"]) if found["limit"] else "",
            f"{found['weight']:g}",
            size(found["memory"]) if found["memory"] else "",
            str(found["gpus"] or ""),
            size(found["host"]) if found["host"] else "",
            ", ".join(percent(used) for used in found["used"].values()),
            ", ".join(found["members"]),
        )
        for whose, found in sorted(shares.items())
    ]
    return table(head, rows, {1, 2, 3, 4, 5, 6, 7})


def _count(text: str) -> int:
    if text == "off":
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is no number of GPUs; write for instance 2, or off")
    return int(text)
