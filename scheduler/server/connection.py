# SPDX-License-Identifier: BSD-3-Clause
"""One connection to the scheduler: the identity of its peer, and its frames."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import socket
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, cast

from msgspec.structs import replace

from ..core import messages as ev
from ..core.checks import ProtocolViolation
from ..gpu.targets import Peer
from ..node.identity import Identities
from ..node.permissions import Denied
from ..node.principals import Known, Principal
from ..protocol import wire as protocol
from ..protocol.client import peer_pid, peer_uid
from ..protocol.processes import start_time
from .throttle import Lane, Throttle

log = logging.getLogger(__name__)

#: A connection that leaves this many bytes unread is dropped.
MAX_UNREAD = 4 << 20
#: The number of refusals that are remembered, so that each is logged once.
MAX_REFUSALS = 1024


class Host(Protocol):
    """The parts of the server that connections use."""

    throttle: Throttle
    identities: Identities
    #: Refusals that were logged: a process's number, when it was started, and the reason.
    refused: set[tuple[int, str | None, str]]

    def add(self, connection: Connection) -> int:
        """Add a connection, and return its number."""
        ...

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        ...

    def attach(self, connection: Connection, attach: ev.Attach) -> None:
        """Admit a client, or refuse it."""
        ...

    def place(self, connection: Connection, place: protocol.Place) -> None:
        """Send a client the order in which to use its GPUs."""
        ...

    def answer(self, connection: Connection, body: bytes) -> None:
        """Answer a control request."""
        ...

    def handle(self, event: ev.Event) -> None:
        """Pass an event to the core and carry out its decisions."""
        ...


class Connection(asyncio.Protocol):
    """One peer: a client, a control program, or a peer that has not identified itself yet."""

    __slots__ = (
        "_clogged",
        "_deadline",
        "_disconnected",
        "_heard",
        "_pending",
        "_queued",
        "_reader",
        "_server",
        "_work",
        "attached",
        "group",
        "lane",
        "namespace",
        "number",
        "pid",
        "principal",
        "process",
        "started",
        "transport",
        "uid",
        "why",
    )

    transport: asyncio.Transport
    lane: Lane

    def __init__(self, server: Host) -> None:
        self._server = server
        self._reader = protocol.FrameReader()
        self._disconnected = False
        #: Frames that have arrived and were not handled yet. Nothing is read while there are any.
        self._pending: Iterator[protocol.Frame] | None = None
        #: Work that must end first; whether frames wait for a turn; and whether answers must be read first.
        self._work: asyncio.Task[None] | None = None
        self._queued = self._clogged = False
        #: When the peer must have identified itself.
        self._deadline: asyncio.TimerHandle | None = None
        #: Whether anything has arrived.
        self._heard = False
        self.number = 0
        self.group = ""
        self.pid = 0
        self.attached = False
        #: The identity of the peer; None: not known yet.
        self.principal: Principal | None = None
        #: The message with which to refuse it then.
        self.why = ""
        self.uid = -1
        #: The process of the peer; 0 if it is not visible from here.
        self.process = 0
        #: The inode of its PID namespace, as it states it; 0: it does not.
        self.namespace = 0
        #: When the process of the peer was started.
        self.started: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Number the connection and identify its peer, or refuse it."""
        self.transport = cast("asyncio.Transport", transport)
        self.number = self._server.add(self)
        peer = transport.get_extra_info("socket")
        self.uid, self.process = peer_uid(peer), peer_pid(peer)
        self.started = start_time(self.process)
        throttle = self._server.throttle
        throttle.admit(self, f"uid {self.uid}")
        if throttle.limits.introduction:
            self._await_introduction()
        known = self._server.identities.recall(self.uid)
        if known is None:
            self.do(self._look_up())
        else:
            self._identify(known)

    async def _look_up(self) -> None:
        self._identify(await self._server.identities.look_up(self.uid))

    def _identify(self, known: Known) -> None:
        principal, self.why = known
        if principal is not None:
            self.speaks_for(principal)
        elif not self._server.identities.rules.node:
            self.refuse(errno.EACCES, self.why)
        else:
            crowded = self._server.throttle.expect(self, self.uid, self.process)
            if isinstance(crowded, Connection):
                # It is not refused, because an honest peer tries again.
                crowded._warn(
                    "closed, because too many connections have not presented a ticket or logged in"
                )
                crowded.disconnect()

    def speaks_for(self, principal: Principal) -> None:
        """Note the identity of the peer."""
        self.principal = principal
        throttle = self._server.throttle
        free = self.uid in (0, os.getuid()) and principal.admin
        if not throttle.admit(self, f"user {principal.user}", free):
            self.refuse(
                errno.EAGAIN,
                f"{principal.user} has {throttle.limits.connections} connections to the scheduler, the maximum for one "
                "user; shut down some kernels or programs that use the GPU",
            )

    def _await_introduction(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._server.throttle.limits.introduction, self._miss_introduction
        )

    def _miss_introduction(self) -> None:
        if self._disconnected or (self._heard and self.principal is not None):
            return
        if self._work is not None:
            self._await_introduction()
        else:
            self.refuse(
                errno.ETIMEDOUT,
                "the program did not identify itself in time; connect again and identify it at once",
            )

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames that have arrived."""
        if not self._disconnected:
            self._pending = self._reader.feed(data)
            self._go_on()

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Handle no further frame until some work is done, so that answers keep their order."""
        self.transport.pause_reading()
        self._work = asyncio.get_running_loop().create_task(work)
        self._work.add_done_callback(self._done)

    def _done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if work.cancelled() or self._disconnected:
            return
        work.result()
        self._go_on()

    def pause_writing(self) -> None:
        """Handle no further request of a control program that does not read its answers. Clients are always heard."""
        if not self.attached:
            self._clogged = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue once the peer has read its answers."""
        if self._clogged:
            self._clogged = False
            self._go_on()

    def _go_on(self) -> None:
        """Handle arrived frames if possible, and read on once all are handled."""
        if self._disconnected or self._is_held() or self._queued:
            return
        if self._pending is not None:
            self._queued = self._server.throttle.serve(self)
        if not self._disconnected:
            self._listen_or_not()

    def _listen_or_not(self) -> None:
        if self._pending is not None or self._is_held():
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _is_held(self) -> bool:
        return self._work is not None or self._clogged

    @property
    def peer(self) -> Peer:
        """Return the process that connected, for checkpoints."""
        connection = self.transport.get_extra_info("socket")
        return Peer(self.number, connection, self.process, self.started, self.namespace)

    @property
    def unread(self) -> int:
        """Return the bytes that were sent to the peer and that it has not read."""
        return self.transport.get_write_buffer_size()

    def proceed(self, until: float) -> bool:
        """Handle frames until a time on the throttle's clock; return whether there are more."""
        more = self._handle_frames(until)
        if self._queued and not more:
            self._queued = False
            if not self._disconnected:
                self._listen_or_not()
        return more

    def _handle_frames(self, until: float) -> bool:
        if self._disconnected or self._pending is None or self._is_held():
            return False
        clock = self._server.throttle.clock
        try:
            frame = next(self._pending, None)
            while frame is not None:
                if self.attached:
                    event = protocol.decode(self.number, self.group, frame)
                    self._server.handle(event)
                else:
                    self._listen(frame)
                if self.transport.is_closing() or self._is_held():
                    return False
                frame = next(self._pending, None)
                if frame is not None and clock() >= until:
                    self._pending = itertools.chain((frame,), self._pending)
                    return True
        except protocol.VersionMismatch as error:
            self.refuse(errno.EPROTO, str(error))
        except Denied as error:
            self.refuse(errno.EACCES, str(error))
        except (protocol.ProtocolError, ProtocolViolation) as error:
            self._warn(f"{error}; connection closed")
            self.disconnect()
        self._pending = None
        return False

    def _listen(self, frame: protocol.Frame) -> None:
        """Handle a frame of a peer that is not attached."""
        heard, self._heard = self._heard, True
        if frame.type == protocol.CONTROL:
            self._server.answer(self, frame.body)
        elif frame.type == protocol.HELLO:
            self._hello(frame.body)
        elif frame.type == protocol.PLACE:
            place = protocol.decode_place(frame.body)
            self._speak_for(place.group)
            self._server.place(self, place)
        elif frame.type == protocol.TICKET and not heard:
            self._present(protocol.decode_ticket(frame.body))
        else:
            raise protocol.ProtocolError(f"unexpected frame of type {frame.type}")

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the core that a client has left."""
        if self._reader.pending and not self._disconnected:
            self._warn("the connection ended in the middle of a frame")
        if self._work is not None:
            self._work.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        self._pending = None
        self._server.throttle.leave(self)
        self._server.remove(self)

    def write(self, data: bytes) -> None:
        """Send, unless the connection is ending; drop a peer that does not read."""
        if self._disconnected or self.transport.is_closing():
            return
        # This is checked before and not after sending, because one long reply is not the peer's fault.
        unread = self.unread
        if unread > MAX_UNREAD or (unread and self._server.throttle.overflows(self)):
            self._warn("closed, because the program does not read what is sent")
            self.disconnect()
            return
        self.transport.write(data)

    def write_with(self, data: bytes, descriptor: int) -> bool:
        """Send a message with a descriptor; return False if other data must go first.

        The transports of asyncio cannot do this. But they send what a socket takes at once, so nothing is overtaken.
        """
        if self._disconnected or self.unread:
            return False
        with self.transport.get_extra_info("socket").dup() as copy:
            try:
                sent = socket.send_fds(copy, [data], [descriptor])
            except OSError:
                return False
        self.transport.write(data[sent:])
        return True

    def refuse(self, code: int, text: str) -> None:
        """Send REFUSED and end the connection.

        This is logged once for each process and reason, because a refused process keeps trying to connect.
        """
        if self._is_first_refusal(text):
            self._warn(f"refused: {text}")
        self.transport.write(protocol.refused(code, text))
        self._disconnected = True
        self.transport.close()

    def _is_first_refusal(self, text: str) -> bool:
        """Whether this process was not refused for this reason before."""
        refused, refusal = self._server.refused, (self.process, self.started, text)
        if refusal in refused:
            return False
        if len(refused) == MAX_REFUSALS:
            refused.clear()
        refused.add(refusal)
        return True

    def disconnect(self) -> None:
        """End the connection without a message."""
        self._disconnected = True
        self.transport.abort()

    def _warn(self, text: str) -> None:
        unsaid = self._server.throttle.may_log(self)
        if unsaid is not None:
            log.warning(
                "%s: %s%s", self, text, f" ({unsaid} similar lines omitted)" if unsaid else ""
            )

    def _present(self, text: str) -> None:
        identities = self._server.identities
        if not identities.rules.node:
            # This scheduler serves one user, even if a program of theirs has a ticket of another scheduler.
            return
        self.why = "the scheduler does not know this kernel's ticket, or it was revoked; restart the kernel"
        try:
            holder = identities.holder(text, self.uid)
        except Denied as error:
            holder, self.why = None, str(error)
        if holder is not None:
            self.speaks_for(holder)
            return
        # The peer gets the message when it sends a request: while it is sending, it would not read it.
        self.principal = None

    def _speak_for(self, group: str) -> Principal:
        """Return the identity of the peer, which may speak for a group, or raise `Denied`."""
        if self.principal is None:
            raise Denied("login_required", self.why)
        self._server.identities.claim(self.principal, group)
        return self.principal

    def _hello(self, body: bytes) -> None:
        attach = protocol.decode_hello(self.number, body)
        who = self._speak_for(attach.group)
        # An administrator's process may belong to another user's group.
        user = self._server.identities.owner(attach.group) or who.user
        # For a process in another PID namespace, this is its number here, if it has one.
        self.pid = self.process or attach.pid
        self.group = attach.group
        self.namespace = protocol.pid_namespace(body)
        self._server.attach(self, replace(attach, user=user, teams=who.teams, pid=self.pid))

    def __str__(self) -> str:
        if self.group:
            return f"client {self.number} (uid {self.uid}, pid {self.pid}, {self.group})"
        return f"connection {self.number} (uid {self.uid}, pid {self.process})"
