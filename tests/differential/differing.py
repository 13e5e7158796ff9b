# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of differences between two runs of a random program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .running import Difference, Run, last


@dataclass(frozen=True)
class Kind:
    """In what two runs differ.

    Attributes
    ----------
    operation, name
        The operation, and which of its calls or values.
    answers
        What the calls returned, or what each thread of a program that hung did last; empty for values, which are
        different each time.
    """

    operation: str
    name: str
    answers: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.operation, self.name, self.answers)))


@dataclass(frozen=True)
class Found:
    """A difference, and where it is."""

    line: int
    kind: Kind
    text: str
    #: What comes after it cannot be compared.
    final: bool


def _is_result(name: str) -> bool:
    return name.startswith("cu") or name == "partner" or name.endswith(".result")


def _of_line(bare: str, other: str, table: Sequence[Difference]) -> Iterator[Found]:
    theirs, ours = bare.split(), other.split()
    text = f"bare: {bare} | other: {other}"
    shown = theirs or ours
    number, operation = int(shown[0]) if shown[0].isdigit() else 0, shown[1]
    if theirs[:2] != ours[:2]:
        yield Found(number, Kind(operation, "the line"), text, True)
        return
    for left, right in itertools.zip_longest(theirs[2:], ours[2:], fillvalue="nothing"):
        if left == right:
            continue
        name, _, value = left.partition("=")
        other_name, _, other_value = right.partition("=")
        if name == other_name and any(
            row.covers(operation, name, value, other_value) for row in table
        ):
            continue
        if name != other_name or _is_result(name):
            answers = f"{value} bare, {other_value} not" if name == other_name else "and another"
            yield Found(number, Kind(operation, name, answers), text, True)
            return
        yield Found(number, Kind(operation, name), text, False)


def _last_operations(run: Run) -> str:
    lines = (trace.splitlines() for trace in run.traces)
    return ", ".join(some[-1].split()[1] for some in lines if some)


def differences(bare: Run, other: Run, table: Sequence[Difference]) -> list[Found]:
    """Return all differences up to the first after which nothing can be compared."""
    found = []
    for left, right in zip(bare.traces, other.traces, strict=True):
        for a, b in itertools.zip_longest(left.splitlines(), right.splitlines(), fillvalue=""):
            if a == b:
                continue
            of_line = list(_of_line(a, b, table))
            found += of_line
            if any(one.final for one in of_line):
                break
    if bare.status != other.status:
        how = "hung" if other.status is None else f"ended with {other.status}"
        text = f"{how}, bare: {bare.status}; {last(other)}"
        kind = Kind("the process", how, f"in {_last_operations(other)}")
        found.append(Found(1 << 30, kind, text, True))
    end = min((one.line for one in found if one.final), default=1 << 31)
    # A process that ended too soon leaves short traces; that is the difference, not the line that is missing.
    if other.status is None or (bare.status != other.status):
        return [one for one in found if one.kind.operation == "the process"]
    return [one for one in found if one.line <= end]
