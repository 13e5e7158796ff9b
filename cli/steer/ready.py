# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare ready``: restores a notebook's memory before its next cell needs it."""

from __future__ import annotations

import argparse
from typing import Any

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.groups import STATES
from .groups import ENDED, add_group, ask, follow

#: Seconds: how long the command follows a prefetch, and how soon it must begin.
PATIENCE, BEGIN = 10.0, 1.0

#: The scheduler's codes if there is nothing to do.
DONE = ("there", "at_work")

DESCRIPTION = """\
Restore the memory of an idle notebook or program to the GPU now instead of at its next cell, and wake it if it is
hibernated. Running and waiting notebooks lose neither memory nor time on the GPU for this.
The memory stays until another notebook needs the room. A notebook that was hibernated and is not used within a minute
hibernates again.
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    add_group(subparsers.add_parser("ready", description=DESCRIPTION))


def run(args: argparse.Namespace) -> int:
    """Send the request, and print what happened."""
    try:
        with ControlClient() as client:
            reply, before = ask(client, "hint", args.group, kind="ready")
            if reply["code"] in DONE:
                print(f"{before['name']} is {reply['text']}.")
                return 0
            if reply["prefetch"] is None and reply["code"] != "soon":
                return complain(f"{before['name']} is {reply['text']}")
            return _follow(client, reply["group"])
    except ControlError as error:
        return complain(str(error))


def _follow(client: ControlClient, group: str) -> int:
    """Print the progress of the prefetch, and return the exit status."""
    for found, seconds in follow(client, group):
        name, state, prefetch = found["name"], found["state"], found.get("prefetch")
        if prefetch is not None and prefetch["stage"] != "ready":
            if seconds > PATIENCE:
                print(
                    f"{name} is still getting ready. Run `gpushare status` to see when it is done."
                )
                return 0
        elif state not in ("idle", "idle_lease", "hibernated"):
            print(f"{name} already has the GPU or is in the queue: {STATES.get(state, state)}.")
            return 0
        elif state != "hibernated" and not any(
            share["swapped"] or share.get("disk") for share in found["gpus"]
        ):
            print(f"{name} is ready: all of its memory is on the GPU.")
            return 0
        elif seconds > BEGIN:
            return complain(
                f"{name} cannot get ready now. To find out why, run: gpushare explain {name}"
            )
    return complain(ENDED)
