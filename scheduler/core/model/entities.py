# SPDX-License-Identifier: BSD-3-Clause
"""GPUs, lease groups, clients, their memory on each GPU, and waits: entities that refer to each other.

Sums are kept and never computed again, and only ``Ledger`` changes them (``ledger.py``):

    Holding (client x GPU)  -- summed into -->  Share (group x GPU)  -- summed into -->  Gpu
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..messages import Backend, Class, Grow, Usage
from ..policy_api import FREE, Parts, Rank, Speed, State
from ..timers import Timer
from ..victims import Victims
from .records import (
    WAITED_FOR,
    Bar,
    BurstTime,
    ContextSizes,
    Delayed,
    DurationPredictor,
    Hibernation,
    Preferences,
    Prefetch,
    ReadingState,
    Reservation,
    Stage,
    Subscribers,
    Tiers,
    Totals,
    Unfit,
)


@dataclass(slots=True, eq=False)
class Gpu:
    """One GPU: its memory, according to the clients' statements and to NVML."""

    uuid: str
    index: int
    name: str
    total: int
    reserve: int
    used: int
    read_at: float
    #: Bytes per second of moves to and from the host: measured, or an initial estimate.
    bandwidth: float
    measured: bool = False
    promised: int = 0
    resident: int = 0
    unevictable: int = 0
    context: int = 0
    #: Bytes that are charged for what hibernated clients leave here.
    left: int = 0
    context_sizes: ContextSizes = field(default_factory=ContextSizes)
    #: Bytes that are being evicted; and unevictable bytes that were admitted but may not be allocated yet.
    leaving: int = 0
    unsettled: int = 0
    #: Bytes of leased footprints that are not resident yet, whose room is taken. Of a share that fills: as allotted.
    arriving: int = 0
    #: The share that gets all room that appears here, because its lease began before the room was there.
    filling: Share | None = None
    #: Bytes that other programs use; and bytes of clients that have exited, until a reading shows that they are free.
    foreign: int = 0
    pending_reclaim: int = 0
    exited_at: float = 0.0
    #: Memory of the last scheduler's clients, by their numbers there: ``pending_reclaim`` until they attach or exit
    returning: dict[int, Usage] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    victims: Victims[Share] = field(default_factory=Victims)
    reading: ReadingState = field(default_factory=ReadingState)
    #: Growth requests that are answered later.
    delayed_growth: list[Delayed] = field(default_factory=list)
    #: Groups that hold a lease here, by id.
    holders: dict[str, Group] = field(default_factory=dict)
    #: Holders whose lease was revoked; and the number of holders in the background class.
    yielding: dict[str, Group] = field(default_factory=dict)
    background: int = 0
    #: The holders, as they are notified of contention. None: to be collected again.
    subscribers: Subscribers[Client, Group] | None = None
    #: How fast the holders may submit, where anything bounds them.
    paces: dict[str, Speed] = field(default_factory=dict)
    #: The number of holdings here that are lost; and of those whose clients hibernate.
    lost: int = 0
    hibernated: int = 0
    #: The earliest time at which a wait that lacks room here looks for groups that could hibernate.
    press_at: float = 0.0
    #: Promised bytes that were never allocated.
    unused: int = 0
    drained: bool = False
    #: The waits for it, in order; and the number of waiting groups that could be served.
    queue: list[Wait] = field(default_factory=list)
    waiting: int = 0
    #: The numbers of waiting groups and of holders, up to 2, of which its holders were last notified.
    contention: tuple[int, int] = (0, 0)
    #: The part of the host memory reserve that is for this GPU.
    lacking: int = 0
    #: Its timers: to decide on it again, and to compute its paces again.
    looks: Timer = field(init=False)
    paces_again: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make the timers once, because each event uses them."""
        self.looks, self.paces_again = ("gpu", self.uuid), ("pace", self.uuid)

    @property
    def free(self) -> int:
        """Room for more; negative where more is charged than there is."""
        held = self.resident + self.unevictable + self.context + self.arriving
        others = self.foreign + self.pending_reclaim + self.uncovered(self.left)
        return self.total - self.reserve - others - held

    def uncovered(self, left: int) -> int:
        """Return the part of residues of this size that half of the reserve does not cover."""
        return max(0, left - self.reserve // 2)

    def freed_without(self, left: int) -> int:
        """Return the room that would surely appear if the residues were smaller by ``left``."""
        rest = self.left - (left if self.context_sizes.counts else 0)
        return self.uncovered(self.left) - self.uncovered(rest)

    @property
    def capacity(self) -> int:
        """Room for footprints."""
        return self.free + self.resident + self.arriving + self.pending_reclaim

    @property
    def coming(self) -> int:
        """Bytes that are being evicted by clients that answer."""
        if not self.lost:
            return self.leaving
        return sum(share.leaving for share in self.shares.values())

    def kept_from(self, share: Share) -> int:
        """Bytes that other groups withhold from a share because they do not answer."""
        # A group that does not answer also withholds its memory here if its silent client is on another GPU.
        if not (self.lost or self.yielding):
            return 0
        return sum(other.unreachable for other in self.shares.values() if other is not share)

    @property
    def owed(self) -> int:
        """Bytes that are still to be allotted to the share that fills here."""
        return 0 if self.filling is None else self.filling.missing


@dataclass(slots=True, eq=False)
class Holding:
    """What one client holds on one GPU."""

    client: Client
    share: Share
    promised: int = 0
    resident: int = 0
    unevictable: int = 0
    #: Bytes charged for contexts: measured, or known from similar contexts, or as stated.
    context: int = 0
    #: Bytes that the client states for its contexts; and whether these were measured since the statement changed.
    stated: int = 0
    measured: bool = False
    #: While its client hibernates: bytes that its contexts took here; and bytes charged for its residue.
    took: int = 0
    left: int = 0
    #: Bytes beyond the statements of a process that states no context. They are not charged to it.
    beyond: int = 0
    host: int = 0
    #: What can leave without a copy, and what of the evicted data is shared or on disk.
    tiers: Tiers = field(default_factory=Tiers)
    #: Bytes that the client was ordered to evict, until it answers.
    evicting: int = 0
    #: While its group fills, or holds more than the GPU has: bytes of the promise that may be on the GPU; and the value
    #: that was last sent to the client.
    room: int = 0
    sent_room: int = 0
    #: Whether the client was notified that this lease brings no more room.
    sent_last: bool = False
    #: Unevictable bytes and contexts that were admitted but may not be allocated yet.
    unsettled: int = 0
    #: The part of the promise that was not allocated when all of it was last resident. It needs no memory yet.
    spare: int = 0
    #: After an eviction has failed: when to order the next one; and the pause after the next failure.
    stuck_until: float = 0.0
    stuck_pause: float = 0.0
    #: Since when nothing has left in spite of orders.
    refuses_since: float | None = None
    #: Whether its memory is unavailable, because its client does not answer or repeatedly fails to evict.
    lost: bool = False


@dataclass(slots=True, eq=False)
class Share:
    """What one group holds on one GPU."""

    group: Group
    gpu: Gpu
    #: Its place in the order in which shares were made, on all GPUs.
    number: int = 0
    holdings: dict[int, Holding] = field(default_factory=dict)
    promised: int = 0
    resident: int = 0
    unevictable: int = 0
    context: int = 0
    #: The residues of its hibernated clients.
    left: int = 0
    evicting: int = 0
    #: This group's part of ``gpu.arriving``.
    arriving: int = 0
    #: Bytes of the promise that were never allocated.
    spare: int = 0
    #: The number of its clients that oversubscribe: the GPU may access in host memory what has no room.
    oversubscribing: int = 0
    #: Under a lease of a group that oversubscribes: bytes that the lease brings in if more is promised. None: all.
    ceiling: int | None = None
    lost: int = 0

    @property
    def leaving(self) -> int:
        """Bytes that are being evicted by clients that answer."""
        if not self.lost:
            return self.evicting
        return sum(h.evicting for h in self.holdings.values() if not h.lost)

    @property
    def movable(self) -> int:
        """Bytes whose eviction could be ordered."""
        if not self.lost:
            return self.resident - self.evicting
        return sum(h.resident - h.evicting for h in self.holdings.values() if not h.lost)

    @property
    def asleep(self) -> int:
        """Bytes that its hibernated clients need to wake."""
        return sum(
            h.client.needs.unevictable + h.client.needs.context
            for h in self.holdings.values()
            if h.client.gone and h.client.needs is not None
        )

    @property
    def unreachable(self) -> int:
        """Bytes of the GPU that it withholds from other groups because it does not answer."""
        if self.group.overdue:
            return self.resident + self.arriving
        return sum(h.resident for h in self.holdings.values() if h.lost) if self.lost else 0

    @property
    def used(self) -> bool:
        """Whether it holds anything. A group may have asked for memory and got none."""
        return self.promised + self.unevictable + self.context > 0

    @property
    def floor(self) -> int:
        """Bytes of the promise that must be on the GPU."""
        return sum(h.promised for h in self.holdings.values() if not h.client.oversubscribes)

    @property
    def goal(self) -> int:
        """Bytes of the promise that are on the GPU under a lease."""
        if self.ceiling is not None:
            return min(self.ceiling, self.promised)
        if self.group.lease is not None or not self.oversubscribing:
            return self.promised
        room = self.gpu.capacity - self.gpu.pending_reclaim - self.gpu.kept_from(self)
        room -= self.asleep - self.gpu.freed_without(self.left)
        return min(self.promised, max(self.floor, room))

    @property
    def need(self) -> int:
        """Bytes that a lease would bring in."""
        return max(0, self.goal - self.resident)

    @property
    def missing(self) -> int:
        """While it fills: bytes of the footprint without allotted room."""
        return self.unallotted if self.gpu.filling is self and not self.group.yielding else 0

    @property
    def unallotted(self) -> int:
        """Bytes that a lease brings in and for which no client has room yet."""
        return max(0, self.goal - sum(h.room for h in self.holdings.values()))

    @property
    def exceeds_spare(self) -> bool:
        """Whether a lease would bring in more than the part of the promise that was never allocated."""
        return self.need > self.spare

    @property
    def has_room(self) -> bool:
        """Whether what a lease would bring in has room now."""
        need, owed = self.need, self.gpu.owed
        # Memory that leaves for a share that fills comes back only after that.
        return not (owed and self.evicting) and (need <= 0 or need <= self.gpu.free - owed)


@dataclass(slots=True, eq=False)
class Client:
    """One process that runs with the interposer."""

    number: int
    pid: int
    backend: Backend
    group: Group
    cap: int
    #: Whether it may hold more than a GPU has.
    oversubscribes: bool = False
    holdings: dict[str, Holding] = field(default_factory=dict)
    #: The lease that it was granted and has not released.
    lease: int | None = None
    busy: bool = False
    burst_at: float = 0.0
    #: Whether it waits for a lease.
    wants: bool = False
    #: GPUs on which its memory is still being restored under the lease.
    restoring: set[str] = field(default_factory=set)
    #: As last sent to it: the numbers of groups that wait and that run besides its own; and how fast it may submit.
    contended: int = 0
    beside: int = 0
    pace: Speed = FREE
    #: Since when it owes an answer; and whether that is too long ago.
    owes_since: float | None = None
    silent: bool = False
    stage: Stage = "awake"
    #: Whether its contexts and unevictable memory are off the GPU according to the last report. They are not charged.
    gone: bool = False
    #: The serial of the last ``Park``; and whether its result is still to be sent.
    park: int = 0
    parked: bool = False
    #: The serial of a ``Wake`` that is still to be answered, 0: none; and whether the process asked because it exits.
    asked: int = 0
    ends: bool = False
    #: What it needs to be awake on its next GPU; and its previous GPU.
    needs: Usage | None = None
    home: str = ""
    #: The other GPUs on which it may be woken; empty: not known.
    sees: tuple[str, ...] = ()
    #: The GPUs from and to which it moved when it was last woken.
    moved: tuple[str, str] = ("", "")
    #: The pause after which a step that does not end is requested again.
    step_pause: float = 0.0
    #: The timers for its answers, and for that pause.
    answers: Timer = field(init=False)
    wakes: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make the timers once, because each order uses them."""
        self.answers, self.wakes = ("client", self.number), ("wake", self.number)


