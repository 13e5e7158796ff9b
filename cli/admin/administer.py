# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare drain``, ``hold`` and ``maintenance``: commands that steer a shared machine."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ..steer.groups import add_group, ask

#: Messages after a command and after its reversal, with the target's name and the name quoted for a shell.
DONE = {
    "drain": (
        "Draining {0}: no new leases until you run `gpushare drain {1} --off`.",
        "{0} accepts new leases again.",
    ),
    "hold": (
        "{0} is on hold. Only an administrator can resume it: `gpushare hold {1} --off`.",
        "{0} can use the GPU again.",
    ),
    "maintenance": ("All users now see: {0}", "Maintenance message cleared."),
}
DESCRIPTIONS = {
    "drain": "Stop granting leases on a GPU, let current leases run to the end of their time slice, and evict all "
    "memory that can be evicted. CUDA contexts stay until their kernels end.",
    "hold": "Put a notebook or program on hold: like `gpushare freeze`, but only an administrator can undo it. Its "
    "memory can be evicted to the host; no data is lost.",
    "maintenance": "Show a message to all users, in the panel and in `gpushare status`, until you clear it.",
}
#: What ``--off`` does.
UNDO = {
    "drain": "accept new leases on the GPU again",
    "hold": "allow the notebook or program to use the GPU again",
    "maintenance": "clear the message",
}


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    for command, description in DESCRIPTIONS.items():
        parser = subparsers.add_parser(command, description=f"{description} For administrators.")
        if command == "drain":
            parser.add_argument("gpu", metavar="GPU", help="index or UUID of the GPU")
        elif command == "maintenance":
            parser.add_argument("text", metavar="TEXT", nargs="?", help="the message")
        else:
            add_group(parser, optional=False)
        parser.add_argument("--off", action="store_true", help=UNDO[command])


def run(args: argparse.Namespace) -> int:
    """Send the request, and print what has changed."""
    if args.command == "maintenance" and args.off == (args.text is not None):
        return complain(
            "specify either a message or --off: gpushare maintenance TEXT, or gpushare maintenance --off"
        )
    try:
        with ControlClient() as client:
            target = _send(client, args, on=not args.off)
    except ControlError as error:
        return complain(str(error))
    print(DONE[args.command][args.off].format(target, shlex.quote(target.removeprefix("GPU "))))
    return 0


def _send(client: ControlClient, args: argparse.Namespace, *, on: bool) -> str:
    """Send the request, and return the name of what it is about."""
    if args.command == "drain":
        client.request("drain", gpu=args.gpu, on=on)
        return f"GPU {args.gpu}" if args.gpu.isdecimal() else str(args.gpu)
    if args.command == "maintenance":
        client.request("maintenance", text=args.text or "")
        return str(args.text)
    _, group = ask(client, "hold", args.group, on=on)
    return str(group["name"])
