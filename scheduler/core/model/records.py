# SPDX-License-Identifier: BSD-3-Clause
"""Small records of the model, and the possible states of its entities."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from ..messages import Evicted, Grow, Priority, Sign

#: The expected residue of a checkpointed process on its GPU until readings have shown it, in bytes; at most the size of
#: its context. It is 4 MiB on an NVIDIA H200 (driver 580), where NVML counts it as used and names no process.
LEFT = 4 << 20
#: What delayed growth waits for: a reading of the GPU; clients of the previous scheduler, until they attach or exit;
#: host memory; or holders.
Obstacle = Literal["reading", "returning", "host_memory", "holders"]
#: The obstacles that may last long.
WAITED_FOR = frozenset({"returning", "host_memory"})
#: The stages of a client: awake; ordered to park; parked; being checkpointed; off the GPU; waiting for the room that it
#: needs to wake; being restored.
Stage = Literal["awake", "parking", "parked", "checkpointing", "hibernated", "waiting", "waking"]
#: The stages of a group that hibernates.
Progress = Literal["evicting", "parking", "hibernating", "hibernated", "waking"]
#: The stages of a prefetch: memory of others is being evicted, the group is woken, its memory is restored; it is ready.
PrefetchStage = Literal["evicting", "waking", "restoring", "ready"]
#: The states of a group's lease; ``leases.py`` has the transitions.
LeaseState = Literal["none", "held", "yielding"]
#: A place in the queue. Its class is in ``entities.py``, which imports this module.
WaitType = TypeVar("WaitType")
#: A client and a group, whose classes are in ``entities.py``, too.
ClientType = TypeVar("ClientType")
GroupType = TypeVar("GroupType")


class Tiers(NamedTuple):
    """What a client stated about its memory on a GPU besides how much it has (``Usage``)."""

    clean: int = 0
    shared: int = 0
    disk: int = 0


@dataclass(slots=True)
class Subscribers(Generic[ClientType, GroupType]):
    """The holders of one GPU that are notified of contention, in the order in which they came to hold it."""

    #: The clients of groups for which only this GPU counts: all of them get the same message.
    alike: dict[int, ClientType] = field(default_factory=dict)
    #: Groups that use other GPUs too, or keep their lease whether or not others wait.
    apart: dict[str, GroupType] = field(default_factory=dict)


@dataclass(slots=True)
class Trial:
    """A context that is created while nothing else happens on its GPU, so that the next reading shows its size."""

    client: int
    #: The previous reading; the clients' bytes besides contexts at that time; and the charge for all contexts.
    used: int
    held: int
    context: int
    begun: bool = False


@dataclass(slots=True)
class Departures:
    """The clients that hibernated since the last reading at which no memory was about to change."""

    #: The used bytes in that reading; and what all clients held then, in total and of evictable memory.
    used: int
    held: int
    resident: int
    #: The number of these clients, and their bytes.
    count: int = 0
    bytes: int = 0
    #: Whether the bytes of these clients are not known exactly, or other clients came back.
    inexact: bool = False
    #: Whether other clients left, perhaps only until they connect again.
    disturbed: bool = False


@dataclass(slots=True, eq=False)
class ContextSizes:
    """The measured sizes of contexts on a GPU, and of the residues of hibernated processes."""

    #: Bytes with which a context was admitted, and bytes that it took, as measured on GPUs of this name.
    taken: tuple[int, int] = (1, 1)
    #: The clients' bytes at the last reading, including contexts, if no memory was about to change then.
    quietly_held: int | None = None
    #: The context that has just been admitted, if the next reading will show its size.
    trial: Trial | None = None
    #: Bytes of each hibernated client's residue.
    residue: int | None = None
    #: The last residues that readings showed while nothing else changed, on all GPUs of this name; and the clients that
    #: the next reading is compared with.
    residues: deque[int] = field(default_factory=lambda: deque(maxlen=9))
    departures: Departures | None = None
    #: A residue that a reading showed although evictable memory had moved, or clients had left. It counts only once a
    #: process lacks room to wake, because the rest may also be other programs' use.
    supposed: int | None = None
    #: Whether the expected residue counts although no reading showed it, because a process lacked room to wake.
    trusted: bool = False

    def charge(self, stated: int) -> int:
        """Return the bytes that contexts take if they are admitted with ``stated`` bytes."""
        admitted, taken = self.taken
        return -(-stated * taken // admitted)

    def leaves(self, context: int) -> int:
        """Return the expected residue of a client's contexts when it hibernates, in bytes."""
        return min(LEFT if self.residue is None else self.residue, context)

    @property
    def counts(self) -> bool:
        """Whether processes need less room to wake because of their residues, which are more than expectations."""
        return bool(self.residues) or self.trusted


