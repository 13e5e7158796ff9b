# SPDX-License-Identifier: BSD-3-Clause
"""The order in which groups on a GPU lose their memory, kept from one decision to the next.

Most groups on a full GPU are *at rest*: nothing of theirs runs or moves, and any wait may take their memory now. They
are ranked when something has happened to them, not each time that a wait lacks room. All other shares with memory are
*volatile*: whether they may be taken depends on the time and on the wait, so they are checked each time. They are few.
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
    """A share. Its class imports this module, because the model keeps a ``Victims`` itself."""

    @property
    def number(self) -> int:
        """Its place in the order in which shares were made."""
        ...

    @property
    def group(self) -> _Group:
        """The group that it is of."""
        ...


ShareT = TypeVar("ShareT", bound=Ranked)


class Spot(NamedTuple):
    """A share at rest: the policy's rank, then the order of shares; and until when the rank is valid by itself."""

    rank: Rank
    number: int
    #: A generic NamedTuple needs Python 3.11.
    share: Any
    until: float = inf
    #: Whether it holds a lease.
    held: bool = False


@dataclass(slots=True, eq=False)
class Victims(Generic[ShareT]):
    """The shares of one GPU, by what taking their memory requires."""

    #: Shares that something happened to.
    changed: dict[int, ShareT] = field(default_factory=dict)
    volatile: dict[int, ShareT] = field(default_factory=dict)
    #: Shares at rest, in order: of groups without a lease, and of groups with an idle lease.
    idle: list[Spot] = field(default_factory=list)
    held: list[Spot] = field(default_factory=list)
    spots: dict[int, Spot] = field(default_factory=dict)
    #: When ranks may change by themselves, earliest first; including outdated times of shares that were ranked again.
    ends: list[tuple[float, int]] = field(default_factory=list)
    #: The policy that ranked them.
    ranked_by: Policy | None = None

    def remove(self, share: ShareT) -> None:
        """Forget a share."""
        self.volatile.pop(share.number, None)
        spot = self.spots.pop(share.number, None)
        if spot is not None:
            spots = self.held if spot.held else self.idle
            del spots[bisect_left(spots, spot)]

    def rest(self, share: ShareT, rank: Rank, until: float) -> None:
        """Note that a share is at rest."""
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
        """Mark the shares whose rank may have changed by itself."""
        ends = self.ends
        while ends and ends[0][0] <= now:
            _, number = heappop(ends)
            spot = self.spots.get(number)
            if spot is not None and spot.until <= now:
                self.remove(spot.share)
                self.changed[number] = spot.share
