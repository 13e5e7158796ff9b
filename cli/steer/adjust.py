# SPDX-License-Identifier: BSD-3-Clause
"""Commands that set how a notebook or program shares: ``background``, ``keep``, ``freeze``, ``limit`` and so on."""

from __future__ import annotations

import argparse
from typing import Any

from ...kernel_provisioner.in_kernel.faults import Failure
from ...kernel_provisioner.in_kernel.verbs import (
    DONE,
    parse_limit,
    parse_memory,
    parse_part,
    parse_weight,
)
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import percent, size
from .groups import add_group, ask

#: Messages about freezing a notebook or program; the magics have no such commands.
FROZEN = {
    True: "Froze {}. It cannot use the GPU until you run `gpushare unfreeze`.",
    False: "{} can use the GPU again.",
}


#: By command: what it asks for, and its description.
COMMANDS: dict[str, tuple[dict[str, Any], str]] = {
    "background": (
        {"priority": "background"},
        "Let interactive notebooks go first. The memory of background notebooks is evicted first, and they are "
        "preempted after 2 s when an interactive notebook is waiting.",
    ),
    "interactive": (
        {"priority": "interactive"},
        "Let a notebook or program go ahead of your background notebooks, however long its cells run. Between users, "
        "entitlements and GPU time decide.",
    ),
    "agent": (
        {"priority": "agent"},
        "Treat a notebook or program as an agent. People's cells go first, agents share GPU time equally, and "
        "background notebooks go last.",
    ),
    "auto": (
        {"priority": "auto"},
        "Choose the class automatically. The notebook is interactive at the start of each cell and becomes background "
        "once the cell has used 2 s of GPU time. This is the default.",
    ),
    "keep": (
        {},
        "Keep the memory of an idle notebook or program on the GPU. Another notebook that needs the space waits up to "
        "5 min for it.",
    ),
    "freeze": (
        {"frozen": True},
        "Stop a notebook or program from using the GPU. Its next use of the GPU waits for `gpushare unfreeze`; until "
        "then its memory can be evicted.",
    ),
    "unfreeze": ({"frozen": False}, "Allow a frozen notebook or program to use the GPU again."),
    "limit": (
        {},
        "Limit the memory of a notebook or program per GPU, or its share of GPU time. Allocations beyond a memory "
        "limit fail with an out-of-memory error; existing memory is kept. GPU time is measured over 10 s.",
    ),
    "memory": (
        {},
        "Limit the memory of a notebook or program per GPU. Allocations beyond the limit fail with an out-of-memory "
        "error; existing memory is kept.",
    ),
    "request": (
        {},
        "Guarantee a share of GPU time. Notebooks that have received less than their request over the last 10 s go "
        "first.",
    ),
    "weight": (
        {},
        "Set the weight for spare GPU time. A notebook with twice the weight gets twice the spare time. Default: 1.",
    ),
}


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    parsers = {}
    for command, (preference, description) in COMMANDS.items():
        parser = subparsers.add_parser(command, description=description)
        parser.set_defaults(preference=preference)
        add_group(parser)
        parsers[command] = parser
    parsers["keep"].add_argument(
        "asked",
        metavar="on|off",
        type=_switch,
        help="on: keep the memory; off: allow eviction (default)",
    )
    parsers["limit"].add_argument(
        "asked",
        metavar="SIZE|N%|off",
        type=parsed(parse_limit),
        help="20GiB limits memory, 50%% limits GPU time, off removes both limits",
    )
    parsers["memory"].add_argument(
        "asked",
        metavar="SIZE|off",
        type=parsed(parse_memory),
        help="maximum memory on each GPU, such as 20GiB; off removes the limit",
    )
    parsers["request"].add_argument(
        "asked",
        metavar="N%|off",
        type=parsed(_request),
        help="share of a GPU's time, such as 25%%; off removes the guarantee",
    )
    parsers["weight"].add_argument(
        "asked", metavar="N", type=parsed(_weight), help="a positive number; default: 1"
    )


def run(args: argparse.Namespace) -> int:
    """Send the request, and print what has changed."""
    preference = args.preference or args.asked
    try:
        with ControlClient() as client:
            _, group = ask(client, "adjust", args.group, **preference)
    except ControlError as error:
        return complain(str(error))
    print(_done(preference).format(group["name"], *map(_amount, preference.items())))
    return 0


def _done(preference: dict[str, Any]) -> str:
    """Return the sentence about what has changed, with places for the name and the amount."""
    if "frozen" in preference:
        return FROZEN[preference["frozen"]]
    if preference.keys() == {"memory", "limit"}:
        return DONE["limit off"]
    ((what, value),) = preference.items()
    if what == "priority":
        return DONE[value]
    if what == "keep":
        return DONE["keep on" if value else "keep off"]
    return DONE[what if value else f"{what} off"]


def _amount(preference: tuple[str, Any]) -> str:
    what, value = preference
    if what in ("request", "limit"):
        return percent(value)
    return size(value) if what == "memory" else f"{value:g}" if what == "weight" else str(value)


def _switch(text: str) -> dict[str, Any]:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"invalid choice {text!r}; use on or off")
    return {"keep": text == "on"}


def _request(text: str) -> dict[str, Any]:
    return {"request": parse_part(text)}


def _weight(text: str) -> dict[str, Any]:
    return {"weight": parse_weight(text)}


def parsed(parse: Any) -> Any:
    """Return what argparse calls to parse an argument."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (Failure, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
