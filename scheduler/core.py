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
is not a head may pass if it needs no eviction and no revocation, and if the head could still be served from leases
that are older than its time at the head (``Wait.barrier``). So a head waits for a fixed set of leases, each of which is
revoked once its quantum is over: it is granted in bounded time provided that holders yield, then the next is the head.
A head that could not be served if everybody yielded (foreign use, ghosts) keeps its place and holds nobody up.

Room is made in the order in which it can be had, then by kind:

    ==============  ==================================================  =====================================
    kind            memory may be taken                                 how
    ==============  ==================================================  =====================================
    no lease        after debounce or residency (below)                 Evict
    held            likewise                                            Revoke, on Released Evict
    waiting         likewise; last in the queue first                   Evict
    running         after its quantum                                   Revoke, on Released Evict
    ==============  ==================================================  =====================================

- *Debounce*: after the end of a cell, 10 ms: a Run All submits again within some 4 ms.
- *Residency*: after any other end, min(10 x cost of moving the footprint, quantum) since the memory was in.
- A group that comes back within its residency, with its memory still in, continues its *turn* before any head: the
  turn's clock is not wound again, so this cannot go on beyond what the head had to wait for anyway. If it needs more
  than before (it gave its lease up to grow), room is made for it too, from those that do not run.

Nothing is taken before all that the head needs can be had (give or take the debounce): it would idle meanwhile.

Foreign use
-----------
NVML's used bytes are one number, read while moves are under way. What we hold is then an interval::

    stated - (being evicted, or admitted and not yet allocated)  <=  ours  <=  stated + arriving

Foreign use stays what it was last where the reading allows that, else it takes the nearest value that is possible;
where an earlier reading may have been misread, the greatest that is possible.
Decisions to grant or to take memory wait for a reading of this very millisecond (``ReadDevice``), unless nothing is to
move.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from . import reasons, snapshot
from .events import (
    AntiThrash,
    Attach,
    Burst,
    Cancel,
    CancelWaits,
    Cause,
    Cell,
    Configure,
    Contended,
    Decision,
    Detach,
    Device,
    EndBurst,
    Event,
    Evict,
    Evicted,
    Grant,
    Grow,
    Grown,
    Growth,
    HostMemory,
    Log,
    Notice,
    Quantum,
    ReadDevice,
    Release,
    Released,
    Rename,
    Request,
    Restored,
    Revoke,
    Tick,
    Usage,
    UsageChanged,
)
from .policies import POLICIES, Policy
from .state import Client, Gpu, Group, Holding, Share, Wait

MIB = 1 << 20
GIB = 1 << 30
#: Larger figures are a fault of the client, not memory.
LARGEST = 1 << 50
LONGEST_QUANTUM = 3600.0
#: Bursts that end for these causes are over; others may go on any moment.
_OVER: frozenset[Cause] = frozenset({"cell", "idle", "release", "exit"})
#: Kinds of victims, in the order in which they lose memory.
_IDLE, _HELD, _WAITING, _RUNNING = range(4)


class ProtocolViolation(Exception):
    """A client said what cannot be; the server disconnects it. The core's state is as before the event."""

    def __init__(self, client: int, text: str) -> None:
        super().__init__(text)
        self.client = client
        self.text = text


@dataclass(slots=True)
class Plan:
    """What stands between the head of the queue and its grant."""

    #: GPUs with too little room, and by how much.
    lacks: list[tuple[Gpu, int]] = field(default_factory=list)
    #: The GPU that lacks room even if everybody yields, and by how much.
    short: tuple[Gpu, int] | None = None
    serialised: list[Group] = field(default_factory=list)
    evict: list[tuple[Share, int]] = field(default_factory=list)
    revoke: list[Group] = field(default_factory=list)
    #: Revoked already; evicted already and not answered.
    draining: list[Group] = field(default_factory=list)
    leaving: list[Group] = field(default_factory=list)
    #: Chosen, but protected until then.
    later: list[tuple[float, Group]] = field(default_factory=list)


