# SPDX-License-Identifier: BSD-3-Clause
"""One connection to the scheduler: who is at the other end, and the frames that come and go."""

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
from ..memory.pool import start_time
from ..node.identity import Identities
from ..node.permissions import Denied
from ..node.principals import Known, Principal
from ..protocol import wire as protocol
from ..protocol.client import peer_pid, peer_uid
from .throttle import Lane, Throttle

log = logging.getLogger(__name__)

#: A connection that leaves so many bytes unread is dropped.
MAX_UNREAD = 4 << 20
#: Refusals that the scheduler remembers, to log each once.
MAX_REFUSALS = 1024


class Host(Protocol):
    """What a connection needs of the server."""

    throttle: Throttle
    identities: Identities
    #: What was logged of refused processes: number, when they were started, the reason.
    refused: set[tuple[int, str | None, str]]

    def add(self, connection: Connection) -> int:
        """Take in a connection and return its number."""
        ...

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        ...

    def attach(self, connection: Connection, attach: ev.Attach) -> None:
        """Take in a client, or refuse it."""
        ...

    def place(self, connection: Connection, place: protocol.Place) -> None:
        """Say in which order a client should use the GPUs that it may use."""
        ...

    def answer(self, connection: Connection, body: bytes) -> None:
        """Answer a control request."""
        ...

    def handle(self, event: ev.Event) -> None:
        """Give an event to the core and do what it decides."""
        ...


