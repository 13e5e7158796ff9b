# SPDX-License-Identifier: BSD-3-Clause
"""From one scheduler to the next: its list of clients, its socket, and the return of the previous one's clients.

docs/contributing/takeover.md describes the take-over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..core import messages as ev
from ..core.core import Core
from ..core.preferences import lasting
from ..gpu.devices import Devices
from ..memory.roster import Roster, corrected, has_exited
from ..node.permissions import Denied
from ..protocol import wire as protocol
from ..protocol.bodies import Body, RequestError
from .connection import Connection
from .options import Options

log = logging.getLogger(__name__)

#: Seconds in which the previous scheduler's clients must attach, and seconds between checks whether they have exited.
RETURN_PATIENCE, RETURN_LOOK = 30.0, 0.2
#: Seconds after which the list of clients is written once a client has come or left.
ROSTER_DELAY = 0.05
#: Seconds that a scheduler whose parent has ended waits for another one to stand by.
HEIR_PATIENCE = 4.0


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
        #: Schedulers that stand by to take over, and programs that can start one.
        self._heirs: list[Connection] = []
        self._hosts: list[Connection] = []
        #: The program that was asked for one, and whether one has come or the program has ended.
        self._called: Connection | None = None
        self._news = asyncio.Event()
        self._search: asyncio.Task[None] | None = None
        #: The socket on which the scheduler listens, once it does.
        self.listener: socket.socket | None = None
        self.operations: dict[str, Callable[[Connection, Any], dict[str, Any]]] = {
            "stand_by": self._op_stand_by,
            "host": self._op_host,
        }

    def begin(self, gpus: Collection[str]) -> None:
        """Read the previous scheduler's list, and await its clients."""
        folder = self._options.identity.state_dir
        if self._options.identity.node:
            path = None if folder is None else folder / "clients.json"
        else:
            path = self._options.path.with_name(self._options.path.name + ".clients")
        self._roster = Roster(path)
        clients = self._roster.load()
        for gpu in gpus if clients else ():
            # This takes milliseconds. In a thread it would take longer, and nothing else is to be done yet.
            held = self._devices.processes(gpu)
            clients = [corrected(client, gpu, (held or {}).get(client.pid)) for client in clients]
        if clients:
            for group in dict.fromkeys(client.group for client in clients):
                self._restore_preferences(group, self._roster.preferences.get(group, {}))
            self._handle(ev.Await(tuple(clients)))
            self._return_timer = self._loop.call_later(RETURN_LOOK, self._look_for_clients)

    def end(self) -> None:
        """Leave the list to the next scheduler, with the clients that are attached now. Nothing may change any more."""
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

    # --- Schedulers that stand by -------------------------------------------------------------

    @property
    def heirs(self) -> tuple[Connection, ...]:
        """Return the schedulers that stand by."""
        return tuple(self._heirs)

    def _op_stand_by(self, connection: Connection, asked: Body) -> dict[str, Any]:
        """Pass the socket to a scheduler that stands by from now on."""
        _check_owner(connection)
        said = {
            "kind": "listener",
            "owned": self._options.listener is not None,
            "token": self._options.token,
        }
        data = protocol.encode_json(protocol.EVENT, said)
        if self.listener is None or not connection.write_with(data, self.listener.fileno()):
            raise RequestError("the scheduler cannot pass its socket on now; try again")
        self._heirs.append(connection)
        self._news.set()
        return {}

    def _op_host(self, connection: Connection, asked: Body) -> dict[str, Any]:
        """Remember a program that can start a scheduler that stands by."""
        _check_owner(connection)
        if connection not in self._hosts:
            self._hosts.append(connection)
        return {}

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        for known in (self._heirs, self._hosts):
            if connection in known:
                known.remove(connection)
        if connection is self._called:
            self._news.set()

    def end_after_heir(self, end: Callable[[int], None]) -> None:
        """End this scheduler once another one stands by, or none can be found."""
        self._search = self._loop.create_task(self._find_heir())
        self._search.add_done_callback(lambda _: end(0))

    async def _find_heir(self) -> None:
        """Have another program start a scheduler that stands by, if there is such a program, and wait for it."""
        deadline = time.monotonic() + HEIR_PATIENCE
        while self._hosts and not self._heirs and (left := deadline - time.monotonic()) > 0:
            self._called, self._news = self._hosts.pop(0), asyncio.Event()
            self._called.write(protocol.encode_json(protocol.EVENT, {"kind": "succession"}))
            # The last ones get their chance even if the first ones do not respond.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left / (len(self._hosts) + 1))

    # --- The previous scheduler's clients -----------------------------------------------------

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


def _check_owner(connection: Connection) -> None:
    """Admit only programs of the scheduler's user and of root, which could replace the scheduler anyway."""
    if connection.uid not in (0, os.getuid()):
        raise Denied("not_allowed", "only a program of the scheduler's user can take its place")


def _awaited(connection: Connection, group: str, usages: tuple[ev.Usage, ...]) -> ev.Awaited:
    """Return a client's entry in the list for the next scheduler."""
    return ev.Awaited(connection.process, connection.started or "", group, usages)
