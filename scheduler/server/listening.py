# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's socket: made anew, or left by the previous scheduler or by systemd."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

from ..protocol.address import bind
from .options import Options
from .systemd import Passed

#: Connections that wait to be accepted. They are accepted one by one, so that a crowd does not delay the others.
#: Without free descriptors, asyncio reports each connection that it tries to accept.
BACKLOG, ACCEPTED = 512, 1
#: Seconds in which all that wait are accepted at once: the clients of the previous scheduler return together.
RETURN = 1.0


class Listening:
    """Accepts connections.

    Parameters
    ----------
    options
        The server's options.
    connect
        Makes a connection.

    Raises
    ------
    AddressError
        The socket cannot be made.
    """

    def __init__(self, options: Options, connect: Callable[[], asyncio.Protocol]) -> None:
        self._connect, self._options = connect, options
        self._has_clients = options.listener is not None or options.inherited is not None
        found = options.listener or options.inherited or bind(options.path, options.access)
        found.listen(BACKLOG)
        # Asyncio would let only as many connections wait as it accepts at once, and refuse the others.
        self.socket: socket.socket = Passed(fileno=found.detach())
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Begin to accept connections."""
        if not self._has_clients:
            await self._accept(self.socket, ACCEPTED)
            return
        # Two servers accept from the same socket, until the first one is closed.
        crowd = await self._accept(self.socket.dup(), BACKLOG)
        await self._accept(self.socket, ACCEPTED)
        asyncio.get_running_loop().call_later(RETURN, _close, crowd)

    def close(self, *, for_good: bool) -> None:
        """Accept no further connections, and remove the socket unless another scheduler or systemd has it, too."""
        for server in self._servers:
            _close(server)
        if for_good and self._options.listener is None:
            self._options.path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket, at_once: int) -> asyncio.Server:
        # Since Python 3.13, asyncio would remove a socket that another program owns.
        keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        server = await asyncio.get_running_loop().create_unix_server(
            self._connect, sock=listener, backlog=at_once, **keep
        )
        self._servers.append(server)
        return server


def _close(server: asyncio.Server) -> None:
    """Close a server once it has served all connections that it has accepted.

    A connection that is accepted gets its transport in the next round of the loop. If the server was closed before,
    asyncio would drop the connection without closing it, and the peer would wait for an answer.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    loop.call_soon(server.close)
