# SPDX-License-Identifier: BSD-3-Clause
"""What a report of a week needs: hours of use, of sharing and of waiting, kept over restarts.

- *used*: a GPU is used while somebody's kernel computes there, as its bursts say. What of it each user had is divided
  equally among those that compute at once.
- *shared*: it is shared while it is used and kernels of several users have memory on it: without us, each of them would
  have needed a GPU of its own, or would have had to wait for the others to end.

Looked at once a second. Written as JSON lines, each what was added since the one before, with its hour; so one that is
lost costs minutes. The oldest hours are forgotten.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.core import Core

log = logging.getLogger(__name__)

HOUR = 3600
#: Hours that are kept: 53 weeks.
KEPT = 53 * 7 * 24
#: Lines that may be in the file until it is written anew with one for each hour.
MOST_LINES = 20_000
#: Seconds after which what was added is written at the latest.
WRITE = 300.0
#: A pause between two looks that is longer than this (seconds) is not counted: the machine was asleep.
LONGEST_LOOK = 10.0


@dataclass(slots=True)
class Hour:
    """What was had in one hour, or in several; times are seconds."""

    #: GPUs that there were, at most.
    gpus: int = 0
    #: For how long there were how many: GPU-seconds.
    present: float = 0.0
    used: float = 0.0
    shared: float = 0.0
    #: GPU-seconds of each user.
    users: dict[str, float] = field(default_factory=dict)
    #: Leases that were waited for (0.1 s or more), and for how long, in all and at most.
    waits: int = 0
    waited: float = 0.0
    longest: float = 0.0
    #: Leases that were granted.
    leases: int = 0
    #: Out-of-memory errors (``counters.py``).
    avoided: int = 0
    given: int = 0
    moved: int = 0

    def add(self, other: Hour) -> None:
        """Add what was had in another."""
        self.gpus = max(self.gpus, other.gpus)
        self.longest = max(self.longest, other.longest)
        for name in (
            "present",
            "used",
            "shared",
            "waits",
            "waited",
            "leases",
            "avoided",
            "given",
            "moved",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for user, seconds in other.users.items():
            self.users[user] = self.users.get(user, 0.0) + seconds

    def data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, dict):
                value = {user: round(seconds, 1) for user, seconds in value.items()}
            found[name] = round(value, 3) if isinstance(value, float) else value
        return found


def _hour(data: dict[str, Any]) -> Hour:
    found = Hour()
    for name in Hour.__slots__:
        value = data.get(name, getattr(found, name))
        if isinstance(value, dict) != (name == "users"):
            raise TypeError(name)
        setattr(found, name, value)
    return found


#: A wait that is shorter is none to a person.
SHORTEST_WAIT = 0.1


class Books:
    """Adds up by the hour. Sans-IO: the caller gives the time (seconds since 1970), and writes.

    Parameters
    ----------
    hours
        What is known of earlier hours.
    """

    def __init__(self, hours: dict[int, Hour] | None = None) -> None:
        #: By the number of the hour since 1970.
        self.hours: dict[int, Hour] = hours or {}
        #: GPU-seconds of each user since these books were opened.
        self.had: dict[str, float] = {}
        self._new: dict[int, Hour] = {}
        self._looked: float | None = None

    def look(self, core: Core, now: float) -> None:
        """Look who uses what; once in a second or so."""
        before, self._looked = self._looked, now
        if before is None or not 0 < now - before <= LONGEST_LOOK:
            return
        passed = now - before
        hour = self._at(now)
        hour.gpus = max(hour.gpus, len(core.gpus))
        hour.present += passed * len(core.gpus)
        for gpu in core.gpus.values():
            busy = [group for group in gpu.holders.values() if group.busy]
            if not busy:
                continue
            hour.used += passed
            if len({share.group.user for share in gpu.shares.values() if share.used}) > 1:
                hour.shared += passed
            for group in busy:
                part = passed / len(busy)
                hour.users[group.user] = hour.users.get(group.user, 0.0) + part
                self.had[group.user] = self.had.get(group.user, 0.0) + part

    def granted(self, waited: float, now: float) -> None:
        """Take in a lease and how long it was waited for, seconds."""
        hour = self._at(now)
        hour.leases += 1
        if waited >= SHORTEST_WAIT:
            hour.waits += 1
            hour.waited += waited
            hour.longest = max(hour.longest, waited)

    def count(self, now: float, *, avoided: int = 0, given: int = 0, moved: int = 0) -> None:
        """Take in out-of-memory errors, and bytes that were moved."""
        hour = self._at(now)
        hour.avoided += avoided
        hour.given += given
        hour.moved += moved

    def _at(self, now: float) -> Hour:
        return self._new.setdefault(int(now // HOUR), Hour())

    def take(self) -> list[dict[str, Any]]:
        """Return what was added since this was called last, as lines to write."""
        new, self._new = self._new, {}
        for number, hour in new.items():
            self.hours.setdefault(number, Hour()).add(hour)
        if new:
            for old in [number for number in self.hours if number <= max(new) - KEPT]:
                del self.hours[old]
        return [{"hour": number, **hour.data()} for number, hour in new.items()]

    def report(self, since: float, until: float) -> dict[str, Any]:
        """Return what was had in the hours from one time to another, seconds since 1970 (docs/control.md)."""
        total = Hour()
        first, last = int(since // HOUR), int(-(-until // HOUR))
        found: list[int] = []
        for hours in (self.hours, self._new):
            for number, hour in hours.items():
                if first <= number < last:
                    found.append(number)
                    total.add(hour)
        return {
            "since": min(found, default=first) * HOUR,
            "until": (max(found, default=first - 1) + 1) * HOUR,
            "hours": len(set(found)),
            **total.data(),
        }


def read(lines: Iterable[str], now: float) -> tuple[dict[int, Hour], int]:
    """Return the hours that a file has, and of how many lines they are; what cannot be read is left out."""
    hours: dict[int, Hour] = {}
    count = 0
    for text in lines:
        count += 1
        try:
            data = json.loads(text)
            number, hour = int(data["hour"]), _hour(data)
            if now // HOUR - KEPT < number <= now // HOUR + 1:
                hours.setdefault(number, Hour()).add(hour)
        except (AttributeError, KeyError, TypeError, ValueError):
            # The last one of a process that was killed.
            continue
    return hours, count


class File:
    """Keeps the books in a file.

    Parameters
    ----------
    path
        The file; None: they end with the process.
    now
        Seconds since 1970.
    most
        Lines that it may have until it is written anew.
    """

    def __init__(self, path: Path | None, now: float, most: int = MOST_LINES) -> None:
        self._path = path
        self._most = most
        self._written = now
        self._lines = 0
        hours: dict[int, Hour] = {}
        if path is not None:
            try:
                with path.open(encoding="utf-8", errors="replace") as lines:
                    hours, self._lines = read(lines, now)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.error("the books %s cannot be read: %s", path, error.strerror)
        self.books = Books(hours)

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Write what was added, if it is time for that."""
        if not at_once and 0 <= now - self._written < WRITE:
            return
        self._written = now
        lines = self.books.take()
        if self._path is None or not lines:
            return
        try:
            if self._lines + len(lines) > self._most:
                self._write_anew()
            else:
                self._append(self._path, lines)
                self._lines += len(lines)
        except OSError as error:
            log.error("the books %s cannot be written: %s", self._path, error.strerror)

    def _write_anew(self) -> None:
        assert self._path is not None
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        lines = [
            {"hour": number, **hour.data()} for number, hour in sorted(self.books.hours.items())
        ]
        self._append(fresh, lines)
        fresh.replace(self._path)
        self._lines = len(lines)

    def _append(self, path: Path, lines: list[dict[str, Any]]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
