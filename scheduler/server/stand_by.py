# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler that stands by: it is loaded, and serves as soon as the running scheduler ends, however that ends.

docs/contributing/takeover.md describes the take-over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol import wire as protocol
from ..protocol.client import peer_uid
from . import systemd
from .locks import Locks

#: Seconds in which the running scheduler must answer; then the connection is tried again.
ANSWER = 2.0
#: Seconds between attempts to connect while no scheduler answers.
PAUSE = 0.05
#: After the end of the running scheduler: seconds between attempts to take its locks, and for how long.
LOCK_PAUSE, LOCK_PATIENCE = 0.001, 1.0


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The running scheduler, as a scheduler that stands by knows it."""

    #: Ends with the running scheduler.
    connection: socket.socket
    #: The socket on which it listens; None: it is of a release that does not pass it on.
    listener: socket.socket | None = None
    #: Whether systemd made that socket, and owns it.
    owned: bool = False
    #: The token of its locks.
    token: str = ""

    def close(self) -> None:
        """Close the connection and the passed socket."""
        self.connection.close()
        if self.listener is not None:
            self.listener.close()


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a scheduler has once the previous one has ended."""

    locks: Locks
    #: The socket on which the previous scheduler listened; None: a new one must be made.
    listener: socket.socket | None = None
    #: Whether systemd made that socket, and owns it.
    owned: bool = False


async def stand_by(
    path: Path,
    make_locks: Callable[[bool], Locks],
    ended: asyncio.Future[int],
) -> Inheritance | None:
    """Wait until the running scheduler has ended, and take its place; None: this process must end instead.

    Parameters
    ----------
    path
        The socket.
    make_locks
        Returns the locks to take. Its argument is whether systemd owns the socket.
    ended
        Is done when this process must end.

    Raises
    ------
    AddressError
        The socket's path, or a lock's, cannot be used.
    """
    while not ended.done():
        met = await asyncio.to_thread(meet, path)
        if met is not None:
            with contextlib.suppress(OSError):
                print("standing by", flush=True)
            await _until_lost(met.connection, ended)
        if ended.done():
            if met is not None:
                met.close()
            break
        locks = make_locks(met is not None and met.owned)
        if await _take(locks, ended, LOCK_PATIENCE if met is not None else 0.0):
            return _inherit(locks, met)
        if met is not None:
            met.close()
        else:
            await asyncio.wait([ended], timeout=PAUSE)
    return None


def meet(path: Path) -> Predecessor | None:
    """Register with the running scheduler as its successor; None: none answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER)
    try:
        connection.connect(os.fsencode(path))
        if peer_uid(connection) not in (0, os.getuid()):
            connection.close()
            return None
        request = {"protocol": protocol.CONTROL_VERSION, "op": "stand_by"}
        connection.sendall(protocol.encode_json(protocol.CONTROL, request))
        return _await_listener(connection)
    except (OSError, protocol.ProtocolError):
        connection.close()
        return None


def _await_listener(connection: socket.socket) -> Predecessor:
    """Wait for the answer. A refusal comes from an earlier release: only the end of the connection counts then."""
    reader = protocol.FrameReader(from_scheduler=True)
    listener: socket.socket | None = None
    owned, token = False, ""
    deadline = time.monotonic() + ANSWER
    try:
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            for descriptor in descriptors:
                listener = socket.socket(fileno=descriptor)
            if not data:
                raise ConnectionResetError
            for frame in reader.feed(data):
                said = protocol.decode_json(frame.body)
                if frame.type == protocol.EVENT and said.get("kind") == "listener":
                    owned, token = said["owned"] is True, str(said["token"])
                elif frame.type == protocol.REPLY:
                    return Predecessor(connection, listener, owned, token)
    except BaseException:
        if listener is not None:
            listener.close()
        raise


async def _until_lost(connection: socket.socket, ended: asyncio.Future[int]) -> None:
    """Return when a connection or this process has ended."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()
    connection.setblocking(False)

    def look() -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                if connection.recv(1 << 16):
                    return
            except ConnectionError:
                pass
            loop.remove_reader(connection)
            if not lost.done():
                lost.set_result(None)

    loop.add_reader(connection, look)
    either: list[asyncio.Future[Any]] = [lost, ended]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(connection)


async def _take(locks: Locks, ended: asyncio.Future[int], patience: float) -> bool:
    """Take the locks; return whether that was possible in time."""
    until = time.monotonic() + patience
    while not locks.try_to_take():
        if ended.done() or time.monotonic() >= until:
            return False
        await asyncio.sleep(LOCK_PAUSE)
    return True


def _inherit(locks: Locks, met: Predecessor | None) -> Inheritance:
    """Return what the previous scheduler has left.

    If this process was stopped for a while, another scheduler may have served meanwhile. The passed socket is stale
    then: no client can connect to it.
    """
    if met is None:
        return Inheritance(locks)
    met.connection.close()
    listener = met.listener
    if listener is None or not (met.owned or locks.predecessor == met.token):
        if listener is not None:
            listener.close()
        return Inheritance(locks)
    if met.owned:
        listener = systemd.Passed(fileno=listener.detach())
    return Inheritance(locks, listener, met.owned)


async def answer_probes(path: Path) -> asyncio.Server:
    """Answer liveness probes of this process, whether it serves or stands by (``alive.py``)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
            writer.write(b".")
            writer.close()
            await writer.wait_closed()

    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return await asyncio.start_unix_server(answer, path)
