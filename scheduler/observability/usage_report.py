# SPDX-License-Identifier: BSD-3-Clause
"""Usage for reports: hours of use, of sharing and of waiting, and what each notebook used, kept over restarts.

- *used*: a GPU is used while a process computes there according to its bursts, or as the process measures it. The time
  is divided equally among the notebooks whose processes compute at once.
- *shared*: it is shared while it is used and processes of several users have memory on it. Without us, each user would
  have needed a GPU of their own, or would have had to wait for the others.
- *energy*: ``energy.py``.

This is added up once a second. It is kept by the hour in an SQLite database, which is written every few minutes; the
oldest hours are deleted. The database is in WAL mode: a commit waits neither for the disk nor for a reader, and after a
power failure at most the last commits are missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from .energy import Divided, EnergyMeter, Part, Reading

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.model import Group, Share

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
#: The notebooks of a user that are listed in an hour; the use of others is listed without a name. Otherwise, a program
#: that renames its notebook all the time could fill the disk.
MOST_NOTEBOOKS = 200

#: What the rows of a report are divided by.
By = Literal["user", "team", "notebook", "day"]
#: The largest number of rows in a report.
MOST_ROWS = 10_000


class Owner(NamedTuple):
    """Whose use it is."""

    user: str
    #: Empty: the user is in no team.
    team: str
    notebook: str


@dataclass(slots=True)
class Use:
    """What one notebook used in one hour. The columns of the table ``notebooks``."""

    #: Seconds of GPU time; and those of them for which the energy was measured.
    seconds: float = 0.0
    measured: float = 0.0
    #: Bytes times seconds: on GPUs, and of evicted data in host memory and on disk.
    gpu_bytes: float = 0.0
    host_bytes: float = 0.0
    #: Bytes that were evicted and restored.
    moved: int = 0
    #: Joules.
    energy: float = 0.0
    disk_bytes: float = 0.0

    def add(self, part: Part) -> None:
        """Add GPU time and its energy."""
        self.seconds += part.seconds
        if part.joules is not None:
            self.measured += part.seconds
            self.energy += part.joules


@dataclass(slots=True)
class Consumption:
    """The energy of one GPU in one hour, in joules. The columns of the table ``energy``."""

    energy: float = 0.0
    #: What the GPU consumed while no notebook was computing.
    idle: float = 0.0
    #: The seconds for which it was measured.
    measured: float = 0.0

    def add(self, divided: Divided[Any]) -> None:
        """Add a period."""
        self.energy += divided.joules
        self.idle += divided.idle
        self.measured += divided.measured


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
    #: What each notebook used; and by GPU, the energy.
    uses: dict[Owner, Use] = field(default_factory=dict)
    energy: dict[str, Consumption] = field(default_factory=dict)


_COLUMNS = [
    column.name for column in fields(Hour) if column.name not in ("users", "uses", "energy")
]
_USES = [column.name for column in fields(Use)]
_ENERGY = [column.name for column in fields(Consumption)]
#: Columns of which several hours have the maximum; all others add up.
_MOST = ("gpus", "longest")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS hours (hour INTEGER PRIMARY KEY, {", ".join(_COLUMNS)});
CREATE TABLE IF NOT EXISTS users (hour INTEGER, user TEXT, seconds REAL, PRIMARY KEY (hour, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notebooks (
    hour INTEGER, user TEXT, team TEXT, notebook TEXT, {", ".join(f"{name} REAL" for name in _USES)},
    PRIMARY KEY (hour, user, team, notebook)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS energy (
    hour INTEGER, gpu TEXT, {", ".join(f"{name} REAL" for name in _ENERGY)}, PRIMARY KEY (hour, gpu)
) WITHOUT ROWID;
"""
_REPORT = (
    "SELECT min(hour), max(hour), count(*), {} FROM hours WHERE hour >= ? AND hour < ?".format(
        ", ".join(f"{'max' if name in _MOST else 'sum'}({name})" for name in _COLUMNS)
    )
)
_REPORT_USERS = (
    "SELECT user, round(sum(seconds), 1) FROM users WHERE hour >= ? AND hour < ? GROUP BY user"
)


