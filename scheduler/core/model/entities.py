# SPDX-License-Identifier: BSD-3-Clause
"""GPUs, lease groups, their clients, what each holds where, and the waits: entities that refer to each other.

Sums are kept, never recomputed, and only ``Ledger`` changes them (``ledger.py``):

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
    Stage,
    Subscribers,
    Totals,
    Unfit,
    Wishes,
)


@dataclass(slots=True, eq=False)
class Gpu:
    """One GPU: what is on it, as clients state it and as NVML shows it."""

    uuid: str
    index: int
    name: str
    total: int
    reserve: int
    used: int
    read_at: float
    #: Bytes per second of moves to and from the host: measured, at first a guess.
    bandwidth: float
    measured: bool = False
    promised: int = 0
    resident: int = 0
    pinned: int = 0
    context: int = 0
    #: Bytes that are charged for what hibernated clients leave here.
    left: int = 0
    context_sizes: ContextSizes = field(default_factory=ContextSizes)
    #: Bytes that are on their way out; and pinned ones that were admitted and perhaps are not allocated yet.
    leaving: int = 0
    unsettled: int = 0
    #: Of leased footprints, bytes that are not resident yet: their room is taken all the same. Of a share that fills,
    #: only what it was allotted.
    arriving: int = 0
    #: The share that gets all room that appears here, because its lease was granted before the room was there.
    filling: Share | None = None
    foreign: int = 0
    pending_reclaim: int = 0
    #: When the last of them came.
    exited_at: float = 0.0
    #: What clients of the previous scheduler held here as far as it knew, by their numbers in its list. Until they have
    #: attached again or exited, it is part of ``ghosts``.
    returning: dict[int, Usage] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    victims: Victims[Share] = field(default_factory=Victims)
    #: Bytes by which what is stated has shrunk since the last reading, other than by orders.
    shrunk: int = 0
    #: Bytes by which readings have lowered what others use: perhaps of what was freed and had not been stated yet.
    lowered: int = 0
    #: Bytes by which the last reading showed less than is charged to clients; and of ``shrunk``, what was charged for
    #: contexts that take less, as far as that reading did not show it: others' use may be greater by that.
    overcharged: int = 0
    hidden: int = 0
    #: When a reading was asked for that has not come yet.
    asked_at: float | None = None
    #: The pause after which to read again by itself.
    read_pause: float = 0.0
    #: Growth that is answered later.
    delayed_growth: list[Delayed] = field(default_factory=list)
    #: Groups that hold a lease here, by id; and how fast they may submit, where anything bounds them.
    holders: dict[str, Group] = field(default_factory=dict)
    #: Of these, those that were revoked; and how many are in the background.
    yielding: dict[str, Group] = field(default_factory=dict)
    background: int = 0
    #: The holders, as they are notified of contention. None: to be collected again.
    subscribers: Subscribers[Client, Group] | None = None
    paces: dict[str, Speed] = field(default_factory=dict)
    #: How many holdings on it are lost; and how many are of clients that are off it.
    lost: int = 0
    hibernated: int = 0
    #: Who lacks room here looks for groups that could hibernate, not before.
    press_at: float = 0.0
    #: Bytes of all promises that nothing was allocated from.
    unused: int = 0
    #: An administrator wants it empty.
    drained: bool = False
    #: Who waits for it, in order; and how many groups do that could be served.
    queue: list[Wait] = field(default_factory=list)
    waiting: int = 0
    #: Whether nobody, one or several wait, and hold a lease, as its holders know.
    contention: tuple[int, int] = (0, 0)
    #: Of the host's memory that should be ready, what is for its sake.
    lacking: int = 0
    #: Its timers: to look at it again, and at its paces.
    looks: Timer = field(init=False)
    paces_again: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make once what is asked for at each event."""
        self.looks, self.paces_again = ("gpu", self.uuid), ("pace", self.uuid)

    @property
    def free(self) -> int:
        """Room for more; negative where more is charged than there is."""
        return (
            self.total
            - self.reserve
            - self.foreign
            - self.pending_reclaim
            - self.resident
            - self.pinned
            - self.context
            - self.uncovered(self.left)
            - self.arriving
        )

    def uncovered(self, left: int) -> int:
        """Return how much of what hibernated clients leave is more than half of the reserve, which is there for it."""
        return max(0, left - self.reserve // 2)

    def freed_without(self, left: int) -> int:
        """Return how much more room there would be without so much of what is left."""
        return self.uncovered(self.left) - self.uncovered(self.left - left)

    @property
    def capacity(self) -> int:
        """Room for footprints."""
        fixed = self.pinned + self.context + self.uncovered(self.left)
        return self.total - self.reserve - self.foreign - fixed

    @property
    def coming(self) -> int:
        """Bytes that are on their way out, of clients that answer."""
        if not self.lost:
            return self.leaving
        return sum(share.leaving for share in self.shares.values())

    def kept_from(self, share: Share) -> int:
        """Bytes that other groups keep from a share, since they do not answer."""
        # A group that does not answer keeps its memory here also if its silent client is on another GPU.
        if not (self.lost or self.yielding):
            return 0
        return sum(other.unreachable for other in self.shares.values() if other is not share)

    @property
    def owed(self) -> int:
        """Bytes that a share that fills has yet to be allotted."""
        return 0 if self.filling is None else self.filling.missing


@dataclass(slots=True, eq=False)
class Holding:
    """What one client holds on one GPU."""

    client: Client
    share: Share
    promised: int = 0
    resident: int = 0
    pinned: int = 0
    #: Bytes that are charged for contexts: measured, or what such contexts were seen to take, or as stated.
    context: int = 0
    #: Bytes that the client's contexts were admitted with, as it states; whether they were measured since that changed.
    stated: int = 0
    measured: bool = False
    #: While its client hibernates: the bytes that its contexts took here, and those that are charged for what is left.
    took: int = 0
    left: int = 0
    #: Of a process that states no context: bytes that it holds beyond what it states, which are not charged to it.
    beyond: int = 0
    host: int = 0
    #: Bytes that the client was told to move out, while it has not answered.
    evicting: int = 0
    #: While its group fills, or holds more than the GPU has: bytes of the promise that may be on the GPU, and what the
    #: client was last told of that.
    room: int = 0
    told: int = 0
    #: It was told that there will be no more.
    told_last: bool = False
    #: Pinned bytes and contexts that were admitted and perhaps are not allocated yet.
    unsettled: int = 0
    #: Of the promise, what was not allocated when all was last in: it needs no memory yet.
    spare: int = 0
    #: A move out failed: not to be tried again before, and the pause after the next failure.
    stuck_until: float = 0.0
    stuck_pause: float = 0.0
    #: Since when nothing has left, however often it was told to.
    refuses_since: float | None = None
    #: Its memory is not to be had: its client does not answer, or refuses again and again.
    lost: bool = False

    def contexts(self, stated: int) -> int:
        """Return the charge for contexts that the client states to be of this size."""
        if stated == self.stated:
            return self.context
        sizes, more = self.share.gpu.context_sizes, stated - self.stated
        charged = self.context + (sizes.charge(more) if more > 0 else -sizes.charge(-more))
        return max(1, charged) if stated else 0


@dataclass(slots=True, eq=False)
class Share:
    """What one group holds on one GPU."""

    group: Group
    gpu: Gpu
    #: Counts those that came to any GPU: the order in which they came.
    number: int = 0
    holdings: dict[int, Holding] = field(default_factory=dict)
    promised: int = 0
    resident: int = 0
    pinned: int = 0
    context: int = 0
    #: What its hibernated clients leave here.
    left: int = 0
    #: Bytes that are on their way out.
    evicting: int = 0
    #: The part of ``gpu.arriving`` that is this group's.
    arriving: int = 0
    #: Under a lease of a group that oversubscribes: bytes that it brings in, where more is promised. None: all.
    ceiling: int | None = None
    #: How many of its holdings are lost.
    lost: int = 0

    @property
    def leaving(self) -> int:
        """Bytes that are on their way out, of clients that answer."""
        if not self.lost:
            return self.evicting
        return sum(h.evicting for h in self.holdings.values() if not h.lost)

    @property
    def movable(self) -> int:
        """Bytes that could be told to leave."""
        if not self.lost:
            return self.resident - self.evicting
        return sum(h.resident - h.evicting for h in self.holdings.values() if not h.lost)

    @property
    def asleep(self) -> int:
        """Bytes that its hibernated clients need to be awake again."""
        return sum(
            h.client.needs.pinned + h.client.needs.context
            for h in self.holdings.values()
            if h.client.gone and h.client.needs is not None
        )

    @property
    def unreachable(self) -> int:
        """Bytes of the GPU that it keeps from others, since it does not answer."""
        if self.group.overdue:
            return self.resident + self.arriving
        return sum(h.resident for h in self.holdings.values() if h.lost) if self.lost else 0

    @property
    def used(self) -> bool:
        """Whether there is anything: a group may have asked for some, and got none."""
        return self.promised + self.pinned + self.context > 0

    @property
    def oversubscribes(self) -> bool:
        """Whether what has no room may be used from the host."""
        for holding in self.holdings.values():  # noqa: SIM110 - asked at each event
            if holding.client.oversubscribes:
                return True
        return False

    @property
    def floor(self) -> int:
        """Bytes of the promise that have to be on the GPU."""
        return sum(h.promised for h in self.holdings.values() if not h.client.oversubscribes)

    @property
    def goal(self) -> int:
        """Bytes of the promise that are on the GPU under a lease."""
        if self.ceiling is not None:
            return min(self.ceiling, self.promised)
        if self.group.lease is not None or not self.oversubscribes:
            return self.promised
        room = self.gpu.capacity - self.gpu.pending_reclaim - self.gpu.kept_from(self)
        room -= self.asleep - self.gpu.freed_without(self.left)
        return min(self.promised, max(self.floor, room))

    @property
    def need(self) -> int:
        """Bytes that a lease would bring in."""
        return max(0, self.goal - self.resident)

    @property
    def exceeds_spare(self) -> bool:
        """Whether a lease would bring in more than the part of the promise that was never allocated."""
        return self.need > self.spare

    @property
    def has_room(self) -> bool:
        """Whether what a lease would bring in has room now."""
        need, owed = self.need, self.gpu.owed
        # What is leaving another's GPU memory for one that fills has to come back after it.
        return not (owed and self.evicting) and (need <= 0 or need <= self.gpu.free - owed)

    @property
    def missing(self) -> int:
        """While it fills: bytes of the footprint that no room was allotted to."""
        return self.unallotted if self.gpu.filling is self and not self.group.yielding else 0

    @property
    def unallotted(self) -> int:
        """Bytes that a lease brings in and that no client has room for yet."""
        return max(0, self.goal - sum(h.room for h in self.holdings.values()))

    @property
    def spare(self) -> int:
        """Bytes of the promise that nothing was allocated from."""
        return sum(h.spare for h in self.holdings.values())


@dataclass(slots=True, eq=False)
class Client:
    """One process under the interposer."""

    number: int
    pid: int
    backend: Backend
    group: Group
    cap: int
    #: It may hold more than a GPU has.
    oversubscribes: bool = False
    holdings: dict[str, Holding] = field(default_factory=dict)
    #: The lease that it was granted and has not given back.
    lease: int | None = None
    busy: bool = False
    burst_at: float = 0.0
    #: It waits for a lease.
    wants: bool = False
    #: GPUs on which its memory is still arriving under the lease.
    restoring: set[str] = field(default_factory=set)
    #: What it was last told about who waits, and who holds a lease beside it.
    contended: int = 0
    beside: int = 0
    #: What it was last told about how fast it may submit.
    pace: Speed = FREE
    #: Since when it owes an answer, of those that it gives in order; and whether it is too long ago.
    owes_since: float | None = None
    silent: bool = False
    stage: Stage = "awake"
    #: Its contexts and pinned memory are off the GPU, as far as anybody said: they are counted nowhere.
    gone: bool = False
    #: Of the last ``Park``; and whether what came of it is yet to be said.
    park: int = 0
    parked: bool = False
    #: Of a ``Wake`` that is to be answered; 0: none. And whether that was because the process ends.
    asked: int = 0
    ends: bool = False
    #: What it needs to be awake, on the GPU where it is to be; and the GPU where it was.
    needs: Usage | None = None
    home: str = ""
    #: The GPUs on which it may be woken beside; none: that is not known.
    sees: tuple[str, ...] = ()
    #: When it was woken last, it was put from the one on the other.
    moved: tuple[str, str] = ("", "")
    #: The pause after which a step that does not end is asked for again.
    step_pause: float = 0.0
    #: The timers for that.
    answers: Timer = field(init=False)
    wakes: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make once what is asked for at each order."""
        self.answers, self.wakes = ("client", self.number), ("wake", self.number)


@dataclass(slots=True, eq=False)
class Group:
    """A lease group: the unit that is granted, on all the GPUs that it uses, or nothing."""

    id: str
    name: str
    number: int
    #: Whose it is, and which groups of users that one is in.
    user: str = ""
    teams: tuple[str, ...] = ()
    clients: dict[int, Client] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    #: The GPUs of these shares.
    gpus: dict[str, Gpu] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    wishes: Wishes = field(default_factory=Wishes)
    #: The lease, while any client has not given it back; and those clients.
    lease: int | None = None
    granted: dict[int, Client] = field(default_factory=dict)
    yielding: bool = False
    #: Its lease was granted while room was still being made: the place in the queue that it had; and when it last got
    #: any room, and whether it was revoked because it got none.
    filling: Wait | None = None
    filled_at: float = 0.0
    stalled: bool = False
    #: The place in the queue that it may come back to.
    place: Wait | None = None
    revoked_at: float = 0.0
    #: The kernel that its revocation waits for, and since when that runs.
    stuck: tuple[str, float] | None = None
    #: How many of its clients do not answer.
    silent: int = 0
    #: Not charged for what is not resident (``anti_thrash=off`` and managed memory).
    floating: bool = False
    #: A turn is one residency on the GPU: from the grant that brought the memory in, or from when it had come. A lease
    #: that continues one (next cell of a Run All) has a new number but the old turn.
    turn: int = 0
    turn_at: float = 0.0
    #: Nothing was taken from it since its last grant.
    intact: bool = False
    #: It was revoked while it ran, for one that waits: until its next lease, nobody keeps its memory.
    spent: bool = False
    #: It was revoked for this one that waits: until its next lease, it does not pass that one.
    makes_way_for: Wait | None = None
    #: When the last burst ended because a cell did, the user asked or a process died; None if it only went quiet.
    ended_at: float | None = None
    #: Since when it has had no work, unless its last work was cut short.
    away_since: float | None = None
    busy: int = 0
    burst: BurstTime = field(default_factory=BurstTime)
    #: For how long it had no work, each time.
    absences: DurationPredictor = field(default_factory=lambda: DurationPredictor(unknown=0.0))
    idle_since: float = 0.0
    #: What it counted as last.
    activity_class: Class = "interactive"
    #: Whether its notebook is the one in front of its user.
    focused: bool = False
    #: Its clients say how much of the GPU they have. Otherwise its GPU time is that of its bursts.
    metered: bool = False
    #: Open cells by msg_id with their begin, oldest first; and the last ones that ended.
    cells: dict[str, float] = field(default_factory=dict)
    ended_cells: dict[str, None] = field(default_factory=dict)
    #: When people wished for a whole cell: one that ended before was another.
    exclusive_at: float = 0.0
    #: Its place in the queue for a lease.
    wait: Wait | None = None
    failures: int = 0
    #: The driver's error (0: not known) where the last of them was a restore that failed.
    restore_error: int | None = None
    offload: bool = False
    since: float = 0.0
    shown: State = "idle"
    #: When it last did something that needs no lease.
    active_at: float = 0.0
    hibernation: Hibernation[Wait] | None = None
    unfit: Unfit | None = None
    #: When it was last found not to hibernate, and how often in a row before that.
    refused_at: float = 0.0
    refusals: int = 0
    #: Since when people want it to hibernate once it is idle; None: they do not.
    hibernate_asked_at: float | None = None
    #: Restoring it on another GPU failed: it is not tried again.
    settled: bool = False
    #: The timers to see what it counts as, and whether it has been idle for long.
    ages: Timer = field(init=False)
    rests: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Make once what is asked for at each event."""
        self.ages, self.rests = ("class", self.id), ("rest", self.id)

    @property
    def state(self) -> State:
        """What people see."""
        if self.lease is not None:
            if self.yielding:
                return "yielding"
            if self.restoring:
                return "moving"
            for share in self.shares.values():
                if share.gpu.delayed_growth and self.delayed is not None:
                    return "waiting"
            return "running" if self.busy else "held"
        if self.hibernation is not None and self.hibernation.stage in ("hibernated", "waking"):
            return "waking" if self.waking else "hibernated"
        return "idle" if self.wait is None and self.delayed is None else "waiting"

    @property
    def delayed(self) -> Delayed | None:
        """Growth of its own that waits for more than a reading."""
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
        """Seconds that it takes to move the group's footprint one way."""
        return sum(s.goal / s.gpu.bandwidth for s in self.shares.values())

    @property
    def restoring(self) -> bool:
        """Whether memory is still arriving under its lease."""
        for client in self.granted.values():  # noqa: SIM110 - asked at each event
            if client.restoring:
                return True
        return False

    @property
    def waking(self) -> bool:
        """Whether any of it is on its way back from hibernation."""
        return self.hibernation is not None and self.hibernation.stage == "waking"

    @property
    def overdue(self) -> bool:
        """Whether it was revoked and does not answer: what it holds is not to be had."""
        return self.silent > 0 and self.yielding and any(c.silent for c in self.granted.values())

    @property
    def unresponsive(self) -> bool:
        """Whether none of its clients that want a lease could give it back: they do not answer, or are not awake."""
        return (self.silent > 0 or self.hibernation is not None) and not any(
            c.wants and not c.silent and c.stage == "awake" for c in self.clients.values()
        )

    @property
    def departs(self) -> bool:
        """Whether it is on its way off the GPU."""
        state = self.hibernation
        return state is not None and state.stage in ("evicting", "parking", "hibernating")

    @property
    def ends(self) -> bool:
        """Whether any of its processes is to be awake because it ends."""
        return any(client.ends for client in self.clients.values())

    @property
    def exclusive(self) -> bool:
        """Whether it keeps its lease until the cell that is open ends."""
        return self.wishes.exclusive and bool(self.cells)

    @property
    def runs(self) -> bool:
        """Whether a lease of its own is in use: at work, on its way in, or for a whole cell."""
        if self.lease is None:
            return False
        return self.busy > 0 or self.exclusive or (not self.yielding and self.restoring)


@dataclass(slots=True, eq=False)
class Wait:
    """A place in the queue: for a lease, or (``grow``) for memory that cannot move."""

    group: Group
    number: int
    since: float
    grow: Grow | None = None
    #: It comes back to before all others: a grant came to nothing for no fault of its own.
    front: bool = False
    #: It is for what a hibernated client needs to be awake.
    wakes: bool = False
    #: Its place in the order, each number a sum of parts (``policies``).
    parts: Parts = ()
    rank: Rank = ()
    #: Its group has had its share of the GPU until then, and is passed over.
    limited_until: float = 0.0
    #: What an administrator said keeps it from being served, and it is passed over.
    barred: Bar | None = None
    #: Leases up to this number were granted before it came to the head; it waits for no others.
    barrier: int | None = None
    not_before: float = 0.0
    logged: bool = False
    queued: bool = False
    #: The GPUs that it is for, by UUID. Of a wait for a lease, they are always those of its group.
    gpus: dict[str, Gpu] = field(default_factory=dict)

    def counts(self, now: float) -> bool:
        """Whether it could be served at all: otherwise it holds up no other wait."""
        return not self.passed_over and self.limited_until <= now and self.barred is None

    @property
    def for_lease(self) -> bool:
        """Whether it ends in a lease: its own, or that of the group that is woken for one."""
        if self.grow is None:
            return True
        return self.wakes and self.group.wait is not None and not self.group.ends

    @property
    def frozen(self) -> bool:
        """Whether it is for a lease, and its group gets none until people unfreeze it: it holds nobody up."""
        return self.grow is None and self.group.wishes.stopped

    @property
    def passed_over(self) -> bool:
        """Whether it is for a lease, and its group is to get none for now."""
        if self.grow is None:
            return self.frozen or self.group.unresponsive or self.group.departs
        return self.for_lease and self.group.wishes.stopped
