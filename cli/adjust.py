# SPDX-License-Identifier: BSD-3-Clause
"""Asks something for a group: ``background``, ``interactive``, ``keep``, ``freeze``, ``unfreeze``, ``limit``."""

from __future__ import annotations

import argparse
from typing import Any

from ..kernel_provisioner.launch import parse_size
from ..scheduler.control import ControlClient, ControlError
from . import wording
from .main import complain
from .release import add_group, only_group


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    parsers = {}
    for command, wish, text, more in (
        (
            "background",
            {"priority": "background"},
            "let a notebook or program wait behind the interactive ones",
            "Its memory leaves the GPU first, and it yields to an interactive one after 2 s.",
        ),
        (
            "interactive",
            {"priority": "interactive"},
            "let it wait in turn again",
            "It comes before those in the background, as all do at first.",
        ),
        (
            "keep",
            {},
            "keep its idle memory on the GPU, or no longer",
            "Kept memory stays on the GPU until somebody has waited for it for 5 min.",
        ),
        (
            "freeze",
            {"frozen": True},
            "take the GPU from it until it is unfrozen",
            "Its next use of the GPU waits until it is unfrozen; its memory may leave the GPU.",
        ),
        ("unfreeze", {"frozen": False}, "let it use the GPU again", "It waits in turn again."),
        (
            "limit",
            {},
            "bound its memory on each GPU",
            "What it allocates beyond the limit is refused (out of memory); what is there stays.",
        ),
    ):
        parser = subparsers.add_parser(command, help=text, description=more)
        parser.set_defaults(wish=wish)
        add_group(parser)
        parsers[command] = parser
    parsers["keep"].add_argument("keep", metavar="on|off", type=_switch)
    parsers["limit"].add_argument(
        "limit", metavar="SIZE|off", type=_limit, help="for instance 20GiB"
    )


def run(args: argparse.Namespace) -> int:
    """Ask for it, and print what is asked for the group now."""
    wish = args.wish or {args.command: getattr(args, args.command)}
    try:
        with ControlClient() as client:
            reply = client.request("adjust", group=args.group or only_group(client), **wish)
    except ControlError as error:
        return complain(str(error))
    wishes = reply["wishes"]
    print(f"priority: {wishes['priority']}")
    print(f"keep: {'on' if wishes['keep'] else 'off'}")
    print(f"frozen: {'on' if wishes['frozen'] else 'off'}")
    print(f"limit: {wording.size(wishes['limit']) if wishes['limit'] else 'off'}")
    return 0


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"write on or off, not {text!r}")
    return text == "on"


def _limit(text: str) -> int:
    if text == "off":
        return 0
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or off") from None
