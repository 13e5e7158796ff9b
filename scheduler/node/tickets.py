# SPDX-License-Identifier: BSD-3-Clause
"""The owners of groups that outlive the scheduler: tickets, and claims of users that are known by their uid.

A process shows a ticket if its uid does not identify its user. The scheduler keeps only the tickets' digests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: The number of tickets of one user. Those of groups without a process are forgotten first.
MOST = 1024
#: The number of groups that one user can claim. The oldest claims are forgotten first.
MOST_CLAIMS = 1024
FILE_NAME = "tickets.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """The owner of a ticket."""

    user: str
    teams: tuple[str, ...]
    #: The only lease group for which it is valid.
    kernel: str
    #: The uid of the user that requested it.
    uid: int
    #: The user's server that requested it; empty: not stated.
    server: str
    #: Seconds since the epoch.
    issued_at: float


class Tickets:
    """All valid tickets, and all claims.

    Parameters
    ----------
    folder
        The folder of the file, which only the scheduler's user may read; None: they are not kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        #: The tickets by digest, oldest first; and the digest of each group's ticket.
        self._tickets: dict[str, Ticket] = {}
        self._digests: dict[str, str] = {}
        #: When each ticket was last used, in seconds since the epoch, by digest.
        self._seen: dict[str, float] = {}
        #: The user that claims each group; and each user's claims, oldest first.
        self._claimants: dict[str, str] = {}
        self._claims: dict[str, OrderedDict[str, None]] = {}
        #: The number of changes, and the number that was written.
        self._version = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        if self._path is not None:
            self._load(self._path)

    def issue(self, ticket: Ticket, living: Container[str] = ()) -> str:
        """Make a ticket, which replaces an earlier one for the same group, and return its text.

        Parameters
        ----------
        ticket
            The owner.
        living
            Groups with a process, whose tickets go last if a user has too many.
        """
        self._drop(ticket.kernel)
        own = [kernel for kernel, held in self._of(ticket.user)]
        if len(own) >= MOST:
            self._drop(next((kernel for kernel in own if kernel not in living), own[0]))
        text = secrets.token_hex(32)
        self._add(_digest(text), ticket)
        return text

    def find(self, text: str) -> Ticket | None:
        """Return the owner of a ticket, or None if it is not valid."""
        digest = _digest(text)
        found = self._tickets.get(digest)
        if found is not None:
            self._seen[digest] = time.time()
        return found

    def owner(self, group: str) -> str | None:
        """Return the ticket of a group."""
        digest = self._digests.get(group)
        return None if digest is None else self._tickets[digest].user

    def revoke(self, user: str, group: str) -> bool:
        """Forget a user's ticket for a group; return whether there was one."""
        return self.owner(group) == user and self._drop(group)

    def keep(self, user: str, server: str, groups: Collection[str]) -> list[str]:
        """Forget a server's tickets except those for these groups; return the groups of the forgotten tickets."""
        own = [kernel for kernel, held in self._of(user) if held.server == server]
        gone = [kernel for kernel in own if kernel not in groups]
        for kernel in gone:
            self._drop(kernel)
        now = time.time()
        self._seen.update((self._digests[kernel], now) for kernel in own if kernel in groups)
        return gone

    def expire(self, now: float, lifetime: float, living: Container[str]) -> list[str]:
        """Forget tickets that were not used for some time; return their groups.

        Parameters
        ----------
        now
            Seconds since the epoch.
        lifetime
            Seconds for which an unused ticket is valid.
        living
            Groups with a process, whose tickets stay.
        """
        gone = []
        for group, digest in list(self._digests.items()):
            unused = now - self._seen[digest]
            if group in living:
                if unused > lifetime / 8:
                    # Rarely, because each time it is written to disk.
                    self._seen[digest] = now
                    self._version += 1
            elif unused > lifetime:
                self._drop(group)
                gone.append(group)
        return gone

    # --- Claims -------------------------------------------------------------------------------

    def claim(self, user: str, group: str) -> None:
        """Note that a user claims a group, until the claim is renounced or replaced by later claims."""
        if self._claimants.get(group) != user:
            self._renounce(group)
            self._claimants[group] = user
            self._version += 1
        claims = self._claims.setdefault(user, OrderedDict())
        claims[group] = None
        claims.move_to_end(group)
        if len(claims) > MOST_CLAIMS:
            self._renounce(next(iter(claims)))

    def claimant(self, group: str) -> str | None:
        """Return the user that claims a group."""
        return self._claimants.get(group)

    def renounce(self, user: str, group: str) -> None:
        """Forget a user's claim."""
        if self._claimants.get(group) == user:
            self._renounce(group)

    def _renounce(self, group: str) -> None:
        user = self._claimants.pop(group, None)
        if user is None:
            return
        claims = self._claims[user]
        del claims[group]
        if not claims:
            del self._claims[user]
        self._version += 1

    # --- Writing ------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """Whether there are changes that are not on disk."""
        return self._path is not None and self._written < self._version

    async def save(self) -> None:
        """Return when all changes so far are on disk, or have failed to be written, which is logged."""
        wanted = self._version
        while self._path is not None and self._written < wanted:
            self.save_soon()
            assert self._writing is not None
            # The caller may be cancelled, but a write in a thread must end before the next one.
            await asyncio.shield(self._writing)

    def save_soon(self) -> None:
        """Start writing the changes so far to disk."""
        if self._path is not None and self._writing is None and self._written < self._version:
            self._writing = asyncio.create_task(self._write(self._path))

    def _of(self, user: str) -> Iterator[tuple[str, Ticket]]:
        return ((t.kernel, t) for t in list(self._tickets.values()) if t.user == user)

    def _add(self, digest: str, ticket: Ticket, seen: float | None = None) -> None:
        self._tickets[digest] = ticket
        self._seen[digest] = time.time() if seen is None else seen
        self._digests[ticket.kernel] = digest
        self._version += 1

    def _drop(self, group: str) -> bool:
        digest = self._digests.pop(group, None)
        if digest is None:
            return False
        del self._tickets[digest], self._seen[digest]
        self._version += 1
        return True

    # --- The file -----------------------------------------------------------------------------

    async def _write(self, path: Path) -> None:
        version = self._version
        try:
            await asyncio.to_thread(_replace, path, self._contents())
        except OSError as error:
            log.error(
                "cannot save the tickets to %s (%s): kernels that are running now will have to be restarted after the "
                "scheduler's next start; free some space there, or set state_dir to a folder of the scheduler's user",
                path,
                error.strerror,
            )
        finally:
            # The next change tries again.
            self._written, self._writing = version, None
            self.save_soon()

    def _contents(self) -> dict[str, Any]:
        """Return the text to write. Earlier releases read the first two entries and ignore the others."""
        return {
            "version": _VERSION,
            "tickets": [
                {"sha256": digest, **asdict(ticket)} for digest, ticket in self._tickets.items()
            ],
            "seen": dict(self._seen),
            "claims": {user: list(claims) for user, claims in self._claims.items()},
        }

    def _load(self, path: Path) -> None:
        try:
            found = _read(path)
            seen = found.get("seen", {})
            for digest, ticket in _tickets(found):
                self._add(digest, ticket, float(seen.get(digest, time.time())))
            for user, group in _claims(found):
                self.claim(user, group)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._tickets, self._digests, self._seen = {}, {}, {}
            self._claimants, self._claims = {}, {}
            aside = path.with_name(path.name + ".bad")
            log.error(
                "cannot use the tickets in %s (%s): kernels that are running now have to be restarted; "
                "the file was kept as %s",
                path,
                error,
                aside,
            )
            with contextlib.suppress(OSError):
                path.replace(aside)
        self._written = self._version


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _replace(path: Path, contents: Mapping[str, Any]) -> None:
    """Write them to a file that only its owner may read, completely or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(contents, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _read(path: Path) -> dict[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, encoding="utf-8") as file:
        about = os.fstat(descriptor)
        if about.st_uid not in (0, os.getuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("users other than the scheduler's can write to it")
        found = json.load(file)
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise ValueError("it was written by a different release of jupyter-gpushare")
    return found


def _tickets(found: Mapping[str, Any]) -> Iterator[tuple[str, Ticket]]:
    for entry in found["tickets"]:
        if not isinstance(entry, dict):
            raise ValueError("it contains an entry that is not a ticket")
        digest, teams = entry.pop("sha256"), entry.pop("teams")
        ticket = Ticket(**entry, teams=tuple(teams))
        texts = (digest, ticket.user, ticket.kernel, ticket.server, *ticket.teams)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("it contains a ticket without a user or a kernel")
        yield digest, ticket


def _claims(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for user, groups in found.get("claims", {}).items():
        for group in groups:
            if not isinstance(group, str):
                raise ValueError("it contains a claim without a group")
            yield user, group
