# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare replay``: run the scheduler's core on recorded events and compare the decisions."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...scheduler.node.arguments import complain
from ...scheduler.observability.recording import (
    Difference,
    Recording,
    RecordingError,
    Replay,
    replay,
)
from ...scheduler.protocol.client import ControlError
from ...scheduler.views.words.amounts import duration
from ...scheduler.views.words.notices import recording_end
from ..terminal import columns, console, table
from .record import record


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        description="Run the scheduler on recorded events and compare its decisions with the recorded ones. The exit "
        "status is 1 if they differ.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="a recording of `gpushare record`"
    )
    parser.add_argument(
        "--last", action="store_true", help="replay the latest events of the running scheduler"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="compare with the decisions of another policy"
    )


def run(args: argparse.Namespace) -> int:
    """Replay the recording, and print the comparison."""
    if args.last == (args.file is not None):
        return complain("give a file or --last: gpushare replay FILE, or gpushare replay --last")
    try:
        if args.file is not None:
            return _replay(args.file, args.policy)
        with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
            file = Path(folder) / "last"
            found = record(file, 0.0)
            if found["ended"] != "stopped":
                return complain(recording_end(found["ended"], found["error"]))
            return _replay(file, args.policy)
    except (ControlError, RecordingError) as error:
        return complain(str(error))


def _replay(file: Path, policy: str | None) -> int:
    done, release = _read(file, None)
    if policy is not None:
        return _compare(file, done, policy)
    if done.difference is None:
        print(
            f"Replayed {done.events} events over {duration(done.lasted)}: all {done.decisions} decisions are the same."
        )
        return 0
    print(_worded(done.difference))
    if release != __version__:
        print(f"The recording was made by version {release}; this is version {__version__}.")
    return 1


def _compare(file: Path, recorded: Replay, policy: str) -> int:
    """Print what another policy would have decided."""
    if recorded.difference is not None:
        print(f"Even the recorded policy now decides differently. {_worded(recorded.difference)}")
    other, _ = _read(file, policy)
    kinds = sorted({*recorded.kinds, *other.kinds})
    rows = [(kind, str(recorded.kinds[kind]), str(other.kinds[kind])) for kind in kinds]
    console().print(table(("DECISIONS", "RECORDED", policy.upper()), rows, {1, 2}, columns()))
    if other.difference is None:
        print(f"{policy} makes the same decisions for all {other.events} events.")
    else:
        found = other.difference
        print(
            f"{policy} first decides differently at event {found.number} of {other.events}, after "
            f"{duration(found.after)}. From this point on the comparison is only indicative, because the notebooks' "
            "behaviour is fixed by the recording. Use `gpushare simulate` for a full what-if analysis."
        )
    return 0


def _read(file: Path, policy: str | None) -> tuple[Replay, str]:
    try:
        with file.open("rb") as lines:
            recording = Recording(lines)
            return replay(recording, policy), recording.release
    except OSError as error:
        raise RecordingError(f"cannot read {file}: {error.strerror}") from None


def _worded(found: Difference) -> str:
    decided = "; ".join(_decisions(found)) or "none"
    return (
        f"The first difference is at event {found.number}, after {duration(found.after)}: "
        f"for {found.event}, the recording has {found.recorded} decisions, and the decisions are now: {decided}"
    )


def _decisions(found: Difference) -> Iterator[str]:
    if isinstance(found.found, Exception):
        yield f"the event was rejected ({found.found})"
        return
    for decision in found.found:
        if type(decision).__name__ != "Log":
            yield str(decision)
