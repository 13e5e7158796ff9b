# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's process: sockets, time and devices around the core.

What the core decides is written to the sockets first; logs, subscribers and readings of the devices
come after it, in the event loop's next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from . import events as ev
from . import protocol
from .accounts import ProtocolViolation
from .address import AddressError
from .control import named, peer_pid, peer_uid, user_name
from .core import Core
from .devices import Devices
from .estimates import Forecast
from .memory import host_budget, machine_memory
from .pool import Pool
from .requests import Requests
from .timeline import Glimpse, Ledger, SpanKind, Timeline, glimpse

log = logging.getLogger(__name__)

#: A connection that leaves so many bytes unread is dropped.
MAX_UNREAD = 4 << 20
HISTORY = 10_000
#: While others wait, a burst is over after so many seconds without work.
QUIET = 0.008
#: Bytes that a client asks for beyond its need.
HEADROOM = 64 << 20
#: A revoked client that has nothing in flight answers within so many seconds: the loop does not go to sleep meanwhile,
#: since waking it up again would take as long as all the rest of a hand-off.
ALERT = 0.0005
#: Seconds for which pages of the pool that nobody wants any more are kept: contention comes and goes.
KEEP = 10.0
#: Seconds between readings of the GPUs and of the host's memory that nobody asked for.
POLL = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the server is told beside the core's settings."""

    path: Path
    simulated: bool = False
    #: Bytes of host memory that swapped data may take; None: what the machine has.
    host_memory: int | None = None


_MOVES: dict[str, SpanKind] = {"evict": "out", "restore": "in"}

#: Reads one GPU.
Reading = Callable[[str], ev.Device | None]


