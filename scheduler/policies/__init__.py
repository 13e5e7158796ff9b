# SPDX-License-Identifier: BSD-3-Clause
"""Policies order the queue and the victims, and set quanta and paces: one small file each, chosen by name.

The core's hard rules (``core.py``) hold under any policy: none can grant room that is not there, or take memory from
whoever uses it. Third parties register a class under the entry point group ``jupyter_gpushare.policies``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from .burst import Burst
from .fcfs import FirstComeFirstServed
from .gemini import Gemini
from .priority import HighestPriority
from .tgs import Tgs

if TYPE_CHECKING:
    from ..core.messages import Class
    from ..core.model import Gpu, Group, Wait
    from ..core.usage import GpuTime

#: The entry point group under which others register policies.
ENTRY_POINTS = "jupyter_gpushare.policies"
#: What a policy sorts by: smaller comes first. Each number is a sum of parts, named by the rule that they come from.
Parts = tuple[Mapping[str, float], ...]
Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a group that holds a lease may submit: ``events.Pace``, without a client."""

    inflight: float | None = None
    stall: float = 0.010
    share: float = 1.0
    meter: bool = False


#: Nothing is bounded, nothing measured.
FREE = Speed()


class View(Protocol):
    """What a policy may look at; the core is one."""

    @property
    def queue(self) -> Sequence[Wait]:
        """Who waits, in order."""
        ...

    @property
    def leased(self) -> Mapping[str, Group]:
        """Who holds a lease, by id; on one GPU: ``Gpu.holders``, of whom ``Gpu.background`` are in the background."""
        ...

    @property
    def gpus(self) -> Mapping[str, Gpu]:
        """All GPUs, by UUID."""
        ...

    @property
    def times(self) -> GpuTime:
        """Who has had how much."""
        ...

    @property
    def now(self) -> float:
        """The time, seconds."""
        ...

    def class_of(self, group: Group) -> Class:
        """Return what a group counts as."""
        ...

    def expected(self, group: Group) -> float:
        """Return for how many seconds of GPU time its burst is expected to go on."""
        ...

    @property
    def longest_quantum(self) -> float:
        """Bound of quanta that follow from costs, seconds."""
        ...

    @property
    def background_quantum(self) -> float:
        """For how long a holder that has to make way soon is left alone, seconds."""
        ...

    def cost_quantum(self, group: Group) -> float:
        """Return the quantum that follows from what it costs to move a group's footprint, seconds."""
        ...

    def footprint_cost(self, group: Group) -> float:
        """Return the seconds that it takes to move a group's footprint one way."""
        ...

    def move_cost(self, group: Group) -> float:
        """Return the seconds that it takes to bring in what a group lacks."""
        ...

    def due_since(self, group: Group) -> float | None:
        """Return when its cell began, if that is expected to use the GPU and has not yet."""
        ...

    def focused(self, group: Group) -> bool:
        """Whether it is in front of its user."""
        ...


class Policy(Protocol):
    """The choices that are not a matter of correctness.

    A policy is made with the core as its ``View``, and may keep state of its own; it is asked only while the core
    handles an event, and has no clock but ``view.now``.
    """

    @property
    def name(self) -> str:
        """What people choose it by."""
        ...

    @property
    def serialises(self) -> bool:
        """Whether leases are granted one at a time on each GPU even where all fits."""
        ...

    @property
    def version(self) -> int:
        """Counts up whenever the ranks of some that wait already may have changed; the core then sorts anew."""
        ...

    def queue_parts(self, wait: Wait) -> Parts:
        """Order of the waiting, of which the core makes the rank: each mapping's sum.

        Must let nobody pass another forever.
        """
        ...

    def victim_rank(self, group: Group) -> Rank:
        """Order in which groups lose memory, among those that are equally free to lose it.

        A policy may have a ``lasting_victim_rank``, which returns the same and until when it holds of one that does not
        wait, if nothing happens to that group; else it is asked each time anew.
        """
        ...

    def quantum(self, group: Group, wait: Wait | None) -> float | None:
        """Return the seconds for which a running holder is left alone, by one that waits; None: as the core thinks."""
        ...

    def paces(self, gpu: Gpu) -> dict[str, Speed]:
        """Return how fast the groups that hold a lease on a GPU may submit; who is not in it is free.

        Asked whenever a lease, a burst, a class, a cell, a focus or the meters of that GPU's groups changed.
        """
        ...

    def pace_again(self, gpu: Gpu) -> float | None:
        """When the paces may change by themselves."""
        ...


OURS: dict[str, Callable[[View], Policy]] = {
    policy.name: policy for policy in (Burst, FirstComeFirstServed, Gemini, HighestPriority, Tgs)
}


def available() -> dict[str, Callable[[View], Policy]]:
    """Return the policies by name: ours, and those that others registered."""
    found = dict(OURS)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in found:
            found[entry.name] = entry.load()
    return found


@cache
def _registered() -> frozenset[str]:
    # What is installed does not change while this runs, and is looked for on the disk.
    return frozenset(entry.name for entry in entry_points(group=ENTRY_POINTS))


def names() -> list[str]:
    """Return the names of all policies, sorted; others' code is not loaded for it."""
    return sorted({*OURS, *_registered()})


def make(name: str, view: View) -> Policy:
    """Return a new policy.

    Raises
    ------
    ValueError
        There is none of this name, or it cannot be made; the text is one sentence for the person who asked.
    """
    try:
        # Others' code is not so much as loaded for a policy of ours.
        found = OURS.get(name) or available().get(name)
        if found is not None:
            return found(view)
    except Exception as error:
        raise ValueError(f"the policy {name!r} cannot be used: {error}") from None
    raise ValueError(f"policy must be one of {', '.join(names())}, not {name!r}")
