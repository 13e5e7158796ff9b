# SPDX-License-Identifier: BSD-3-Clause
"""The audit log: a line for each request that changes something, in a file that only grows.

The file is JSON lines, readable only for its owner, and rotated by size. Users' own requests are included, up to a
number in each minute. So one user's loop does not push out the lines of others.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: Requests that change something. All others only read, or come with every cell.
STEERING = frozenset(
    {
        "adjust",
        "cancel",
        "drain",
        "entitle",
        "evict",
        "hibernate",
        "hold",
        "login",
        "maintenance",
        "prepare_claim",
        "present_claim",
        "record",
        "release",
        "revoke",
        "set",
        "ticket",
        "tickets",
        "unprepare_claim",
        "wake",
    }
)
#: Parameters that are not logged: secrets, and fields that the line already has.
_LEFT_OUT = frozenset({"op", "protocol", "token", "on_behalf"})
#: The longest text of a parameter.
_LONGEST = 200
#: Bytes after which the file is rotated, and the number of old files.
SIZE, KEPT = 8 << 20, 4
#: Lines of one user, except administrators, that are written in a minute; and lines that are kept in memory.
MOST_A_MINUTE, AT_HAND = 120, 1000
#: The most lines that are read back at once.
MOST_READ = 5000

Line = dict[str, Any]


def line(
    now: float,
    who: Mapping[str, Any],
    request: Mapping[str, Any],
    outcome: str,
) -> Line | None:
    """Return the line for a request, or None if it changes nothing.

    Parameters
    ----------
    now
        Seconds since 1970.
    who
        ``user``, ``uid`` and ``admin`` of the user.
    request
        The request.
    outcome
        ``ok``, or the sentence with which it was refused.
    """
    op = request.get("op")
    if not isinstance(op, str) or op not in STEERING:
        return None
    given = {k: _cut(v) for k, v in request.items() if k not in _LEFT_OUT}
    target = next(
        (given[k] for k in ("group", "gpu", "whose", "server", "file") if given.get(k)), ""
    )
    # Only administrators may make requests for others.
    behalf = request.get("on_behalf") if who.get("admin") else None
    return {
        "time": round(now, 3),
        "user": who.get("user"),
        "uid": who.get("uid"),
        "on_behalf": _cut(behalf) if isinstance(behalf, str) else None,
        "op": op,
        "target": str(target),
        "given": given,
        "outcome": outcome,
    }


def _cut(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class Budget:
    """Limits how many lines each user may cause."""

    def __init__(self, most: int = MOST_A_MINUTE) -> None:
        self._most = most
        self._minute = -1
        self._caused: dict[Any, int] = {}

    def admit(self, now: float, found: Line, admin: bool) -> list[Line]:
        """Return the lines to write now; lines that were left out are counted in one."""
        minute, due = int(now // 60), []
        if minute != self._minute:
            due = [
                {
                    "time": round(now, 3), "user": user, "uid": None, "on_behalf": None,
                    "op": "omitted", "target": "", "given": {"lines": count - self._most},
                    "outcome": f"{count - self._most} more requests within a minute",
                }
                for user, count in self._caused.items()
                if count > self._most
            ]  # fmt: skip
            self._minute, self._caused = minute, {}
        if not admin:
            user = found["user"]
            self._caused[user] = self._caused.get(user, 0) + 1
            if self._caused[user] > self._most:
                return due
        return [*due, found]


class _Handler(logging.handlers.RotatingFileHandler):
    """Writes files that other users cannot read."""

    def _open(self) -> Any:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Report it in our own log, because the user of the request must not notice."""
        log.exception("the audit log %s cannot be written", self.baseFilename)


class Audit:
    """The audit log.

    Parameters
    ----------
    path
        The file; None: lines are only kept in memory.
    size, kept
        Bytes after which it is rotated, and the number of old files.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: Path | None, size: int = SIZE, kept: int = KEPT) -> None:
        self._path = path
        self._kept = kept
        self._budget = Budget()
        self._handler: _Handler | None = None
        self._last: deque[Line] = deque(maxlen=AT_HAND)
        if path is not None:
            self._handler = _Handler(path, maxBytes=size, backupCount=kept, encoding="utf-8")
            self._last.extend(_read([path]))

    def record(
        self, now: float, who: Mapping[str, Any], request: Mapping[str, Any], outcome: str
    ) -> None:
        """Log a request that changes something, with its user and its result."""
        found = line(now, who, request, outcome)
        if found is None:
            return
        for one in self._budget.admit(now, found, bool(who.get("admin"))):
            self._last.append(one)
            if self._handler is not None:
                text = json.dumps(one, ensure_ascii=False, separators=(",", ":"))
                self._handler.handle(logging.makeLogRecord({"msg": text}))

    def last(self, count: int) -> list[Line]:
        """Return the last lines, the newest at the end."""
        return list(islice(self._last, max(0, len(self._last) - count), None))

    def since(self, when: float, most: int = MOST_READ) -> list[Line]:
        """Return the lines since a time, seconds since 1970, the newest at the end; this reads files."""
        if self._path is None:
            found: Iterable[Line] = self._last
        else:
            older = [Path(f"{self._path}.{number}") for number in range(self._kept, 0, -1)]
            found = _read([*older, self._path])
        return list(deque((one for one in found if one.get("time", 0) >= when), maxlen=most))

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


def _read(paths: Iterable[Path]) -> Iterable[Line]:
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for text in lines:
                    try:
                        found = json.loads(text)
                    except ValueError:
                        # This is the last line of a process that was killed.
                        continue
                    if isinstance(found, dict):
                        yield found
        except FileNotFoundError:
            continue
