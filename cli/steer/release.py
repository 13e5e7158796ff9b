# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare release``, ``evict``, ``hibernate`` and ``wake``: leave the GPU, and return to it."""

from __future__ import annotations

import argparse
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import size
from .groups import ENDED, add_group, ask, follow

#: Seconds for which a hibernation is followed.
PATIENCE = 10.0
#: States in which a notebook or program has no lease.
WITHOUT_LEASE = ("waiting", "idle", "hibernated")

DESCRIPTIONS = {
    "release": "Release the GPU so that the next notebook can run. Memory stays on the GPU until another notebook "
    "needs the space.",
    "evict": "Release the GPU so that the next notebook can run, and evict all memory to the host. It is restored "
    "when the notebook or program runs again.",
    "hibernate": "Free all GPU memory as soon as the notebook or program is idle, including the CUDA context. The next "
    "cell wakes it.",
    "wake": "Wake a hibernated notebook or program now instead of at its next cell. Its memory is restored when it is "
    "used.",
}


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    for command, description in DESCRIPTIONS.items():
        add_group(subparsers.add_parser(command, description=description))


def run(args: argparse.Namespace) -> int:
    """Send the request, and print what happened."""
    try:
        with ControlClient() as client:
            _, group = ask(client, args.command, args.group)
            if args.command == "hibernate":
                return _follow(client, group["id"])
    except ControlError as error:
        return complain(str(error))
    name, state = group["name"], group["state"]
    released = f"Released the GPU held by {name}."
    if args.command == "wake":
        print(f"Waking {name}." if state == "hibernated" else f"{name} is not hibernated.")
    elif args.command == "evict":
        evicted = f"The memory of {name} is being evicted to the host."
        print(evicted if state in WITHOUT_LEASE else f"{released} {evicted}")
    else:
        print(f"{name} does not hold the GPU." if state in WITHOUT_LEASE else released)
    return 0


def _is_decided(client: ControlClient) -> bool:
    """Whether the scheduler knows whether processes can hibernate on this machine."""
    return client.request("status")["status"]["hibernation"]["able"] is not None


def _follow(client: ControlClient, group: str) -> int:
    """Print what becomes of a hibernation, and return the exit status."""
    for found, seconds in follow(client, group):
        name, sleep = found["name"], found.get("hibernation") or {}
        state = sleep.get("state")
        if state == "hibernated":
            print(f"Hibernated {name}, which freed {size(sleep.get('frees') or 0)}.")
            return 0
        if state == "refused":
            return complain(f"{name} cannot hibernate: {sleep.get('text') or sleep.get('code')}")
        if state == "ordered" and not sleep.get("text") and not _is_decided(client):
            # Whether anything can hibernate here is found out in a few seconds after the scheduler's start.
            if seconds > PATIENCE:
                return complain(
                    "the scheduler has not found out yet whether the driver can hibernate processes"
                )
            continue
        if state == "ordered":
            why = f" Cannot hibernate yet: {sleep['text']}." if sleep.get("text") else ""
            print(f"{name} will hibernate as soon as it is idle.{why}")
            return 0
        if state is None:
            return complain(f"{name} used the GPU again and was not hibernated; try again later")
        if seconds > PATIENCE:
            print(
                f"{name} is still being hibernated. Run `gpushare status` to see when it is done."
            )
            return 0
    return complain(ENDED)
