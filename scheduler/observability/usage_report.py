# SPDX-License-Identifier: BSD-3-Clause
"""Usage for reports: hours of use, of sharing and of waiting, kept over restarts.

- *used*: a GPU is used while a process computes there according to its bursts. The time is divided equally among the
  users whose processes compute at once.
- *shared*: it is shared while it is used and processes of several users have memory on it. Without us, each user would
  have needed a GPU of their own, or would have had to wait for the others.

This is checked once a second. It is kept by the hour in an SQLite database, which is written every few minutes; the
oldest hours are deleted. The database is in WAL mode: a commit waits neither for the disk nor for a reader, and after a
power failure at most the last commits are missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.core import Core

log = logging.getLogger(__name__)

HOUR = 3600
#: The number of hours that are kept: 53 weeks.
KEPT = 53 * 7 * 24
#: Seconds after which additions are written at the latest.
WRITE = 300.0
#: Milliseconds for which a write waits for another program's write. The scheduler serves nothing in the meantime.
LONGEST_WAIT = 50
#: A pause between two checks that is longer than this (seconds) is not counted, because the machine was asleep.
LONGEST_LOOK = 10.0


@dataclass(slots=True)
class Hour:
    """The usage in one hour; times are seconds. The columns of the table ``hours``, and the rows of ``users``."""

    #: The largest number of GPUs.
    gpus: int = 0
    #: The GPUs times the seconds for which they were there.
    present: float = 0.0
    used: float = 0.0
    shared: float = 0.0
    #: Leases with a wait (0.1 s or more); and the seconds of these waits, in total and at most.
    waits: int = 0
    waited: float = 0.0
    longest: float = 0.0
    #: Leases that were granted.
    leases: int = 0
    #: Out-of-memory errors (``counters.py``).
    avoided: int = 0
    given: int = 0
    moved: int = 0
    #: GPU-seconds of each user.
    users: dict[str, float] = field(default_factory=dict)


_COLUMNS = [column.name for column in fields(Hour) if column.name != "users"]
#: Columns of which several hours have the maximum; all others add up.
_MOST = ("gpus", "longest")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS hours (hour INTEGER PRIMARY KEY, {", ".join(_COLUMNS)});
CREATE TABLE IF NOT EXISTS users (hour INTEGER, user TEXT, seconds REAL, PRIMARY KEY (hour, user)) WITHOUT ROWID;
"""
_ADD = (
    f"INSERT INTO hours VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT (hour) DO UPDATE SET "
    + ", ".join(
        f"{name} = max({name}, excluded.{name})"
        if name in _MOST
        else f"{name} = {name} + excluded.{name}"
        for name in _COLUMNS
    )
)
_ADD_USER = (
    "INSERT INTO users VALUES (?, ?, ?) "
    "ON CONFLICT (hour, user) DO UPDATE SET seconds = seconds + excluded.seconds"
)
_REPORT = (
    "SELECT min(hour), max(hour), count(*), {} FROM hours WHERE hour >= ? AND hour < ?".format(
        ", ".join(f"{'max' if name in _MOST else 'sum'}({name})" for name in _COLUMNS)
    )
)
_REPORT_USERS = (
    "SELECT user, round(sum(seconds), 1) FROM users WHERE hour >= ? AND hour < ? GROUP BY user"
)

#: A user does not notice a shorter wait.
SHORTEST_WAIT = 0.1


