# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's socket: made anew, or left by the previous scheduler or by systemd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from typing import Any

from ..protocol.address import bind
from .options import Options

#: Connections that wait to be accepted. They are accepted one by one, so that a crowd does not delay the others.
#: Without free descriptors, asyncio reports each connection that it tries to accept.
BACKLOG, ACCEPTED = 512, 1


async def listen(
    options: Options, connect: Callable[[], asyncio.Protocol]
) -> tuple[socket.socket, asyncio.Server]:
    """Accept connections; return the socket, and what listens on it.

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
    loop = asyncio.get_running_loop()
    listener = options.listener or options.inherited or bind(options.path, options.access)
    # Since Python 3.13, asyncio would remove a socket that another program owns.
    keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    server = await loop.create_unix_server(connect, sock=listener, backlog=ACCEPTED, **keep)
    # What asyncio takes for one number are two.
    listener.listen(BACKLOG)
    await _accept_waiting(listener, connect)
    return listener, server


async def _accept_waiting(listener: socket.socket, connect: Callable[[], asyncio.Protocol]) -> None:
    """Accept the connections that wait already: the previous scheduler's clients, all at once."""
    loop = asyncio.get_running_loop()
    waiting: list[socket.socket] = []
    with contextlib.suppress(OSError):
        while len(waiting) < BACKLOG:
            waiting.append(listener.accept()[0])
    await asyncio.gather(*(loop.connect_accepted_socket(connect, one) for one in waiting))
