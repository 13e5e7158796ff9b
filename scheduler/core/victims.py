# SPDX-License-Identifier: BSD-3-Clause
"""Whose memory on a GPU may be taken at once, in the policy's order; kept from one decision to the next.

Most groups on a full GPU are *at rest*: nothing of theirs runs or moves, and their memory may be taken now, whoever
asks for it. They are ranked when something has happened to them, and not each time that somebody lacks room. All others
with memory are *restless*: how they stand depends on the time and on who asks, so they are looked at each time. They
are few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .policy_api import Policy, Rank


class _Group(Protocol):
    @property
    def lease(self) -> int | None: ...


class Ranked(Protocol):
    """What is ranked: a share, of which no more is known here, because the model keeps a ``Victims`` itself."""

    @property
    def number(self) -> int:
        """Its place in the order in which shares came."""
        ...

    @property
    def group(self) -> _Group:
        """The group that it is of."""
        ...


ShareT = TypeVar("ShareT", bound=Ranked)


class Spot(NamedTuple):
    """A share at rest: the policy's rank, then who came first; and until when the rank holds by itself."""

    rank: Rank
    number: int
    #: A generic NamedTuple needs Python 3.11.
    share: Any
    until: float = inf
    #: Whether it holds a lease.
    held: bool = False


@dataclass(slots=True, eq=False)
class Victims(Generic[ShareT]):
    """The shares of one GPU, by what it takes to have their memory."""

    #: Something happened to these.
    changed: dict[int, ShareT] = field(default_factory=dict)
    volatile: dict[int, ShareT] = field(default_factory=dict)
    #: At rest, in order: those without a lease, and those that hold one.
    idle: list[Spot] = field(default_factory=list)
    held: list[Spot] = field(default_factory=list)
    spots: dict[int, Spot] = field(default_factory=dict)
    #: When these may rank otherwise by themselves, earliest first; with those that were ranked anew since.
    ends: list[tuple[float, int]] = field(default_factory=list)
    #: The policy that ranked them.
    ranked_by: Policy | None = None

    def remove(self, share: ShareT) -> None:
        """Forget how a share stands."""
        self.volatile.pop(share.number, None)
        spot = self.spots.pop(share.number, None)
        if spot is not None:
            spots = self.held if spot.held else self.idle
            del spots[bisect_left(spots, spot)]

    def rest(self, share: ShareT, rank: Rank, until: float) -> None:
        """Take in that a share is at rest."""
        held = share.group.lease is not None
        before = self.spots.get(share.number)
        if before is not None and before[0] == rank and before[3:] == (until, held):
            return
        self.remove(share)
        spot = self.spots[share.number] = Spot(rank, share.number, share, until, held)
        insort(self.held if held else self.idle, spot)
        if until < inf:
            heappush(self.ends, (until, share.number))
            if len(self.ends) > 4 * len(self.spots) + 64:
                self.ends = [(spot.until, number) for number, spot in self.spots.items()]
                heapify(self.ends)

    def wake(self, now: float) -> None:
        """Have those looked at again whose rank may be another by now."""
        ends = self.ends
        while ends and ends[0][0] <= now:
            _, number = heappop(ends)
            spot = self.spots.get(number)
            if spot is not None and spot.until <= now:
                self.remove(spot.share)
                self.changed[number] = spot.share
