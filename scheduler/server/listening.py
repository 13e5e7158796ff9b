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
        self._server: asyncio.Server | None = None
        #: A copy of the socket, from which a crowd is accepted; None: its time is over.
        self._crowd: socket.socket | None = None
        self._accepting: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        if self._has_clients:
            self._crowd = self.socket.dup()
            self._crowd.setblocking(False)
            loop.add_reader(self._crowd, self._accept_crowd)
            loop.call_later(RETURN, self._end_crowd)
        # Since Python 3.13, asyncio would remove a socket that another program owns.
        keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await loop.create_unix_server(
            self._connect, sock=self.socket, backlog=ACCEPTED, **keep
        )

    def close(self, *, for_good: bool) -> None:
        """Accept no further connections, and remove the socket unless another scheduler or systemd has it, too."""
        self._end_crowd()
        if self._server is not None:
            _close(self._server)
        if for_good and self._options.listener is None:
            self._options.path.unlink(missing_ok=True)

    def _accept_crowd(self) -> None:
        """Accept all waiting connections. A server of asyncio could not switch to fewer at once later."""
        loop = asyncio.get_running_loop()
        try:
            while self._crowd is not None:
                made, _ = self._crowd.accept()
                task = loop.create_task(loop.connect_accepted_socket(self._connect, made))
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:
            # There is a shortage, of descriptors for example. The server reports it, and tries again.
            self._end_crowd()

    def _end_crowd(self) -> None:
        """Leave all further connections to the server."""
        crowd, self._crowd = self._crowd, None
        if crowd is not None:
            asyncio.get_running_loop().remove_reader(crowd)
            crowd.close()


def _close(server: asyncio.Server) -> None:
    """Close a server once it has served all connections that it has accepted.

    A connection that is accepted gets its transport in the next round of the loop. If the server was closed before,
    asyncio would drop the connection without closing it, and the peer would wait for an answer.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    loop.call_soon(server.close)
