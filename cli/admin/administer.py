# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare drain``, ``hold``, ``evict``, ``maintenance``: what administrators do."""

from __future__ import annotations

import argparse
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError

#: What is said once it is done, and once it is over.
_SAID = {
    "drain": ("{} is being emptied: it grants nothing until --off", "{} is in use again"),
    "hold": ("{} gets no GPU until --off; its user cannot end that", "{} may go on"),
    "evict": ("the memory of {} leaves the GPU; it comes back by itself", ""),
    "maintenance": ("all are told: {}", "nobody is told anything any more"),
}


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    for command, metavar, text, more in (
        (
            "drain",
            "GPU",
            "empty a GPU: grant nothing there, and move all memory out",
            "No lease is granted there any more, those that run end after their quantum, and all memory that can move "
            "leaves. Contexts stay until their kernels end.",
        ),
        (
            "hold",
            "GROUP",
            "take the GPU from a notebook or program",
            "As freeze, but its user cannot end it. Nothing is lost: its memory may move to the host.",
        ),
        (
            "evict",
            "GROUP",
            "move a notebook's or program's memory off the GPU now",
            "It gives the GPU up and all its memory moves to the host. It comes back with its next turn.",
        ),
        (
            "maintenance",
            "TEXT",
            "tell everybody something",
            "Shown in the panel and by gpushare status until it is over.",
        ),
    ):
        parser = subparsers.add_parser(
            command, help=text, description=f"{more} For administrators."
        )
        parser.add_argument(
            "target", metavar=metavar, nargs="?" if command == "maintenance" else None
        )
        if command != "evict":
            parser.add_argument("--off", action="store_true", help="end it")


def run(args: argparse.Namespace) -> int:
    """Do it, and say what follows."""
    on = not getattr(args, "off", False)
    if args.command == "maintenance" and on == (args.target is None):
        return complain("write gpushare maintenance TEXT, or gpushare maintenance --off")
    asked: dict[str, Any] = {
        "drain": {"gpu": args.target, "on": on},
        "hold": {"group": args.target, "on": on},
        "evict": {"group": args.target},
        "maintenance": {"text": args.target or ""},
    }[args.command]
    try:
        with ControlClient() as client:
            client.request(args.command, **asked)
    except ControlError as error:
        return complain(str(error))
    print(_SAID[args.command][not on].format(args.target))
    return 0
