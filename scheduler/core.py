# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's core: events and a clock in, decisions out. No sockets, no threads, no clock of its own.

Rules
-----
On each GPU, at all times (docs/design.md, "The one idea")::

    leased footprints + all resident, pinned and context bytes + foreign use + ghosts  <=  total - reserve

The left side is kept as running sums (``state.py``); ``Gpu.free`` is the difference. A lease is granted only if, on
every GPU of its group, what the group lacks there (``Share.need``) is at most ``free``; from then on the missing part
counts as *arriving*. All or nothing, so nobody holds one GPU while waiting for another. Only three things bring room:
an eviction that was answered, a lease given back (its missing part is charged no more), and a death that NVML shows.

Who waits, and for how long
---------------------------
The queue is in the policy's order. The first that waits for a GPU is its *head*; only for heads is room made. One who
is not a head may pass if it needs no eviction and no revocation, if it was not revoked for the head, and if the head
could still be served from leases that are older than its time at the head (``Wait.barrier``). So a head waits for a
fixed set of leases, each of which is revoked once its quantum is over: it is granted in bounded time provided that
holders yield, then the next is the head. A head that could not be served if everybody yielded (foreign use, ghosts)
keeps its place and holds nobody up.

Room is made in the order in which it can be had, then by kind:

    ==============  ==================================================  =====================================
    kind            memory may be taken                                 how
    ==============  ==================================================  =====================================
    no lease        after debounce or residency (below)                 Evict
    held            likewise                                            Revoke, on Released Evict
    waiting         likewise; last in the queue first                   Evict
    running         after its quantum                                   Revoke, on Released Evict
    kept            once it was waited for with patience (below)        as for its kind
    ==============  ==================================================  =====================================

- *Debounce*: after the end of a cell, 10 ms: a Run All submits again within some 4 ms.
- *Residency*: after any other end, min(10 x cost of moving the footprint, quantum) since the memory was in.
- A group that comes back within its residency, with its memory still in, continues its *turn* before any head: the
  turn's clock is not wound again, so this cannot go on beyond what the head had to wait for anyway. If it needs more
  than before (it gave its lease up to grow), room is made for it too, from those that do not run.

Nothing is taken before all that the head needs can be had (give or take the debounce): it would idle meanwhile.
Of what is taken, a little more than lacks leaves, where there is more: figures vary while they are read, and a second
round would cost as much waiting as the first.

Wishes
------
People may ask something for a group (``Wishes``). It shifts the rules above, and never suspends them: what each wish
costs the others is bounded, and memory that has to leave because there is too much leaves all the same.

- *Background* and *interactive*: what the group counts as, whatever it does (``classes.py``).
- *Keep*: while it does not run, whoever came less than ``keep_patience`` ago cannot have its memory. If that is all in,
  it may run before them, who could not have it anyway. Revoked at the end of its quantum, it is as any other until its
  next lease. So is one that waits and is not all in: else each would wait for what the other holds.
- *Frozen*: it is revoked; its waits for a lease are passed over as if they were not there, and keep their place. Its
  memory may leave at once, kept or not.
- *Memory*: growth beyond it is refused.
- *Request*, *limit*, *weight*: ``gpu_time.py``. Who has had its limit is granted nothing until the window has moved on;
  its waits are passed over like those of one that is frozen.
- *Exclusive*: until its open cell ends it counts as running, ``exclusive_limit`` is its quantum and its residency, and
  nobody tells it that others wait: so it does not go quiet. The end of the limit ends the wish.

Policies
--------
The policy orders the queue (``Wait.rank``) and the victims, sets quanta, and says how fast holders may submit
(``Pace``). What it says is kept until something happens that may change it: a lease, a burst, a class, a cell, a focus
or a meter on that GPU. A policy that raises is replaced (``policies/guard.py``).

Filling
-------
A head whose lack is on its way out, all of it, is granted at once (``Grant.filling``): what it has in host memory then
arrives while the others' leaves. Its share is charged only for the room that it was *allotted*; every byte that comes
free on that GPU is allotted to it (``Room``) before anybody else can have it, so the inequality holds at each step and
``free`` is 0 for all others. What it was not allotted yet is *owed*: whoever waits next needs that much more. One share
at a time fills on a GPU, so what leaves is never counted on twice.

It holds a lease while it waits for room, and yet no cycle can come of that: what it waits for are evictions under way,
which need no lease and nobody else's room on a GPU. They do need host memory, which its own pieces give back as they
arrive, and of which a part is never promised (``_backed``), so that one piece can always leave. Where evictions fail or
fall short, other victims are ordered for the rest; where there are none it gives the lease back after a bounded time,
keeps what has arrived, and comes back to its old place.

The peak of host memory during a switch is therefore what the GPUs cannot hold and what is in flight, and not, as it
would be if all left before anything arrived, the newcomer's swapped data besides.

"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, cast

from . import policies, reasons, snapshot, wishes
from .accounts import LARGEST, MIB, ProtocolViolation, growth
from .classes import Classes
from .events import (
    ALL,
    Adjust,
    AntiThrash,
    Attach,
    Burst,
    Cancel,
    CancelWaits,
    Cause,
    Cell,
    Class,
    Configure,
    Contended,
    Decision,
    Detach,
    Device,
    EndBurst,
    Entitle,
    Event,
    Evict,
    Evicted,
    Focus,
    Grant,
    Grow,
    Grown,
    Growth,
    HostMemory,
    Log,
    Meter,
    Moving,
    Notice,
    Pace,
    Quantum,
    Release,
    Released,
    Rename,
    Request,
    Restored,
    Revoke,
    Room,
    Stuck,
    Tick,
    UsageChanged,
)
from .plan import Plan, Planner
from .policies import FREE, Speed
from .policies.guard import Guard
from .predictor import Predictor
from .state import Client, Gpu, Group, Holding, Share, Timers, Wait, Wishes, place
from .stock import Keeper

LONGEST_QUANTUM = 3600.0
#: Seconds of GPU time that no client reaches.
LONGEST_METER = 1e9
#: A policy that wants to be asked again at once is asked after so many seconds.
SOONEST = 0.001
#: Bursts that end for these causes are over; others may go on any moment.
_OVER: frozenset[Cause] = frozenset({"cell", "idle", "release", "exit"})


