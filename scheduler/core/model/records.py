# SPDX-License-Identifier: BSD-3-Clause
"""Small records of the model, and the states that its entities can be in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from ..messages import Grow, Priority

#: Bytes that a checkpointed process is expected to leave on its GPU, until readings have shown how many: no more than
#: its context. 4 MiB on an NVIDIA H200 (driver 580), where NVML counts them as used and names no process.
LEFT = 4 << 20
#: What growth waits for that is answered later: a reading of the GPU; clients of the previous scheduler, until they
#: attach or exit; or host memory.
Obstacle = Literal["reading", "returning", "host_memory", "holders"]
#: Those of them that may take long.
WAITED_FOR = frozenset({"returning", "host_memory"})
#: How far a client is from being awake: told to park; parked; being checkpointed; off the GPU; waiting for the room
#: that it needs to be awake; being restored.
Stage = Literal["awake", "parking", "parked", "checkpointing", "hibernated", "waiting", "waking"]
#: The same of a group.
Progress = Literal["evicting", "parking", "hibernating", "hibernated", "waking"]
#: How far a group's lease is; ``leases.py`` has the steps between them.
LeaseState = Literal["none", "held", "yielding"]
#: A place in the queue, of which no more is known here.
WaitType = TypeVar("WaitType")
#: A client and a group, likewise.
ClientType = TypeVar("ClientType")
GroupType = TypeVar("GroupType")


@dataclass(slots=True)
class Subscribers(Generic[ClientType, GroupType]):
    """The holders of one GPU that are notified of contention, in the order in which they came to hold it."""

    #: The clients of groups for which only this GPU counts: all of them are told the same.
    alike: dict[int, ClientType] = field(default_factory=dict)
    #: Groups that use other GPUs too, or keep their lease whether or not others wait.
    apart: dict[str, GroupType] = field(default_factory=dict)


@dataclass(slots=True)
class Trial:
    """A context that begins while nothing else happens on its GPU: the next reading shows its size."""

    client: int
    #: The reading before; what clients held then besides contexts; and what is charged for all contexts.
    used: int
    held: int
    context: int
    begun: bool = False


@dataclass(slots=True)
class Departures:
    """The clients that hibernated since the last reading at which nothing was about to come or to go."""

    #: What that reading showed, and what clients held then.
    used: int
    held: int
    #: How many they are, and what they held.
    count: int = 0
    bytes: int = 0
    #: What they held is not known exactly, or others came back.
    inexact: bool = False


@dataclass(slots=True, eq=False)
class ContextSizes:
    """What contexts take on a GPU, and leave there when their processes hibernate, as far as readings showed."""

    #: Bytes that a context was admitted with, and bytes that it took, as measured on GPUs of this name.
    taken: tuple[int, int] = (1, 1)
    #: What clients held at the last reading, contexts included, if nothing was about to come or to go then.
    quietly_held: int | None = None
    #: The context that has just been admitted, if the next reading will show its size.
    trial: Trial | None = None
    #: Bytes that each hibernated client leaves.
    residue: int | None = None
    #: What readings showed of that last where nothing else had come or gone, also on other GPUs of this name; and what
    #: the next one will be compared with.
    residues: deque[int] = field(default_factory=lambda: deque(maxlen=9))
    departures: Departures | None = None

    def charge(self, stated: int) -> int:
        """Return the bytes that contexts take, by the bytes that they are admitted with."""
        admitted, taken = self.taken
        return -(-stated * taken // admitted)

    def leaves(self, context: int) -> int:
        """Return how many bytes of its contexts a client is expected to leave here when it hibernates."""
        return min(LEFT if self.residue is None else self.residue, context)


class DurationPredictor:
    """Estimates how long a burst, or an absence, will go on, from how long a group's recent ones lasted.

    Parameters
    ----------
    unknown
        The estimate, seconds, while none has ended yet.
    remembered
        The number of recent ones that count.
    fading
        The weight of each one, relative to the one after it.
    """

    __slots__ = ("_fading", "_lengths", "_unknown")

    def __init__(self, unknown: float = 1.0, remembered: int = 16, fading: float = 0.85) -> None:
        self._unknown, self._fading = unknown, fading
        self._lengths: deque[float] = deque(maxlen=remembered)

    def remember(self, seconds: float) -> None:
        """Add one that has ended."""
        self._lengths.append(seconds)

    def expected(self, so_far: float) -> float:
        """Return for how many more seconds one that has lasted ``so_far`` is expected to go on.

        Bursts are heavy-tailed: a burst that has outlasted most others is likely to be a long one. So only those that
        lasted longer count. With the weight of those that it has outlasted, it is expected to last as long again.
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


