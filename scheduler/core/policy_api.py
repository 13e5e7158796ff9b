# SPDX-License-Identifier: BSD-3-Clause
"""The interface between policies and the core.

A policy imports nothing else of the core. The classes whose names end in ``View`` list what a policy may read. The
core's own objects have these attributes, among others. A policy must not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .messages import Class, Entitlement, Grow

State = Literal[
    "idle",
    "waiting",
    "restoring",
    "running",
    "idle_lease",
    "finishing",
    "hibernated",
    "waking",
    "prefetching",
]
#: The sort key of a policy: smaller comes first. Each number is a sum of parts, named by the rule that they come from.
Parts = tuple[Mapping[str, float], ...]
Rank = tuple[float, ...]

#: Requests may add up to more than a GPU has. A group that has waited for this many seconds, and has had next to
#: nothing, also counts as below a request; the longer it waits, the more.
PATIENCE = 30.0
#: Seconds between submissions of a group that pauses because of shares: long enough that a CUDA kernel of 50 ms stays
#: within 2 % of the window.
SHARE_STALL = 2.5


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a group that holds a lease may submit; see ``messages.Pace``."""

    inflight: float | None = None
    stall: float = 0.010
    share: float = 1.0
    meter: bool = False


#: No bound and no meter.
FREE = Speed()
#: The bounds of groups by id, and when they may change without an event; None: they do not.
Paces = tuple[dict[str, Speed], float | None]


# --- What a policy reads --------------------------------------------------------------------------


class PreferencesView(Protocol):
    """What users and administrators asked for a group."""

    @property
    def keep(self) -> bool:
        """Whether its memory stays on the GPU while the group is idle."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether it is granted nothing."""
        ...

    @property
    def weight(self) -> float:
        """Its weight in the spare time."""
        ...


class ShareView(Protocol):
    """What a group has on one GPU."""

    @property
    def resident(self) -> int:
        """Bytes of evictable memory that are on the GPU."""
        ...


class GroupView(Protocol):
    """A lease group. Times are seconds on the clock of ``View.now``."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def number(self) -> int:
        """Its place in the order in which groups came."""
        ...

    @property
    def user(self) -> str:
        """The user that it belongs to."""
        ...

    @property
    def state(self) -> State:
        """The state that the status shows."""
        ...

    @property
    def preferences(self) -> PreferencesView:
        """What users and administrators asked for it."""
        ...

    @property
    def shares(self) -> Mapping[str, ShareView]:
        """What it has on each GPU that it uses, by UUID."""
        ...

    @property
    def wait(self) -> WaitView | None:
        """Its place in the queue for a lease."""
        ...

    @property
    def lease(self) -> int | None:
        """The number of the lease that it holds."""
        ...

    @property
    def turn_at(self) -> float:
        """When its present time slice on the GPU began."""
        ...

    @property
    def activity_class(self) -> Class:
        """Whether it is interactive, an agent's, or works in the background."""
        ...

    @property
    def attended(self) -> bool:
        """Whether a person waits for its work: it is interactive, or it was until its open cell became long."""
        ...

    @property
    def focused(self) -> bool:
        """Whether its user is looking at its notebook."""
        ...

    @property
    def move_cost(self) -> float:
        """Seconds that it takes to restore what it lacks on its GPUs."""
        ...

    @property
    def footprint_cost(self) -> float:
        """Seconds that it takes to copy its footprint one way. To evict it may take less: ``View.eviction_cost``."""
        ...

    @property
    def intact(self) -> bool:
        """Whether nothing was evicted from it since its last grant."""
        ...

    @property
    def busy(self) -> int:
        """The number of its processes that are in a burst."""
        ...

    @property
    def cells(self) -> Mapping[str, float]:
        """When each of its open cells began."""
        ...

    @property
    def queued(self) -> int:
        """The number of cells that wait in its Jupyter kernel, as far as is known."""
        ...

    @property
    def ended_at(self) -> float | None:
        """When its last burst ended for good; None: it only went quiet."""
        ...

    @property
    def idle_since(self) -> float:
        """When it last had work."""
        ...


class WaitView(Protocol):
    """A place in the queue: for a lease, or for unevictable memory."""

    @property
    def group(self) -> GroupView:
        """The group that waits."""
        ...

    @property
    def number(self) -> int:
        """Its place in the order in which waits began."""
        ...

    @property
    def since(self) -> float:
        """When it began to wait."""
        ...

    @property
    def grow(self) -> Grow | None:
        """The memory that it waits for; None: a lease."""
        ...

    @property
    def wakes(self) -> bool:
        """Whether a hibernated process needs that memory to be awake."""
        ...

    @property
    def frozen(self) -> bool:
        """Whether it is for a lease of a group that is frozen or on hold."""
        ...


class GpuView(Protocol):
    """One GPU."""

    @property
    def uuid(self) -> str:
        """Its UUID."""
        ...

    @property
    def holders(self) -> Mapping[str, GroupView]:
        """The groups that hold a lease on it, by id."""
        ...

    @property
    def background(self) -> int:
        """The number of holders in the background class."""
        ...


class ClaimView(Protocol):
    """What a team, a user or a group is entitled to."""

    @property
    def whose(self) -> str:
        """``team:NAME``, ``user:NAME`` or ``group:ID``."""
        ...

    @property
    def entitlement(self) -> Entitlement:
        """The entitlement."""
        ...


