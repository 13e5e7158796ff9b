# SPDX-License-Identifier: BSD-3-Clause
"""A client of the scheduler's control requests for event loops.

It is separate from the blocking client, because importing asyncio takes longer than most commands run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from . import client
from . import wire as protocol
from .address import socket_path
from .client import (
    HUB_TOKEN,
    TIMEOUT,
    ControlError,
    NotAdmitted,
    SchedulerUnreachable,
    attempt,
    checked,
    crowded,
    decode_answer,
    encode_request,
    pauses_until,
    read_claim,
    read_ticket,
    unreachable,
)


class AsyncControlClient:
    """A connection to the scheduler from an event loop: ``async with``, or `connect` and `close`.

    Parameters
    ----------
    path
        The scheduler's socket; default: the user's.
    timeout
        Seconds to wait for an answer.
    """

    def __init__(self, path: Path | None = None, timeout: float = TIMEOUT) -> None:
        self.path = path or socket_path()
        self._timeout = timeout
        self._pending: deque[asyncio.Future[dict[str, Any]]] = deque()
        #: The last answer that did not come in time.
        self._late: asyncio.Future[dict[str, Any]] | None = None
        self._subscribers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        #: Set when the scheduler is about to end, and needs a host to start the next one (`host`).
        self.needs_heir = asyncio.Event()
        self._lost: ControlError | None = SchedulerUnreachable("not connected to the scheduler")
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> AsyncControlClient:
        """Connect once, and identify this process if the scheduler requires it.

        Raises
        ------
        SchedulerUnreachable
            No scheduler answers.
        NotAdmitted
            It does not accept the identity.
        """
        ticket = read_ticket()
        claim = read_claim() if ticket is None else None
        connection = await self._connected_socket()
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        self._lost = None
        self._writer = writer
        self._task = asyncio.create_task(self._read(reader, writer))
        if ticket is not None:
            writer.write(protocol.ticket(ticket))
        else:
            try:
                await self._log_in(os.environ.get(HUB_TOKEN), claim)
            except BaseException:
                await self.close()
                raise
        return self

    async def _connected_socket(self) -> socket.socket:
        # asyncio's own connect() mistakes a refused socket for a connected one.
        pauses = pauses_until(time.monotonic() + self._timeout)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            while not attempt(connection, self.path):
                pause = next(pauses, None)
                if pause is None:
                    raise crowded(self.path, self._timeout)
                await asyncio.sleep(pause)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _log_in(self, token: str | None, claim: str | None) -> None:
        if not (token or claim):
            return
        me = await self.request("whoami")
        try:
            if token and me["needs"] == "login":
                await self.request("login", token=token)
            if claim and me["node"]:
                await self._present(claim)
        except SchedulerUnreachable:
            raise
        except ControlError as error:
            raise NotAdmitted(str(error)) from None

    async def _present(self, claim: str) -> None:
        for pause in pauses_until(time.monotonic() + client.CLAIM_PATIENCE):
            try:
                await self.request("present_claim", token=claim)
                return
            except ControlError as error:
                if error.code != client.UNKNOWN_CLAIM:
                    raise
            await asyncio.sleep(pause)
        await self.request("present_claim", token=claim)

    async def __aenter__(self) -> AsyncControlClient:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether requests can still be sent."""
        return self._lost is None

    @property
    def late(self) -> bool:
        """Whether an answer that was waited for in vain has not come yet: another's would come after it."""
        return self._late is not None and not self._late.done()

    async def wait_lost(self) -> None:
        """Return when the connection has ended, for whatever reason."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the connection."""
        if self._task is None or self._writer is None:
            return
        self._task.cancel()
        await self.wait_lost()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send one request and return the answer.

        Raises
        ------
        ControlError
            If the scheduler refuses it.
        SchedulerUnreachable
            If the connection has ended or no answer comes in time.
        """
        message = encode_request(op, params)
        if self._lost is not None or self._writer is None:
            raise SchedulerUnreachable(str(self._lost))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        self._pending.append(answer)
        self._writer.write(message)
        try:
            # Shielded: a reply that comes late must still find its place in the order.
            reply = await asyncio.wait_for(asyncio.shield(answer), self._timeout)
        except asyncio.TimeoutError:
            self._late = answer
            raise SchedulerUnreachable(
                f"no response from the scheduler at {self.path} within {self._timeout:g} s"
            ) from None
        return checked(reply)

    async def subscribe(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the scheduler's events from now on.

        Raises
        ------
        SchedulerUnreachable
            When the connection ends.
        """
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            await self.request("subscribe")
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._subscribers.discard(queue)
        raise SchedulerUnreachable(str(self._lost))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = protocol.FrameReader(from_scheduler=True)
        lost: ControlError = SchedulerUnreachable(
            f"the scheduler at {self.path} closed the connection"
        )
        try:
            while data := await reader.read(1 << 18):
                for frame in frames.feed(data):
                    answer = decode_answer(frame)
                    if frame.type == protocol.EVENT and answer.get("kind") == "succession":
                        self.needs_heir.set()
                    elif frame.type == protocol.EVENT:
                        for queue in self._subscribers:
                            queue.put_nowait(answer)
                    elif self._pending:
                        waiting = self._pending.popleft()
                        if not waiting.done():
                            waiting.set_result(answer)
        except OSError as error:
            lost = unreachable(self.path, error)
        except ControlError as error:
            lost = error
        except protocol.ProtocolError as error:
            lost = SchedulerUnreachable(
                f"the program at {self.path} is not a scheduler of this version: {error}"
            )
        finally:
            self._lost = lost
            writer.close()
            while self._pending:
                waiting = self._pending.popleft()
                if not waiting.done():
                    waiting.set_exception(lost)
            for queue in self._subscribers:
                queue.put_nowait(None)


def _retrieve(answer: asyncio.Future[dict[str, Any]]) -> None:
    """Retrieve the result of an answer without a reader, so that asyncio does not log an error."""
    if not answer.cancelled():
        answer.exception()