class Core(Planner):
    """Decides who holds a lease. Feed every event to ``handle`` and carry out what it returns, in order.

    Parameters
    ----------
    quantum, anti_thrash, policy
        The settings of docs/design.md, "Decisions".
    reserve
        Bytes of each GPU that are never promised; by default ``default_reserve`` of its size.
    debounce
        Seconds for which a group's memory stays after the end of a cell.
    residency_factor
        Memory stays at least so many times as long as it takes to move it in; also the factor of ``quantum="auto"``.
    shortest_quantum, longest_quantum
        Bounds of ``quantum="auto"``, seconds.
    bandwidth
        Bytes per second of moves, until they are measured.
    fresh
        Seconds for which a reading of a GPU's memory is good for a decision.
    margin
        Bytes by which an eviction exceeds what lacks, where the victim has them; at most 1/256 of the GPU.
    background_quantum
        Seconds after which a holder in the background makes way for one that is not, where the policy does not say.
    interactive_burst, interactive_pause
        Seconds: ``classes.Classes``.
    window
        Seconds over which shares of the GPU's time hold.
    keep_patience
        Seconds for which one has to wait for memory that people keep.
    exclusive_limit
        Seconds for which a cell may have its lease for itself while others wait.
    """

    def __init__(
        self,
        *,
        quantum: Quantum = "auto",
        anti_thrash: AntiThrash = "auto",
        policy: str = "burst",
        reserve: int | None = None,
        debounce: float = 0.010,
        residency_factor: float = 10.0,
        shortest_quantum: float = 1.0,
        longest_quantum: float = 30.0,
        bandwidth: float = 10e9,
        fresh: float = 0.001,
        margin: int = 64 * MIB,
        background_quantum: float = 2.0,
        interactive_burst: float = 2.0,
        interactive_pause: float = 2.0,
        window: float = 10.0,
        keep_patience: float = 300.0,
        exclusive_limit: float = 600.0,
    ) -> None:
        super().__init__(reserve, bandwidth, fresh, window)
        self.quantum: Quantum = _valid_quantum(quantum)
        self.anti_thrash: AntiThrash = _valid_anti_thrash(anti_thrash)
        self.debounce = debounce
        self.residency_factor = residency_factor
        self.shortest_quantum = shortest_quantum
        self.longest_quantum = longest_quantum
        self.margin = margin
        self.background_quantum = background_quantum
        #: No policy leaves a holder alone for longer.
        self.longest_turn = LONGEST_QUANTUM
        self.keep_patience, self.exclusive_limit = keep_patience, exclusive_limit
        #: Growth under a lease, and the next piece of one that fills, ask for no reading younger than this: they come
        #: often, and can be handed back.
        self.fresh_for_growth = 0.050
        #: A lease that was granted before its room was there is taken back if no room appears for so long: while memory
        #: is on its way out, and while none is.
        self.filling_patience, self.starving_patience = 30.0, 1.0
        self.shortest_retry, self.longest_retry = 0.010, 1.0

        self.leased: dict[str, Group] = {}
        self.notices: deque[tuple[float, Notice]] = deque(maxlen=50)

        self.policy = Guard(policies.make(policy, self), self)
        #: What the queue was sorted by.
        self._sorted_by: tuple[int, int] = self.policy.version
        self._classes = Classes(interactive_burst, interactive_pause)
        self._predictor = Predictor()
        #: The group in front of each user.
        self._focus: dict[str, str] = {}
        self._keeper = Keeper(self)
        self._wishes = wishes.Memory()
        #: Groups that something happened to.
        self._touched: dict[str, Group] = {}
        self._unclassed: dict[str, Group] = {}
        #: GPUs of which the paces may have changed; and where it may have changed whether somebody waits.
        self._repace: dict[str, Gpu] = {}
        self._crowded: dict[str, Gpu] = {}
        self._timers = Timers()
        #: Waits of groups that use no GPU yet.
        self._nowhere: list[Wait] = []
        #: Groups that fill.
        self._filling: dict[str, Group] = {}
        self._new_waits: list[Wait] = []
        self._evictions: dict[int, tuple[Holding, int]] = {}
        self._serial = 0
        self._leases = 0
        self._numbers = 0
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Attach: self._on_attach,
            Detach: self._on_detach,
            Request: self._on_request,
            Burst: self._on_burst,
            Meter: self._on_meter,
            Stuck: self._on_stuck,
            Released: self._on_released,
            Grow: self._on_grow,
            UsageChanged: self._on_usage,
            Evicted: self._on_evicted,
            Moving: self._on_moving,
            Restored: self._on_restored,
            Cell: self._on_cell,
            Cancel: self._on_cancel,
            Release: self._on_release,
            Rename: self._on_rename,
            Adjust: self._on_adjust,
            Entitle: self._on_entitle,
            Focus: self._on_focus,
            Configure: self._on_configure,
            Device: self._on_device,
            HostMemory: self._on_host_memory,
            Notice: self._on_notice,
            Tick: self._on_tick,
        }

    # --- The interface ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take an event in; return what is to be done, in this order.

        Raises
        ------
        ProtocolViolation
            The client said what cannot be; disconnect it (and then send ``Detach`` if it was attached).
        ValueError
            A setting is not valid; the text is one sentence for the person who asked.
        """
        self._now = now
        out: list[Decision] = []
        self._out = out
        self._handlers[type(event)](event)
        self._decide()
        return out

    def _concern(self, group: Group) -> None:
        """Something happened to a group that may change what can be done on its GPUs."""
        for uuid, share in group.shares.items():
            self._dirty[uuid] = share.gpu

    def deadline(self) -> float | None:
        """When the core wants a ``Tick``, unless an event comes first."""
        return self._timers.earliest()

    def status(self, now: float) -> dict[str, Any]:
        """Return what docs/control.md calls the status, less what only the server knows."""
        return snapshot.status(self, now)

    def find_group(self, text: str) -> str:
        """Return the id of the group with this id, unique prefix of it, or name.

        Raises
        ------
        LookupError
            None or several fit; the text is one sentence for the person who asked.
        """
        if text in self.groups:
            return text
        found = [g.id for g in self.groups.values() if text and g.id.startswith(text)]
        found = found or [g.id for g in self.groups.values() if g.name == text]
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(f"{text!r} fits several groups: {', '.join(found)}")
        raise LookupError(f"no group on the GPU has the id or name {text!r}")

    def wishes_of(self, group: str) -> Wishes:
        """Return what people asked for the group with this id, whether it is there or not."""
        found = self.groups.get(group)
        return self._wishes.recall(group) if found is None else found.wishes

    # --- Clients come and go ----------------------------------------------------------------------

    def _on_attach(self, event: Attach) -> None:
        if event.client in self.clients:
            raise ProtocolViolation(event.client, "attached twice")
        if not event.group:
            raise ProtocolViolation(event.client, "names no lease group")
        if not 0 <= event.cap <= LARGEST or event.lease < 0:
            raise ProtocolViolation(event.client, "states a cap or lease that cannot be")
        if len({u.gpu for u in event.usages}) != len(event.usages):
            raise ProtocolViolation(event.client, "states a GPU twice")
        for usage in event.usages:
            self._check(event.client, event.backend, usage)

        group = self.groups.get(event.group)
        if group is None:
            self._numbers += 1
            group = Group(event.group, event.name, self._numbers, event.user, since=self._now)
            group.idle_since = self._now
            group.wishes = self._wishes.recall(group.id)
            self.groups[group.id] = group
            group.classed = self._classes.of(group)
            self.times.of(group)
            self._log("join", group, pid=event.pid)
        client = Client(
            event.client, event.pid, event.backend, group, event.cap, event.oversubscribe
        )
        self.clients[client.number] = group.clients[client.number] = client
        for usage in event.usages:
            holding = self._holding(client, usage.gpu)
            gpu = holding.share.gpu
            # Until it attached, what it holds was foreign.
            gpu.foreign = max(0, gpu.foreign - usage.resident - usage.pinned - usage.context)
            self._state(holding, usage)
            self._ask(gpu)
        self._touch(group)
        self._keeper.concern(client)
        if event.leased:
            self._take_over(client, event)

    def _take_over(self, client: Client, event: Attach) -> None:
        """Accept a lease of an earlier scheduler, even where it over-commits; ``_relieve`` works that down."""
        group = client.group
        lease = event.lease or self._leases + 1
        self._leases = max(self._leases, lease)
        if group.lease is None:
            self._begin_lease(group, lease)
            group.turn, group.turn_at = lease, self._now
        # One that opened its gate by itself, while no scheduler answered, calls its lease 0.
        client.lease = event.lease
        group.granted[client.number] = client
        # It knows of no limit: what it lacks may come in any moment.
        self._end_filling(group)
        for share in group.shares.values():
            if share.ceiling is not None:
                self._distribute(share, share.unallotted)
        self._tell_room(client, anew=True)
        client.restoring = {u for u, h in client.holdings.items() if h.room > h.resident}
        if event.busy:
            client.burst_at = self._now
            self._set_busy(client, True)
        if group.yielding:
            self._out.append(Revoke(client.number, event.lease))
        elif group.wishes.frozen:
            self._revoke(group)
        elif group.wait is not None:
            self._dequeue(group.wait)
            self._grant_waiting(group)
        self._touch(group)

    def _on_detach(self, event: Detach) -> None:
        client = self._client(event.client)
        group = client.group
        for gpu in self.gpus.values():
            gpu.parked = [g for g in gpu.parked if g.client != client.number]
        for wait in self._waits_of(group):
            if wait.grow is not None and wait.grow.client == client.number:
                self._dequeue(wait)
        client.wants = False
        self._concern(group)
        self._keeper.concern(client)
        client.contended = client.beside = 0
        if group.wait is not None and not any(c.wants for c in group.clients.values()):
            self._dequeue(group.wait)
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            mapped = holding.resident
            if client.lease is not None:
                mapped = holding.room
            gpu.ghosts += mapped + holding.pinned + holding.context
            gpu.read_pause = 0.0
            self._order_out(holding, -holding.evicting)
            self._unsettle(holding, -holding.unsettled)
            self._account(holding, 0, 0, 0, 0)
            del holding.share.holdings[client.number]
        self._evictions = {s: e for s, e in self._evictions.items() if e[0].client is not client}
        if client.lease is not None:
            group.ended_at = self._now
            self._give_back(client, "exit")
        del self.clients[client.number], group.clients[client.number]
        if not group.clients:
            for uuid in group.shares:
                del self.gpus[uuid].shares[group.id]
            del self.groups[group.id]
            self._timers.set(f"class {group.id}", None)
            self._touched.pop(group.id, None)
            self._unclassed.pop(group.id, None)
            self.times.forget(group)
            self._classes.forget(group.id)
            self._predictor.forget(group.id)
            self._wishes.remember(group.id, group.wishes)
            self._log("leave", group)
            return
        for uuid in [u for u, s in group.shares.items() if not s.holdings]:
            if self.gpus[uuid].filling is group.shares[uuid]:
                self.gpus[uuid].filling = None
            gpu = self.gpus[uuid]
            del group.shares[uuid], gpu.shares[group.id]
            if group.lease is not None:
                self._end_holding(group, gpu)
            if group.wait is not None:
                gpu.queue.remove(group.wait)
            self._crowded[uuid] = gpu
        self._touch(group)

    # --- Leases -----------------------------------------------------------------------------------

    def _on_request(self, event: Request) -> None:
        client = self._client(event.client)
        group = client.group
        self._touch(group)
        if group.lease is not None and not group.yielding:
            if client.lease is None:
                self._grant(client)
            else:
                self._out.append(self._grant_of(client, client.lease))
                self._tell_room(client, anew=True)
            return
        client.wants = True
        if group.wait is None:
            group.wait = self._enqueue(group)

    def _on_burst(self, event: Burst) -> None:
        client = self._client(event.client)
        group = client.group
        if client.lease is None or (event.phase == "end" and event.at < client.burst_at):
            return
        if event.phase == "begin":
            client.burst_at = event.at
            if not client.busy:
                group.totals.bursts += 1
            self._set_busy(client, True)
            group.ended_at = None
        else:
            self._set_busy(client, False)
            client.restoring.clear()
            if not group.busy:
                group.ended_at = self._now if event.cause in _OVER else None
                self._end_burst(group)
        self._log("burst", group, phase=event.phase, cause=event.cause)
        self._touch(group)

    def _end_burst(self, group: Group) -> None:
        """The burst is over: from its length, the next one's is guessed."""
        length = self._burst_so_far(group)
        if length > 0:
            self._predictor.burst(group.id, length)
        group.burst_before, group.counted_burst = 0.0, group.ran_before

    def _on_meter(self, event: Meter) -> None:
        client = self._client(event.client)
        if event.gpu not in self.gpus:
            raise ProtocolViolation(client.number, f"names a GPU that is not here: {event.gpu}")
        if not (0 <= event.busy <= LONGEST_METER and event.submissions >= 0):
            raise ProtocolViolation(client.number, "states GPU time that cannot be")
        group = client.group
        at = min(event.at, self._now)
        seconds, _ = self.times.meter(
            group, event.gpu, client.number, event.busy, at, event.submissions
        )
        if seconds > 0:
            self._classes.ran(group, seconds, self._now)
        self._touch(group)

    def _on_stuck(self, event: Stuck) -> None:
        client = self._client(event.client)
        group = client.group
        if client.lease is None or client.lease != event.lease or not group.yielding:
            return
        if group.stuck is None or group.stuck[0] != event.kernel:
            self._log("stuck", group, kernel=event.kernel, since=event.since)
        group.stuck = event.kernel, event.since

    def _on_released(self, event: Released) -> None:
        client = self._client(event.client)
        if client.lease is None or client.lease != event.lease:
            return
        if event.cause == "failed" and not client.group.yielding:
            self._retry(client)
        else:
            if event.cause == "release":
                client.group.ended_at = self._now - self.debounce
            self._give_back(client, event.cause)

    def _give_back(self, client: Client, cause: Cause) -> None:
        group = client.group
        self._set_busy(client, False)
        client.lease = None
        client.restoring.clear()
        client.pace = FREE
        del group.granted[client.number]
        self._touch(group)
        if group.granted:
            # A lease is for the whole group: one that grows or fails is in nobody's hands.
            if cause in ("growth", "failed"):
                self._revoke(group)
            return
        if group.stalled and group.filling is not None:
            # No fault of its own: it comes back to where it was, and others may go before it meanwhile.
            group.place = group.filling
            group.place.not_before = self._now + self._pause_after_failure(group)
        self._end_filling(group)
        group.lease = None
        for share in group.shares.values():
            share.ceiling = None
            for holding in share.holdings.values():
                holding.room = holding.promised
        group.yielding = group.floating = group.stalled = False
        group.stuck = None
        group.idle_since = self._now
        if cause in _OVER:
            self._end_burst(group)
        group.burst_before, group.counted_burst = self._burst_so_far(group), group.ran_before
        del self.leased[group.id]
        for share in group.shares.values():
            self._end_holding(group, share.gpu)
        self._charge(group)
        self._log("release", group, cause=cause, ran=group.ran_before)
        for other in group.clients.values():
            self._tell(other, 0)
        if group.offload:
            self._offload(group)

    def _end_holding(self, group: Group, gpu: Gpu) -> None:
        del gpu.holders[group.id]
        gpu.background -= group.classed == "background"
        self._crowded[gpu.uuid] = self._repace[gpu.uuid] = gpu

    def _retry(self, client: Client) -> None:
        """The footprint could not be made resident: back to the old place in the queue, after a pause."""
        group = client.group
        group.ended_at = self._now - self.debounce
        client.wants = True
        self._give_back(client, "failed")
        if group.wait is None:
            group.wait = self._enqueue(group, front=True)
        group.wait.not_before = self._now + self._pause_after_failure(group)
        for uuid in group.shares:
            self._ask(self.gpus[uuid])

    def _pause_after_failure(self, group: Group) -> float:
        pause = min(self.shortest_retry * 2.0**group.failures, self.longest_retry)
        group.failures = min(group.failures + 1, 20)
        return pause

    def _on_restored(self, event: Restored) -> None:
        client = self._client(event.client)
        group = client.group
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        holding = self._holding(client, usage.gpu)
        self._state(holding, usage, moved=True)
        self._concern(group)
        self._keeper.concern(client)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        group.totals.restored += event.bytes
        self._log_move("restore", event)
        if client.lease is None or client.lease != event.lease:
            return
        self._touch(group)
        client.restoring.discard(usage.gpu)
        if event.status == "failed":
            self._retry(client)
        if event.status != "done":
            return
        group.failures = 0
        # Of what is used from the host, nothing is spare.
        if holding.share.ceiling is None or holding.room >= holding.promised:
            holding.spare = holding.promised - holding.resident
        if event.bytes and not group.yielding and group.turn == group.lease:
            group.turn_at = self._now

    def _on_evicted(self, event: Evicted) -> None:
        client = self._client(event.client)
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        self._dirty[usage.gpu] = self.gpus[usage.gpu]
        self._concern(client.group)
        self._keeper.concern(client)
        holding, asked = self._evictions.get(event.serial, (None, 0))
        if holding is None:
            # An order of an earlier scheduler: what it says is true all the same.
            self._state(self._holding(client, usage.gpu), usage, moved=True)
            return
        if holding.client is not client or holding.share.gpu.uuid != usage.gpu:
            raise ProtocolViolation(client.number, "answers an eviction that was not its own")
        del self._evictions[event.serial]
        self._order_out(holding, -asked)
        self._state(holding, usage, moved=True, expected=asked)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        client.group.totals.evicted += event.bytes
        if event.status == "done" and (event.bytes >= asked or not usage.resident):
            holding.stuck_pause = 0.0
        else:
            pause = min(max(2 * holding.stuck_pause, self.shortest_retry), self.longest_retry)
            holding.stuck_pause, holding.stuck_until = pause, self._now + pause
        self._log_move("evict", event)

    def _on_moving(self, event: Moving) -> None:
        client = self._client(event.client)
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        self._dirty[usage.gpu] = self.gpus[usage.gpu]
        self._concern(client.group)
        self._keeper.concern(client)
        holding, asked = self._evictions.get(event.serial, (None, 0))
        if holding is None:
            self._state(self._holding(client, usage.gpu), usage, moved=True)
            return
        if holding.client is not client or holding.share.gpu.uuid != usage.gpu:
            raise ProtocolViolation(client.number, "answers an eviction that was not its own")
        # An order never shrinks to nothing before its answer: the client is still busy with it.
        left = max(0, asked - max(0, holding.resident - usage.resident))
        self._order_out(holding, left - asked)
        self._evictions[event.serial] = (holding, left)
        self._state(holding, usage, moved=True, expected=asked - left)

    # --- Memory -----------------------------------------------------------------------------------

    def _on_usage(self, event: UsageChanged) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.usage)
        self._state(self._holding(client, event.usage.gpu), event.usage)
        self._concern(client.group)
        self._keeper.concern(client)

    def _on_grow(self, event: Grow) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.least, growth=True)
        if not 0 <= event.most <= LARGEST:
            raise ProtocolViolation(client.number, "asks for a size that cannot be")
        self._grow(event)
        self._concern(client.group)
        self._keeper.concern(client)

    def _grow(self, event: Grow) -> None:
        client = self.clients[event.client]
        group = client.group
        holding = self._holding(client, event.least.gpu)
        share, gpu = holding.share, holding.share.gpu
        more, fixed = growth(holding, event)
        if event.oversubscribe and not client.oversubscribes:
            self._oversubscribe(client)
        refusal = self._refusal(share, more, fixed, event.oversubscribe)
        if refusal is not None and refusal[1] and not self._is_fresh(gpu):
            gpu.parked.append(event)  # only foreign use is in the way: look again before saying no
            return
        if refusal is not None:
            status, _, text = refusal
            self._out.append(Grown(client.number, event.serial, status, holding.promised, text))
            self._log("refuse", group, code=status, text=text)
            return
        if fixed:
            self._enqueue(group, event)
            if share.ceiling is not None and fixed > gpu.free:
                self._revoke(group)  # its own memory is in the way
            return
        charged = self._charged(holding, more)
        if event.capturing and more and client.lease is not None and group.filling is None:
            if not self._is_fresh(gpu, self.fresh_for_growth):
                gpu.parked.append(event)
                return
            if charged <= gpu.free:
                self._promise(holding, event, more, fixed, "resident")
                return
            if self._make_room_now(gpu, charged - gpu.free):
                gpu.parked.append(event)
                return
        wish = event.most - holding.promised - more
        extra = self._headroom(share, more, wish, event.oversubscribe)
        if group.lease is None or group.yielding:
            self._promise(
                holding, event, more + extra, fixed, "resident" if not more else "swapped"
            )
            return
        if more and not self._is_fresh(gpu, self.fresh_for_growth):
            gpu.parked.append(event)
            return
        if charged <= 0 or group.floating or self._may_take(group, gpu, charged):
            extra = min(extra, max(0, gpu.free - charged))
            if any(self.counts(w) for w in gpu.queue if w.group is not group):
                extra = 0
            leased = client.lease is not None or not more
            self._promise(holding, event, more + extra, 0, "resident" if leased else "swapped")
            return
        # Resident bytes of others are in the way. Waiting for them under a lease would be hold-and-wait.
        # The client gives the lease up by itself, unless it was granted but is not in yet: hence Revoke.
        self._promise(holding, event, more + extra, 0, "swapped")
        self._revoke(group)

    def _promise(
        self, holding: Holding, event: Grow, more: int, fixed: int, status: Growth
    ) -> None:
        least = event.least
        promised = holding.promised + max(0, more)
        pinned = max(holding.pinned, least.pinned)
        context = max(holding.context, least.context)
        self._unsettle(holding, max(0, fixed))
        holding.spare = max(0, promised - least.promised)
        share = holding.share
        if share.ceiling is not None:
            give = self._charged(holding, promised - holding.promised)
            share.ceiling = share.goal + give
            holding.room += give
        self._account(holding, promised, holding.resident, pinned, context)
        self._tell_room(holding.client)
        self._out.append(Grown(holding.client.number, event.serial, status, promised))
        if more > 0 or fixed > 0:
            self._log("grow", holding.client.group, promised=holding.share.promised)

    def _charged(self, holding: Holding, more: int) -> int:
        """How much of a holder's growth comes to the GPU: what has no room there is used from the host."""
        share = holding.share
        if share.ceiling is None or not holding.client.oversubscribes:
            return more
        return min(more, max(0, share.gpu.capacity - share.gpu.ghosts - share.goal))

    def _oversubscribe(self, client: Client) -> None:
        """From now on, what it holds may be more than a GPU has."""
        client.oversubscribes = True
        group = client.group
        if group.lease is None or group.floating:
            return
        for share in group.shares.values():
            if share.ceiling is None:
                share.ceiling = share.promised
                self._charge_share(share)

    def _may_take(self, group: Group, gpu: Gpu, more: int) -> bool:
        """Whether a holder may have more room now without holding up the head of the queue any longer."""
        if more > gpu.free:
            return False
        for wait in gpu.queue:
            if wait.group is not group and self.counts(wait):
                barrier = self._leases if wait.barrier is None else wait.barrier
                return group.turn <= barrier or self._leaves_room(wait, gpu, group, more)
        return True

    # --- Cells and people -------------------------------------------------------------------------

    def _on_cell(self, event: Cell) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        if event.phase == "begin":
            # The server's news of a cell may come after the kernel's news of its end.
            if event.msg_id in group.ended_cells or event.msg_id in group.cells:
                return
            group.cells[event.msg_id] = event.at
            # What ran before was before this cell.
            self._count_time(group)
            self._classes.begin_cell(group, self._now)
            self._log("cell", group, phase="begin", msg_id=event.msg_id)
            self._touch(group)
            return
        if event.msg_id in group.ended_cells:
            return
        if not group.metered:
            self._count_time(group)
        group.cells.pop(event.msg_id, None)
        self._classes.end_cell(group, self._now)
        self._touch(group)
        group.ended_cells.append(event.msg_id)
        self._log("cell", group, phase="end", msg_id=event.msg_id)
        if not group.cells and event.at >= group.exclusive_at:
            self._end_exclusive(group)
        if not group.cells and not group.busy and group.ended_at is None:
            # It went quiet first: now it is over.
            group.ended_at = self._now
        # The kernel says Burst(end) itself. For the server, a burst ends with the last cell that is open.
        if not event.from_kernel and not group.cells:
            for client in group.granted.values():
                if client.busy and client.burst_at <= event.at:
                    self._out.append(EndBurst(client.number, event.at))

    def _on_cancel(self, event: Cancel) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        for wait in self._waits_of(group):
            self._dequeue(wait)
        for gpu in self.gpus.values():
            gpu.parked = [g for g in gpu.parked if g.client not in group.clients]
        for client in group.clients.values():
            client.wants = False
            self._out.append(CancelWaits(client.number))
        self._log("cancel", group)
        self._touch(group)

    def _on_release(self, event: Release) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        self._touch(group)
        group.offload = group.offload or event.offload
        if group.exclusive:
            self._end_exclusive(group)
        if group.lease is not None:
            group.ended_at = self._now - self.debounce
            self._revoke(group)
        elif group.offload:
            self._offload(group)

    def _offload(self, group: Group) -> None:
        group.offload = False
        for share in group.shares.values():
            self._evict(share, share.resident - share.evicting)

    def _on_rename(self, event: Rename) -> None:
        group = self.groups.get(event.group)
        if group is not None:
            group.name = event.name

    def _on_adjust(self, event: Adjust) -> None:
        group = self.groups.get(event.group)
        if group is None and not event.later:
            raise ValueError(f"no group on the GPU has the id {event.group!r}")
        before = self.wishes_of(event.group)
        after = wishes.adjusted(before, event)
        if group is None:
            # What is for one cell is not for a process that has none yet.
            after = replace(after, exclusive=False)
        if after == before:
            return
        self._wishes.remember(event.group, after)
        self._out.append(Log("adjust", event.group, {"wishes": asdict(after)}))
        if group is None:
            return
        group.wishes = after
        if after.exclusive and not before.exclusive:
            group.exclusive_at = self._now
        self.times.of(group)
        self._touch(group)
        if group.wait is not None:
            self._crowded.update(self._dirty)
        if after.frozen:
            self._revoke(group)

    def _on_entitle(self, event: Entitle) -> None:
        wishes.check(event)
        self.times.entitle(event.whose, event.entitlement, event.members)
        self._repace.update(self.gpus)
        self._dirty.update(self.gpus)
        self._out.append(
            Log("entitle", "", {"whose": event.whose, **asdict(event.entitlement),
                                "members": list(event.members)})
        )  # fmt: skip

    def _on_focus(self, event: Focus) -> None:
        before = self._focus.pop(event.user, "")
        if event.group:
            self._focus[event.user] = event.group
        for group_id in {before: None, event.group: None} if before != event.group else ():
            group = self.groups.get(group_id)
            if group is not None:
                self._rank_anew(group)
                self._touch(group)

    def _end_exclusive(self, group: Group) -> None:
        if group.wishes.exclusive:
            group.wishes = replace(group.wishes, exclusive=False)
            self._log("adjust", group, wishes=asdict(group.wishes))

    def _on_configure(self, event: Configure) -> None:
        quantum = self.quantum if event.quantum is None else _valid_quantum(event.quantum)
        mode = self.anti_thrash
        if event.anti_thrash is not None:
            mode = _valid_anti_thrash(event.anti_thrash)
        if event.policy is not None and event.policy != self.policy.name:
            self.policy = Guard(policies.make(event.policy, self), self)
            self._sort()
        self.quantum, self.anti_thrash = quantum, mode
        self._repace.update(self.gpus)
        self._dirty.update(self.gpus)
        self._out.append(Log("settings", "", snapshot.settings(self)))

    def _on_notice(self, event: Notice) -> None:
        self.notices.append((self._now, event))
        self._out.append(Log("notice", event.group, {"code": event.code, "params": event.params}))

    def _on_host_memory(self, event: HostMemory) -> None:
        self.host_budget = max(0, event.budget)
        self._stock_of.update(self.gpus)
        self._dirty.update(self.gpus)

    def _on_tick(self, event: Tick) -> None:
        pass

    # --- What policies look at --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time of the event that is handled, seconds."""
        return self._now

    def class_of(self, group: Group) -> Class:
        """Return what a group counts as."""
        return group.classed

    def expected(self, group: Group) -> float:
        """Return for how many seconds of GPU time its burst is expected to go on."""
        return self._predictor.expected(group.id, self._burst_so_far(group))

    def _burst_so_far(self, group: Group) -> float:
        running = self._now - group.ran_since if group.busy else 0.0
        return group.burst_before + group.ran_before - group.counted_burst + running

    def focused(self, group: Group) -> bool:
        """Whether it is in front of its user."""
        return self._focus.get(group.user) == group.id

    def limited_by(self, group: Group, now: float) -> str | None:
        """Return whose limit a group has had."""
        found = (self.times.limited_by(group, uuid, now) for uuid in group.shares)
        return next((whose for whose in found if whose is not None), None)

    # --- Classes, ranks and paces -----------------------------------------------------------------

    def _count_time(self, group: Group) -> None:
        """Count what a burst had of the GPU so far, unless its clients say."""
        if not group.busy:
            return
        since = max(group.ran_since, group.counted_until)
        group.counted_until = self._now
        if group.metered or self._now <= since:
            return
        for uuid in group.shares:
            self.times.add(group, uuid, self._now - since, self._now)
        self._classes.ran(group, self._now - since, self._now)

    def _classify(self) -> None:
        """See what has become of those that something happened to."""
        touched, self._unclassed = self._unclassed, {}
        for group in touched.values():
            for uuid, share in group.shares.items():
                self._repace[uuid] = share.gpu
            found = self._classes.of(group)
            if found != group.classed:
                group.classed = found
                if group.lease is not None:
                    for share in group.shares.values():
                        share.gpu.background += 1 if found == "background" else -1
                self._rank_anew(group)
            self._time_class(group)

    def _time_class(self, group: Group) -> None:
        """Look again when a burst that goes on would change what its group counts as."""
        at = None
        if group.busy and not group.metered:
            at = self._classes.changes_at(group, max(group.ran_since, group.counted_until))
        self._timers.set(f"class {group.id}", at)

    def _rank(self, wait: Wait) -> None:
        parts, rank = self.policy.rank(wait)
        retry = -1.0 if wait.front else 0.0
        wait.parts, wait.rank = ({"retry": retry}, *parts), (retry, *rank)
        first = wait.group.makes_way_for
        # Else it would take back at once what was taken from it.
        if wait.grow is None and first is not None and first.rank > wait.rank and first.queued:
            wait.parts, wait.rank = first.parts, first.rank

    def _waits_of(self, group: Group) -> list[Wait]:
        """Return its places in the queue, in order."""
        found = {w: None for s in group.shares.values() for w in s.gpu.queue if w.group is group}
        if group.wait is not None and not group.shares:
            found[group.wait] = None
        return sorted(found, key=place)

    def _rank_anew(self, group: Group) -> None:
        """Its place in the queue may be another."""
        for wait in self._waits_of(group):
            self._remove(wait)
            self._rank(wait)
            self._insert(wait)

    def _insert(self, wait: Wait) -> None:
        insort(self.queue, wait, key=place)
        if wait.grow is None and not wait.group.shares:
            self._nowhere.append(wait)
        for gpu in self._gpus_of(wait):
            insort(gpu.queue, wait, key=place)
            self._mark(wait, gpu)

    def _mark(self, wait: Wait, gpu: Gpu) -> None:
        self._dirty[gpu.uuid] = self._crowded[gpu.uuid] = gpu
        if wait.grow is not None:
            self._stock_of[gpu.uuid] = gpu

    def _remove(self, wait: Wait) -> None:
        del self.queue[bisect_left(self.queue, place(wait), key=place)]
        if wait in self._nowhere:
            self._nowhere.remove(wait)
        for gpu in self._gpus_of(wait):
            del gpu.queue[bisect_left(gpu.queue, place(wait), key=place)]
            self._mark(wait, gpu)

    def _sort(self) -> None:
        for wait in sorted(self.queue, key=lambda w: w.group.makes_way_for is not None):
            self._rank(wait)
        self.queue.sort(key=place)
        for gpu in self.gpus.values():
            gpu.queue.sort(key=place)
        self._dirty.update(self.gpus)
        self._sorted_by = self.policy.version

    def _pace(self) -> None:
        """Say to the holders, where it changed, how fast they may submit."""
        changed: dict[str, Group] = {}
        for gpu in self._repace.values():
            before, gpu.paces = gpu.paces, self.policy.paces(gpu)
            again = self.policy.pace_again(gpu)
            if again is not None and again <= self._now:
                again = self._now + SOONEST
            self._timers.set(f"pace {gpu.uuid}", again)
            if not before and not gpu.paces:
                continue
            for group in gpu.holders.values():
                speed = gpu.paces.get(group.id, FREE)
                fresh = any(c.pace is FREE for c in group.granted.values())
                if speed != before.get(group.id, FREE) or (fresh and speed != FREE):
                    changed[group.id] = group
        self._repace.clear()
        for group in changed.values():
            metered = False
            for client in group.granted.values():
                speed = _strictest(
                    [g.share.gpu.paces.get(group.id, FREE) for g in client.holdings.values()]
                )
                metered = metered or speed.meter
                if speed != client.pace:
                    client.pace = speed
                    self._out.append(
                        Pace(client.number, speed.inflight, speed.stall, speed.share, speed.meter)
                    )
            if metered != group.metered:
                self._count_time(group)
                group.metered = metered
                self._time_class(group)

    def _tell_failure(self) -> None:
        failure, self.policy.failure = self.policy.failure, None
        if failure is not None:
            name, error = failure
            self._on_notice(
                Notice(
                    "",
                    "policy_failed",
                    {"policy": name, "error": error, "instead": self.policy.name},
                )
            )

    # --- Deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        earliest = self._timers.earliest()
        if earliest is not None and earliest <= self._now:
            for name in self._timers.due(self._now):
                self._look_again(name)
        self._classify()
        if self.policy.version != self._sorted_by:
            self._sort()
            self._repace.update(self.gpus)
        for wait in [w for w in self._nowhere if not w.frozen]:
            if wait.group.lease is None and not wait.group.shares:
                self._admit(wait, False)
        if self._dirty:
            self._decide_on(self._dirty)
        if self._unclassed:
            self._classify()
        self._pace()
        if self.policy.failure is not None:
            self._tell_failure()
        said, again = self._keeper.decide(self._now, self._stock_of)
        self._out += said
        self._timers.set("stock", again)
        self._stock_of.clear()
        self._tell_contended()
        for group in self._touched.values():
            state = group.state
            if state != group.shown:
                group.shown, group.since = state, self._now
        self._touched.clear()
        self._dirty.clear()

    def _look_again(self, timer: str) -> None:
        kind, _, name = timer.partition(" ")
        if kind == "gpu":
            self._dirty[name] = self.gpus[name]
        elif kind == "pace":
            self._repace[name] = self.gpus[name]
        elif kind == "class":
            group = self.groups[name]
            self._count_time(group)
            self._touch(group)

    def _decide_on(self, gpus: dict[str, Gpu]) -> None:
        """Decide on these GPUs, and those that hang together with them."""
        self._again = None
        due: dict[str, float | None] = {}
        for gpu in list(gpus.values()):
            if gpu.parked and (gpu.asked_at is None or self._is_overdue(gpu)):
                parked, gpu.parked = gpu.parked, []
                for grow in parked:
                    self._grow(grow)
                    self._keeper.concern(self.clients[grow.client])
        if len(gpus) > 1 or any(gpu.queue or gpu.filling for gpu in gpus.values()):
            self._extend(gpus)
        ordered = (
            [gpu for uuid, gpu in self.gpus.items() if uuid in gpus]
            if len(gpus) > 1
            else list(gpus.values())
        )
        for gpu in ordered:
            self._again = None
            if gpu.free < 0:
                self._relieve(gpu)
            due[gpu.uuid] = self._again
        short: list[Gpu] = []
        starved = self._fill(gpus, due)
        if any(gpu.queue for gpu in ordered):
            while self._serve(short, gpus, due):
                short.clear()
        if self._new_waits:
            self._log_waits()
        short += starved
        for gpu in ordered:
            self._again = due[gpu.uuid]
            self._watch(gpu, gpu in short)
            self._timers.set(f"gpu {gpu.uuid}", self._again)

    def _extend(self, gpus: dict[str, Gpu]) -> None:
        """Add the GPUs that are waited for together with these, or that fill together."""
        more = list(gpus.values())
        while more:
            gpu = more.pop()
            linked = {w.group for w in gpu.queue if len(w.group.shares) > 1}
            if gpu.filling is not None:
                linked.add(gpu.filling.group)
            for group in linked:
                for uuid, share in group.shares.items():
                    if uuid not in gpus:
                        gpus[uuid] = share.gpu
                        more.append(share.gpu)

    def _serve(self, short: list[Gpu], gpus: dict[str, Gpu], due: dict[str, float | None]) -> bool:
        """Grant one that waits for these GPUs, or else make room for the heads; return whether one was granted."""
        heads: dict[str, Wait] = {}
        served: list[tuple[Wait, Plan]] = []
        for wait in self._waits_on(gpus):
            if wait.grow is None and wait.group.lease is not None:
                continue  # it has yet to give its old lease back
            if wait.frozen:
                continue
            first = next(iter(self.uuids(wait)), None)
            self._again = None if first is None else due.get(first)
            granted = self._serve_one(wait, heads, served, short)
            if first is not None:
                due[first] = self._again
            if granted:
                return True
        # Last, so that it takes no room from one whose turn goes on.
        for wait, plan in served:
            if self._may_fill(wait, plan):
                self._admit(wait, False, filling=True)
                return True
        return False

    def _waits_on(self, gpus: dict[str, Gpu]) -> list[Wait]:
        """Return those that wait for any of these GPUs, in order."""
        if len(gpus) == 1:
            return next(iter(gpus.values())).queue
        found = {wait: None for gpu in gpus.values() for wait in gpu.queue}
        return sorted(found, key=place)

    def _serve_one(
        self,
        wait: Wait,
        heads: dict[str, Wait],
        served: list[tuple[Wait, Plan]],
        short: list[Gpu],
    ) -> bool:
        if wait.not_before > self._now:
            self._at(wait.not_before)
            return False
        if self.times.active and self._is_limited(wait):
            return False
        ahead = [heads[u] for u in self.uuids(wait) if u in heads] if heads else None
        if self._fits(wait):
            continues = ahead is not None and self._continues(wait, ahead)
            if (not ahead or continues or self._may_pass(wait, ahead)) and self._read(wait):
                self._admit(wait, bool(ahead) and continues)
                return True
        elif not ahead:
            plan = self.plan(wait)
            if plan.short is not None:
                short.append(plan.short[0])
                return False
            self._carry_out(plan)
            served.append((wait, plan))
        elif self._continues(wait, ahead):
            self._let_grow(wait)
        if not ahead and wait.barrier is None:
            wait.barrier = self._leases
        for uuid in self.uuids(wait):
            heads.setdefault(uuid, wait)
        return False

    def _is_limited(self, wait: Wait) -> bool:
        """Whether its group has had its limit of the GPU's time."""
        limited = 0.0
        if wait.grow is None:
            for uuid in wait.group.shares:
                until = self.times.throttled_until(wait.group, uuid, self._now)
                if until is not None and until > self._now:
                    limited = max(limited, until)
        if bool(limited) != bool(wait.limited_until):
            for gpu in self._gpus_of(wait):
                self._crowded[gpu.uuid] = gpu
        wait.limited_until = limited
        if limited == 0.0:
            return False
        self._at(limited)
        return True

    def _let_grow(self, wait: Wait) -> None:
        """Make room for one that gave its lease up to grow within its turn: from those that do not run either.

        Its memory stays until the turn is over, so to let it queue would leave the GPU idle for that long.
        """
        plan = self.plan(wait, waiters=True)
        if plan.short is not None:
            return
        # A whole cell's turn is long: the others' end first.
        if wait.group.exclusive or not (plan.later or any(g.runs for g in plan.revoke)):
            self._carry_out(plan)

    def _read(self, wait: Wait) -> bool:
        """Whether the readings that a grant depends on are fresh; if not, they are asked for."""
        fresh = True
        for gpu in self._gpus_of(wait):
            # If the spare part is used after all and has no room, the restore fails and is tried again. Not where
            # something died: it may have held more than it had stated.
            known = wait.grow is None and not gpu.ghosts and not gpu.shrunk
            spare = wait.group.shares[gpu.uuid].spare if known else 0
            if self.need(wait, gpu) > spare:
                fresh = self._is_fresh(gpu) and fresh
        return fresh

    def _make_room_now(self, gpu: Gpu, lack: int) -> bool:
        """Have memory moved out of those without a lease, whatever their residency; return whether that will do.

        For a stream capture: who waits for its lease waits for the capture's end, and that for this memory.
        """
        lack -= gpu.leaving
        victims = [s for s in gpu.shares.values() if s.group.lease is None]
        victims.sort(key=lambda s: self.policy.victim_rank(s.group))
        orders: list[tuple[Share, int]] = []
        for share in victims:
            stuck = any(h.stuck_until > self._now for h in share.holdings.values())
            size = 0 if stuck else min(lack, share.resident - share.evicting)
            if size <= 0:
                continue
            lack -= size
            ended = share.group.ended_at
            if ended is not None and ended + self.debounce > self._now:
                self._at(ended + self.debounce)
            else:
                orders.append((share, size))
        if lack > 0 or gpu.filling is not None:
            return False
        for share, size in orders:
            self._evict(share, size)
        return True

    def _carry_out(self, plan: Plan) -> None:
        now = self._now
        when = max((w for w, _ in plan.later), default=now)
        if when > now + self.debounce:
            # All at once, when the last of them can be had: earlier, the room would lie idle.
            self._at(when)
            return
        for later, _ in plan.later:
            self._at(later)
        if not plan.evict and not plan.revoke:
            return
        fresh = True
        for gpu, _ in plan.lacks:
            fresh = self._is_fresh(gpu) and fresh
        if fresh:
            for group in plan.revoke:
                group.makes_way_for = plan.wait
                if group.runs:
                    group.spent = True
                    if group.exclusive:
                        self._end_exclusive(group)
                self._revoke(group)
            for share, size in plan.evict:
                self._evict(share, size)

    def _relieve(self, gpu: Gpu) -> None:
        """Work an over-commitment down: re-attached leases, or foreign use that grew."""
        over = -gpu.free
        idle: list[tuple[tuple[float, ...], Share]] = []
        leased: list[Group] = []
        for share in gpu.shares.values():
            group = share.group
            if group.lease is None:
                over -= share.evicting
                if share.resident > share.evicting:
                    idle.append((self.policy.victim_rank(group), share))
            elif group.yielding:
                over -= share.resident + share.arriving
            else:
                leased.append(group)
        evict: list[tuple[Share, int]] = []
        idle.sort(key=lambda item: item[0])
        for _, share in idle:
            size = min(over, share.resident - share.evicting)
            if size <= 0:
                break
            over -= size
            when = self._evictable_at(share)
            if when <= self._now:
                evict.append((share, size))
            else:
                self._at(when)
        revoke: list[Group] = []
        # Within the reserve nothing can fail; what others hold varies by that much.
        leased.sort(key=lambda g: (g.runs, -g.turn))
        for group in leased:
            if over <= gpu.reserve:
                break
            share = group.shares[gpu.uuid]
            if share.resident + share.arriving > 0:
                over -= share.resident + share.arriving
                revoke.append(group)
        if (evict or revoke) and self._is_fresh(gpu):
            for group in revoke:
                self._revoke(group)
            for share, size in evict:
                self._evict(share, size)

    # --- Doing ------------------------------------------------------------------------------------

    def _enqueue(self, group: Group, grow: Grow | None = None, front: bool = False) -> Wait:
        self._numbers += 1
        wait = Wait(group, self._numbers, self._now, grow, front)
        if grow is None and group.place is not None:
            wait = Wait(group, group.place.number, group.place.since)
            wait.not_before, group.place = group.place.not_before, None
        wait.queued = True
        self._rank(wait)
        self._insert(wait)
        self._new_waits.append(wait)
        return wait

    def _dequeue(self, wait: Wait) -> None:
        self._remove(wait)
        wait.queued = False
        if not wait.logged:
            self._new_waits.remove(wait)
        if wait.group.wait is wait:
            wait.group.wait = None

    def _admit(self, wait: Wait, continues: bool, filling: bool = False) -> None:
        group = wait.group
        self._dequeue(wait)
        waited = max(0.0, self._now - wait.since)
        if wait.logged:
            group.totals.waits += 1
        self._touch(group)
        if wait.grow is not None:
            client = self.clients[wait.grow.client]
            holding = client.holdings[wait.grow.least.gpu]
            more, fixed = growth(holding, wait.grow)
            mapped = more <= 0 or client.lease is not None
            self._promise(holding, wait.grow, more, fixed, "resident" if mapped else "swapped")
            return
        self._leases += 1
        if filling:
            group.filling, group.filled_at = wait, self._now
            self._filling[group.id] = group
            for share in group.shares.values():
                share.gpu.filling = share
                for holding in share.holdings.values():
                    holding.room = holding.told = holding.resident
        self._begin_lease(group, self._leases)
        for share in group.shares.values():
            if filling:
                self._allot(share)
            elif share.ceiling is not None:
                self._distribute(share, share.unallotted)
        if not continues:
            group.turn, group.turn_at = self._leases, self._now
        self._log("grant", group, waited=waited)
        self._grant_waiting(group)

    def _begin_lease(self, group: Group, lease: int) -> None:
        group.floating = self._floats(group)
        for share in group.shares.values():
            if share.oversubscribes and not group.floating:
                share.ceiling = max(share.goal, share.resident)
                for holding in share.holdings.values():
                    yields = holding.client.oversubscribes or share.gpu.filling is share
                    holding.room = holding.resident if yields else holding.promised
        group.lease = lease
        group.intact = True
        group.spent = False
        group.makes_way_for = None
        group.ran_before = group.counted_burst = 0.0
        self.leased[group.id] = group
        for share in group.shares.values():
            self._hold(group, share.gpu)
            self._crowded[share.gpu.uuid] = share.gpu
        self._charge(group)

    def _grant_waiting(self, group: Group) -> None:
        for client in group.clients.values():
            if client.wants:
                self._grant(client)

    def _grant(self, client: Client) -> None:
        group = client.group
        assert group.lease is not None
        client.lease = group.lease
        client.wants = False
        client.burst_at = self._now
        client.restoring = {
            u for u, h in client.holdings.items() if h.promised > h.resident or h.evicting
        }
        group.granted[client.number] = client
        group.ended_at = None
        group.totals.bursts += 1
        self._set_busy(client, True)
        self._out.append(self._grant_of(client, client.lease))
        self._tell_room(client, anew=True)

    def _grant_of(self, client: Client, lease: int) -> Grant:
        """One that may hold more than the GPU has is told how much comes in, also where all the room is there."""
        return Grant(
            client.number, lease, client.group.filling is not None or client.oversubscribes
        )

    # --- Filling ----------------------------------------------------------------------------------

    def _may_fill(self, wait: Wait, plan: Plan) -> bool:
        """Whether all that the head lacks is on its way out: then it need not wait for the last byte of it."""
        if wait.grow is not None or wait.group.lease is not None or self._floats(wait.group):
            return False
        gpus = self._gpus_of(wait)
        if plan.later or plan.revoke or plan.draining or plan.serialised:
            return False
        if any(gpu.filling is not None for gpu in gpus):
            return False
        return self._read(wait) and all(
            self.need(wait, gpu) <= gpu.free + gpu.leaving - wait.group.shares[gpu.uuid].evicting
            for gpu in gpus
        )

    def _fill(self, gpus: dict[str, Gpu], due: dict[str, float | None]) -> list[Gpu]:
        """Give what room there is to those that fill; return the GPUs where more is not to be had now."""
        starved: list[Gpu] = []
        if not self._filling:
            return starved
        groups = {g.filling.group.id: g.filling.group for g in self.gpus.values() if g.filling}
        for group in groups.values():
            if group.yielding or not group.shares.keys() & gpus:
                continue
            for share in group.shares.values():
                self._allot(share)
            for client in group.granted.values():
                self._tell_room(client)
            if not any(share.missing for share in group.shares.values()):
                self._end_filling(group)
                continue
            first = next(iter(group.shares))
            self._again = due[first]
            self._make_more_room(group, starved)
            due[first] = self._again
        return starved

    def _allot(self, share: Share) -> None:
        give = min(share.gpu.free, share.missing)
        if give <= 0 or not self._is_fresh(share.gpu, self.fresh_for_growth):
            return
        share.group.filled_at = self._now
        self._distribute(share, give)

    def _distribute(self, share: Share, give: int) -> None:
        # What has to be on the GPU; then those that were granted first: the others have not asked yet.
        for holding in sorted(
            share.holdings.values(), key=lambda h: (h.client.oversubscribes, h.client.lease is None)
        ):
            part = min(give, holding.promised - holding.room)
            holding.room += part
            give -= part
        self._charge_share(share)

    def _tell_room(self, client: Client, anew: bool = False) -> None:
        fills = client.group.filling is not None
        if client.lease is None or not (fills or client.oversubscribes):
            return
        for holding in client.holdings.values():
            share = holding.share
            limited = share.ceiling is not None and client.oversubscribes
            if anew:
                holding.told = holding.resident if holding.promised or limited else ALL
                holding.told_last = False
            room = ALL if holding.room >= holding.promised and not limited else holding.room
            last = client.oversubscribes and share.gpu.filling is not share
            if room > holding.told or (last and (room != holding.told or not holding.told_last)):
                holding.told, holding.told_last = room, last
                self._out.append(Room(client.number, client.lease, share.gpu.uuid, room, last))

    def _end_filling(self, group: Group) -> None:
        """All the room is there, or the lease is not: from now on the share is charged as any other."""
        if group.filling is None:
            return
        for share in group.shares.values():
            if share.gpu.filling is share:
                share.gpu.filling = None
            for holding in share.holdings.values():
                if share.ceiling is None or not holding.client.oversubscribes:
                    holding.room = holding.promised
        if not group.yielding:
            for client in group.granted.values():
                self._tell_room(client)
        group.filling = None
        self._filling.pop(group.id, None)
        self._charge(group)

    def _make_more_room(self, group: Group, starved: list[Gpu]) -> None:
        """See to it that what one that fills still lacks is on its way: evictions may fail or fall short."""
        assert group.filling is not None
        plan = self.plan(group.filling)
        patience = self.filling_patience
        if plan.short is not None:
            gpu, lack = plan.short
            starved.append(gpu)
            if gpu.ghosts < lack:
                patience = self.starving_patience
        elif plan.later or plan.revoke or plan.draining:
            # It must not keep room for long that somebody else could use.
            patience = self.starving_patience
            self._carry_out(plan)
        else:
            self._carry_out(plan)
        end = group.filled_at + patience
        if self._now >= end:
            group.stalled = True
            self._revoke(group)
        else:
            self._at(end)

    def _revoke(self, group: Group) -> None:
        if group.yielding or group.lease is None:
            return
        group.yielding = True
        group.revoked_at = self._now
        for client in group.granted.values():
            if client.lease is not None:
                self._out.append(Revoke(client.number, client.lease))
        self._log("revoke", group)
        self._touch(group)

    def _evict(self, share: Share, size: int) -> None:
        share.group.intact = False
        for holding in share.holdings.values():
            part = min(size, holding.resident - holding.evicting)
            if part > 0 and holding.stuck_until <= self._now:
                size -= part
                self._serial += 1
                self._evictions[self._serial] = (holding, part)
                self._order_out(holding, part)
                self._out.append(Evict(holding.client.number, self._serial, share.gpu.uuid, part))

    def _set_busy(self, client: Client, busy: bool) -> None:
        if client.busy == busy:
            return
        client.busy = busy
        group = client.group
        if busy:
            if not group.busy:
                group.ran_since = self._now
            group.busy += 1
        else:
            if group.busy == 1:
                self._count_time(group)
            group.busy -= 1
            if not group.busy:
                group.ran_before += self._now - group.ran_since

    def _tell(self, client: Client, waiting: int, beside: int = 0) -> None:
        """Say how many wait and run beside it, where either changes from none to some or back."""
        if bool(client.contended) != bool(waiting) or bool(client.beside) != bool(beside):
            client.contended, client.beside = waiting, beside
            self._out.append(Contended(client.number, waiting, beside))

    def _tell_contended(self) -> None:
        """Say to the holders, where it changed, whether other groups wait for their GPUs or run there."""
        for gpu in self._crowded.values():
            gpu.waiting = len({w.group.id for w in gpu.queue if w.logged and self.counts(w)})
            crowd = (min(gpu.waiting, 2), min(len(gpu.holders), 2))
            if crowd != gpu.crowd:
                gpu.crowd = crowd
                self._touched.update(gpu.holders)
        self._crowded.clear()
        for group in (
            self._touched.values()
            if len(self._touched) < 2
            else sorted(self._touched.values(), key=lambda g: g.lease or 0)
        ):
            if group.lease is not None:
                waiting = self._others_waiting(group)
                beside = max((len(s.gpu.holders) for s in group.shares.values()), default=1) - 1
                for client in group.clients.values():
                    self._tell(client, waiting, beside)

    def _others_waiting(self, group: Group) -> int:
        """Return how many other groups wait for its GPUs."""
        if group.exclusive:
            return 0  # nobody is to go quiet for them
        if len(group.shares) == 1:
            gpu = next(iter(group.shares.values())).gpu
            waits = gpu.waiting and any(
                w.group is group and w.logged and self.counts(w) for w in gpu.queue
            )
            return gpu.waiting - bool(waits)
        return len(
            {
                w.group.id
                for s in group.shares.values()
                for w in s.gpu.queue
                if w.logged and w.group is not group and self.counts(w)
            }
        )

    def _touch(self, group: Group) -> None:
        self._touched[group.id] = self._unclassed[group.id] = group
        self._concern(group)

    # --- History ----------------------------------------------------------------------------------

    def _log(self, kind: str, group: Group, **fields: Any) -> None:
        self._out.append(Log(kind, group.id, fields))

    def _log_move(self, kind: str, event: Evicted | Restored) -> None:
        self._log(
            kind,
            self.clients[event.client].group,
            gpu=event.usage.gpu,
            bytes=event.bytes,
            copied=event.copied,
            duration=event.duration,
            status=event.status,
        )

    def _log_waits(self) -> None:
        """Those who were not served at once do wait, unless only a reading is out."""
        explainer = reasons.Explainer(self, self._now)
        for wait in list(self._new_waits):
            if any(g.asked_at is not None for g in self._gpus_of(wait)) and self._fits(wait):
                continue
            self._new_waits.remove(wait)
            wait.logged = True
            for gpu in self._gpus_of(wait):
                self._crowded[gpu.uuid] = gpu
            self._log("wait", wait.group, reason=explainer.reason(wait))


def _strictest(speeds: list[Speed]) -> Speed:
    """Return what keeps within each of them."""
    bounds = [s for s in speeds if s != FREE]
    if len(bounds) < 2:
        return bounds[0] if bounds else FREE
    bounded = [s for s in bounds if s.inflight is not None]
    return Speed(
        min((cast("float", s.inflight) for s in bounded), default=None),
        max((s.stall for s in bounded), default=FREE.stall),
        min(s.share for s in bounds),
        any(s.meter for s in bounds),
    )


def _valid_quantum(quantum: object) -> Quantum:
    if quantum == "auto":
        return "auto"
    number = isinstance(quantum, (int, float)) and not isinstance(quantum, bool)
    if number and 0 < cast("float", quantum) <= LONGEST_QUANTUM:
        return float(cast("float", quantum))
    raise ValueError(
        "The quantum must be 'auto', or a number of seconds above 0 and at most "
        f"{LONGEST_QUANTUM:.0f}; {quantum!r} is neither"
    )


def _valid_anti_thrash(mode: AntiThrash) -> AntiThrash:
    if mode in ("auto", "on", "off"):
        return mode
    raise ValueError(f"anti_thrash must be auto, on or off, not {mode!r}")
