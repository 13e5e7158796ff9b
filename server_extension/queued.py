# SPDX-License-Identifier: BSD-3-Clause
"""Counts the cells that were sent to kernels and have not begun.

A kernel does not report how many requests it has received. So each request is noted where this server sends it: on the
connections that websockets make (``connect_shell`` of the kernel's manager), and in the clients of programs in this
server that run cells (``client``). A request that began is known from the kernel's iopub channel (``KernelTap``).
Kernels also report the begin of requests that they abort after an error.

Packages that keep cells in a queue of their own and send them one by one can be asked with a `Source`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from logging import Logger
from typing import Any

from jupyter_client.session import DELIM, Session
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

#: Returns how many cells a package has queued for the kernel with an id, besides those that it sent.
Source = Callable[[str], int]

EXECUTE = "execute_request"
#: The methods of a kernel's manager that make connections to the shell channel.
METHODS = ("connect_shell", "client", "blocking_client")
#: Seconds for which a request may wait although its shell works on nothing: then the report of its begin was lost, or
#: the shell is gone.
STALE = 10.0

#: The sender and the shell of requests: those of one lane begin in the order in which they were sent.
Lane = tuple[int, str]


class QueuedCells:
    """The requests to run a cell that one kernel has received and not begun.

    Parameters
    ----------
    changed
        Called when the number may have changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        #: When each request was sent, by message id and in this order.
        self._lanes: dict[Lane, dict[str, float]] = {}
        self._lane_of: dict[str, Lane] = {}
        #: The request that began last in each shell and has not ended.
        self._working: dict[str, str] = {}

    @property
    def count(self) -> int:
        """The number of these requests."""
        return len(self._lane_of)

    def sent(self, sender: int, message: str, shell: str, at: float) -> None:
        """Note that a request was sent."""
        lane = sender, shell
        self._lanes.setdefault(lane, {})[message] = at
        self._lane_of[message] = lane
        self._changed()

    def status(self, state: str, message: str) -> None:
        """Take in a status message of the kernel about a request.

        The requests before it in its lane have begun, too: their reports were lost.
        """
        if state == "busy" and (lane := self._lane_of.get(message)) is not None:
            self._working[lane[1]] = message
            for earlier in list(self._lanes[lane]):
                self._drop(lane, earlier)
                if earlier == message:
                    break
        elif state == "idle":
            self._working = {s: m for s, m in self._working.items() if m != message}
        # A package that runs cells one by one takes the next one from its queue.
        self._changed()

    def clear(self) -> None:
        """Note that the kernel has no requests any more, because it ended or was restarted."""
        self._lanes.clear()
        self._lane_of.clear()
        self._working.clear()
        self._changed()

    def drop_stale(self, now: float, works_in: Callable[[str], bool]) -> None:
        """Drop requests that should have begun, because their shell works on nothing (``works_in``)."""
        for lane, requests in list(self._lanes.items()):
            if works_in(lane[1]) or lane[1] in self._working:
                # The next one waits for what the shell works on.
                requests.update(dict.fromkeys(requests, now))
            for message, at in list(requests.items()):
                if now - at >= STALE:
                    self._drop(lane, message)
                    self._changed()

    def _drop(self, lane: Lane, message: str) -> None:
        del self._lanes[lane][message], self._lane_of[message]
        if not self._lanes[lane]:
            del self._lanes[lane]


class ShellTap:
    """Notes the requests that this server sends to one kernel.

    Parameters
    ----------
    kernel
        The kernel's manager. Until ``remove``, its methods that make connections are replaced.
    queued
        Notes the requests.
    loop
        The server's event loop. Clients may be used in other threads.
    log
        For invalid messages.
    """

    def __init__(
        self,
        kernel: ServerKernelManager,
        queued: QueuedCells,
        loop: asyncio.AbstractEventLoop,
        log: Logger,
    ) -> None:
        self._kernel: Any = kernel
        self.queued = queued
        self._loop = loop
        self._log = log
        self._senders = itertools.count()
        self._unpack = Session(config=kernel.session.config).unpack
        self._removed = False
        #: The replaced methods, by name, and what replaces them.
        self._replaced = {name: getattr(self._kernel, name) for name in METHODS}
        self._own = {name: getattr(self, name) for name in METHODS}
        vars(self._kernel).update(self._own)

    def remove(self) -> None:
        """Stop counting, and restore the kernel's methods."""
        self._removed = True
        methods = vars(self._kernel)
        for name, method in self._own.items():
            # Others may have replaced a method since; then this one only passes calls on.
            if methods.get(name) is method:
                del methods[name]

    def connect_shell(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to the shell channel, as websockets do."""
        stream = self._replaced["connect_shell"](*args, **kwargs)
        sender = next(self._senders)

        def on_send(parts: list[Any], status: Any) -> None:
            self._note_parts(sender, parts)

        if hasattr(stream, "on_send"):
            stream.on_send(on_send)
        return stream

    def client(self, **kwargs: Any) -> Any:
        """Make a client, as programs in this server do."""
        return self._watch(self._replaced["client"](**kwargs))

    def blocking_client(self) -> Any:
        """Make a client for another thread."""
        return self._watch(self._replaced["blocking_client"]())

    def _watch(self, client: Any) -> Any:
        """Note what a client sends."""
        session, sender = client.session, next(self._senders)
        send, send_raw = session.send, session.send_raw

        def note_and_send(stream: Any, msg_or_type: Any, *args: Any, **kwargs: Any) -> Any:
            # Before it is sent: another thread may send, and the kernel begin at once.
            if isinstance(msg_or_type, dict):
                self._note(sender, msg_or_type.get("header"))
            return send(stream, msg_or_type, *args, **kwargs)

        def note_and_send_raw(stream: Any, msg_list: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_parts(sender, [DELIM, b"", *msg_list])
            return send_raw(stream, msg_list, *args, **kwargs)

        session.send, session.send_raw = note_and_send, note_and_send_raw
        return client

    def _note_parts(self, sender: int, parts: list[Any]) -> None:
        """Note a message as it is sent. Frames: delimiter, signature, header."""
        try:
            header = bytes(parts[parts.index(DELIM) + 2])
            # Most messages are not unpacked.
            if EXECUTE.encode() in header:
                self._note(sender, self._unpack(header))
        except (ValueError, IndexError, TypeError) as error:
            self._log.debug("gpushare: a message that is not a Jupyter message: %s", error)

    def _note(self, sender: int, header: Any) -> None:
        if self._removed or not isinstance(header, dict) or header.get("msg_type") != EXECUTE:
            return
        message, shell = str(header.get("msg_id")), str(header.get("subshell_id") or "")
        sent = sender, message, shell, time.monotonic()
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self.queued.sent(*sent)
        else:
            self._loop.call_soon_threadsafe(self.queued.sent, *sent)
