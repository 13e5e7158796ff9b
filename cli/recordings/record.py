# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare record``: write down what the scheduler takes in, to go through it again."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ...scheduler.node.arguments import complain, seconds
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import size
from ...scheduler.views.words.notices import recording_end

#: Seconds between two looks at how the recording stands.
LOOK = 0.2


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "record",
        help="write down what the scheduler takes in, for replay",
        description="Have the running scheduler write what it takes in to a file, until Ctrl-C. "
        "It begins with what happened last, as far as the scheduler kept it.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path)
    parser.add_argument("--seconds", type=seconds, metavar="N", help="end after so many seconds")
    parser.add_argument("--stop", action="store_true", help="end all recordings that go on")


def run(args: argparse.Namespace) -> int:
    """Record until it is to end, and say what was written."""
    if args.stop == (args.file is not None):
        return complain("write gpushare record FILE, or gpushare record --stop")
    try:
        if args.stop:
            with ControlClient() as client:
                found = client.request("recordings", stop=True)["recordings"]
                files = [wait(client, str(recording["file"])) for recording in found]
        else:
            files = [record(args.file.absolute(), args.seconds)]
    except ControlError as error:
        return complain(str(error))
    for recording in files:
        print(f"{recording['file']}: {recording['events']} events, {size(recording['bytes'])}")
        if recording["ended"] != "stopped":
            return complain(recording_end(recording["ended"], recording["error"]))
    return 0


def record(file: Path, seconds: float | None) -> dict[str, Any]:
    """Have a file written, and return how its recording ended."""
    with ControlClient() as client:
        asked = {} if seconds is None else {"seconds": seconds}
        client.request("record", file=str(file), **asked)
        try:
            return wait(client, str(file))
        except KeyboardInterrupt:
            client.request("recordings", stop=True)
            return wait(client, str(file))


def wait(client: ControlClient, file: str) -> dict[str, Any]:
    """Wait until a recording has ended, and return how."""
    while True:
        for found in client.request("recordings")["recordings"]:
            if found["file"] == file and found["ended"] is not None:
                return dict(found)
        time.sleep(LOOK)