def _adding(table: str, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return the statement that adds to a row."""
    added = ", ".join(
        f"{name} = max({name}, excluded.{name})"
        if name in _MOST
        else f"{name} = {name} + excluded.{name}"
        for name in columns
    )
    return (
        f"INSERT INTO {table} ({', '.join((*keys, *columns))}) "
        f"VALUES (?{', ?' * (len(keys) + len(columns) - 1)}) "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {added}"
    )


_ADD = _adding("hours", ("hour",), _COLUMNS)
_ADD_USER = _adding("users", ("hour", "user"), ("seconds",))
_ADD_USE = _adding("notebooks", ("hour", *Owner._fields), _USES)
_ADD_ENERGY = _adding("energy", ("hour", "gpu"), _ENERGY)
_REPORT_ENERGY = (
    f"SELECT {', '.join(f'total({name})' for name in _ENERGY)} FROM energy "
    "WHERE hour >= ? AND hour < ?"
)
_DAY = f"date(hour * {HOUR}, 'unixepoch', 'localtime')"

#: A user does not notice a shorter wait.
SHORTEST_WAIT = 0.1


class Usage:
    """Adds up by the hour. Sans-IO: the caller gives the time (seconds since 1970), and writes."""

    def __init__(self) -> None:
        #: Hours that were not written yet, by their number since 1970.
        self.hours: dict[int, Hour] = {}
        #: Since the scheduler started: GPU-seconds of each user; what the notebooks of each user and team used; and the
        #: energy of each GPU.
        self.had: dict[str, float] = {}
        self.uses: dict[tuple[str, str], Use] = {}
        self.energy: dict[str, Consumption] = {}
        self._looked: float | None = None
        self._meters: dict[str, EnergyMeter[Owner]] = {}
        #: By group and GPU: the busy time that was added.
        self._added: dict[tuple[str, str], float] = {}
        #: Groups that were there lately, because moves are reported afterwards.
        self._owners: dict[str, Owner] = {}

    def update(
        self, core: Core, now: float, clock: float, readings: Mapping[str, Reading] | None = None
    ) -> None:
        """Add the use since the last call; called about once a second.

        Parameters
        ----------
        core
            The core.
        now, clock
            Seconds since 1970, and seconds on CLOCK_MONOTONIC, which is the core's clock.
        readings
            The last reading of each GPU's energy.
        """
        before, self._looked = self._looked, clock
        passed = 0.0 if before is None else clock - before
        counts = before is not None and 0 < passed <= LONGEST_LOOK
        hour = self._at(now)
        self._owners = {group.id: _owner(core, group) for group in core.groups.values()}
        for uuid, gpu in core.gpus.items():
            meter = self._meters.setdefault(uuid, EnergyMeter())
            for share in gpu.shares.values():
                self._add_busy(core, share, clock, counts)
            reading = (readings or {}).get(uuid)
            meter.add_time(passed if counts else 0.0, reading)
            running = {
                self._owners[group.id]
                for group in gpu.holders.values()
                if group.busy and group.metered and not group.overdue
            }
            if (divided := meter.divide(running)) is None:
                continue
            self._add_divided(hour, uuid, divided)
            if len({share.group.user for share in gpu.shares.values() if share.used}) > 1:
                hour.shared += sum(part.seconds for part in divided.parts.values())
        if not counts:
            return
        hour.gpus = max(hour.gpus, len(core.gpus))
        hour.present += passed * len(core.gpus)
        self._added = {key: was for key, was in self._added.items() if key[0] in core.groups}
        for group in core.groups.values():
            gpu_bytes = sum(s.resident + s.unevictable + s.context for s in group.shares.values())
            disk = sum(
                max((h.tiers.disk for h in client.holdings.values()), default=0)
                + core.model.on_disk.get(client.number, 0)
                for client in group.clients.values()
            )
            # Clients do not know what of their host memory was moved to the disk.
            host = sum(
                max(
                    0,
                    max((h.host for h in client.holdings.values()), default=0)
                    - core.model.on_disk.get(client.number, 0),
                )
                for client in group.clients.values()
            )
            if not (gpu_bytes or host or disk):
                continue
            for use in self._uses_of(hour, self._owners[group.id]):
                use.gpu_bytes += gpu_bytes * passed
                use.host_bytes += host * passed
                use.disk_bytes += disk * passed

    def leave(self, core: Core, group: Group, clock: float) -> None:
        """Add the busy time of a group whose last process is about to leave."""
        for share in group.shares.values():
            self._add_busy(core, share, clock, True)
            self._added.pop((group.id, share.gpu.uuid), None)

    def _add_busy(self, core: Core, share: Share, clock: float, counts: bool) -> None:
        group, gpu = share.group, share.gpu.uuid
        total = core.times.busy_total(group, gpu, clock)
        added = self._added.get((group.id, gpu), 0.0)
        self._added[group.id, gpu] = total
        if counts and gpu in self._meters:
            # A total that has decreased began again at 0.
            owner = self._owners.get(group.id) or _owner(core, group)
            self._meters[gpu].add_busy(owner, total - added if total >= added else total)

    def _add_divided(self, hour: Hour, gpu: str, divided: Divided[Owner]) -> None:
        for owner, part in divided.parts.items():
            hour.used += part.seconds
            hour.users[owner.user] = hour.users.get(owner.user, 0.0) + part.seconds
            self.had[owner.user] = self.had.get(owner.user, 0.0) + part.seconds
            for use in self._uses_of(hour, owner):
                use.add(part)
        if divided.measured:
            hour.energy.setdefault(gpu, Consumption()).add(divided)
            self.energy.setdefault(gpu, Consumption()).add(divided)

    def _uses_of(self, hour: Hour, owner: Owner) -> tuple[Use, Use]:
        """Return what is added up for a notebook: in this hour, and since the start."""
        use = hour.uses.get(owner)
        if use is None:
            listed = sum(known.user == owner.user for known in hour.uses)
            if listed >= MOST_NOTEBOOKS:
                owner = owner._replace(notebook="")
            use = hour.uses.setdefault(owner, Use())
        return use, self.uses.setdefault((owner.user, owner.team), Use())

    def moved(self, core: Core, group_id: str, size: int, now: float) -> None:
        """Add bytes of a group that were evicted or restored."""
        group = core.groups.get(group_id)
        owner = self._owners.get(group_id) if group is None else _owner(core, group)
        if owner is not None:
            for use in self._uses_of(self._at(now), owner):
                use.moved += size

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


def _owner(core: Core, group: Group) -> Owner:
    claims = core.times.of(group)
    team = claims[0].whose.removeprefix("team:") if len(claims) > 2 else ""
    return Owner(group.user, team, group.name)


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

    def leave(self, now: float) -> None:
        """Write additions for the next scheduler."""
        if self._path is not None:
            self.write(now, at_once=True)

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
                for table in ("hours", "users", "notebooks", "energy"):
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
            values = [getattr(hour, name) for name in _COLUMNS]
            self._database.execute(_ADD, (number, *values))
            for statement, rows in (
                (_ADD_USER, [(number, *user) for user in hour.users.items()]),
                (_ADD_USE, [(number, *owner, *astuple(use)) for owner, use in hour.uses.items()]),
                (_ADD_ENERGY, [(number, gpu, *astuple(one)) for gpu, one in hour.energy.items()]),
            ):
                self._database.executemany(statement, rows)

    def report(self, since: float, until: float) -> dict[str, Any]:
        """Return the sums of the hours between two times, seconds since 1970 (docs/reference/control.md).

        Raises
        ------
        sqlite3.Error
            The database cannot be read.
        """
        hours = _hours(since, until)
        try:
            # Additions that were not written yet also count; `write` will commit them.
            self._add()
            first, last, count, *values = self._database.execute(_REPORT, hours).fetchone()
            users = dict(self._database.execute(_REPORT_USERS, hours).fetchall())
            energy, idle, measured = self._database.execute(_REPORT_ENERGY, hours).fetchone()
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
            "energy": round(energy, 1) if measured else None,
            "idle_energy": round(idle, 1) if measured else None,
            "measured": round(measured, 1),
        }

    def uses(
        self, since: float, until: float, by: Sequence[By], user: str | None, now: float
    ) -> Callable[[], list[dict[str, Any]]]:
        """Return the function that finds what notebooks used, for a thread: it takes seconds for a year of many users.

        Parameters
        ----------
        since, until
            The period.
        by
            What the rows are divided by.
        user
            Whose notebooks the rows are of; None: all users'.
        now
            The time.

        Raises
        ------
        sqlite3.Error
            The database cannot be read; the function raises it, too.
        """
        hours = _hours(since, until)
        self.write(now, at_once=True)
        file = self._database.execute("PRAGMA database_list").fetchone()[2]
        if file and not self.usage.hours:
            return lambda: _read_rows(file, hours, by, user)
        # The history is only in memory, or the file cannot be written now.
        try:
            self._add()
            rows = _rows(self._database, hours, by, user)
        finally:
            self._database.rollback()
        return lambda: rows

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _hours(since: float, until: float) -> tuple[int, int]:
    """Return the first hour of a period, and the first one after it."""
    return int(since // HOUR), int(-(-until // HOUR))


def _read_rows(
    file: str, hours: tuple[int, int], by: Sequence[By], user: str | None
) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(f"file:{quote(file)}?mode=ro", uri=True)) as database:
        return _rows(database, hours, by, user)


def _rows(
    database: sqlite3.Connection, hours: tuple[int, int], by: Sequence[By], user: str | None
) -> list[dict[str, Any]]:
    """Return what was used, divided by user, team, notebook or day; the largest GPU times first."""
    # Notebooks of different users may have the same name.
    keys: list[str] = ["user"] if "notebook" in by and "user" not in by else []
    keys += by
    columns = ", ".join(f"{_DAY} AS day" if key == "day" else key for key in keys)
    statement = (
        f"SELECT {columns}, {', '.join(f'total({name})' for name in _USES)} FROM notebooks "
        f"WHERE hour >= ? AND hour < ?{'' if user is None else ' AND user = ?'} "
        f"GROUP BY {', '.join(keys)} ORDER BY total(seconds) DESC, {', '.join(keys)} LIMIT ?"
    )
    asked = (*hours, *(() if user is None else (user,)), MOST_ROWS)
    found = []
    for row in database.execute(statement, asked):
        use = Use(*row[len(keys) :])
        found.append(
            {
                **dict(zip(keys, row, strict=False)),
                "seconds": round(use.seconds, 3),
                "measured": round(use.measured, 3),
                "gpu_byte_seconds": round(use.gpu_bytes),
                "host_byte_seconds": round(use.host_bytes),
                "disk_byte_seconds": round(use.disk_bytes),
                "moved": round(use.moved),
                "energy": round(use.energy, 1) if use.measured or not use.seconds else None,
            }
        )
    return found


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # Only the owner may read it, like the files that SQLite adds to it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    database = sqlite3.connect(path or ":memory:")
    try:
        database.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_TABLES}")
        there = {name for _, name, *_ in database.execute("PRAGMA table_info(notebooks)")}
        for name in _USES:
            if name not in there:  # a file of an older version
                database.execute(f"ALTER TABLE notebooks ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
        database.commit()
        database.execute(f"PRAGMA busy_timeout={LONGEST_WAIT}")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _is_damaged(error: Exception) -> bool:
    """Whether the file is damaged; any other problem, such as a full disk, may pass."""
    return type(error) is sqlite3.DatabaseError
