# SPDX-License-Identifier: BSD-3-Clause
"""A node with the scheduler's core. Its clients send what real interposers send, and obey its decisions.

Not simulated: sockets (events and decisions arrive at once), reading NVML (it answers at once), and page-locking (the
pool is always ready).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

from ..core import messages as ev
from ..core.core import Core
from ..core.rules import Rules
from ..policies import REGISTRY
from .calibration import Calibration
from .host_store import HostStore
from .machine import Gpu, Machine, Process
from .node_client import HELD, OPEN, SHUT, Client
from .outcome import Outcome, Stalled
from .tiers import PLAIN, Tiers
from .trace import Kernel, Step


class Node(Machine):
    """Some GPUs under one core.

    Parameters
    ----------
    costs, memory, gpus, starving
        See ``Machine``.
    policy
        The policy's name.
    host_memory
        Bytes that swapped data may take.
    meter
        Seconds between the meters' readings of one client.
    prefetch
        Whether kernels get ready before they use the GPU.
    tiers
        What memory contains, and the node's disk.
    """

    #: Seconds without a cell or a hint after which the browser reports the next one, if the memory is on the GPU.
    pause = 30.0

    def __init__(
        self,
        costs: Calibration,
        memory: int,
        gpus: int,
        starving: float,
        policy: str,
        host_memory: int,
        meter: float,
        prefetch: bool = True,
        tiers: Tiers = PLAIN,
    ) -> None:
        super().__init__(costs, memory, gpus, starving)
        self.core = Core(REGISTRY, Rules(policy=policy, prefetch=prefetch))
        self.meter = meter
        self._store = HostStore(tiers, costs, host_memory, self.outcome)
        self._by_number: dict[int, Client] = {}
        self._by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        self._pending: deque[tuple[ev.Event, ...]] = deque()
        self._feeding = False
        #: When to check whether a tick is due.
        self._armed = math.inf
        self._tick_at, self._ticks = -1.0, 0
        self._decisions: dict[type[Any], Callable[[Any], None]] = {
            ev.Grant: self._on_order,
            ev.Revoke: self._on_revoke,
            ev.Evict: self._on_order,
            ev.Grown: self._on_grown,
            ev.Contended: self._on_contended,
            ev.Pace: self._on_pace,
            ev.Room: self._on_room,
            ev.ReadDevice: self._on_read,
        }

    def run(self, arrivals: list[tuple[Kernel, int]]) -> Outcome:
        """Start kernels, each on the GPU with that index, and run until all have left."""
        self._feed(ev.HostMemory(self._store.budget))
        for gpu in self.gpus:
            self._feed(self._reading(gpu))
        outcome = super().run(arrivals)
        if self.alive:
            waiting = [c.id for c in self._by_number.values() if c.wants or c.grows]
            raise Stalled(f"nothing happens any more, and {', '.join(waiting)} still wait")
        return outcome

    # --- The core ---------------------------------------------------------------------------------

    def _feed(self, *events: ev.Event) -> None:
        """Pass the core events of one moment, carry out its decisions, and pass it the events that follow."""
        pending = self._pending
        if self._feeding:
            pending.append(events)
            return
        self._feeding = True
        handle_all, now, decisions, count = self.core.handle_all, self.now, self._decisions, 0
        while True:
            count += len(events)
            for decision in handle_all(events, now):
                act = decisions.get(type(decision))
                if act is not None:
                    act(decision)
            if not pending:
                break
            events = pending.popleft()
            if count > 100_000:
                raise Stalled(f"the core and its clients talk without end at {now} s")
        self.outcome.events += count
        self._feeding = False
        self._arm()

    def _arm(self) -> None:
        """Schedule the next tick."""
        deadline = self.core.deadline()
        if deadline is not None and deadline < self._armed:
            # Time must pass, even if the tick is due already.
            self._armed = max(deadline, self.now + 1e-6)
            self.at(self._armed, self._tick, self._armed)

    def _tick(self, armed: float) -> None:
        if armed != self._armed:
            return
        self._armed = math.inf
        deadline = self.core.deadline()
        if deadline is None or deadline > self.now:
            self._arm()
            return
        self._ticks = self._ticks + 1 if self.now < self._tick_at + 1e-4 else 0
        self._tick_at = self.now
        if self._ticks > 10_000:
            raise Stalled(f"the core wants to be asked again and again at {self.now} s")
        self._feed(ev.Tick())

    def _reading(self, gpu: Gpu) -> ev.Device:
        return ev.Device(gpu.uuid, gpu.total, gpu.used, "simulated", gpu.index)

    def _on_read(self, decision: ev.ReadDevice) -> None:
        gpu = self._by_uuid[decision.gpu]
        if decision.after > 0:
            self.at(self.now + decision.after, self._read, gpu)
        else:
            self._feed(self._reading(gpu))

    def _read(self, gpu: Gpu) -> None:
        self._feed(self._reading(gpu))

    # --- Arrivals and exits -----------------------------------------------------------------------

    def process(self, number: int, spec: Kernel, gpu: Gpu) -> Client:
        """Return the object for a kernel."""
        client = Client(number, spec, gpu)
        client.quiet_gap = self.costs.quiet
        self._store.add(client)
        self._by_number[number] = client
        return client

    def _arrive(self, process: Process) -> None:
        assert isinstance(process, Client)
        spec = process.spec
        self._feed(
            ev.Attach(process.number, process.number, spec.name, spec.name, "swap", user=spec.user)
        )
        if (spec.priority, spec.weight, spec.request, spec.limit) != ("auto", 1.0, 0.0, 0.0):
            self._feed(
                ev.Adjust(
                    spec.name,
                    priority=spec.priority,
                    weight=spec.weight,
                    request=spec.request,
                    limit=spec.limit,
                )
            )
        self._next(process)

    def _drop(self, process: Process) -> None:
        assert isinstance(process, Client)
        process.gone = True
        if process in process.gpu.running:
            self._stop(process)
        process.gpu.take(-process.resident - process.context)
        del self._by_number[process.number]
        self._store.remove(process)
        self._feed(ev.Detach(process.number))

    def _begin_cell(self, process: Process) -> None:
        self._feed(self._cell(process, "begin"))

    def _end_cell(self, process: Process) -> None:
        assert isinstance(process, Client)
        process.present_at = self.now
        ended = self._end_burst(process, "cell") if process.gate == OPEN else ()
        self._feed(*ended, self._cell(process, "end"))

    def _hint(self, process: Process, kind: Any) -> None:
        assert isinstance(process, Client)
        back = self.now >= process.present_at + self.pause
        process.present_at = self.now
        if back or process.resident < process.allocated:
            self._feed(ev.Hint(process.spec.name, kind))

    def _cell(self, process: Process, phase: ev.Phase) -> ev.Cell:
        return ev.Cell(process.spec.name, phase, f"{process.cells}", self.now, True)

    # --- Memory -----------------------------------------------------------------------------------

    def _open_context(self, process: Process, step: Step) -> bool:
        assert isinstance(process, Client)
        process.walk = chain((step,), process.walk)
        process.grows = -1
        process.serial += 1
        least = ev.Usage(process.gpu.uuid, process.promised, 0, 0, self.costs.context)
        self._feed(ev.Grow(process.number, process.serial, least, process.promised))
        return False

    def _allocate(self, process: Process, size: int) -> bool:
        assert isinstance(process, Client)
        needed = process.allocated + size
        if needed <= process.promised:
            self._allocated(process, size)
            return False
        process.grows = size
        process.serial += 1
        least = ev.Usage(process.gpu.uuid, needed, process.resident, 0, process.context)
        most = needed + self.costs.headroom
        self._feed(ev.Grow(process.number, process.serial, least, most))
        return False

    def _on_grown(self, decision: ev.Grown) -> None:
        client = self._by_number.get(decision.client)
        if client is None or not client.grows or decision.serial != client.serial:
            return
        grows, client.grows = client.grows, 0
        if decision.status not in ("resident", "swapped"):
            self._fail(client)
            return
        client.promised = decision.promised
        if grows > 0:
            self._allocated(client, grows)
            return
        client.context = self.costs.context
        client.gpu.take(client.context)
        self._feed(ev.UsageChanged(client.number, client.usage()))
        self.at(self.now, self._next, client)

    def _allocated(self, client: Client, size: int) -> None:
        """Allocate addresses and, under a lease, memory."""
        client.allocated += size
        delay = 0.0
        if client.gate != SHUT:
            client.resident += size
            client.gpu.take(size)
            delay = size * self.costs.mapping
            self._feed(ev.UsageChanged(client.number, client.usage()))
        self.at(self.now + delay, self._next, client)

    def _free(self, process: Process, size: int) -> None:
        assert isinstance(process, Client)
        process.allocated -= size
        process.promised = max(process.allocated, process.promised - size)
        outside = process.allocated - process.resident
        if outside < 0:
            process.gpu.take(outside)
            process.resident += outside
            outside = 0
        process.host = min(process.host, outside)
        self._store.shrink(process)
        self._feed(ev.UsageChanged(process.number, process.usage()))

    # --- Bursts and leases ------------------------------------------------------------------------

    def _submit(self, process: Process) -> None:
        assert isinstance(process, Client)
        if process.gate == OPEN:
            self._start(process)
        elif process.gate == HELD:
            self._adapt_quiet_gap(process)
            process.gate = OPEN
            self._start(process)
            self._feed(ev.Burst(process.number, "begin", "none", self.now))
        else:
            self._adapt_quiet_gap(process)
            self._request(process)

    def _request(self, client: Client) -> None:
        if client.requested or client.releasing or client.lease:
            return
        client.requested = True
        client.serial += 1
        self._feed(ev.Request(client.number, client.serial))

    def _start(self, process: Process) -> None:
        assert isinstance(process, Client)
        process.quiet_token += 1
        super()._start(process)
        if process.meters and not process.metered:
            process.metered = True
            self.at(self.now + self.meter, self._meter, process)

    def _done(self, process: Process) -> None:
        assert isinstance(process, Client)
        process.quiet_since = self.now
        self._next(process)

    def _end_burst(self, client: Client, cause: ev.Cause) -> tuple[ev.Event, ...]:
        """End a burst; return the events that report it."""
        client.gate = HELD
        client.quiet_token += 1
        return (*self._read_meter(client), ev.Burst(client.number, "end", cause, self.now))

    def _on_revoke(self, decision: ev.Revoke) -> None:
        client = self._by_number.get(decision.client)
        if client is None:
            return
        client.revoked = decision.lease
        if client.lease == decision.lease and client.moving is None:
            self._give_up(client)
        elif client.moving is not None and client.filling and not client.arriving:
            self._end_filling(client)

    def _give_up(self, client: Client) -> None:
        """Shut the gate, and wait until the work in flight is done."""
        if client.releasing or not client.lease:
            return
        client.gate = SHUT
        client.quiet_token += 1
        client.releasing = True
        running = client in client.gpu.running
        delay = self.costs.drain if running else self.costs.grant
        self.at(self.now + delay, self._released, client)

    def _released(self, client: Client) -> None:
        if client.gone:
            return
        if client in client.gpu.running:
            self._stop(client)
        had = self._read_meter(client)
        lease, client.lease = client.lease, 0
        client.releasing = client.requested = client.went_quiet = False
        self._feed(*had, ev.Released(client.number, lease, "revoke"))
        if client.wants:
            self._request(client)
        self._work(client)

    # --- Quiet ------------------------------------------------------------------------------------

    def _turn_away(self, process: Process) -> None:
        assert isinstance(process, Client)
        if process.gate == OPEN and process.contended:
            self._watch_quiet(process)

    def _watch_quiet(self, client: Client) -> None:
        client.quiet_since = self.now
        client.quiet_token += 1
        lag = client.quiet_gap * (1 + self.costs.quiet_lag)
        self.at(self.now + lag, self._quiet, (client, client.quiet_token))

    def _quiet(self, argument: tuple[Client, int]) -> None:
        client, token = argument
        if client.gone or token != client.quiet_token or client.gate != OPEN:
            return
        if client.contended:
            client.went_quiet = True
            self._feed(*self._end_burst(client, "quiet"))

    def _adapt_quiet_gap(self, client: Client) -> None:
        """Adapt the quiet gap if it ended a burst that goes on (csrc/interposer/client/quiet.c)."""
        if not client.went_quiet:
            return
        client.went_quiet = False
        gap, longest = self.now - client.quiet_since, self.costs.longest_quiet
        learnt = gap * 1.25 if gap < 4 * longest else client.quiet_gap * 0.75
        client.quiet_gap = min(max(learnt, self.costs.quiet), longest)

    def _on_contended(self, decision: ev.Contended) -> None:
        client = self._by_number.get(decision.client)
        if client is None:
            return
        before, client.contended = client.contended, decision.waiting + decision.beside
        if not before and client.contended and client.gate == OPEN and not client.wants:
            self._watch_quiet(client)

    # --- Paces and meters -------------------------------------------------------------------------

    def _on_pace(self, decision: ev.Pace) -> None:
        client = self._by_number.get(decision.client)
        if client is None:
            return
        before = client.inflight
        client.inflight, client.stall = decision.inflight, decision.stall
        client.share = decision.share
        client.meters = decision.meter
        if client not in client.gpu.running:
            return
        if client.meters and not client.metered:
            client.metered = True
            self.at(self.now + self.meter, self._meter, client)
        if client.inflight == 0.0 and before != 0.0:
            # The work in flight continues. On average, half of it is done.
            drain = self.costs.unbounded if before is None else before / 2
            self.at(self.now + drain, self._repace, client)
        else:
            self._repace(client)

    def _repace(self, client: Client) -> None:
        if client in client.gpu.running:
            speed = self._speed(client)
            if speed != client.speed:
                self._touch(client.gpu)
                client.speed = speed

    def _speed(self, process: Process) -> float:
        assert isinstance(process, Client)
        wanted = min(process.demand, process.share)
        if process.inflight is None:
            return wanted
        if process.inflight == 0.0:
            return min(wanted, self.costs.submission / process.stall) if process.stall else 0.0
        return wanted * self.costs.bounded

    def _meter(self, client: Client) -> None:
        client.metered = False
        if client.gone or not client.meters or client not in client.gpu.running:
            return
        client.metered = True
        self.at(self.now + self.meter, self._meter, client)
        had = self._read_meter(client)
        if had:
            self._feed(*had)

    def _read_meter(self, client: Client) -> tuple[ev.Meter, ...]:
        """Return a client's report of its GPU time; nothing if it has no meter or nothing is new."""
        if not client.meters:
            return ()
        self._advance(client.gpu)
        busy = client.busy
        if busy == client.metered_busy:
            return ()
        client.metered_busy = busy
        submissions = int(busy / self.costs.submission)
        return (ev.Meter(client.number, client.gpu.uuid, busy, submissions, self.now),)

    # --- Moves ------------------------------------------------------------------------------------

    def _on_order(self, decision: ev.Evict | ev.Grant) -> None:
        client = self._by_number.get(decision.client)
        if client is not None:
            client.orders.append(decision)
            self._work(client)

    def _work(self, client: Client) -> None:
        """Begin to carry out the next order, unless one is in progress."""
        if client.moving is not None or client.gone or not client.orders:
            return
        order = client.orders.popleft()
        if isinstance(order, ev.Grant):
            if client.lease:
                self._work(client)
                return
            client.lease = order.lease
            client.filling = order.filling
            client.expects = client.promised > client.resident
            if client.room_lease != order.lease:
                client.room = client.resident
            client.begin_move(order, client.allocated - client.resident, self.costs, self.now)
            self._move_in(client)
            return
        size = 0 if client.lease else min(order.bytes, client.resident)
        client.begin_move(order, size, self.costs, self.now)
        self._move_out(client)

    def _link(self, gpu: Gpu, leaving: int, arriving: int) -> None:
        before = gpu.leaving + gpu.arriving
        gpu.leaving += leaving
        gpu.arriving += arriving
        if not before:
            gpu.moving_since = self.now
        elif not gpu.leaving + gpu.arriving:
            gpu.moving += self.now - gpu.moving_since

    def _move_out(self, client: Client) -> None:
        order = client.moving
        assert isinstance(order, ev.Evict)
        left = client.asked - client.copied
        if left > 0:
            size = min(left, client.piece)
            gpu = client.gpu
            self._link(gpu, 1, 0)
            rate = self.costs.both_ways if gpu.arriving else self.costs.one_way
            client.leaving = size
            seconds = self._store.begin_leaving(client, size, gpu.leaving, rate, self.now)
            self.at(self.now + seconds, self._left, client)
            return
        client.moving = None
        self._feed(client.evicted(order, self.now))
        self._work(client)

    def _left(self, client: Client) -> None:
        gpu, size = client.gpu, client.leaving
        self._link(gpu, -1, 0)
        client.leaving = 0
        if client.gone:
            return
        # What was freed meanwhile has left already.
        size = min(size, client.resident)
        self.outcome.moved_out += self._store.leave(client, size)
        client.resident -= size
        client.host += size
        client.copied += size
        client.asked = min(client.asked, client.copied + client.resident)
        gpu.take(-size)
        self._store.settle(client)
        order = client.moving
        assert isinstance(order, ev.Evict)
        if client.copied < client.asked:
            self._feed(client.moved(order, self.now))
        self._move_out(client)

    def _on_room(self, decision: ev.Room) -> None:
        client = self._by_number.get(decision.client)
        if client is None:
            return
        client.room, client.room_lease = decision.resident, decision.lease
        if client.filling and client.lease == decision.lease and not client.arriving:
            self._move_in(client)

    def _move_in(self, client: Client) -> None:
        if not isinstance(client.moving, ev.Grant):
            return
        if client.filling and client.revoked == client.lease:
            self._end_filling(client)
            return
        lack = client.allocated - client.resident
        if lack <= 0:
            self._moved_in(client)
            return
        size = min(lack, client.piece, client.room - client.resident if client.filling else lack)
        if size <= 0:
            return
        gpu = client.gpu
        rate = self.costs.both_ways if gpu.leaving else self.costs.one_way
        self._link(gpu, 0, 1)
        client.arriving = size
        gpu.take(size)
        seconds = self._store.begin_arriving(client, size, gpu.arriving, rate, self.now)
        self.at(self.now + seconds, self._arrived, client)

    def _arrived(self, client: Client) -> None:
        size, client.arriving = client.arriving, 0
        self._link(client.gpu, 0, -1)
        if client.gone:
            client.gpu.take(-size)
            return
        copied = min(size, client.host)
        self.outcome.moved_in += self._store.arrive(client, copied, self.now)
        client.resident += size
        client.host -= copied
        client.copied += copied
        self._store.settle(client)
        self._move_in(client)

    def _moved_in(self, client: Client) -> None:
        client.moving, client.filling = None, False
        client.gate = OPEN
        client.requested = False
        if client.asked > 0 or client.expects:
            self._feed(client.restored("done", self.now))
        if client.revoked == client.lease:
            self._give_up(client)
        elif client.wants:
            self.at(self.now + self.costs.grant, self._resume, (client, client.lease))
        else:
            self._feed(*self._end_burst(client, "quiet"))

    def _resume(self, argument: tuple[Client, int]) -> None:
        client, lease = argument
        if client.gone or client.lease != lease or client.gate != OPEN or not client.wants:
            return
        if client not in client.gpu.running:
            self._start(client)

    def _end_filling(self, client: Client) -> None:
        """Stop filling, because the lease is revoked. What has arrived stays."""
        client.moving, client.filling = None, False
        self._feed(client.restored("partial", self.now))
        lease, client.lease = client.lease, 0
        client.requested = False
        self._feed(ev.Released(client.number, lease, "failed"))
        if client.wants:
            self._request(client)
        self._work(client)
