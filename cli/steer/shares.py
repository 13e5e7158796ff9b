# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare shares``: the entitlements of users and teams."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...kernel_provisioner.in_kernel.verbs import parse_memory, parse_part, parse_weight
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import percent, size
from ...scheduler.views.words.events import quota_text
from ..terminal import columns, console, table
from .adjust import parsed

if TYPE_CHECKING:
    from rich.text import Text


def _bytes(text: str) -> int:
    return int(parse_memory(text)["memory"])


def _count(text: str) -> int:
    if text == "off":
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(
            f"invalid number of GPUs {text!r}; use a positive number such as 2, or off"
        )
    return int(text)


#: Options that set an entitlement: name, placeholder, parser and help.
OPTIONS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("request", "N%|off", parse_part, "guaranteed GPU time"),
    ("limit", "N%|off", parse_part, "maximum GPU time"),
    ("weight", "N", parse_weight, "weight for spare GPU time (default: 1)"),
    ("memory", "SIZE|off", _bytes, "maximum memory on each GPU, of all notebooks together"),
    ("gpus", "N|off", _count, "maximum number of GPUs that the notebooks can use at once"),
    (
        "host",
        "SIZE|off",
        _bytes,
        "maximum memory over all GPUs, which also bounds the use of host memory",
    ),
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "shares",
        description="Show the entitlements of users and teams, or set those of one. GPU time is a percentage of one "
        "GPU's time, measured over 10 s. Entitlements that you do not give keep their values.",
    )
    parser.add_argument(
        "whose",
        metavar="user:NAME|team:NAME",
        nargs="?",
        help="the user or team; user:* stands for each user without entitlements",
    )
    for name, metavar, parse, text in OPTIONS:
        parser.add_argument(f"--{name}", metavar=metavar, type=parsed(parse), help=text)
    parser.add_argument(
        "--member", metavar="USER", action="append", help="a member of the team; can be repeated"
    )
    parser.add_argument(
        "--off", action="store_true", help="remove all entitlements of the user or team first"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Set the entitlements that are given and print what has changed, or print all entitlements."""
    given = {name: value for name, *_ in OPTIONS if (value := getattr(args, name)) is not None}
    if args.member is not None:
        given["members"] = args.member
    changes = bool(given) or args.off
    if args.whose is None and changes:
        return complain(
            "no user or team given; specify user:NAME or team:NAME. See: gpushare shares --help"
        )
    try:
        with ControlClient() as client:
            shares = client.request("shares")["shares"]
            if args.whose is not None and changes:
                known = {} if args.off else shares.get(args.whose, {})
                stated = {name: value for name, value in known.items() if name != "used"}
                shares = client.request("entitle", whose=args.whose, **{**stated, **given})[
                    "shares"
                ]
    except ControlError as error:
        return complain(str(error))
    if args.json:
        print(json.dumps(shares))
    elif changes:
        print(_changed(args.whose, shares.get(args.whose)))
    elif not shares:
        print("No entitlements are configured; all users have equal shares.")
    else:
        console().print(_table(shares))
    return 0


def _changed(whose: str, found: dict[str, Any] | None) -> str:
    if found is None:
        return f"Removed the entitlements of {whose}."
    members = f"; members: {', '.join(found['members'])}" if found["members"] else ""
    return f"Set the entitlements of {whose}: {quota_text(found) or 'the defaults'}{members}."


def _table(shares: dict[str, Any]) -> Text:
    head = (
        "USER OR TEAM",
        "REQUEST",
        "LIMIT",
        "WEIGHT",
        "MEMORY",
        "GPUS",
        "HOST",
        "USED",
        "MEMBERS",
    )
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
    return table(head, rows, set(range(1, 8)), columns())