@dataclass(slots=True, eq=False)
class ReadingState:
    """How the readings of a GPU and the clients' statements differ, and when the next reading is due."""

    #: Bytes by which the clients' statements have shrunk since the last reading, except by ordered evictions.
    shrunk: int = 0
    #: Bytes by which readings have lowered ``Gpu.foreign``, perhaps because of freed memory that was not stated yet.
    lowered: int = 0
    #: Bytes by which the last reading was below the charges of clients. And the part of ``shrunk`` that was charged for
    #: contexts that take less, as far as that reading did not show it: ``Gpu.foreign`` may be greater by that.
    overcharged: int = 0
    hidden: int = 0
    #: When the reading was requested that has not arrived yet.
    asked_at: float | None = None
    #: The pause before the next reading without an event.
    pause: float = 0.0


class DurationPredictor:
    """Estimates how long a burst, or an absence, will go on, from how long a group's recent ones lasted.

    Parameters
    ----------
    unknown
        The estimate while there is no length yet, seconds.
    remembered
        The number of recent lengths that count.
    fading
        The weight of each length, relative to the next one.
    """

    __slots__ = ("_fading", "_lengths", "_unknown")

    def __init__(self, unknown: float = 1.0, remembered: int = 16, fading: float = 0.85) -> None:
        self._unknown, self._fading = unknown, fading
        self._lengths: deque[float] = deque(maxlen=remembered)

    def remember(self, seconds: float) -> None:
        """Add the length of a burst, or an absence, that has ended."""
        self._lengths.append(seconds)

    def learnt(self) -> tuple[float, ...]:
        """Return the recent lengths, oldest first."""
        return tuple(self._lengths)

    def recall(self, lengths: Iterable[float]) -> None:
        """Apply lengths that another scheduler has learnt."""
        self._lengths.extend(lengths)

    def expected(self, so_far: float) -> float:
        """Return for how many more seconds a burst, or an absence, that has lasted ``so_far`` is expected to go on.

        Bursts are heavy-tailed: a burst that has outlasted most others is likely to be long. So only longer bursts
        count. With the weight of the shorter bursts, it is expected to last as long again.
        """
        if not self._lengths:
            return max(self._unknown, so_far)
        weight, longer, outlasted, rest = 1.0, 0.0, 0.0, 0.0
        for seconds in reversed(self._lengths):
            if seconds > so_far:
                longer += weight
                rest += weight * (seconds - so_far)
            else:
                outlasted += weight
            weight *= self._fading
        doubt = outlasted / (outlasted + longer)
        return (rest + doubt * so_far) / (longer + doubt)

    def ends_within(self, so_far: float, seconds: float, usually: float) -> float:
        """Return how likely a burst, or an absence, that has lasted ``so_far`` is to end within this many seconds.

        Only longer ones count. ``usually`` is the likelihood while none is known, with the weight of the last one.
        """
        weight, longer, soon = 1.0, 0.0, 0.0
        for length in reversed(self._lengths):
            if length > so_far:
                longer += weight
                soon += weight if length <= so_far + seconds else 0.0
            weight *= self._fading
        return (soon + usually) / (longer + 1.0)


@dataclass(slots=True, eq=False)
class BurstTime:
    """How long a group's bursts have run."""

    lengths: DurationPredictor = field(default_factory=DurationPredictor)

    #: Since when it has been busy; and the seconds for which it was busy earlier under this lease.
    ran_since: float = 0.0
    ran_before: float = 0.0
    #: Seconds for which the current burst ran under earlier leases.
    burst_before: float = 0.0
    #: Seconds under this lease that belong to bursts that have ended.
    counted_burst: float = 0.0
    #: Until when its bursts are counted as GPU time, unless it is metered.
    counted_until: float = 0.0

    def so_far(self, now: float, busy: bool) -> float:
        """Return for how long its burst has run so far, including earlier leases."""
        running = now - self.ran_since if busy else 0.0
        return self.burst_before + self.ran_before - self.counted_burst + running

    def expected(self, now: float, busy: bool) -> float:
        """Return for how many more seconds of GPU time its burst is expected to go on."""
        return self.lengths.expected(self.so_far(now, busy))

    def end(self, now: float, busy: bool) -> None:
        """End the burst, and remember its length for the next estimate."""
        length = self.so_far(now, busy)
        if length > 0:
            self.lengths.remember(length)
        self.burst_before, self.counted_burst = 0.0, self.ran_before

    def carry_over(self, now: float, busy: bool) -> None:
        """Keep the length of a burst that goes on although its lease has ended."""
        self.burst_before, self.counted_burst = self.so_far(now, busy), self.ran_before


