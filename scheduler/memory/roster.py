# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler's list of its clients, in a file for the next scheduler.

Until the clients attach again, the next scheduler does not count them as other programs, and the preferences for their
groups hold from the start: JupyterLab's servers would send these again, but only once they have connected.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import astuple, replace

from ..core.checks import LARGEST
from ..core.messages import Awaited, Usage
from ..protocol.processes import start_time

log = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Roster:
    """Keeps the list. If the scheduler is killed, the file has the last full list and the clients that came later.

    The first line of the file has all clients and preferences, and each further line a client that came later.

    Parameters
    ----------
    path
        The file, in a folder to which only the scheduler's user may write; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        #: The preferences for groups, by their id, as the previous scheduler left them.
        self.preferences: dict[str, dict[str, Any]] = {}
        self._written = ""
        #: The clients in the file.
        self._listed: set[tuple[int, str, str]] = set()
        self._failed = False

    def load(self) -> list[Awaited]:
        """Return the clients of the previous scheduler that have not exited, as far as that is visible."""
        if self._path is None:
            return []
        try:
            first, *added = self._path.read_text(encoding="utf-8").split("\n")
            said = json.loads(first)
            if said["boot"] != boot_id():
                return []
            clients = [_client(found) for found in [*said["clients"], *_whole(added)]]
            # A scheduler of an earlier version did not write it.
            preferences = said.get("preferences", {})
            self.preferences = {group: dict(asked) for group, asked in preferences.items()}
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("The list of the previous scheduler's clients is ignored: %s", error)
            return []
        # A client that attached again since the list was written is in it twice.
        last = {(c.pid or -n, c.started, c.group): c for n, c in enumerate(clients, 1)}
        present = [client for client in last.values() if not has_exited(client)]
        self._listed = {_key(client) for client in present}
        return present

    def add(self, client: Awaited) -> None:
        """Add a client that has come, until the whole list is written again."""
        # While the previous scheduler's clients attach again, each of them is in the file already.
        if self._path is None or client.pid == 0 or _key(client) in self._listed:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(_entry(client))}")
        except FileNotFoundError:
            self.write([client])
        except OSError:
            return  # writing the list reports it
        self._written = ""
        self._listed.add(_key(client))

    def write(
        self, clients: Iterable[Awaited], preferences: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Write the list and the preferences for the clients' groups if either has changed."""
        if self._path is None:
            return
        clients = tuple(clients)
        said = {
            "boot": boot_id(),
            "clients": [_entry(one) for one in clients],
            "preferences": {group: dict(asked) for group, asked in (preferences or {}).items()},
        }
        text = json.dumps(said)
        if text == self._written:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            fresh.replace(self._path)
        except OSError as error:
            # A shortage of file descriptors is reported where connections are accepted.
            if not self._failed and error.errno not in (errno.EMFILE, errno.ENFILE):
                self._failed = True
                log.error(
                    "The list of clients cannot be written to %s: %s", self._path, error.strerror
                )
            return
        self._written, self._failed = text, False
        self._listed = {_key(client) for client in clients}


def has_exited(client: Awaited) -> bool:
    """Whether a client's process has ended; False if that is not visible."""
    return client.pid != 0 and start_time(client.pid) != client.started


def corrected(client: Awaited, gpu: str, held: int | None) -> Awaited:
    """Return a copy with the driver's figure of its bytes on a GPU; None: the driver gives none."""
    if held is None:
        return client
    usage = next((u for u in client.usages if u.gpu == gpu), Usage(gpu))
    others = tuple(u for u in client.usages if u.gpu != gpu)
    resident = max(0, held - usage.unevictable - usage.context)
    promised = max(usage.promised, resident)
    return replace(client, usages=(*others, replace(usage, resident=resident, promised=promised)))


def _key(client: Awaited) -> tuple[int, str, str]:
    return client.pid, client.started, client.group


def boot_id() -> str:
    """Return which start of the machine this is; empty: it is not known."""
    try:
        return _read_boot_id()
    except OSError:
        return ""


@functools.cache
def _read_boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


def _whole(lines: Iterable[str]) -> Iterator[Any]:
    """Iterate over the added clients. The last one may have been cut off."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


def _entry(client: Awaited) -> list[Any]:
    return [
        client.pid,
        client.started,
        client.group,
        [list(astuple(usage)) for usage in client.usages],
    ]


def _client(found: Any) -> Awaited:
    pid, started, group, usages = found
    if not (isinstance(pid, int) and isinstance(started, str) and isinstance(group, str)):
        raise ValueError(f"it has an entry {found!r}")
    return Awaited(pid, started, group, tuple(_usage(*usage) for usage in usages))


def _usage(gpu: Any, *sizes: Any) -> Usage:
    if not isinstance(gpu, str) or not all(isinstance(s, int) and 0 <= s <= LARGEST for s in sizes):
        raise ValueError(f"it states impossible sizes: {sizes!r}")
    return Usage(gpu, *sizes)
