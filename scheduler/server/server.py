# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's process: sockets, time and devices around the core.

Decisions of the core are written to the sockets first. Logs, subscribers and readings of the devices follow in the next
round of the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection

from ..core import messages as ev
from ..core.core import Core
from ..core.placement import Placement
from ..gpu.checkpoint_runner import Hibernations
from ..gpu.devices import Devices
from ..gpu.targets import Peer
from ..memory.pool_manager import PoolManager
from ..node.hub_login import Hub
from ..node.identity import Identities
from ..observability.rehearsal import Rehearsal
from ..protocol import wire as protocol
from ..views.redaction import View
from .administration import Administration
from .connection import Connection
from .handover import Handover, files_of
from .history import EventHistory
from .listening import Listening
from .options import Options
from .requests import Requests
from .succession import Succession
from .throttle import Throttle

log = logging.getLogger(__name__)

#: Seconds without work after which a burst is over while other groups wait.
QUIET = 0.008
#: Bytes that a client requests beyond its need.
HEADROOM = 64 << 20
#: Seconds in which a revoked client with nothing in flight answers. The loop does not sleep in the meantime, because
#: waking it up would take as long as the rest of a hand-off.
SPIN = 0.0005
#: Seconds between two rehearsals at least.
REHEARSED = 0.02
#: Rounds of the loop in which connections end: one to make a transport, one to greet its protocol, one to close it.
ROUNDS = 3
#: Seconds between readings of the GPUs and of the host memory without a request; and before the first ones, because the
#: previous scheduler's clients attach first.
POLL, FIRST_POLL = 1.0, 0.1
#: Seconds after the start in which events are published late, and how late.
RETURN, PUBLISHED = 1.0, 0.02

#: Reads one GPU.
Reading = Callable[[str], ev.Device | None]


