# SPDX-License-Identifier: BSD-3-Clause
"""Asks something for a group: ``background``, ``keep``, ``freeze``, ``limit`` and the like."""

from __future__ import annotations

import argparse
from typing import Any

from ...kernel_provisioner.in_kernel.faults import Failure
from ...kernel_provisioner.in_kernel.verbs import (
    parse_limit,
    parse_memory,
    parse_part,
    parse_weight,
)
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import percent, size
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
            "let it come before those in the background, however long its cells are",
            "Among one user's own; between users, shares and GPU time decide.",
        ),
        (
            "auto",
            {"priority": "auto"},
            "let what it does decide which of the two it is",
            "It is interactive from the begin of a cell, and in the background once the cell has "
            "had 2 s of GPU time. All are so at first.",
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
            "bound its memory on each GPU, or its part of a GPU's time",
            "A size: what it allocates beyond it is refused (out of memory); what is there stays. "
            "A percentage: it gets no more of a GPU's time than that, over 10 s. off: neither.",
        ),
        (
            "memory",
            {},
            "bound its memory on each GPU",
            "What it allocates beyond that is refused (out of memory); what is there stays.",
        ),
        (
            "request",
            {},
            "guarantee it a part of a GPU's time",
            "Who has had less than its request, over 10 s, comes before the others.",
        ),
        (
            "weight",
            {},
            "set its part of the GPU time that is spare",
            "Twice the weight, twice the spare time. It is 1 for all at first.",
        ),
    ):
        parser = subparsers.add_parser(command, help=text, description=more)
        parser.set_defaults(wish=wish)
        add_group(parser)
        parsers[command] = parser
    parsers["keep"].add_argument("asked", metavar="on|off", type=_switch)
    parsers["limit"].add_argument(
        "asked", metavar="SIZE|N%|off", type=parsed(parse_limit), help="for instance 20GiB or 50%%"
    )
    parsers["memory"].add_argument(
        "asked", metavar="SIZE|off", type=parsed(parse_memory), help="for instance 20GiB"
    )
    parsers["request"].add_argument(
        "asked", metavar="N%|off", type=parsed(_request), help="for instance 25%%"
    )
    parsers["weight"].add_argument(
        "asked", metavar="N", type=parsed(_weight), help="above 0; 1 is the usual"
    )


def run(args: argparse.Namespace) -> int:
    """Ask for it, and print what is asked for the group now."""
    wish = args.wish or args.asked
    try:
        with ControlClient() as client:
            reply = client.request("adjust", group=args.group or only_group(client), **wish)
    except ControlError as error:
        return complain(str(error))
    wishes = reply["wishes"]
    print(f"priority: {wishes['priority']}")
    print(f"keep: {'on' if wishes['keep'] else 'off'}")
    print(f"frozen: {'on' if wishes['frozen'] else 'off'}")
    print(f"memory: {size(wishes['memory']) if wishes['memory'] else 'off'}")
    print(f"request: {percent(wishes['request']) if wishes['request'] else 'off'}")
    print(f"limit: {percent(wishes['limit']) if wishes['limit'] else 'off'}")
    print(f"weight: {wishes['weight']:g}")
    return 0


def _switch(text: str) -> dict[str, Any]:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"write on or off, not {text!r}")
    return {"keep": text == "on"}


def _request(text: str) -> dict[str, Any]:
    return {"request": parse_part(text)}


def _weight(text: str) -> dict[str, Any]:
    return {"weight": parse_weight(text)}


def parsed(parse: Any) -> Any:
    """Return a parser of an argument."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (Failure, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
