# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare release``, ``offload``, ``hibernate`` and ``wake``: leave the GPU, and come back to it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import size

#: Seconds for which a hibernation that is under way is followed, and between two looks at it.
PATIENCE, PAUSE = 10.0, 0.05


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
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
    hibernate = subparsers.add_parser(
        "hibernate",
        help="take it off the GPU altogether as soon as it is idle",
        description="Move its memory to the host, and have the driver free the rest, the CUDA "
        "context too. Its next cell wakes it.",
    )
    wake = subparsers.add_parser(
        "wake",
        help="wake one that is hibernated, before its next cell does",
        description="Bring it back to the GPU; its memory follows when it is used.",
    )
    for parser in (release, offload, hibernate, wake):
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
    """Ask for it."""
    try:
        with ControlClient() as client:
            group = args.group or only_group(client)
            reply = client.request(args.command, group=group)
            if args.command == "hibernate":
                return _follow(client, reply["group"])
    except ControlError as error:
        return complain(str(error))
    return 0


def _follow(client: ControlClient, group: str) -> int:
    """Say what comes of an order to hibernate, and return the exit status."""
    deadline = time.monotonic() + PATIENCE
    while True:
        groups = client.request("status")["status"]["groups"]
        found = next((each for each in groups if each["id"] == group), None)
        if found is None:
            return complain("the notebook or program has ended")
        name, sleep = found["name"], found.get("hibernation") or {}
        state = sleep.get("state")
        if state == "hibernated":
            print(f"{name} has left the GPU, which frees {size(sleep.get('frees') or 0)}.")
            return 0
        if state == "refused":
            return complain(f"{name} does not hibernate: {sleep.get('text') or sleep.get('code')}")
        if state == "ordered":
            why = f" Not yet: {sleep['text']}." if sleep.get("text") else ""
            print(f"Ordered: {name} hibernates as soon as it is idle.{why}")
            return 0
        if state is None:
            return complain(f"{name} was used meanwhile and has not hibernated; try again")
        if time.monotonic() > deadline:
            print(f"Under way: {name} is leaving the GPU. `gpushare status` shows when it has.")
            return 0
        time.sleep(PAUSE)


def only_group(client: ControlClient) -> str:
    """Return the id of the only group there is."""
    groups = client.request("status")["status"]["groups"]
    if not groups:
        raise ControlError("nobody uses the GPU through gpushare now")
    if len(groups) > 1:
        listed = ", ".join(f"{group['name']} ({group['id'][:8]})" for group in groups)
        raise ControlError(f"say which one: {listed}")
    return str(groups[0]["id"])