@dataclass(slots=True, eq=False)
class Eviction:
    """What was evicted from a group since its memory was last restored, in bytes."""

    at: float
    bytes: int = 0
    copied: int = 0
    zero: int = 0
    shared: int = 0
    hashed: int = 0
    #: Whether memory was restored since.
    over: bool = False

    def add(self, move: Evicted, now: float) -> None:
        """Add a finished eviction."""
        self.at = now
        self.bytes += move.bytes
        self.copied += move.copied
        self.zero += move.zero
        self.shared += move.shared
        self.hashed += move.hashed

    @property
    def clean(self) -> int:
        """Bytes that left without a copy, because they had not changed."""
        return unchanged(self.bytes, self.copied, self.zero, self.shared)


def unchanged(moved: int, copied: int, zero: int, shared: int) -> int:
    """Return the bytes of an eviction that needed no copy because they had not changed: the rest."""
    return max(0, moved - copied - zero - shared)


@dataclass(slots=True)
class Totals:
    """A group's counters; the usage report keeps its times."""

    bursts: int = 0
    waits: int = 0
    evicted: int = 0
    restored: int = 0
    #: What was evicted since memory was last restored.
    eviction: Eviction | None = None


@dataclass(slots=True, eq=False)
class Prefetch:
    """The prefetch by which a group gets ready before it uses the GPU (``prefetch.py``)."""

    #: The hint, and how likely it makes that the group uses the GPU within a minute.
    hint: Sign
    likelihood: float
    stage: PrefetchStage
    #: Since when it is at this stage.
    since: float
    #: Bytes that had been restored for the group before.
    restored_before: int = 0
    #: Seconds that it has taken so far, which the group would have waited.
    spent: float = 0.0
    #: Whether the group was woken for it.
    woken: bool = False

    def pass_time(self, now: float) -> None:
        """Count the time since the stage began, unless the group is ready."""
        if self.stage != "ready":
            self.spent += now - self.since
            self.since = now


@dataclass(slots=True)
class Reservation:
    """A place in the queue that no thread of the group waits for (``reservations.py``)."""

    since: float
    #: Until when its lease is kept; None: it does not have one yet.
    until: float | None = None
    #: Since when its lease is kept.
    kept_since: float = 0.0
    #: The lease that the group held already when it made the reservation.
    earlier: int | None = None

    def is_reached(self, lease: int | None) -> bool:
        """Whether its lease was granted, and is about to be kept."""
        return self.until is None and lease not in (None, self.earlier)


@dataclass(slots=True, eq=False)
class Hibernation(Generic[WaitType]):
    """The hibernation of a group of which at least one client is not awake.

    At stage ``evicting``, all clients still are, and the group's memory is being evicted.
    """

    stage: Progress
    #: When it began, and when this stage began.
    began: float
    since: float
    #: Bytes of GPU memory that it has freed, or is about to free.
    frees: int = 0
    #: Whether the group must wake as soon as the current step has ended.
    wanted: bool = False
    #: The head of the queue for which it makes room. While that waits, the group's own work does not end the attempt.
    head: WaitType | None = None
    #: Why it failed: a code, and a sentence.
    failed: tuple[str, str] | None = None
    #: How many times in a row a wake found no room on the GPU, although it was known to be there.
    lacked_room: int = 0
    #: Whether something needs it awake. Its user may cancel that, and nothing needs it yet if it wakes ahead of need.
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a group does not hibernate, and until when this is not checked again."""

    code: str
    text: str
    since: float
    until: float


@dataclass(slots=True)
class Preferences:
    """A user's preferences for a group."""

    priority: Priority = "auto"
    #: Keep its memory on the GPU while it is idle, until another group has waited too long for it.
    keep: bool = False
    #: Grant it nothing until the user unfreezes it.
    frozen: bool = False
    #: Whether an administrator put it on hold.
    on_hold: bool = False
    #: The cap of its footprint on each GPU in bytes; 0: none.
    memory: int = 0
    #: Fractions of a GPU's time, and the weight in the spare time; see ``events.Entitlement``.
    request: float = 0.0
    limit: float = 0.0
    weight: float = 1.0
    #: Keep the lease until the open cell ends.
    exclusive: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it is granted nothing, because it is frozen or on hold."""
        return self.frozen or self.on_hold


class Bar(NamedTuple):
    """Why a wait is passed over: a GPU is drained, or a user or team has reached its quota of GPUs."""

    code: Literal["gpu_draining", "quota_gpus"]
    gpu: str = ""
    #: The user or team, its number of GPUs, and the number that this group needs.
    whose: str = ""
    most: int = 0
    own: int = 0
    #: The group that must make way first, and when.
    holder: str = ""
    holder_name: str = ""
    until: float | None = None


class Delayed(NamedTuple):
    """A growth request that is answered later."""

    grow: Grow
    obstacle: Obstacle
    #: When it began to wait.
    since: float
