# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare release`` and ``gpushare offload``: give the GPU up."""

from __future__ import annotations

import argparse
from typing import Any

from ..scheduler.control import ControlClient, ControlError
from .main import complain


def add_parser(subparsers: Any) -> None:
    """Add the two subcommands."""
    release = subparsers.add_parser(
        "release",
        help="end a notebook's or program's burst, so that others can run",
        description="End the burst: the GPU goes to who waits; memory stays until it is in the "
        "way.",
    )
    offload = subparsers.add_parser(
        "offload",
        help="the same, and move its memory off the GPU",
        description="End the burst and move all its memory to the host. It comes back by itself.",
    )
    for parser in (release, offload):
        add_group(parser)


def add_group(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which group."""
    parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="?",
        help="its id, a beginning of it, or its name; needed if there are several",
    )


def run(args: argparse.Namespace) -> int:
    """Release or offload a group."""
    try:
        with ControlClient() as client:
            group = args.group or only_group(client)
            client.request(args.command, group=group)
    except ControlError as error:
        return complain(str(error))
    return 0


def only_group(client: ControlClient) -> str:
    """Return the id of the only group there is."""
    groups = client.request("status")["status"]["groups"]
    if not groups:
        raise ControlError("nobody uses the GPU through gpushare now")
    if len(groups) > 1:
        listed = ", ".join(f"{group['name']} ({group['id'][:8]})" for group in groups)
        raise ControlError(f"say which one: {listed}")
    return str(groups[0]["id"])