@dataclass(slots=True, eq=False)
class Group:
    """A lease group: it gets a lease on all the GPUs that it uses, or on none."""

    id: str
    name: str
    number: int
    #: Its user, and the user's teams.
    user: str = ""
    teams: tuple[str, ...] = ()
    clients: dict[int, Client] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    #: The GPUs of these shares.
    gpus: dict[str, Gpu] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    preferences: Preferences = field(default_factory=Preferences)
    #: The lease, until all clients have released it; and the clients that have not.
    lease: int | None = None
    granted: dict[int, Client] = field(default_factory=dict)
    yielding: bool = False
    #: Whether its lease was granted ahead of its first request, and has not been used yet.
    lease_ahead: bool = False
    #: While it fills: its former place in the queue; when it last got room; and whether it was revoked for lack of it.
    filling: Wait | None = None
    filled_at: float = 0.0
    stalled: bool = False
    #: The place in the queue to which it may return.
    place: Wait | None = None
    revoked_at: float = 0.0
    #: The CUDA kernel that its revocation waits for, and since when that has been running.
    stuck: tuple[str, float] | None = None
    #: The number of its clients that do not answer.
    silent: int = 0
    #: Whether it is not charged for memory that is not resident, because the GPU pages it in (managed memory).
    floating: bool = False
    #: A time slice is one residency on the GPU: it begins with the grant that restored the memory, or when that was
    #: done. A lease that continues one (the next cell of a "Run All") has a new number but the old time slice.
    turn: int = 0
    turn_at: float = 0.0
    #: Whether nothing was evicted from it since its last grant.
    intact: bool = False
    #: Whether it was revoked for a wait while it ran. Until its next lease, its preference ``keep`` is ignored.
    spent: bool = False
    #: The wait for which it was revoked. Until its next lease, it does not pass that wait.
    makes_way_for: Wait | None = None
    #: When the last burst ended because of a cell, a user's command or an exit; None if it only went quiet.
    ended_at: float | None = None
    #: Since when it has had no work, unless its last work was interrupted.
    away_since: float | None = None
    busy: int = 0
    burst: BurstTime = field(default_factory=BurstTime)
    #: How long its periods without work lasted.
    absences: DurationPredictor = field(default_factory=lambda: DurationPredictor(unknown=0.0))
    idle_since: float = 0.0
    #: Its class, as last computed.
    activity_class: Class = "interactive"
    #: Whether its user is looking at its notebook.
    focused: bool = False
    #: Whether its clients report their GPU time. Otherwise, the time of its bursts counts.
    metered: bool = False
    #: When each open cell began, by msg_id, oldest first; and the last ones that ended.
    cells: dict[str, float] = field(default_factory=dict)
    ended_cells: dict[str, None] = field(default_factory=dict)
    #: The number of cells that wait in its Jupyter kernel; and until when it keeps its lease for the next one.
    queued: int = 0
    next_cell_by: float = 0.0
    #: When its user asked for a lease for a whole cell. A cell that ended earlier does not end the preference.
    exclusive_at: float = 0.0
    #: Its place in the queue for a lease.
    wait: Wait | None = None
    failures: int = 0
    #: The driver's error (0: not known) if the last failure was a restore.
    restore_error: int | None = None
    evict_on_release: bool = False
    since: float = 0.0
    shown: State = "idle"
    #: When it last did something for which it needs no lease.
    active_at: float = 0.0
    hibernation: Hibernation[Wait] | None = None
    #: The prefetch by which it gets ready before it uses the GPU.
    prefetch: Prefetch | None = None
    #: Its reservation, if a program asked for one.
    reservation: Reservation | None = None
    unfit: Unfit | None = None
    #: When hibernation was last refused, and how many times in a row.
    refused_at: float = 0.0
    refusals: int = 0
    #: When its user asked that it hibernate once it is idle; None: not asked.
    hibernate_asked_at: float | None = None
    #: Whether restoring it on another GPU has failed, so that it is not tried again.
    settled: bool = False
    #: Whether it only represents a notebook that a program may start (``views/when.py``). Nothing is remembered of it.
    assumed: bool = False
    #: The timers for its class, and for its hibernation when it is idle.
    ages: Timer = field(init=False)
    rests: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make the timers once, because each event uses them."""
        self.ages, self.rests = ("class", self.id), ("rest", self.id)

    @property
    def attended(self) -> bool:
        """Whether a person waits for its work: it is interactive, or it was until its open cell became long."""
        if self.activity_class == "background":
            return self.preferences.priority == "auto" and bool(self.cells)
        return self.activity_class == "interactive"

    @property
    def state(self) -> State:
        """The state that users see."""
        if self.prefetch is not None and self.prefetch.stage != "ready":
            return "prefetching"
        if self.lease is not None:
            if self.yielding:
                return "finishing"
            if self.restoring:
                return "restoring"
            for share in self.shares.values():
                if share.gpu.delayed_growth and self.delayed is not None:
                    return "waiting"
            return "running" if self.busy else "idle_lease"
        if self.hibernation is not None and self.hibernation.stage in ("hibernated", "waking"):
            return "waking" if self.waking else "hibernated"
        return "idle" if self.wait is None and self.delayed is None else "waiting"

    @property
    def delayed(self) -> Delayed | None:
        """Its growth that waits for more than a reading."""
        for share in self.shares.values():
            for delayed in share.gpu.delayed_growth:
                if delayed.obstacle in WAITED_FOR and delayed.grow.client in self.clients:
                    return delayed
        return None

    @property
    def move_cost(self) -> float:
        """Seconds that it takes to restore what the group lacks on its GPUs."""
        return sum(s.need / s.gpu.bandwidth for s in self.shares.values())

    @property
    def footprint_cost(self) -> float:
        """Seconds that it takes to copy the group's footprint one way."""
        return sum(s.goal / s.gpu.bandwidth for s in self.shares.values())

    @property
    def restoring(self) -> bool:
        """Whether memory is still being restored under its lease."""
        for client in self.granted.values():  # noqa: SIM110 - asked at each event
            if client.restoring:
                return True
        return False

    @property
    def waking(self) -> bool:
        """Whether any client is being woken from hibernation."""
        return self.hibernation is not None and self.hibernation.stage == "waking"

    @property
    def overdue(self) -> bool:
        """Whether its lease was revoked and it does not answer, so that its memory is unavailable."""
        return self.silent > 0 and self.yielding and any(c.silent for c in self.granted.values())

    @property
    def unresponsive(self) -> bool:
        """Whether no client that wants a lease could release it, because none answers or is awake."""
        return (self.silent > 0 or self.hibernation is not None) and not any(
            c.wants and not c.silent and c.stage == "awake" for c in self.clients.values()
        )

    @property
    def departs(self) -> bool:
        """Whether it is about to hibernate."""
        state = self.hibernation
        return state is not None and state.stage in ("evicting", "parking", "hibernating")

    @property
    def ends(self) -> bool:
        """Whether any of its processes must wake because it exits."""
        return any(client.ends for client in self.clients.values())

    @property
    def exclusive(self) -> bool:
        """Whether it keeps its lease until the open cell ends."""
        return self.preferences.exclusive and bool(self.cells)

    @property
    def reserved(self) -> bool:
        """Whether its lease is kept for it, because of a reservation."""
        return self.reservation is not None and self.reservation.until is not None

    @property
    def runs(self) -> bool:
        """Whether its lease is in use: it has work, is being restored, or keeps the lease for a whole cell."""
        if self.lease is None or self.lease_ahead:
            return False
        kept = self.exclusive or self.reserved
        reached = self.reservation is not None and self.reservation.is_reached(self.lease)
        return self.busy > 0 or kept or (not self.yielding and (self.restoring or reached))


