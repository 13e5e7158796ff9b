# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare replay``: put a recording through the scheduler's core again."""

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
from ..show.status import table
from .record import record


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="go through a recording again, and compare",
        description="Put a recording through the scheduler's core again, and say whether it "
        "decides the same. The exit status is 1 if not.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path)
    parser.add_argument(
        "--last", action="store_true", help="what the running scheduler took in last"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="see what another policy would have decided"
    )


def run(args: argparse.Namespace) -> int:
    """Replay, and print what came of it."""
    if args.last == (args.file is not None):
        return complain("write gpushare replay FILE, or gpushare replay --last")
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
            f"{done.events} events, {done.decisions} decisions, {duration(done.lasted)}: the same"
        )
        return 0
    print(_worded(done.difference))
    if release != __version__:
        print(f"It was recorded by release {release}, and this is {__version__}.")
    return 1


def _compare(file: Path, recorded: Replay, policy: str) -> int:
    """Say what another policy would have decided."""
    if recorded.difference is not None:
        print(
            f"Not even the recorded policy decides the same again. {_worded(recorded.difference)}"
        )
    other, _ = _read(file, policy)
    kinds = sorted({*recorded.kinds, *other.kinds})
    rows = [(kind, str(recorded.kinds[kind]), str(other.kinds[kind])) for kind in kinds]
    print(table(("DECISIONS", "RECORDED", policy.upper()), rows, {1, 2}))
    if other.difference is None:
        print(f"{other.events} events: {policy} decides the same.")
    else:
        found = other.difference
        print(
            f"{policy} first decides otherwise at event {found.number} of {other.events}, after "
            f"{duration(found.after)}. From there on this is but a hint: what notebooks "
            "did stays as it was recorded; gpushare simulate has them go on as they would."
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
    decided = "; ".join(_decisions(found)) or "nothing"
    return (
        f"The first difference is at event {found.number}, after {duration(found.after)}: "
        f"for {found.event}, {found.recorded} decisions were recorded; now it decides: {decided}"
    )


def _decisions(found: Difference) -> Iterator[str]:
    if isinstance(found.found, Exception):
        yield f"it cannot be ({found.found})"
        return
    for decision in found.found:
        if type(decision).__name__ != "Log":
            yield str(decision)