class Server:
    """The scheduler's server.

    Parameters
    ----------
    core
        The core.
    devices
        Reads the GPUs.
    options
        The other options.
    rehearsal
        Practises hand-offs; default: one is made.
    """

    def __init__(
        self, core: Core, devices: Devices, options: Options, rehearsal: Rehearsal | None = None
    ) -> None:
        self.core = core
        self.devices = devices
        self.options = options
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.started = time.monotonic()
        self._listening: Listening | None = None
        self._connections: dict[int, Connection] = {}
        self._last_number = 0
        self._clients: dict[int, Connection] = {}
        self._gpus: set[str] = set()
        self.identities = Identities(options.identity, core.groups)
        url = options.identity.hub_api_url
        #: Returns the user of a token; None: there is no Hub.
        self.hub = Hub(url) if url else None
        #: Refusals that were logged: a process's number, when it was started, and the reason.
        self.refused: set[tuple[int, str | None, str]] = set()
        self.throttle = Throttle(options.limits)
        self.pools = PoolManager(
            options.host_memory,
            apart=options.identity.node,
            quota=self._host_quota,
            prepared_only=options.prepared_only,
            disk=options.disk,
            disk_changed=self._update_disk,
        )
        self._disk = ev.Disk(0)
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poller: asyncio.TimerHandle | None = None
        #: Until then, the loop does not sleep and publishes nothing.
        self._spinning, self._spin_end = False, 0.0
        self._publishing = False
        #: Decisions of attachments, which are carried out together in the next round of the loop; None: there are none.
        self._deferred: list[ev.Decision] | None = None
        #: Whether this scheduler has ended for its clients.
        self._left = False
        self._rehearsal, self._rehearse_at = rehearsal or Rehearsal(), 0.0
        self._readings: set[asyncio.Task[None]] = set()
        self.succession = Succession(core, devices, options, self.handle, self._clients)
        self.hibernations = Hibernations(
            options.driver, devices, self.handle, self._peer, options.hibernator
        )
        self.administration = Administration(self, options.identity.state_dir, options.prices)
        self.history = EventHistory(
            core, self.identities, self.started, self.administration.observe, self.view_of
        )
        self._requests = Requests(self)
        self.placement = Placement(core)
        self.handover = Handover(
            files_of(options), core, devices, self.history, self.placement, self.handle
        )

    # --- Start and end ------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the devices and listen; the caller holds the lock.

        Raises
        ------
        AddressError
            The socket cannot be made.
        """
        for device in self.devices.start():
            self._add_device(device)
        self.pools.start()
        self.administration.start()
        self.handover.begin()
        self.succession.begin(self._gpus)
        self._measure()
        self._poller = self._loop.call_later(FIRST_POLL, self._poll)
        self._listening = Listening(self.options, functools.partial(Connection, self))
        await self._listening.start()
        self.succession.listener = self._listening.socket
        if self.core.rules.hibernate_after is not None:
            self._loop.call_later(FIRST_POLL, self.hibernations.probe)

    async def stop(self, release: Callable[[], None], *, broken: bool = False) -> None:
        """Leave the clients to the next scheduler, which serves at once if it stands by, and end.

        Parameters
        ----------
        release
            Releases the locks, if another scheduler stands by.
        broken
            Whether the core's state may be wrong, so that no further event may reach it.
        """
        tickets = self.identities.tickets
        while not broken and (not self.hibernations.closed or tickets.unsaved):
            # Clients are served meanwhile.
            await self.hibernations.close()
            await tickets.save()
        if not broken:
            await self.handover.prepare()
        has_heir = self._leave(broken)
        await tickets.save()
        if has_heir:
            release()
        # Transports, also new ones, need these rounds to send their data and close.
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        if has_heir:
            # What is left to do here must not delay the next scheduler.
            os.nice(19)
        self.administration.close()
        await self.hibernations.close()
        self.devices.stop()
        self.pools.stop()
        self.identities.close()
        if self.hub is not None:
            self.hub.close()

    def _leave(self, broken: bool) -> bool:
        """End for all clients, and decide nothing from here on; return whether another scheduler stands by."""
        if broken:
            self._deferred = None  # the core must get no event
        else:
            self._carry_out_deferred()
        self._left = True
        self.succession.end()
        if broken:
            self.handover.abandon()
        else:
            self.handover.write(last=True)
        for handle in (self._timer, self._poller):
            if handle is not None:
                handle.cancel()
        for task in self._readings:
            task.cancel()
        self.administration.leave_records()
        heirs = self.succession.heirs
        if self._listening is not None:
            self._listening.close(for_good=not heirs)
        # Those that stand by come first, so that one of them begins while the clients' connections end.
        for connection in (*heirs, *self._connections.values()):
            connection.transport.close()
        return bool(heirs)

    # --- Connections --------------------------------------------------------------------------

    def add(self, connection: Connection) -> int:
        """Add a connection, and return its number."""
        self._last_number += 1
        self._connections[self._last_number] = connection
        if self._left:
            # It was accepted before this scheduler left.
            connection.transport.close()
        return self._last_number

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection.number, None)
        self.history.subscribers.discard(connection)
        self._requests.forget(connection)
        self.succession.forget(connection)
        if self._left:
            return
        if self._clients.pop(connection.number, None) is not None:
            self.pools.forget(connection.number)
            group = self.core.clients[connection.number].group
            if len(group.clients) == 1:
                self.placement.leaves(group, time.monotonic())
                self.administration.leave(group)
            self.handle(ev.Detach(connection.number))
            self.succession.write_soon()

    def attach(self, connection: Connection, attach: ev.Attach) -> None:
        """Admit a client, or refuse it."""
        for usage in attach.usages:
            if not self._has_gpu(usage.gpu):
                connection.refuse(errno.ENODEV, self._unknown(usage.gpu))
                return
        self.history.name(attach.group, attach.name)
        now = time.monotonic()
        decisions = self.core.handle(attach, now)
        self.history.join(attach.group)
        self.placement.attached(attach.group, attach.pid)
        connection.attached = True
        self._clients[connection.number] = connection
        self.succession.add(connection, attach)
        self.pools.join(connection.number, attach.user)
        for usage in attach.usages:
            self.pools.update_usage(connection.number, usage)
        waiting = 0
        for decision in decisions:
            if isinstance(decision, ev.Contended) and decision.client == connection.number:
                waiting = decision.waiting
        self._welcome(connection, waiting, attach)
        self._defer(decisions)
        if attach.leased:
            # A client that returns to its group's lease is not worth an event.
            self.history.look(attach.group, now)

    def _host_quota(self, user: str) -> int:
        """Return the bytes of host memory that a user's data may take; 0: no limit."""
        group = next((g for g in self.core.groups.values() if g.user == user), None)
        claims = () if group is None else self.core.times.of(group)[:-1]
        return min((c.entitlement.host for c in claims if c.entitlement.host), default=0)

    def place(self, connection: Connection, place: protocol.Place) -> None:
        """Send a client the order in which to use its GPUs."""
        # MIG slices may have been made since; one check finds all.
        all(self._has_gpu(gpu) for gpu in place.gpus)
        user = "" if connection.principal is None else connection.principal.user
        order, known = self.placement.place(
            place.group,
            user,
            place.gpus,
            pid=connection.process,
            now=time.monotonic(),
            keep=place.keep,
        )
        connection.write(protocol.placed(order, known=known))

    def _welcome(self, connection: Connection, waiting: int, attach: ev.Attach) -> None:
        lent = None
        if attach.backend == "swap":
            lent = self.pools.lend(connection.number, connection.process, again=attach.reattach)
        if lent is not None:
            descriptor, slot = lent
            data = protocol.welcome(connection.number, waiting, QUIET, HEADROOM, slot)
            if connection.write_with(data, descriptor):
                self.pools.watch(connection.number, slot)
                return
        connection.write(protocol.welcome(connection.number, waiting, QUIET, HEADROOM))

    def answer(self, connection: Connection, body: bytes) -> None:
        """Answer a control request."""
        reply = self._requests.answer(connection, body)
        if isinstance(reply, bytes):
            connection.write(reply)
        else:
            connection.do(reply)

    def close_ticket(self, user: str, groups: Collection[str]) -> None:
        """End the connections of control programs with tickets that were revoked.

        An attached client stays, since it uses the GPU anyway.
        """
        for connection in list(self._connections.values()):
            who = connection.principal
            if who is None or who.user != user or who.kernel not in groups:
                continue
            if not connection.attached:
                connection.disconnect()

    def entitle(self, event: ev.Entitle) -> None:
        """Set an entitlement, as the request ``entitle`` does.

        Raises
        ------
        ValueError
            It is not valid.
        """
        self._requests.entitle(event)

    # --- Events and decisions -----------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Pass an event to the core and carry out its decisions.

        Raises
        ------
        ProtocolViolation
            The client must not send this event.
        """
        match event:
            case ev.Grow() if not self._has_gpu(event.least.gpu):
                self._clients[event.client].refuse(errno.ENODEV, self._unknown(event.least.gpu))
                return
            case ev.UsageChanged() | ev.Evicted() | ev.Restored():
                self.pools.update_usage(event.client, event.usage)
            case ev.Rename():
                self.history.rename(event.group, event.name)
        if self._left:
            return
        now = time.monotonic()
        self._execute(self.core.handle(event, now), now)

    def _defer(self, decisions: list[ev.Decision]) -> None:
        """Carry out decisions in the next round of the loop, or before the next ones.

        At a take-over, all clients attach in one round. One reading of the GPUs is enough for all of them.
        """
        if self._deferred is None:
            self._deferred = []
            self._loop.call_soon(self._carry_out_deferred)
        self._deferred += decisions

    def _carry_out_deferred(self) -> None:
        if self._deferred is not None:
            self._execute([], time.monotonic())
            self._update_disk()

    def _execute(self, decisions: list[ev.Decision], now: float) -> None:
        """Carry out decisions, and pass the core each reading that it requests, until it requests none."""
        if self._deferred is not None:
            decisions, self._deferred = self._deferred + decisions, None
        asked = deque(self._carry_out(decisions, now))
        # A grant may wait for a reading, so there is no round of the loop in between.
        while asked:
            device = self._read_now(self.devices.read, asked.popleft())
            if device is not None:
                now = time.monotonic()
                asked += self._carry_out(self.core.handle(device, now), now)
        self._arm()

    def _carry_out(self, decisions: list[ev.Decision], now: float) -> list[str]:
        """Carry out decisions; return the GPUs to read at once."""
        frames: dict[int, bytes] = {}
        granted = []
        revoked = False
        at_once = []
        changed: dict[str, None] = {}
        for decision in decisions:
            match decision:
                case ev.Log():
                    self._note_log(decision, now)
                    changed[decision.group] = None
                case ev.PreparePool():
                    self.pools.prepare(decision.bytes)
                case ev.Spill() | ev.Fetch():
                    self.pools.wish(decision)
                case ev.ReadDevice() if decision.after <= 0:
                    at_once.append(decision.gpu)
                case ev.Park() if not self.hibernations.may_park(decision.client):
                    pass
                case ev.Hibernate():
                    self.hibernations.hibernate(decision)
                case ev.Wakeup():
                    self.hibernations.wake(decision)
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
                            revoked = True
        self._send_all(frames, first=granted)
        for client in granted:
            # A client that joins its group's lease is not worth an event.
            if (known := self.core.clients.get(client)) is not None:
                changed[known.group.id] = None
        if revoked:
            self._spin_until(now + SPIN)
        elif granted:
            self._spin_end = min(self._spin_end, now)
        for group in changed:
            self.history.look(group, now)
        self._publish_soon()
        return at_once

    def _note_log(self, line: ev.Log, now: float) -> None:
        """Keep a line of the history for the status, and pass it to the parts of the server that depend on it."""
        if line.kind == "wake" and "gpu" in line.fields:
            self.placement.moved(line.group, line.fields["gpu_before"], line.fields["gpu"])
        if line.kind == "adjust":
            self.succession.write_soon()
        self.history.note(line, now)

    def _peer(self, client: int) -> Peer | None:
        """Return the process to be checkpointed or restored; None: the client has left."""
        connection = self._clients.get(client)
        return None if connection is None else connection.peer

    def _send_all(self, frames: dict[int, bytes], first: list[int]) -> None:
        """Send each client its frames; those in ``first`` come first, because they can start to work."""
        for client in first:
            if client in frames:
                self._send(client, frames.pop(client))
        for client, data in frames.items():
            self._send(client, data)

    def _send(self, client: int, data: bytes) -> None:
        connection = self._clients.get(client)
        if connection is not None:
            connection.write(data)

    def _spin_until(self, until: float) -> None:
        if not self._spinning:
            self._spinning = True
            self._loop.call_soon(self._spin)
        self._spin_end = until

    def _spin(self) -> None:
        if time.monotonic() < self._spin_end:
            self._loop.call_soon(self._spin)
        else:
            self._spinning = False
            self._publish_soon()

    def _publish_soon(self) -> None:
        """Publish in the next round of the loop, or after a current hand-off; later while clients return."""
        if self.history.is_due and not self._spinning and not self._publishing:
            self._publishing = True
            if time.monotonic() < self.started + RETURN:
                self._loop.call_later(PUBLISHED, self.publish)
            else:
                self._loop.call_soon(self.publish)

    def _arm(self) -> None:
        deadline = self.core.deadline()
        if deadline == self._deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            # The clock of asyncio is time.monotonic, as is the core's.
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._deadline = None
        now = time.monotonic()
        if self.core.queue and now >= self._rehearse_at:
            # A quantum may be over. Its holder computes meanwhile.
            self._rehearsal.run()
            self._rehearse_at = now + REHEARSED
        self.handle(ev.Tick())

    # --- Devices and memory -------------------------------------------------------------------

    def _has_gpu(self, gpu: str) -> bool:
        if gpu not in self._gpus:
            for device in self.devices.discover():
                self._add_device(device)
        return gpu in self._gpus

    def pids(self) -> dict[int, int]:
        """Return the process of each client by its number on this system; 0 if it is not visible from here."""
        return {number: connection.process for number, connection in self._clients.items()}

    def connected(self) -> tuple[int, int]:
        """Return the numbers of clients and of all connections."""
        return len(self._clients), len(self._connections)

    def _unknown(self, gpu: str) -> str:
        if not self._gpus:
            return f"the scheduler found no GPUs (NVML: {self.devices.state}), so it cannot share {gpu}"
        return f"the scheduler found only {', '.join(sorted(self._gpus))}, so it cannot share {gpu}"

    def _add_device(self, device: ev.Device) -> None:
        self._gpus.add(device.gpu)
        self.handle(device)

    def _read(self, how: Reading, gpu: str) -> None:
        if (device := self._read_now(how, gpu)) is not None:
            self._add_device(device)

    def _read_now(self, how: Reading, gpu: str) -> ev.Device | None:
        """Read a GPU. If that is slow, a thread reads it and passes the result to the core, and None is returned."""
        if self.devices.slow or (self.devices.slow_to_poll and how == self.devices.poll):
            task = self._loop.create_task(self._read_in_thread(how, gpu))
            self._readings.add(task)
            task.add_done_callback(self._readings.discard)
            return None
        return how(gpu)

    async def _read_in_thread(self, how: Reading, gpu: str) -> None:
        device = await asyncio.to_thread(how, gpu)
        if device is not None:
            self._add_device(device)

    def _measure(self) -> None:
        """Measure the host memory for swapped data."""
        if self.pools.measure():
            self.handle(ev.HostMemory(self.pools.budget, self.pools.most, self.pools.shared))

    def _poll(self) -> None:
        self._measure()
        self.pools.reap()
        self._update_disk()
        self.throttle.sweep()
        self.identities.sweep()
        for gpu in self._gpus:
            self._read(self.devices.poll, gpu)
            self.history.timeline.utilization(
                time.monotonic(), gpu, self.devices.utilization.get(gpu)
            )
        self.succession.write()
        self.administration.poll(POLL)
        self.handover.poll()
        self._poller = self._loop.call_later(POLL, self._poll)

    def _update_disk(self) -> None:
        """Pass the core the state of the disk if it has changed."""
        now = self.pools.on_disk()
        if now != self._disk:
            self._disk = now
            self.handle(now)

    # --- History ------------------------------------------------------------------------------

    def publish(self) -> None:
        """Number what has happened, and send it to the subscribers."""
        self._publishing = False
        self.history.publish()

    def view_of(self, connection: Connection) -> View | None:
        """Return the view of a connection's user; None: the user sees everything."""
        who = connection.principal
        assert who is not None, "a connection without an identity makes no requests"
        return self.identities.view(who, self.core.times.teams_of(who.user))