def default_reserve(total: int) -> int:
    """Bytes of a GPU that are never promised: for allocations that nobody states, and for rounding.

    1 % of the GPU; at least 64 MiB, but no more than 2 % where that is less (small simulated GPUs).
    """
    return max(total // 100, min(64 * MIB, total // 50))


class Core:
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
    """

    def __init__(
        self,
        *,
        quantum: Quantum = "auto",
        anti_thrash: AntiThrash = "auto",
        policy: str = "fcfs",
        reserve: int | None = None,
        debounce: float = 0.010,
        residency_factor: float = 10.0,
        shortest_quantum: float = 1.0,
        longest_quantum: float = 30.0,
        bandwidth: float = 10e9,
        fresh: float = 0.001,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(sorted(POLICIES))}, not {policy!r}")
        self.policy: Policy = POLICIES[policy]()
        self.quantum: Quantum = _valid_quantum(quantum)
        self.anti_thrash: AntiThrash = _valid_anti_thrash(anti_thrash)
        self.reserve = reserve
        self.debounce = debounce
        self.residency_factor = residency_factor
        self.shortest_quantum = shortest_quantum
        self.longest_quantum = longest_quantum
        self.bandwidth = bandwidth
        self.fresh = fresh
        #: Growth under a lease asks for no reading younger than this: it comes often and can be handed back.
        self.fresh_for_growth = 0.050
        #: A reading that was asked for and has not come after this long is not waited for.
        self.reading_timeout = 0.1
        self.shortest_pause, self.longest_pause, self.idle_pause = 0.005, 0.1, 1.0
        self.foreign_pause = 0.050
        self.shortest_retry, self.longest_retry = 0.010, 1.0

        self.gpus: dict[str, Gpu] = {}
        self.groups: dict[str, Group] = {}
        self.clients: dict[int, Client] = {}
        self.leased: dict[str, Group] = {}
        self.queue: list[Wait] = []
        self.host_budget = 0
        self.promised = 0
        self.notices: deque[tuple[float, Notice]] = deque(maxlen=50)

        self._now = 0.0
        self._out: list[Decision] = []
        self._deadline: float | None = None
        self._touched: dict[str, Group] = {}
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
            Released: self._on_released,
            Grow: self._on_grow,
            UsageChanged: self._on_usage,
            Evicted: self._on_evicted,
            Restored: self._on_restored,
            Cell: self._on_cell,
            Cancel: self._on_cancel,
            Release: self._on_release,
            Rename: self._on_rename,
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

    def deadline(self) -> float | None:
        """When the core wants a ``Tick``, unless an event comes first."""
        return self._deadline

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
            group = Group(event.group, event.name, self._numbers, since=self._now)
            group.idle_since = self._now
            self.groups[group.id] = group
            self._log("join", group, pid=event.pid)
        client = Client(event.client, event.pid, event.backend, group, event.cap)
        self.clients[client.number] = group.clients[client.number] = client
        for usage in event.usages:
            holding = self._holding(client, usage.gpu)
            gpu = holding.share.gpu
            # Until it attached, what it holds was foreign.
            gpu.foreign = max(0, gpu.foreign - usage.resident - usage.pinned - usage.context)
            self._state(holding, usage)
            self._ask(gpu)
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
        client.restoring = {u for u, h in client.holdings.items() if h.promised > h.resident}
        if event.busy:
            client.burst_at = self._now
            self._set_busy(client, True)
        if group.yielding:
            self._out.append(Revoke(client.number, event.lease))
        elif group.wait is not None:
            self._dequeue(group.wait)
            self._grant_waiting(group)
        self._touch(group)

    def _on_detach(self, event: Detach) -> None:
        client = self._client(event.client)
        group = client.group
        for gpu in self.gpus.values():
            gpu.parked = [g for g in gpu.parked if g.client != client.number]
        for wait in [w for w in self.queue if w.grow and w.grow.client == client.number]:
            self._dequeue(wait)
        client.wants = False
        client.contended = 0
        if group.wait is not None and not any(c.wants for c in group.clients.values()):
            self._dequeue(group.wait)
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            mapped = holding.promised if client.lease is not None else holding.resident
            gpu.ghosts += mapped + holding.pinned + holding.context
            gpu.read_pause = 0.0
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
            self._log("leave", group)
            return
        for uuid in [u for u, s in group.shares.items() if not s.holdings]:
            del group.shares[uuid], self.gpus[uuid].shares[group.id]
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
                self._out.append(Grant(client.number, client.lease))
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
        self._log("burst", group, phase=event.phase, cause=event.cause)
        self._touch(group)

    def _on_released(self, event: Released) -> None:
        client = self._client(event.client)
        if client.lease is None or client.lease != event.lease:
            return
        if event.cause == "failed":
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
        del group.granted[client.number]
        self._touch(group)
        if group.granted:
            # A lease is for the whole group: one that grows or fails is in nobody's hands.
            if cause in ("growth", "failed"):
                self._revoke(group)
            return
        group.lease = None
        group.yielding = group.floating = False
        group.idle_since = self._now
        del self.leased[group.id]
        self._charge(group)
        self._log("release", group, cause=cause, ran=group.ran_before)
        for other in group.clients.values():
            self._tell(other, 0)
        if group.offload:
            self._offload(group)

    def _retry(self, client: Client) -> None:
        """The footprint could not be made resident: back to the old place in the queue, after a pause."""
        group = client.group
        group.ended_at = self._now - self.debounce
        client.wants = True
        self._give_back(client, "failed")
        if group.wait is None:
            group.wait = self._enqueue(group, front=True)
        pause = min(self.shortest_retry * 2.0**group.failures, self.longest_retry)
        group.failures = min(group.failures + 1, 20)
        group.wait.not_before = self._now + pause
        for uuid in group.shares:
            self._ask(self.gpus[uuid])

    def _on_restored(self, event: Restored) -> None:
        client = self._client(event.client)
        group = client.group
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        holding = self._holding(client, usage.gpu)
        self._state(holding, usage, moved=True)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        group.totals.restored += event.bytes
        self._log_move("restore", event)
        if client.lease is None or client.lease != event.lease:
            return
        self._touch(group)
        client.restoring.discard(usage.gpu)
        if event.status != "done":
            self._retry(client)
            return
        group.failures = 0
        holding.spare = holding.promised - holding.resident
        if event.bytes and not group.yielding and group.turn == group.lease:
            group.turn_at = self._now

    def _on_evicted(self, event: Evicted) -> None:
        client = self._client(event.client)
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        holding, asked = self._evictions.get(event.serial, (None, 0))
        if holding is None:
            # An order of an earlier scheduler: what it says is true all the same.
            self._state(self._holding(client, usage.gpu), usage, moved=True)
            return
        if holding.client is not client or holding.share.gpu.uuid != usage.gpu:
            raise ProtocolViolation(client.number, "answers an eviction that was not its own")
        del self._evictions[event.serial]
        holding.evicting -= asked
        self._state(holding, usage, moved=True, expected=asked)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        client.group.totals.evicted += event.bytes
        if event.status == "done" and (event.bytes >= asked or not usage.resident):
            holding.stuck_pause = 0.0
        else:
            pause = min(max(2 * holding.stuck_pause, self.shortest_retry), self.longest_retry)
            holding.stuck_pause, holding.stuck_until = pause, self._now + pause
        self._log_move("evict", event)

    # --- Memory -----------------------------------------------------------------------------------

    def _on_usage(self, event: UsageChanged) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.usage)
        self._state(self._holding(client, event.usage.gpu), event.usage)

    def _on_grow(self, event: Grow) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.least, growth=True)
        if not 0 <= event.most <= LARGEST:
            raise ProtocolViolation(client.number, "asks for a size that cannot be")
        self._grow(event)

    def _grow(self, event: Grow) -> None:
        client = self.clients[event.client]
        group = client.group
        holding = self._holding(client, event.least.gpu)
        share, gpu = holding.share, holding.share.gpu
        more, fixed = _growth(holding, event)
        refusal = self._refusal(share, more, fixed)
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
            return
        extra = self._headroom(share, more, event.most - holding.promised - more)
        if group.lease is None or group.yielding:
            self._promise(
                holding, event, more + extra, fixed, "resident" if not more else "swapped"
            )
            return
        if more and not self._is_fresh(gpu, self.fresh_for_growth):
            gpu.parked.append(event)
            return
        if more <= 0 or group.floating or self._may_take(group, gpu, more):
            extra = min(extra, max(0, gpu.free - more))
            if any(w.group is not group for w in self.queue if gpu in self._gpus_of(w)):
                extra = 0
            leased = client.lease is not None or not more
            self._promise(holding, event, more + extra, 0, "resident" if leased else "swapped")
            return
        # Resident bytes of others are in the way. Waiting for them under a lease would be hold-and-wait.
        # The client gives the lease up by itself, unless it was granted but is not in yet: hence Revoke.
        self._promise(holding, event, more + extra, 0, "swapped")
        self._revoke(group)

    def _refusal(self, share: Share, more: int, fixed: int) -> tuple[Growth, bool, str] | None:
        """Why this could never be had: status, whether it is for foreign use alone, and the sentence."""
        gpu, group = share.gpu, share.group
        asked = more + fixed
        if asked <= 0:
            return None
        held = share.promised + share.pinned + share.context
        others = gpu.pinned - share.pinned + gpu.context - share.context
        limit = gpu.total - gpu.reserve - others - gpu.foreign
        if held + asked > limit:
            text = (
                f"{_gib(asked)} more would make {_gib(held + asked)}, "
                f"but the GPU has {_gib(max(0, limit))} for one kernel"
            )
            if gpu.foreign:
                text += f" (other programs hold {_gib(gpu.foreign)})"
            return "device", held + asked <= limit + gpu.foreign, text
        cap = min((c.cap for c in group.clients.values() if c.cap), default=0)
        total = sum(s.promised + s.pinned for s in group.shares.values())
        if cap and total + asked > cap:
            text = (
                f"{_gib(asked)} more would make {_gib(total + asked)}, "
                f"but this kernel is limited to {_gib(cap)}"
            )
            return "cap", False, text
        backed = self._backed()
        if more and self.promised + more > backed:
            text = (
                f"{_gib(more)} more would make {_gib(self.promised + more)} for all kernels, "
                f"but the GPUs and the host's memory can back {_gib(backed)}"
            )
            return "host", False, text
        return None

    def _backed(self) -> int:
        """Bytes of footprints that the GPUs and the host's memory can hold together."""
        capacity = sum(g.total - g.reserve - g.pinned - g.context for g in self.gpus.values())
        return max(0, capacity) + self.host_budget

    def _headroom(self, share: Share, more: int, wish: int) -> int:
        """How many of the bytes that a client would like beyond its need can be promised."""
        low, high = 0, max(0, wish)
        if more <= 0 or high == 0:
            return 0
        if self._refusal(share, more + high, 0) is None:
            return high
        while high - low > 2 * MIB:
            middle = (low + high) // 2
            if self._refusal(share, more + middle, 0) is None:
                low = middle
            else:
                high = middle
        return low

    def _promise(
        self, holding: Holding, event: Grow, more: int, fixed: int, status: Growth
    ) -> None:
        least = event.least
        promised = holding.promised + max(0, more)
        pinned = max(holding.pinned, least.pinned)
        context = max(holding.context, least.context)
        holding.unsettled += max(0, fixed)
        holding.spare = max(0, promised - least.promised)
        self._account(holding, promised, holding.resident, pinned, context)
        self._out.append(Grown(holding.client.number, event.serial, status, promised))
        if more > 0 or fixed > 0:
            self._log("grow", holding.client.group, promised=holding.share.promised)

    def _may_take(self, group: Group, gpu: Gpu, more: int) -> bool:
        """Whether a holder may have more room now without holding up the head of the queue any longer."""
        if more > gpu.free:
            return False
        for wait in self.queue:
            if wait.group is not group and gpu in self._gpus_of(wait):
                barrier = self._leases if wait.barrier is None else wait.barrier
                need = self.need(wait, gpu)
                reach = self._reach(wait, gpu, group)
                return group.turn <= barrier or need <= 0 or need <= reach - more
        return True

    def _holding(self, client: Client, uuid: str) -> Holding:
        holding = client.holdings.get(uuid)
        if holding is None:
            group, gpu = client.group, self.gpus[uuid]
            share = group.shares.get(uuid)
            if share is None:
                share = group.shares[uuid] = gpu.shares[group.id] = Share(group, gpu)
            holding = client.holdings[uuid] = Holding(client, share)
            share.holdings[client.number] = holding
        return holding

    def _state(
        self, holding: Holding, usage: Usage, moved: bool = False, expected: int = 0
    ) -> None:
        """Take over what a client states that it holds; ``expected`` bytes were to leave."""
        # A move's report may have crossed a promise on its way.
        promised = max(usage.promised, holding.promised) if moved else usage.promised
        before = holding.resident + holding.pinned + holding.context
        if before - usage.resident - usage.pinned - usage.context > expected:
            # It was freed some time ago: the last reading may have been without it already.
            holding.share.gpu.stale = True
        holding.host = usage.host
        holding.unsettled = 0
        self._account(holding, promised, usage.resident, usage.pinned, usage.context)
        holding.spare = min(holding.spare, holding.promised - holding.resident)

    def _account(
        self, holding: Holding, promised: int, resident: int, pinned: int, context: int
    ) -> None:
        """Set what a client holds: the only place where these sums change."""
        share = holding.share
        gpu = share.gpu
        more = promised - holding.promised
        share.promised += more
        self.promised += more
        holding.promised = promised
        more = resident - holding.resident
        share.resident += more
        gpu.resident += more
        holding.resident = resident
        more = pinned - holding.pinned
        share.pinned += more
        gpu.pinned += more
        holding.pinned = pinned
        more = context - holding.context
        share.context += more
        gpu.context += more
        holding.context = context
        self._charge_share(share)

    def _charge_share(self, share: Share) -> None:
        """Set the room that is kept for what a lease brings in: the only place where it changes."""
        group = share.group
        leased = group.lease is not None and not group.floating
        arriving = share.promised - share.resident if leased else 0
        share.gpu.arriving += arriving - share.arriving
        share.arriving = arriving

    def _charge(self, group: Group) -> None:
        for share in group.shares.values():
            self._charge_share(share)

    def _measure(self, gpu: Gpu, moved: int, copied: int, duration: float) -> None:
        if copied > MIB and duration > 0:
            gpu.bandwidth += 0.3 * (moved / duration - gpu.bandwidth)

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
            self._log("cell", group, phase="begin", msg_id=event.msg_id)
            return
        if event.msg_id in group.ended_cells:
            return
        group.cells.pop(event.msg_id, None)
        group.ended_cells.append(event.msg_id)
        self._log("cell", group, phase="end", msg_id=event.msg_id)
        if not group.cells and not group.busy and group.ended_at is None:
            # It went quiet first: now it is over.
            group.ended_at = self._now
            self._touch(group)
        # The kernel says Burst(end) itself. For the server, a burst ends with the last cell that is open.
        if not event.from_kernel and not group.cells:
            for client in group.granted.values():
                if client.busy and client.burst_at <= event.at:
                    self._out.append(EndBurst(client.number, event.at))

    def _on_cancel(self, event: Cancel) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        for wait in [w for w in self.queue if w.group is group]:
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
        group.offload = group.offload or event.offload
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

    def _on_configure(self, event: Configure) -> None:
        quantum = self.quantum if event.quantum is None else _valid_quantum(event.quantum)
        mode = self.anti_thrash
        if event.anti_thrash is not None:
            mode = _valid_anti_thrash(event.anti_thrash)
        self.quantum, self.anti_thrash = quantum, mode
        self._out.append(Log("settings", "", {"quantum": quantum, "anti_thrash": mode}))

    def _on_notice(self, event: Notice) -> None:
        self.notices.append((self._now, event))
        self._out.append(Log("notice", event.group, {"code": event.code, "params": event.params}))

    def _on_host_memory(self, event: HostMemory) -> None:
        self.host_budget = max(0, event.budget)

    def _on_tick(self, event: Tick) -> None:
        pass

    # --- The machine ------------------------------------------------------------------------------

    def _on_device(self, event: Device) -> None:
        gpu = self.gpus.get(event.gpu)
        if gpu is None:
            gpu = Gpu(event.gpu, event.index, event.name, 0, 0, 0, self._now, self.bandwidth)
            self.gpus[event.gpu] = gpu
        if gpu.total != event.total:
            gpu.total = event.total
            gpu.reserve = default_reserve(event.total) if self.reserve is None else self.reserve
        gpu.used, gpu.read_at, gpu.asked_at = event.used, self._now, None
        if event.name:
            gpu.name, gpu.index = event.name, event.index

        stated = gpu.resident + gpu.pinned + gpu.context
        least = most = stated
        for share in gpu.shares.values():
            if share.group.lease is not None:
                most += share.promised - share.resident
            for holding in share.holdings.values():
                least -= holding.evicting + holding.unsettled
        gpu.ghosts = max(0, min(gpu.ghosts, event.used - least - gpu.foreign))
        rest = event.used - gpu.ghosts
        # An earlier reading may have missed what was freed and stated only since: then the last value is too low.
        last = rest if gpu.stale else gpu.foreign
        gpu.stale = False
        gpu.foreign = max(0, rest - most, min(last, rest - least))
        if gpu.ghosts:
            longest = self.longest_pause if self.queue else self.idle_pause
            gpu.read_pause = min(max(2 * gpu.read_pause, self.shortest_pause), longest)

    def _is_fresh(self, gpu: Gpu, age: float | None = None) -> bool:
        """Whether the last reading may be decided on; if not, one is asked for."""
        if self._now - gpu.read_at <= (self.fresh if age is None else age) and not gpu.stale:
            return True
        if self._is_overdue(gpu):
            return True
        self._ask(gpu)
        return False

    def _is_overdue(self, gpu: Gpu) -> bool:
        return gpu.asked_at is not None and self._now - gpu.asked_at >= self.reading_timeout

    def _ask(self, gpu: Gpu) -> None:
        if gpu.asked_at is None:
            gpu.asked_at = self._now
            self._out.append(ReadDevice(gpu.uuid))

    # --- Deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._deadline = None
        for gpu in self.gpus.values():
            if gpu.parked and (gpu.asked_at is None or self._is_overdue(gpu)):
                parked, gpu.parked = gpu.parked, []
                for grow in parked:
                    self._grow(grow)
            if gpu.free < 0:
                self._relieve(gpu)
        short: list[Gpu] = []
        if self.queue:
            while self._serve(short):
                short.clear()
            self._log_waits()
        for gpu in self.gpus.values():
            self._watch(gpu, gpu in short)
        if self.leased:
            self._tell_contended()
        if self._touched:
            for group in self._touched.values():
                state = group.state
                if state != group.shown:
                    group.shown, group.since = state, self._now
            self._touched.clear()

    def _serve(self, short: list[Gpu]) -> bool:
        """Grant one that waits, or else make room for the heads; return whether one was granted."""
        heads: dict[str, Wait] = {}
        for wait in self.queue:
            if wait.grow is None and wait.group.lease is not None:
                continue  # it has yet to give its old lease back
            if wait.not_before > self._now:
                self._at(wait.not_before)
                continue
            ahead = [heads[u] for u in self.uuids(wait) if u in heads] if heads else None
            if self._fits(wait):
                continues = ahead is not None and self._continues(wait)
                if (not ahead or continues or self._may_pass(wait, ahead)) and self._read(wait):
                    self._admit(wait, bool(ahead) and continues)
                    return True
            elif not ahead:
                plan = self.plan(wait)
                if plan.short is not None:
                    short.append(plan.short[0])
                    continue
                self._carry_out(plan)
            elif self._continues(wait):
                self._let_grow(wait)
            if not ahead and wait.barrier is None:
                wait.barrier = self._leases
            for uuid in self.uuids(wait):
                heads.setdefault(uuid, wait)
        return False

    def _let_grow(self, wait: Wait) -> None:
        """Make room for one that gave its lease up to grow within its turn: from those that do not run either.

        Its memory stays until the turn is over, so to let it queue would leave the GPU idle for that long.
        """
        plan = self.plan(wait, waiters=True)
        if plan.short is None and not plan.later and not any(g.busy for g in plan.revoke):
            self._carry_out(plan)

    def uuids(self, wait: Wait) -> Iterator[str] | tuple[str]:
        """Return the GPUs that one waits for."""
        return iter(wait.group.shares) if wait.grow is None else (wait.grow.least.gpu,)

    def _gpus_of(self, wait: Wait) -> list[Gpu]:
        return [self.gpus[u] for u in self.uuids(wait)]

    def need(self, wait: Wait, gpu: Gpu) -> int:
        """Room that serving this one takes on a GPU."""
        group = wait.group
        if wait.grow is None:
            return group.shares[gpu.uuid].need
        more, fixed = _growth(self.clients[wait.grow.client].holdings[gpu.uuid], wait.grow)
        return fixed + (more if group.lease is not None and not group.floating else 0)

    def _floats(self, group: Group) -> bool:
        """Whether a group may run without its whole footprint resident: the GPU faults it in."""
        return self.anti_thrash == "off" and all(
            c.backend == "managed" for c in group.clients.values()
        )

    def _others_leased(self, group: Group) -> list[Group]:
        return [
            g for g in self.leased.values() if g is not group and g.shares.keys() & group.shares
        ]

    def _fits(self, wait: Wait) -> bool:
        if wait.grow is not None:
            gpu = self.gpus[wait.grow.least.gpu]
            need = self.need(wait, gpu)
            return need <= 0 or need <= gpu.free
        group = wait.group
        if self.anti_thrash == "on" and self._others_leased(group):
            return False
        for share in group.shares.values():
            need = share.promised - share.resident
            if need > 0 and need > share.gpu.free:
                return self._floats(group)
        return True

    def _read(self, wait: Wait) -> bool:
        """Whether the readings that a grant depends on are fresh; if not, they are asked for."""
        fresh = True
        for gpu in self._gpus_of(wait):
            # If the spare part is used after all and has no room, the restore fails and is tried again. Not where
            # something died: it may have held more than it had stated.
            known = wait.grow is None and not gpu.ghosts and not gpu.stale
            spare = wait.group.shares[gpu.uuid].spare if known else 0
            if self.need(wait, gpu) > spare:
                fresh = self._is_fresh(gpu) and fresh
        return fresh

    def _continues(self, wait: Wait) -> bool:
        """Whether it comes back within its residency, its memory still in."""
        group = wait.group
        # Headroom that was promised and never used is not in: what counts is that nothing was taken.
        return (
            wait.grow is None
            and group.turn > 0
            and group.intact
            and self._now < group.turn_at + self.residency(group)
        )

    def _may_pass(self, wait: Wait, ahead: list[Wait] | None) -> bool:
        """Whether those before it are held up no longer for its being served now."""
        group = wait.group
        for head in ahead or ():
            if wait.grow is None and (
                self.anti_thrash == "on" or any(s.evicting for s in group.shares.values())
            ):
                return False
            for gpu in self._gpus_of(head):
                if gpu.uuid in self.uuids(wait):
                    take, need = self.need(wait, gpu), self.need(head, gpu)
                    if need > 0 and need > self._reach(head, gpu, group) - take:
                        return False
        return True

    def _reach(self, head: Wait, gpu: Gpu, without: Group) -> int:
        """Room that the head of the queue can count on without one group."""
        barrier = self._leases if head.barrier is None else head.barrier
        own = head.group if head.grow is None or head.group.lease is not None else None
        room = gpu.free
        for share in gpu.shares.values():
            group = share.group
            if group is own or group is without:
                continue
            if group.lease is None:
                room += share.resident
            elif group.turn <= barrier:
                room += share.resident + share.arriving
        return room

    def plan(self, wait: Wait, waiters: bool = False) -> Plan:
        """Choose whom one that waits takes its room from, and find out when.

        With ``waiters``, others that wait are not protected.
        """
        plan = Plan()
        now, soon = self._now, self._now + self.debounce
        group = wait.group
        if self.anti_thrash == "on" and wait.grow is None:
            for other in self._others_leased(group):
                plan.serialised.append(other)
                end = self.quantum_end(other)
                if other.yielding:
                    plan.draining.append(other)
                elif not other.busy or end <= now:
                    plan.revoke.append(other)
                else:
                    plan.later.append((end, other))
        if wait.grow is None and self._floats(group):
            return plan
        for gpu in self._gpus_of(wait):
            lack = self.need(wait, gpu) - gpu.free
            if lack <= 0:
                continue
            plan.lacks.append((gpu, lack))
            victims: list[tuple[float, int, tuple[float, ...], float, int, Share]] = []
            for share in gpu.shares.values():
                other = share.group
                if other is group and (wait.grow is None or group.lease is not None):
                    continue
                if other.lease is None:
                    leaving = share.evicting
                    if leaving:
                        lack -= leaving
                        plan.leaving.append(other)
                    size = share.resident - leaving
                    when = self._evictable_at(share)
                    kind = _WAITING if other.wait is not None else _IDLE
                    if waiters and kind == _WAITING:
                        when = max(h.stuck_until for h in share.holdings.values())
                elif other.yielding or other in plan.revoke:
                    lack -= share.resident + share.arriving
                    if other.yielding and other not in plan.draining:
                        plan.draining.append(other)
                    continue
                elif other.busy or other.state == "moving":
                    size = share.resident + share.arriving
                    kind, when = _RUNNING, self.quantum_end(other)
                else:
                    size = share.resident + share.arriving
                    kind, when = _HELD, self.movable_at(other)
                if size > 0:
                    # The debounce is too short to choose somebody else for.
                    order = 0.0 if when <= (now if kind == _RUNNING else soon) else when
                    victims.append((order, kind, self.policy.victim_rank(other), when, size, share))
            victims.sort(key=_by_order)
            for order, kind, _, when, size, share in victims:
                if lack <= 0:
                    break
                take = min(size, lack)
                lack -= take
                if kind in (_HELD, _RUNNING):
                    if order > 0:
                        plan.later.append((when, share.group))
                    elif share.group not in plan.revoke:
                        plan.revoke.append(share.group)
                elif when <= now:
                    plan.evict.append((share, take))
                else:
                    plan.later.append((when, share.group))
            if lack > 0 and plan.short is None:
                plan.short = (gpu, lack)
        return plan

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
        leased.sort(key=lambda g: (g.busy > 0, -g.turn))
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

    def _watch(self, gpu: Gpu, short: bool) -> None:
        """Read again by itself while ghosts or foreign use matter."""
        if gpu.asked_at is not None:
            if self._is_overdue(gpu):
                gpu.asked_at = self._now
                self._out.append(ReadDevice(gpu.uuid))
            self._at(gpu.asked_at + self.reading_timeout)
            return
        if gpu.ghosts:
            pause = min(gpu.read_pause, self.longest_pause) if self.queue else gpu.read_pause
        elif short:
            pause = self.foreign_pause
        else:
            return
        if gpu.read_at + pause <= self._now:
            self._ask(gpu)
        self._at(max(gpu.read_at + pause, self._now + self.shortest_pause))

    # --- Times ------------------------------------------------------------------------------------

    def move_cost(self, group: Group) -> float:
        """Return the seconds that it takes to move a group's footprint one way."""
        return sum(s.promised / s.gpu.bandwidth for s in group.shares.values())

    def quantum_of(self, group: Group) -> float:
        """Return the seconds for which a running holder is left alone."""
        if self.quantum != "auto":
            return self.quantum
        wish = self.residency_factor * self.move_cost(group)
        return min(max(wish, self.shortest_quantum), self.longest_quantum)

    def quantum_end(self, group: Group) -> float:
        """When a running holder may be revoked for one that waits."""
        end = group.turn_at + self.quantum_of(group)
        if group.state == "moving":
            # Its clock starts when the memory is in, but a restore that never ends holds nobody up.
            end += max(1.0, self.residency_factor * self.move_cost(group))
        return end

    def residency(self, group: Group) -> float:
        """Return the seconds for which a group's memory stays once it is in."""
        return min(self.residency_factor * self.move_cost(group), self.quantum_of(group))

    def movable_at(self, group: Group) -> float:
        """When the memory of a group that does not run may be taken."""
        if group.turn == 0:
            return 0.0
        if group.lease is None and not group.intact:
            # Some was taken already: what is left serves nobody, and it cannot go on before the others anyway.
            return 0.0
        if group.ended_at is not None and not group.cells:
            return group.ended_at + self.debounce
        return group.turn_at + self.residency(group)

    def _evictable_at(self, share: Share) -> float:
        stuck = max(h.stuck_until for h in share.holdings.values())
        return max(self.movable_at(share.group), stuck)

    def _at(self, when: float) -> None:
        if self._deadline is None or when < self._deadline:
            self._deadline = when

    # --- Doing ------------------------------------------------------------------------------------

    def _enqueue(self, group: Group, grow: Grow | None = None, front: bool = False) -> Wait:
        self._numbers += 1
        since, number = self._now, self._numbers
        if front and self.queue:
            first = self.queue[0]
            since, number = min(since, first.since - 1e-9), first.number - 1
        wait = Wait(group, number, since, grow)
        insort(self.queue, wait, key=self.policy.queue_rank)
        self._new_waits.append(wait)
        return wait

    def _dequeue(self, wait: Wait) -> None:
        self.queue.remove(wait)
        if not wait.logged:
            self._new_waits.remove(wait)
        if wait.group.wait is wait:
            wait.group.wait = None

    def _admit(self, wait: Wait, continues: bool) -> None:
        group = wait.group
        self._dequeue(wait)
        waited = max(0.0, self._now - wait.since)
        if wait.logged:
            group.totals.waits += 1
            group.totals.waited += waited
        self._touch(group)
        if wait.grow is not None:
            client = self.clients[wait.grow.client]
            holding = client.holdings[wait.grow.least.gpu]
            more, fixed = _growth(holding, wait.grow)
            mapped = more <= 0 or client.lease is not None
            self._promise(holding, wait.grow, more, fixed, "resident" if mapped else "swapped")
            return
        self._leases += 1
        self._begin_lease(group, self._leases)
        if not continues:
            group.turn, group.turn_at = self._leases, self._now
        self._log("grant", group, waited=waited)
        self._grant_waiting(group)

    def _begin_lease(self, group: Group, lease: int) -> None:
        group.lease = lease
        group.floating = self._floats(group)
        group.intact = True
        group.ran_before = 0.0
        self.leased[group.id] = group
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
        self._out.append(Grant(client.number, client.lease))

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
                holding.evicting += part
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
            group.busy -= 1
            if not group.busy:
                ran = self._now - group.ran_since
                group.ran_before += ran
                group.totals.ran += ran

    def _tell(self, client: Client, waiting: int) -> None:
        if client.contended != waiting:
            client.contended = waiting
            self._out.append(Contended(client.number, waiting))

    def _tell_contended(self) -> None:
        """Say to the holders, where it changed, how many other groups wait for their GPUs."""
        waiting: dict[str, set[str]] = {}
        for wait in self.queue:
            if wait.logged:
                for uuid in self.uuids(wait):
                    waiting.setdefault(uuid, set()).add(wait.group.id)
        for group in self.leased.values():
            others: set[str] = set()
            for uuid in group.shares:
                others |= waiting.get(uuid, set())
            others.discard(group.id)
            for client in group.clients.values():
                if client.contended != len(others):
                    self._tell(client, len(others))

    def _touch(self, group: Group) -> None:
        self._touched[group.id] = group

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
        for wait in list(self._new_waits):
            if any(g.asked_at is not None for g in self._gpus_of(wait)) and self._fits(wait):
                continue
            self._new_waits.remove(wait)
            wait.logged = True
            self._log("wait", wait.group, reason=reasons.reason(self, wait, self._now))

    # --- Checking ---------------------------------------------------------------------------------

    def _client(self, number: int) -> Client:
        client = self.clients.get(number)
        if client is None:
            raise ProtocolViolation(number, "is not attached")
        return client

    def _check(self, client: int, backend: str, usage: Usage, growth: bool = False) -> None:
        if usage.gpu not in self.gpus:
            raise ProtocolViolation(client, f"names a GPU that is not here: {usage.gpu}")
        sizes = (usage.promised, usage.resident, usage.pinned, usage.context, usage.host)
        if min(sizes) < 0 or max(sizes) > LARGEST:
            raise ProtocolViolation(client, "states a size that cannot be")
        if usage.resident > usage.promised and not growth:
            raise ProtocolViolation(client, "states more resident than it was promised")
        if backend == "plain" and usage.promised:
            raise ProtocolViolation(client, "states memory that can move, without a backend for it")

    def _check_moved(
        self, client: Client, usage: Usage, moved: int, copied: int, duration: float
    ) -> None:
        self._check(client.number, client.backend, usage)
        if min(moved, copied) < 0 or max(moved, copied) > LARGEST or not 0 <= duration < 1e9:
            raise ProtocolViolation(client.number, "states a move that cannot be")


def _growth(holding: Holding, event: Grow) -> tuple[int, int]:
    """How many bytes more are asked for: of those that can move, and of those that cannot."""
    least = event.least
    fixed = max(0, least.pinned - holding.pinned) + max(0, least.context - holding.context)
    return max(0, least.promised - holding.promised), fixed


def _by_order(victim: tuple[Any, ...]) -> tuple[Any, ...]:
    return victim[:3]


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _valid_quantum(quantum: object) -> Quantum:
    if quantum == "auto":
        return "auto"
    number = isinstance(quantum, (int, float)) and not isinstance(quantum, bool)
    if number and 0 < cast("float", quantum) <= LONGEST_QUANTUM:
        return float(cast("float", quantum))
    raise ValueError(
        f"quantum must be 'auto' or seconds above 0 and at most {LONGEST_QUANTUM:.0f}, not {quantum!r}"
    )


def _valid_anti_thrash(mode: AntiThrash) -> AntiThrash:
    if mode in ("auto", "on", "off"):
        return mode
    raise ValueError(f"anti_thrash must be auto, on or off, not {mode!r}")
