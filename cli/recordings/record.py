# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare record``: record the input events of the scheduler, to replay them later."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ...scheduler.node.arguments import complain, seconds
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import size
from ...scheduler.views.words.notices import recording_end

#: Seconds between two requests for the state of the recording.
LOOK = 0.2


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "record",
        description="Record the input events of the running scheduler to a file until you press Ctrl-C. The recording "
        "starts with the latest events that the scheduler has kept.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="the file to write the recording to"
    )
    parser.add_argument("--seconds", type=seconds, metavar="N", help="stop after this many seconds")
    parser.add_argument("--stop", action="store_true", help="stop all running recordings")


def run(args: argparse.Namespace) -> int:
    """Record until the recording is stopped, and print what was written."""
    if args.stop == (args.file is not None):
        return complain("give a file or --stop: gpushare record FILE, or gpushare record --stop")
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
        written = f"{recording['events']} events, {size(recording['bytes'])}"
        print(f"Recorded {written} to {recording['file']}.")
        if recording["ended"] != "stopped":
            return complain(recording_end(recording["ended"], recording["error"]))
    return 0


def record(file: Path, seconds: float | None) -> dict[str, Any]:
    """Record to a file, and return how the recording ended."""
    with ControlClient() as client:
        asked = {} if seconds is None else {"seconds": seconds}
        client.request("record", file=str(file), **asked)
        try:
            return wait(client, str(file))
        except KeyboardInterrupt:
            client.request("recordings", stop=True)
            return wait(client, str(file))


def wait(client: ControlClient, file: str) -> dict[str, Any]:
    """Wait until a recording has ended, and return how it ended."""
    while True:
        for found in client.request("recordings")["recordings"]:
            if found["file"] == file and found["ended"] is not None:
                return dict(found)
        time.sleep(LOOK)