class Usage:
    """Adds up by the hour. Sans-IO: the caller gives the time (seconds since 1970), and writes."""

    def __init__(self) -> None:
        #: Hours that were not written yet, by their number since 1970.
        self.hours: dict[int, Hour] = {}
        #: GPU-seconds of each user since the scheduler started.
        self.had: dict[str, float] = {}
        self._looked: float | None = None

    def update(self, core: Core, now: float) -> None:
        """Add the use since the last call; called about once a second."""
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
        """Add a lease and the seconds of its wait."""
        hour = self._at(now)
        hour.leases += 1
        if waited >= SHORTEST_WAIT:
            hour.waits += 1
            hour.waited += waited
            hour.longest = max(hour.longest, waited)

    def count(self, now: float, *, avoided: int = 0, given: int = 0, moved: int = 0) -> None:
        """Add out-of-memory errors, and bytes that were moved."""
        hour = self._at(now)
        hour.avoided += avoided
        hour.given += given
        hour.moved += moved

    def _at(self, now: float) -> Hour:
        return self.hours.setdefault(int(now // HOUR), Hour())


class History:
    """The usage in the last year.

    Parameters
    ----------
    path
        The database; None: it is kept in memory only.
    now
        Seconds since 1970.
    """

    def __init__(self, path: Path | None, now: float) -> None:
        self.usage = Usage()
        self._path = path
        self._written = now
        self._database = self._open()

    def _open(self, damage: Exception | None = None) -> sqlite3.Connection:
        """Return the database: a new one if it is damaged, one in memory if there cannot be a file."""
        try:
            if damage is not None:
                self._put_aside(damage)
            return _connect(self._path)
        except (OSError, sqlite3.Error) as error:
            if _is_damaged(error) and damage is None:
                return self._open(error)
            log.error(
                "Cannot open the usage history %s: %s. "
                "Reports cover only the time since this scheduler started.",
                self._path,
                getattr(error, "strerror", error),
            )
            return _connect(None)

    def _put_aside(self, damage: Exception) -> None:
        """Keep a damaged database under another name."""
        kept = f"{self._path}.damaged-{time.time_ns()}"
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}{end}", f"{kept}{end}")
        log.error(
            "The usage history %s is damaged: %s. The scheduler starts a new one, and keeps it as %s.",
            self._path,
            damage,
            kept,
        )

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Write additions if it is time for that."""
        if not at_once and 0 <= now - self._written < WRITE:
            return
        self._written = now
        if not self.usage.hours:
            return
        oldest = (int(now // HOUR) - KEPT,)
        try:
            with self._database:
                self._add()
                for table in ("hours", "users"):
                    self._database.execute(f"DELETE FROM {table} WHERE hour <= ?", oldest)
        except sqlite3.DatabaseError as error:
            # The additions are still there for the next time.
            if _is_damaged(error):
                self._database.close()
                self._database = self._open(error)
            else:
                log.error("Cannot write the usage history %s, will retry: %s", self._path, error)
        else:
            self.usage.hours.clear()

    def _add(self) -> None:
        for number, hour in self.usage.hours.items():
            *values, users = astuple(hour)
            self._database.execute(_ADD, (number, *values))
            self._database.executemany(_ADD_USER, [(number, *user) for user in users.items()])

    def report(self, since: float, until: float) -> dict[str, Any]:
        """Return the sums of the hours between two times, seconds since 1970 (docs/reference/control.md).

        Raises
        ------
        sqlite3.Error
            The database cannot be read.
        """
        hours = int(since // HOUR), int(-(-until // HOUR))
        try:
            # Additions that were not written yet also count; `write` will commit them.
            self._add()
            first, last, count, *values = self._database.execute(_REPORT, hours).fetchone()
            users = dict(self._database.execute(_REPORT_USERS, hours).fetchall())
        finally:
            self._database.rollback()
        if not count:
            first, last, values = hours[0], hours[0] - 1, [0] * len(_COLUMNS)
        return {
            "since": first * HOUR,
            "until": (last + 1) * HOUR,
            "hours": count,
            **{name: round(value, 3) for name, value in zip(_COLUMNS, values, strict=True)},
            "users": users,
        }

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # Only the owner may read it, like the files that SQLite adds to it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    database = sqlite3.connect(path or ":memory:")
    try:
        database.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_TABLES}")
        database.execute(f"PRAGMA busy_timeout={LONGEST_WAIT}")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _is_damaged(error: Exception) -> bool:
    """Whether the file is damaged; any other problem, such as a full disk, may pass."""
    return type(error) is sqlite3.DatabaseError