class Connection(asyncio.Protocol):
    """One peer: a client, a control program, or one that has not said yet."""

    __slots__ = (
        "_hung_up",
        "_reader",
        "_server",
        "attached",
        "group",
        "number",
        "pid",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = protocol.FrameReader()
        self._hung_up = False
        self.number = 0
        self.group = ""
        self.pid = 0
        self.attached = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Number the connection, or refuse another user's."""
        self.transport = cast("asyncio.Transport", transport)
        self.number = self._server.add(self)
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid not in (0, os.getuid()):
            self.refuse(
                errno.EACCES,
                f"this scheduler serves {named(os.getuid())}, not {named(uid)}; "
                "set GPUSHARE_SOCKET to the path of your own",
            )

    def data_received(self, data: bytes) -> None:
        """Handle the frames that have come in whole."""
        if self._hung_up:
            return
        try:
            for frame in self._reader.feed(data):
                if self.attached:
                    event = protocol.decode(self.number, self.group, frame)
                    self._server.handle(event)
                elif frame.type == protocol.CONTROL:
                    self._server.answer(self, frame.body)
                elif frame.type == protocol.HELLO:
                    self._hello(frame.body)
                else:
                    raise protocol.ProtocolError(f"a frame of type {frame.type} before HELLO")
                if self.transport.is_closing():
                    return
        except protocol.VersionMismatch as error:
            self.refuse(
                errno.EPROTO,
                f"the interposer speaks version {error.version} of the protocol and the scheduler "
                f"version {protocol.VERSION}: install one release of jupyter-gpushare for both, "
                "then restart",
            )
        except (protocol.ProtocolError, ProtocolViolation) as error:
            log.warning("%s: %s; connection closed", self, error)
            self.hang_up()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the core that a client is gone."""
        if self._reader.pending and not self._hung_up:
            log.warning("%s: ended in the middle of a frame", self)
        self._server.remove(self)

    def write(self, data: bytes) -> None:
        """Send, unless the connection is ending; drop a peer that does not read."""
        if self._hung_up:
            return
        # Asked before, not after: one long reply is no fault of the peer's.
        if self.transport.get_write_buffer_size() > MAX_UNREAD:
            log.warning("%s: does not read; connection closed", self)
            self.hang_up()
            return
        self.transport.write(data)

    def write_with(self, data: bytes, descriptor: int) -> bool:
        """Send a message that a descriptor goes along with; False if something else has to go before it.

        asyncio's transports cannot do that. But they do send at once what a socket takes, so nothing is overtaken.
        """
        if self._hung_up or self.transport.get_write_buffer_size():
            return False
        with self.transport.get_extra_info("socket").dup() as copy:
            try:
                sent = socket.send_fds(copy, [data], [descriptor])
            except OSError:
                return False
        self.transport.write(data[sent:])
        return True

    def refuse(self, code: int, text: str) -> None:
        """Send REFUSED and end the connection."""
        log.warning("%s: refused: %s", self, text)
        self.transport.write(protocol.refused(code, text))
        self._hung_up = True
        self.transport.close()

    def hang_up(self) -> None:
        """End the connection without another word."""
        self._hung_up = True
        self.transport.abort()

    def _hello(self, body: bytes) -> None:
        attach = protocol.decode_hello(self.number, body)
        self.group, self.pid = attach.group, attach.pid
        user = user_name(peer_uid(self.transport.get_extra_info("socket")))
        self._server.attach(self, replace(attach, user=user))

    def __str__(self) -> str:
        if self.group:
            return f"client {self.number} (pid {self.pid}, {self.group})"
        return f"connection {self.number}"


class Server:
    """The scheduler's server.

    Parameters
    ----------
    core
        Decides.
    devices
        Reads the GPUs.
    options
        The rest.
    """

    def __init__(self, core: Core, devices: Devices, options: Options) -> None:
        self.core = core
        self.devices = devices
        self.options = options
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.started = time.monotonic()
        self._listener: asyncio.Server | None = None
        self._connections: dict[int, Connection] = {}
        self._last_number = 0
        self._clients: dict[int, Connection] = {}
        #: Connections that get every event.
        self.subscribers: set[Connection] = set()
        self._gpus: set[str] = set()
        self._names: dict[str, str] = {}
        #: Host memory that swapped data takes, by client and GPU.
        self._held: dict[tuple[int, str], int] = {}
        self._budget = -1
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.sequence = 0
        self._fresh: list[tuple[float, ev.Log]] = []
        self._glimpses: list[Glimpse] = []
        self.ledger = Ledger()
        self.timeline = Timeline(self.started)
        self.forecast = Forecast()
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poller: asyncio.TimerHandle | None = None
        self._alert_until = 0.0
        self._readings: set[asyncio.Task[None]] = set()
        self._requests = Requests(self)
        #: Host memory for swapped data; None where the system gives none: clients have their own then.
        self.pool: Pool | None = None
        self._target = 0
        #: Since when fewer pages are wanted than exist.
        self._surplus_since: float | None = None

    # --- Life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the devices and listen; the caller holds the lock.

        Raises
        ------
        AddressError
            If the socket cannot be made.
        """
        for device in self.devices.start():
            self._learn(device)
        try:
            self.pool = Pool(machine_memory())
        except OSError as error:
            log.warning("no pool of host memory: %s; every client has its own", error.strerror)
        self._poll()
        path = self.options.path
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            listener.close()
            raise AddressError(f"cannot make the socket {path}: {error.strerror}") from error
        finally:
            os.umask(before)
        self._listener = await self._loop.create_unix_server(
            lambda: Connection(self), sock=listener, backlog=128
        )

    async def stop(self) -> None:
        """Close every connection and remove the socket."""
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                self.options.path.unlink()
        for handle in (self._timer, self._poller):
            if handle is not None:
                handle.cancel()
        for task in self._readings:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.transport.close()
        # One round of the loop, in which the transports send what they have and close.
        await asyncio.sleep(0)
        self.devices.stop()
        if self.pool is not None:
            for process in self.pool.lent.values():
                self._forget(process.fileno())
            self.pool.close()
            self.pool = None

    # --- Connections --------------------------------------------------------------------------

    def add(self, connection: Connection) -> int:
        """Take in a connection and return its number."""
        self._last_number += 1
        self._connections[self._last_number] = connection
        return self._last_number

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection.number, None)
        self.subscribers.discard(connection)
        if self._clients.pop(connection.number, None) is not None:
            for key in [key for key in self._held if key[0] == connection.number]:
                del self._held[key]
            self.handle(ev.Detach(connection.number))

    def attach(self, connection: Connection, attach: ev.Attach) -> None:
        """Take in a client, or refuse it."""
        for usage in attach.usages:
            if not self._knows(usage.gpu):
                connection.refuse(errno.ENODEV, self._unknown(usage.gpu))
                return
        self._names[attach.group] = attach.name
        now = time.monotonic()
        decisions = self.core.handle(attach, now)
        connection.attached = True
        self._clients[connection.number] = connection
        for usage in attach.usages:
            self._held[connection.number, usage.gpu] = usage.host
        waiting = 0
        for decision in decisions:
            if isinstance(decision, ev.Contended) and decision.client == connection.number:
                waiting = decision.waiting
        self._welcome(connection, waiting, attach)
        self._execute(decisions, now)
        if attach.leased:
            # One that comes back to its group's lease is no news otherwise.
            self._glimpses.append(glimpse(self.core, attach.group, now))

    def _welcome(self, connection: Connection, waiting: int, attach: ev.Attach) -> None:
        pool = self.pool
        slot = None
        if pool is not None and attach.backend == "swap":
            pid = peer_pid(connection.transport.get_extra_info("socket"))
            slot = pool.lend(pid, again=attach.reattach) if pid else None
        if pool is not None and slot is not None:
            data = protocol.welcome(connection.number, waiting, QUIET, HEADROOM, slot)
            if connection.write_with(data, pool.descriptor):
                descriptor = pool.lent[slot].fileno()
                if descriptor is not None:
                    self._loop.add_reader(descriptor, self._reap)
                return
        connection.write(protocol.welcome(connection.number, waiting, QUIET, HEADROOM))

    def answer(self, connection: Connection, body: bytes) -> None:
        """Answer a control request."""
        connection.write(self._requests.answer(connection, body))

    # --- Events and decisions -----------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Give an event to the core and do what it decides.

        Raises
        ------
        ProtocolViolation
            If the event is one that its client may not cause.
        """
        match event:
            case ev.Grow() if not self._knows(event.least.gpu):
                self._clients[event.client].refuse(errno.ENODEV, self._unknown(event.least.gpu))
                return
            case ev.UsageChanged() | ev.Evicted() | ev.Restored():
                self._held[event.client, event.usage.gpu] = event.usage.host
            case ev.Rename() if event.group in self._names:
                self._names[event.group] = event.name
        now = time.monotonic()
        self._execute(self.core.handle(event, now), now)

    def _execute(self, decisions: list[ev.Decision], now: float) -> None:
        frames: dict[int, bytes] = {}
        granted = []
        at_once = []
        changed: dict[str, None] = {}
        for decision in decisions:
            match decision:
                case ev.Log():
                    if not self._fresh:
                        self._loop.call_soon(self.publish)
                    self._fresh.append((now, decision))
                    changed[decision.group] = None
                case ev.Stock():
                    self._target = decision.bytes
                    self._size_pool()
                case ev.ReadDevice() if decision.after <= 0:
                    at_once.append(decision.gpu)
                case ev.ReadDevice():
                    self._loop.call_later(
                        decision.after, self._read, self.devices.read, decision.gpu
                    )
                case _:
                    frame = protocol.encode(decision, now)
                    if frame is not None:
                        # One write for each client, in the order of its decisions.
                        frames[decision.client] = frames.get(decision.client, b"") + frame
                        if isinstance(decision, ev.Grant):
                            granted.append(decision.client)
                        elif isinstance(decision, ev.Revoke):
                            self._be_alert(now + ALERT)
        for client in granted:
            if client in frames:
                self._send(client, frames.pop(client))
        for client, data in frames.items():
            self._send(client, data)
        for client in granted:
            # One that joins its group's lease is no news otherwise.
            if (known := self.core.clients.get(client)) is not None:
                changed[known.group.id] = None
        self._glimpses += [glimpse(self.core, group, now) for group in changed]
        # A grant may wait for the reading: no round of the loop in between.
        for gpu in at_once:
            self._read(self.devices.read, gpu)
        self._arm()

    def _send(self, client: int, data: bytes) -> None:
        connection = self._clients.get(client)
        if connection is not None:
            connection.write(data)

    def _be_alert(self, until: float) -> None:
        if self._alert_until == 0.0:
            self._loop.call_soon(self._stay_alert)
        self._alert_until = until

    def _stay_alert(self) -> None:
        if time.monotonic() < self._alert_until:
            self._loop.call_soon(self._stay_alert)
        else:
            self._alert_until = 0.0

    def _arm(self) -> None:
        deadline = self.core.deadline()
        if deadline == self._deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            # asyncio's clock is time.monotonic, the core's too.
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._deadline = None
        self.handle(ev.Tick())

    # --- The pool -----------------------------------------------------------------------------

    def _forget(self, descriptor: int | None) -> None:
        if descriptor is not None:
            self._loop.remove_reader(descriptor)

    def _reap(self) -> None:
        """Clean up after processes that have ended."""
        if self.pool is None:
            return
        for process in list(self.pool.lent.values()):
            if process.has_ended():
                self._forget(process.fileno())
        self.pool.reap()
        self._size_pool()

    def _size_pool(self) -> None:
        """Have as many pages ready as are wanted, and give back what has been too many for a while."""
        pool = self.pool
        if pool is None:
            return
        limit = max(0, self._budget - self._held_outside())
        target = min(self._target, limit)
        now = time.monotonic()
        most = limit
        if not self._clients:
            target = most = 0
        elif pool.allocated() <= target:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= KEEP:
            most = target
        pool.order(limit=limit, target=target, most=most)

    def pool_status(self) -> dict[str, int] | None:
        """Return the pool as docs/control.md describes it."""
        return None if self.pool is None else asdict(self.pool.figures())

    def _held_outside(self) -> int:
        """Bytes of swapped data that are not in the pool: of an earlier scheduler's, or of clients without a slot."""
        held = sum(self._held.values())
        return held if self.pool is None else max(0, held - self.pool.figures().in_use)

    # --- Devices and memory -------------------------------------------------------------------

    def _knows(self, gpu: str) -> bool:
        if gpu not in self._gpus:
            for device in self.devices.discover():
                self._learn(device)
        return gpu in self._gpus

    def _unknown(self, gpu: str) -> str:
        if not self._gpus:
            return (
                f"the scheduler sees no GPU (NVML: {self.devices.state}), so it cannot share {gpu}"
            )
        return f"the scheduler sees {', '.join(sorted(self._gpus))} and cannot share {gpu}"

    def _learn(self, device: ev.Device) -> None:
        self._gpus.add(device.gpu)
        self.handle(device)

    def _read(self, how: Reading, gpu: str) -> None:
        if self.devices.slow:
            task = self._loop.create_task(self._read_in_thread(how, gpu))
            self._readings.add(task)
            task.add_done_callback(self._readings.discard)
        elif (device := how(gpu)) is not None:
            self._learn(device)

    async def _read_in_thread(self, how: Reading, gpu: str) -> None:
        device = await asyncio.to_thread(how, gpu)
        if device is not None:
            self._learn(device)

    def _poll(self) -> None:
        taken = 0 if self.pool is None else self.pool.allocated()
        budget = host_budget(self.options.host_memory, taken + self._held_outside())
        if budget != self._budget:
            self._budget = budget
            self.handle(ev.HostMemory(budget))
        self._reap()
        for gpu in self._gpus:
            self._read(self.devices.poll, gpu)
            self.timeline.utilization(time.monotonic(), gpu, self.devices.utilization.get(gpu))
        self._poller = self._loop.call_later(POLL, self._poll)

    # --- History ------------------------------------------------------------------------------

    def publish(self) -> None:
        """Number what has happened, and send it to the subscribers."""
        fresh, self._fresh = self._fresh, []
        glimpses, self._glimpses = self._glimpses, []
        for seen in glimpses:
            honest = self.ledger.see(seen)
            self.timeline.see(honest)
            self.forecast.see(honest)
        if self.forecast.due:
            self.forecast.estimates(self.core, time.monotonic())
        frames = []
        for at, entry in fresh:
            self.sequence += 1
            event = {
                "sequence": self.sequence,
                "time": at,
                "kind": entry.kind,
                "group": entry.group,
                "name": self._names.get(entry.group, entry.group),
                **entry.fields,
            }
            if entry.kind == "leave":
                self._names.pop(entry.group, None)
            elif kind := _MOVES.get(entry.kind):
                self.timeline.move(at, entry.group, event["name"], kind, entry.fields)
            self.history.append(event)
            log.debug("%s %s %s", entry.kind, entry.group, entry.fields)
            if self.subscribers:
                frames.append(protocol.encode_json(protocol.EVENT, event))
        if frames:
            data = b"".join(frames)
            for subscriber in list(self.subscribers):
                subscriber.write(data)