class Connection(asyncio.Protocol):
    """One peer: a client, a control program, or one that has not said yet."""

    __slots__ = (
        "_clogged",
        "_deadline",
        "_heard",
        "_hung_up",
        "_pending",
        "_queued",
        "_reader",
        "_server",
        "_work",
        "attached",
        "group",
        "lane",
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
        self._hung_up = False
        #: Frames that have come and are not handled yet; nothing is read while there are any.
        self._pending: Iterator[protocol.Frame] | None = None
        #: What has to come to its end before; whether they wait for a turn; and for answers to be read.
        self._work: asyncio.Task[None] | None = None
        self._queued = self._clogged = False
        #: When it has to have said who it is.
        self._deadline: asyncio.TimerHandle | None = None
        #: Anything has come.
        self._heard = False
        self.number = 0
        self.group = ""
        self.pid = 0
        self.attached = False
        #: Who is at the other end; None: has not said it yet.
        self.principal: Principal | None = None
        #: Then, what to tell it.
        self.why = ""
        self.uid = -1
        #: The process at the other end; 0 where it cannot be seen from here.
        self.process = 0
        #: When the process at the other end was started.
        self.started: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Number the connection, and find out whose it is, or refuse it."""
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
                # Not refused: an honest one tries again.
                crowded._warn("one of too many that have not shown a ticket or logged in")
                crowded.hang_up()

    def speaks_for(self, principal: Principal) -> None:
        """Take in who is at the other end."""
        self.principal = principal
        throttle = self._server.throttle
        free = self.uid in (0, os.getuid()) and principal.admin
        if not throttle.admit(self, f"user {principal.user}", free):
            self.refuse(
                errno.EAGAIN,
                f"{principal.user} has {throttle.limits.connections} connections to the scheduler, which is all that "
                "one user may have; end some kernels or programs that use the GPU",
            )

    def _await_introduction(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._server.throttle.limits.introduction, self._miss_introduction
        )

    def _miss_introduction(self) -> None:
        if self._hung_up or (self._heard and self.principal is not None):
            return
        if self._work is not None:
            self._await_introduction()
        else:
            self.refuse(errno.ETIMEDOUT, "nobody said who this is; connect and say it at once")

    def data_received(self, data: bytes) -> None:
        """Handle the frames that have come in whole."""
        if not self._hung_up:
            self._pending = self._reader.feed(data)
            self._go_on()

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Take nothing in until some work is done, so that answers keep their order."""
        self.transport.pause_reading()
        self._work = asyncio.get_running_loop().create_task(work)
        self._work.add_done_callback(self._done)

    def _done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if work.cancelled() or self._hung_up:
            return
        work.result()
        self._go_on()

    def pause_writing(self) -> None:
        """Take nothing more in from one that does not read its answers; a client's word is needed all the same."""
        if not self.attached:
            self._clogged = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on once it has read."""
        if self._clogged:
            self._clogged = False
            self._go_on()

    def _go_on(self) -> None:
        """Handle what has come if it may be, and read on once all of it is handled."""
        if self._hung_up or self._is_held() or self._queued:
            return
        if self._pending is not None:
            self._queued = self._server.throttle.serve(self)
        if not self._hung_up:
            self._listen_or_not()

    def _listen_or_not(self) -> None:
        if self._pending is not None or self._is_held():
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _is_held(self) -> bool:
        return self._work is not None or self._clogged

    @property
    def is_there(self) -> bool:
        """Whether the process that connected lives: a socket can be passed on, and a number be given out again."""
        return self.started is not None and start_time(self.process) == self.started

    @property
    def unread(self) -> int:
        """Bytes that were sent to it and that it has not read."""
        return self.transport.get_write_buffer_size()

    def proceed(self, until: float) -> bool:
        """Handle frames that have come, until that time on the throttle's clock; return whether there are more."""
        more = self._handle_frames(until)
        if self._queued and not more:
            self._queued = False
            if not self._hung_up:
                self._listen_or_not()
        return more

    def _handle_frames(self, until: float) -> bool:
        if self._hung_up or self._pending is None or self._is_held():
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
            self.hang_up()
        self._pending = None
        return False

    def _listen(self, frame: protocol.Frame) -> None:
        """Handle a frame of one that is not attached."""
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
            raise protocol.ProtocolError(f"a frame of type {frame.type} out of turn")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the core that a client is gone."""
        if self._reader.pending and not self._hung_up:
            self._warn("ended in the middle of a frame")
        if self._work is not None:
            self._work.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        self._pending = None
        self._server.throttle.leave(self)
        self._server.remove(self)

    def write(self, data: bytes) -> None:
        """Send, unless the connection is ending; drop a peer that does not read."""
        if self._hung_up or self.transport.is_closing():
            return
        # Asked before, not after: one long reply is no fault of the peer's.
        unread = self.unread
        if unread > MAX_UNREAD or (unread and self._server.throttle.overflows(self)):
            self._warn("does not read; connection closed")
            self.hang_up()
            return
        self.transport.write(data)

    def write_with(self, data: bytes, descriptor: int) -> bool:
        """Send a message that a descriptor goes along with; False if something else has to go before it.

        asyncio's transports cannot do that. But they do send at once what a socket takes, so nothing is overtaken.
        """
        if self._hung_up or self.unread:
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

        It is logged once for each process and reason: a refused process keeps trying to connect.
        """
        if self._is_first_refusal(text):
            self._warn(f"refused: {text}")
        self.transport.write(protocol.refused(code, text))
        self._hung_up = True
        self.transport.close()

    def _is_first_refusal(self, text: str) -> bool:
        """Tell whether this process was not refused for this reason before."""
        refused, refusal = self._server.refused, (self.process, self.started, text)
        if refusal in refused:
            return False
        if len(refused) == MAX_REFUSALS:
            refused.clear()
        refused.add(refusal)
        return True

    def hang_up(self) -> None:
        """End the connection without another word."""
        self._hung_up = True
        self.transport.abort()

    def _warn(self, text: str) -> None:
        unsaid = self._server.throttle.may_say(self)
        if unsaid is not None:
            log.warning(
                "%s: %s%s", self, text, f" ({unsaid} such lines left out)" if unsaid else ""
            )

    def _present(self, text: str) -> None:
        identities = self._server.identities
        if not identities.rules.node:
            # It serves one user, whoever of their programs has a ticket of another scheduler.
            return
        self.why = "the scheduler does not know this kernel's ticket, or it was revoked; restart the kernel"
        try:
            holder = identities.holder(text, self.uid)
        except Denied as error:
            holder, self.why = None, str(error)
        if holder is not None:
            self.speaks_for(holder)
            return
        # It is told so when it asks for something: who is not done with sending would not read it.
        self.principal = None

    def _speak_for(self, group: str) -> Principal:
        """Return who is at the other end, who may speak for a group, or raise `Denied`."""
        if self.principal is None:
            raise Denied("login_required", self.why)
        self._server.identities.claim(self.principal, group)
        return self.principal

    def _hello(self, body: bytes) -> None:
        attach = protocol.decode_hello(self.number, body)
        who = self._speak_for(attach.group)
        # An administrator's process may be one of another's group.
        user = self._server.identities.owner(attach.group) or who.user
        # Of a process in another PID namespace, the number that it has in this one, if it has one.
        self.pid = self.process or attach.pid
        self.group = attach.group
        self._server.attach(self, replace(attach, user=user, teams=who.teams, pid=self.pid))

    def __str__(self) -> str:
        if self.group:
            return f"client {self.number} (uid {self.uid}, pid {self.pid}, {self.group})"
        return f"connection {self.number} (uid {self.uid}, pid {self.process})"
