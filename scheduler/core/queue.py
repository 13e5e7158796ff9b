# SPDX-License-Identifier: BSD-3-Clause
"""The queue of waits, in the order of the policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import ClassVar

from .messages import Grow
from .model import Gpu, Group, Model, Wait
from .policy_api import Rank
from .policy_guard import PolicyGuard
from .turn import Turn


@dataclass(slots=True, eq=False)
class WaitQueue:
    """Adds, removes and sorts waits."""

    model: Model
    turn: Turn
    policy: PolicyGuard

    #: Seconds after its wake for which a group may take over the place in the queue that its wake had.
    place_kept: ClassVar[float] = 2.0

    #: Waits that were not logged yet.
    new: list[Wait] = field(default_factory=list, init=False)
    #: The policy by which the queue was sorted, as its number of predecessors that failed; and the version of GPU time.
    sorted_by: tuple[int, int] = field(default=(0, 0), init=False)

    def _rank(self, wait: Wait) -> None:
        rank(wait, self.policy)

    def waits_of(self, group: Group) -> list[Wait]:
        """Return the waits of a group, in order."""
        found = {w: None for s in group.shares.values() for w in s.gpu.queue if w.group is group}
        if group.wait is not None and not group.shares:
            found[group.wait] = None
        return sorted(found, key=place)

    def rank_again(self, group: Group) -> None:
        """Compute the ranks of a group's waits again, and move them."""
        for wait in self.waits_of(group):
            self._remove(wait)
            self._rank(wait)
            self._insert(wait)

    def _insert(self, wait: Wait) -> None:
        insort(self.model.queue, wait, key=place)
        if wait.grow is None and not wait.group.shares:
            self.model.nowhere.append(wait)
        for gpu in wait.gpus.values():
            insort(gpu.queue, wait, key=place)
            self._mark(wait, gpu)

    def _mark(self, wait: Wait, gpu: Gpu) -> None:
        self.turn.dirty[gpu.uuid] = self.turn.contention_stale[gpu.uuid] = gpu
        if wait.grow is not None:
            self.turn.reserve_stale[gpu.uuid] = gpu

    def _remove(self, wait: Wait) -> None:
        # A group that is woken for a lease has the same place as its wait for the lease.
        del self.model.queue[
            self.model.queue.index(wait, bisect_left(self.model.queue, place(wait), key=place))
        ]
        if wait in self.model.nowhere:
            self.model.nowhere.remove(wait)
        for gpu in wait.gpus.values():
            del gpu.queue[gpu.queue.index(wait, bisect_left(gpu.queue, place(wait), key=place))]
            self._mark(wait, gpu)

    def sort(self) -> None:
        """Sort the queue, because the policy or its ranks changed."""
        for wait in sorted(self.model.queue, key=lambda w: w.group.makes_way_for is not None):
            self._rank(wait)
        self.model.queue.sort(key=place)
        for gpu in self.model.gpus.values():
            if gpu.queue:
                gpu.queue.sort(key=place)
                self.turn.dirty[gpu.uuid] = gpu

    def enqueue(
        self,
        group: Group,
        grow: Grow | None = None,
        front: bool = False,
        wakes: bool = False,
        before: Wait | None = None,
    ) -> Wait:
        """Add a wait to the queue: for a lease, or for unevictable memory; ``before``: the one whose place it takes."""
        self.model.last_number += 1
        gpus = group.gpus
        if grow is not None:
            gpus = {grow.least.gpu: self.model.gpus[grow.least.gpu]}
        wait = Wait(group, self.model.last_number, self.turn.now, grow, front, wakes, gpus=gpus)
        if wakes and group.wait is not None:
            before = group.wait  # it is woken when it would get its lease
        if before is not None:
            wait.number, wait.since = before.number, before.since
        place = self._kept_place(group) if grow is None else None
        if place is not None:
            wait = Wait(group, place.number, place.since, gpus=gpus)
            wait.not_before = place.not_before
        wait.queued = True
        self._rank(wait)
        self._insert(wait)
        self.new.append(wait)
        return wait

    def _kept_place(self, group: Group) -> Wait | None:
        """Return the place in the queue to which a group may return; after its wake, only within a short time."""
        place, group.place = group.place, None
        if place is not None and place.wakes and group.active_at + self.place_kept < self.turn.now:
            return None
        return place

    def dequeue(self, wait: Wait) -> None:
        """Remove a wait from the queue."""
        self.turn.quotas_stale = True
        self._remove(wait)
        wait.queued = False
        if not wait.logged:
            self.new.remove(wait)
        if wait.group.wait is wait:
            wait.group.wait = None


def rank(wait: Wait, policy: PolicyGuard) -> None:
    """Compute the rank of a wait, which need not be in the queue."""
    own = wait.group.wait
    lease = own if wait.wakes and wait.for_lease and own is not None else wait
    parts, found = policy.rank(lease)
    retry = -1.0 if lease.front else 0.0
    wait.parts, wait.rank = ({"retry": retry}, *parts), (retry, *found)
    first = wait.group.makes_way_for
    # Otherwise it would immediately take back what was taken from it.
    if lease.grow is None and first is not None and first.rank > wait.rank and first.queued:
        wait.parts, wait.rank = first.parts, first.rank


def place(wait: Wait) -> tuple[Rank, int]:
    """Return the sort key of a wait."""
    return wait.rank, wait.number