class TimesView(Protocol):
    """GPU time over a sliding window. Shares are fractions of the window on one GPU."""

    @property
    def window(self) -> float:
        """Seconds over which shares hold."""
        ...

    @property
    def longest_patience(self) -> float:
        """Seconds after which a wait comes before all others, whatever groups have had."""
        ...

    @property
    def active(self) -> bool:
        """Whether any share of time is set."""
        ...

    @property
    def several_users(self) -> bool:
        """Whether the groups are of more than one user."""
        ...

    def of(self, group: GroupView) -> Sequence[ClaimView]:
        """Return what applies to a group: the claims of its team if it has one, its user, and itself, in this order."""
        ...

    def limit(self, group: GroupView) -> float:
        """Return the least limit that applies to a group, at most 1."""
        ...

    def share(self, whose: str, gpu: str, now: float) -> float:
        """Return the share that a team, a user or a group has had."""
        ...

    def lately(self, group: GroupView, gpus: Iterable[str], now: float) -> float:
        """Return the seconds of one GPU's time that a group has had for its weight, in about the last ten minutes."""
        ...

    def rate(self, group: GroupView, gpu: str, now: float) -> float:
        """Return how many submissions a second a group makes."""
        ...

    def rank(self, group: GroupView, gpus: Iterable[str], now: float) -> tuple[float, float, float]:
        """Return a group's place in the order by GPU time.

        The numbers order it between users, between users that have had the same, by when they last had any of these
        GPUs, and between the groups of its own user.
        """
        ...

    def deficit(self, group: GroupView, gpu: str, now: float) -> float:
        """Return by how much a group is below its request; negative above it."""
        ...

    def throttled_until(self, group: GroupView, gpu: str, now: float) -> float | None:
        """Return until when a group has reached its limit."""
        ...

    def had_less(self, group: GroupView, other: GroupView, gpus: Iterable[str], now: float) -> bool:
        """Whether a group's user has had less than another's."""
        ...

    def owed_more(self, group: GroupView, other: GroupView, now: float, swing: float) -> bool:
        """Whether a group comes before another by its shares, by more than ``swing``."""
        ...


class View(Protocol):
    """What a policy may read of the core."""

    @property
    def queue(self) -> Sequence[WaitView]:
        """The waits, in order."""
        ...

    @property
    def leased(self) -> Mapping[str, GroupView]:
        """The groups that hold a lease, by id; on one GPU: ``GpuView.holders``."""
        ...

    @property
    def gpus(self) -> Mapping[str, GpuView]:
        """All GPUs, by UUID."""
        ...

    @property
    def agents(self) -> Mapping[str, GroupView]:
        """The groups that are agents', by id."""
        ...

    @property
    def times(self) -> TimesView:
        """The GPU time of groups, users and teams."""
        ...

    @property
    def now(self) -> float:
        """The time of the event that is being handled, seconds."""
        ...

    def expected(self, group: GroupView) -> float:
        """Return for how many more seconds of GPU time a group's burst is expected to go on."""
        ...

    @property
    def longest_quantum(self) -> float:
        """The upper bound of quanta that follow from costs, seconds."""
        ...

    @property
    def background_quantum(self) -> float:
        """How long a holder that must make way soon keeps its lease, seconds."""
        ...

    def cost_quantum(self, group: GroupView) -> float:
        """Return the quantum that follows from the cost of moving a group's footprint, seconds."""
        ...

    def clean(self, group: GroupView) -> int:
        """Return the bytes on its GPUs that can be evicted without a copy, as far as is known."""
        ...

    def eviction_cost(self, group: GroupView) -> float:
        """Return the seconds that it takes to evict a group's footprint now. Clean memory is not copied."""
        ...

    def due_since(self, group: GroupView) -> float | None:
        """Return since when a cell of a group is expected to use the GPU, and has not yet; None: none is.

        The cell has begun, or it is queued and the one before it has ended.
        """
        ...


# --- What the core calls -------------------------------------------------------------------------


class Policy(Protocol):
    """The choices that do not affect correctness.

    A policy is made with a ``View`` of the core, and may keep state of its own. It is called only while the core
    handles an event, and has no clock but ``view.now``.
    """

    @property
    def name(self) -> str:
        """The name by which users choose it."""
        ...

    @property
    def serialises(self) -> bool:
        """Whether leases are granted one at a time on each GPU even if several fit."""
        ...

    @property
    def orders_by_gpu_time(self) -> bool:
        """Whether ranks depend on GPU time. If so, the core sorts the queue again whenever GPU time may change it."""
        ...

    def queue_parts(self, wait: WaitView) -> Parts:
        """Return the parts of a wait's rank. The core sums each mapping.

        No wait may pass another one forever.
        """
        ...

    def victim_rank(self, group: GroupView) -> Rank:
        """Return the order in which groups lose memory, among groups whose memory is equally available.

        A ``LastingPolicy`` is called again only when the rank may have changed, any other policy each time.
        """
        ...

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return the seconds for which a running holder keeps its lease while others wait; None: the core's choice."""
        ...

    def paces(self, gpu: GpuView) -> Paces:
        """Return how fast the groups that hold a lease on a GPU may submit, and when that may change by itself.

        Groups that are not listed are not bounded. Called whenever a lease, a burst, a class, a cell, a focus or a
        meter of that GPU's groups has changed.
        """
        ...


class LastingPolicy(Policy, Protocol):
    """A policy that returns for how long a victim's rank is valid, so that it is not called each time."""

    def lasting_victim_rank(self, group: GroupView) -> tuple[Rank, float]:
        """Return the ``victim_rank``, and until when it is valid if nothing happens to the group."""
        ...


class PolicyRegistry(Protocol):
    """The policies that are installed; they are passed to the core."""

    @property
    def fallbacks(self) -> Sequence[Callable[[View], Policy]]:
        """The classes that replace a policy that fails: the first one, or the next one after the failed class."""
        ...

    def make(self, name: str, view: View) -> Policy:
        """Return a new policy.

        Raises
        ------
        ValueError
            There is none of this name, or it cannot be made. The text is one sentence for the user.
        """
        ...