@dataclass(slots=True, eq=False)
class Wait:
    """A place in the queue: for a lease, or (``grow``) for unevictable memory."""

    group: Group
    number: int
    since: float
    grow: Grow | None = None
    #: Whether it comes before all others, because its last grant failed through no fault of its own.
    front: bool = False
    #: Whether it is for the memory that a hibernated client needs to be awake.
    wakes: bool = False
    #: Its place in the order; each number is a sum of parts (``policies``).
    parts: Parts = ()
    rank: Rank = ()
    #: It is passed over until then, because its group has reached its limit.
    limited_until: float = 0.0
    #: The administrator's bound because of which it is passed over.
    barred: Bar | None = None
    #: The number of the last lease that was granted before it came to the head. It waits for no later lease.
    barrier: int | None = None
    not_before: float = 0.0
    logged: bool = False
    queued: bool = False
    #: The GPUs that it is for, by UUID. For a lease, these are always the GPUs of its group.
    gpus: dict[str, Gpu] = field(default_factory=dict)

    def counts(self, now: float) -> bool:
        """Whether it could be served at all. Otherwise it holds up no other wait."""
        return not self.passed_over and self.limited_until <= now and self.barred is None

    @property
    def for_lease(self) -> bool:
        """Whether it leads to a lease: its own, or that of the group that is woken for one."""
        if self.grow is None:
            return True
        return self.wakes and self.group.wait is not None and not self.group.ends

    @property
    def frozen(self) -> bool:
        """Whether it is for a lease of a group that is frozen or on hold. It holds up no other wait."""
        return self.grow is None and self.group.preferences.stopped

    @property
    def passed_over(self) -> bool:
        """Whether it is for a lease that its group must not get for now."""
        if self.grow is None:
            return self.frozen or self.group.unresponsive or self.group.departs
        return self.for_lease and self.group.preferences.stopped