@dataclass(slots=True, eq=False)
class BurstTime:
    """How long a group's bursts have run."""

    lengths: DurationPredictor = field(default_factory=DurationPredictor)

    #: While it is busy: since when. And for how long it was busy before, under this lease.
    ran_since: float = 0.0
    ran_before: float = 0.0
    #: Seconds for which the burst that goes on ran under earlier leases.
    burst_before: float = 0.0
    #: Of what it ran under this lease, what belongs to bursts that have ended.
    counted_burst: float = 0.0
    #: Until when its bursts were counted as GPU time, unless it is metered.
    counted_until: float = 0.0

    def so_far(self, now: float, busy: bool) -> float:
        """Return for how long its burst has run so far, under earlier leases too."""
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


@dataclass(slots=True)
class Totals:
    """What a group has had so far; `Ledger` knows for how long it waited and ran."""

    bursts: int = 0
    waits: int = 0
    evicted: int = 0
    restored: int = 0


@dataclass(slots=True, eq=False)
class Hibernation(Generic[WaitType]):
    """A group on its way off the GPU, off it, or on its way back: some of its clients, at least, are not awake.

    ``evicting``: all are still, and its memory leaves.
    """

    stage: Progress
    #: When it began, and when this stage did.
    began: float
    since: float
    #: Bytes of the GPUs that it gave back, or is about to.
    frees: int = 0
    #: It is to be awake again as soon as what is under way has ended.
    wanted: bool = False
    #: The head of a queue that it makes room for. While that waits, work of its own does not end the attempt.
    head: WaitType | None = None
    #: Why it cannot be: a code, and a sentence.
    failed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a group does not hibernate, and until when that is taken for granted."""

    code: str
    text: str
    since: float
    until: float


@dataclass(slots=True)
class Wishes:
    """What people asked for a group."""

    priority: Priority = "auto"
    #: Its memory stays on the GPU while it is idle, as long as nobody has waited for it too long.
    keep: bool = False
    #: It is granted nothing until it is unfrozen.
    frozen: bool = False
    #: An administrator froze it.
    held: bool = False
    #: Bytes of footprint on each GPU; 0: no cap.
    memory: int = 0
    #: Fractions of a GPU's time, and the weight for what is spare: ``events.Entitlement``.
    request: float = 0.0
    limit: float = 0.0
    weight: float = 1.0
    #: The cell that is open keeps its lease to its end.
    exclusive: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it is granted nothing, whoever wants it so."""
        return self.frozen or self.held


class Bar(NamedTuple):
    """Why one that waits is passed over: a GPU that is drained, or somebody's quota of GPUs."""

    code: Literal["gpu_draining", "quota_gpus"]
    gpu: str = ""
    #: Whose quota, how many GPUs it is, and how many this one needs by itself.
    whose: str = ""
    most: int = 0
    own: int = 0
    #: The group that has to make way first, and when.
    holder: str = ""
    holder_name: str = ""
    until: float | None = None


class Delayed(NamedTuple):
    """Growth that is answered later."""

    grow: Grow
    obstacle: Obstacle
    #: When it began to wait for that.
    since: float
