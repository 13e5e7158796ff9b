# SPDX-License-Identifier: BSD-3-Clause
"""From one scheduler to the next: the list of clients, and the return of the previous scheduler's clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..core import messages as ev
from ..core.core import Core
from ..core.preferences import lasting
from ..gpu.devices import Devices
from ..memory.roster import Roster, corrected, has_exited
from .connection import Connection
from .options import Options

log = logging.getLogger(__name__)

#: Seconds in which the previous scheduler's clients must attach, and seconds between checks whether they have exited.
RETURN_PATIENCE, RETURN_LOOK = 30.0, 0.2
#: Seconds after which the list of clients is written once a client has come or left.
ROSTER_DELAY = 0.05


class Succession:
    """Keeps the list of clients for the next scheduler, and awaits the clients of the previous scheduler.

    Parameters
    ----------
    core, devices, options
        Those of the server.
    handle
        Passes an event to the core.
    clients
        The connections of the attached clients, by number.
    """

    def __init__(
        self,
        core: Core,
        devices: Devices,
        options: Options,
        handle: Callable[[ev.Event], None],
        clients: Mapping[int, Connection],
    ) -> None:
        self._core, self._devices, self._options = core, devices, options
        self._handle, self._clients = handle, clients
        self._loop = asyncio.get_running_loop()
        self._patience_ends = time.monotonic() + RETURN_PATIENCE
        self._roster: Roster | None = None
        self._roster_timer: asyncio.TimerHandle | None = None
        self._return_timer: asyncio.TimerHandle | None = None

    async def begin(self, gpus: Collection[str]) -> None:
        """Read the previous scheduler's list, and await its clients."""
        folder = self._options.identity.state_dir
        if self._options.identity.node:
            path = None if folder is None else folder / "clients.json"
        else:
            path = self._options.path.with_name(self._options.path.name + ".clients")
        self._roster = Roster(path)
        clients = self._roster.load()
        for gpu in gpus if clients else ():
            held = await asyncio.to_thread(self._devices.processes, gpu)
            clients = [corrected(client, gpu, (held or {}).get(client.pid)) for client in clients]
        if clients:
            for group in dict.fromkeys(client.group for client in clients):
                self._restore_preferences(group, self._roster.preferences.get(group, {}))
            self._handle(ev.Await(tuple(clients)))
            self._look_for_clients()

    def end(self) -> None:
        """Leave the list to the next scheduler, with the clients that are attached now."""
        self.write()
        self._roster = None
        if self._return_timer is not None:
            self._return_timer.cancel()

    def add(self, connection: Connection, attach: ev.Attach) -> None:
        """Add a client that is about to attach to the list."""
        if self._roster is not None:
            # This comes before the client is notified, because this scheduler may be killed at any time.
            self._roster.add(_awaited(connection, attach.group, attach.usages))
        self.write_soon()

    def write_soon(self) -> None:
        """Write the list of clients soon. Several may come or leave at once, or get other preferences."""
        if self._roster is not None and self._roster_timer is None:
            self._roster_timer = self._loop.call_later(ROSTER_DELAY, self.write)

    def write(self) -> None:
        """Write the list of clients."""
        if self._roster_timer is not None:
            self._roster_timer.cancel()
            self._roster_timer = None
        if self._roster is None:
            return
        listed = list(self._core.model.awaited.values())
        for number, connection in self._clients.items():
            client = self._core.clients[number]
            usages = tuple(
                ev.Usage(uuid, h.promised, h.resident, h.unevictable, h.context, h.host)
                for uuid, h in client.holdings.items()
            )
            listed.append(_awaited(connection, client.group.id, usages))
        asked = {one.group: lasting(self._core.preferences_of(one.group)) for one in listed}
        self._roster.write(
            listed, {group: preferences for group, preferences in asked.items() if preferences}
        )

    def _restore_preferences(self, group: str, asked: dict[str, Any]) -> None:
        """Apply the preferences for a group that the previous scheduler left."""
        if not asked:
            return
        try:
            self._handle(ev.Adjust(group, **asked, later=True))
        except (TypeError, ValueError) as error:
            log.warning("The earlier preferences of %s are ignored: %s", group, error)

    def _look_for_clients(self) -> None:
        self._return_timer = None
        awaited = self._core.model.awaited
        if gone := tuple(n for n, client in awaited.items() if has_exited(client)):
            self._handle(ev.Desist(gone))
        if awaited and time.monotonic() >= self._patience_ends:
            self._handle(ev.Desist(tuple(awaited), late=True))
        if awaited:
            self._return_timer = self._loop.call_later(RETURN_LOOK, self._look_for_clients)


def _awaited(connection: Connection, group: str, usages: tuple[ev.Usage, ...]) -> ev.Awaited:
    """Return a client's entry in the list for the next scheduler."""
    return ev.Awaited(connection.process, connection.started or "", group, usages)
