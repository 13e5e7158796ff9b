# SPDX-License-Identifier: BSD-3-Clause
"""What this core hands over to the core of the next scheduler, and what it has from the previous one.

Leases and memory are not part of it, because clients state them when they attach. What is known of a group waits here
until a client of that group attaches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

from msgspec.structs import replace

from .activity import ActivityClassifier
from .likelihood import UseLikelihood
from .messages import Learnt, LearntGpu, LearntGroup, LearntMoves, LearntTime, Recall
from .model import Eviction, Group, Model, Totals
from .paging import ThrashingDetector
from .preferences import PreferenceStore
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Recollection:
    """Hands over what was learnt."""

    model: Model
    turn: Turn
    times: GpuTime
    classes: ActivityClassifier
    thrash: ThrashingDetector
    likelihood: UseLikelihood
    preferences: PreferenceStore

    #: Seconds in which groups must return; and the number of groups that are handed over.
    patience: ClassVar[float] = 60.0
    most: ClassVar[int] = 1000

    #: The groups that have not returned yet, and until when they may.
    _groups: dict[str, LearntGroup] = field(default_factory=dict, init=False)
    _until: float = field(default=0.0, init=False)

    # --- To the next scheduler --------------------------------------------------------------------

    def learnt(self) -> Learnt:
        """Return what this core has learnt."""
        had = self.times.tables.learnt(self.turn.now)
        came, served = self.times.tables.order()
        # A group that has not returned yet may return to the next scheduler.
        waiting = self._groups if self.turn.now < self._until else {}
        groups = {group.id: self._learnt(group, had) for group in self.model.groups.values()}
        return Learnt(
            self.turn.now,
            self.times.window,
            dict(islice({**groups, **waiting}.items(), self.most)),
            {uuid: self._of_gpu(uuid) for uuid in self.model.gpus},
            self.likelihood.learnt(),
            self.model.wake_seconds,
            {whose: times for whose, times in had.items() if not whose.startswith("group:")},
            self.times.tables.agents,
            came,
            served,
            # Those of groups with clients are in the list of clients, which is newer.
            {g: asked for g, asked in self.preferences.learnt().items() if g not in groups},
        )

    def _learnt(self, group: Group, had: dict[str, dict[str, LearntTime]]) -> LearntGroup:
        return LearntGroup(
            group.burst.lengths.learnt(),
            group.absences.learnt(),
            self.likelihood.learnt(group.id),
            self.classes.learnt(group.id),
            self.thrash.learnt(group.id),
            _moves(group.totals),
            had.get(f"group:{group.id}", {}),
        )

    def _of_gpu(self, uuid: str) -> LearntGpu:
        gpu = self.model.gpus[uuid]
        sizes = gpu.context_sizes
        return LearntGpu(
            gpu.bandwidth if gpu.measured else None,
            sizes.taken,
            sizes.residue,
            tuple(sizes.residues),
        )

    # --- From the previous scheduler --------------------------------------------------------------

    def on_recall(self, event: Recall) -> None:
        """Apply what the previous scheduler has learnt, unless this one serves clients already."""
        learnt = event.learnt
        if self.model.clients or learnt.at > self.turn.now:
            return
        for uuid, found in learnt.gpus.items():
            self._recall_gpu(uuid, found)
        self.likelihood.recall(learnt.trials)
        if learnt.wake is not None:
            self.model.wake_seconds = learnt.wake
        self.preferences.recall(learnt.preferences)
        self._groups, self._until = dict(learnt.groups), self.turn.now + self.patience
        if learnt.window != self.times.window:
            # The parts of its windows are of another length.
            self._groups = {name: replace(group, times={}) for name, group in self._groups.items()}
            return
        tables = self.times.tables
        for whose, times in learnt.times.items():
            tables.recall(whose, times)
        tables.agents = tables.agents or learnt.agents
        tables.came.update(learnt.came)
        for user, served in learnt.served.items():
            tables.served.update({(user, gpu): at for gpu, at in served.items()})
        self.times.version += 1

    def _recall_gpu(self, uuid: str, learnt: LearntGpu) -> None:
        gpu = self.model.gpus.get(uuid)
        if gpu is None:
            return
        if learnt.bandwidth is not None:
            gpu.bandwidth, gpu.measured = learnt.bandwidth, True
        gpu.context_sizes.taken, gpu.context_sizes.residue = learnt.taken, learnt.residue
        gpu.context_sizes.residues.extend(learnt.residues)

    def recall(self, group: Group) -> None:
        """Apply what the previous scheduler has learnt of a group that returns."""
        learnt = self._groups.pop(group.id, None)
        if self.turn.now >= self._until:
            self._groups.clear()
            return
        if learnt is None:
            return
        group.burst.lengths.recall(learnt.bursts)
        group.absences.recall(learnt.absences)
        self.likelihood.recall(learnt.trials, group.id)
        if learnt.work is not None:
            self.classes.recall(group.id, learnt.work)
        if learnt.throughput is not None:
            self.thrash.recall(group.id, learnt.throughput)
        if learnt.moves is not None:
            _recall_moves(group.totals, learnt.moves)
        self.times.tables.recall(f"group:{group.id}", learnt.times)


def _moves(totals: Totals) -> LearntMoves:
    counts = totals.bursts, totals.waits, totals.evicted, totals.restored
    last = totals.eviction
    if last is None:
        return LearntMoves(*counts)
    return LearntMoves(
        *counts, last.at, last.bytes, last.copied, last.zero, last.shared, last.hashed, last.over
    )


def _recall_moves(totals: Totals, learnt: LearntMoves) -> None:
    totals.bursts, totals.waits = learnt.bursts, learnt.waits
    totals.evicted, totals.restored = learnt.evicted, learnt.restored
    if learnt.evicted_at is not None:
        totals.eviction = Eviction(
            learnt.evicted_at,
            learnt.bytes,
            learnt.copied,
            learnt.zero,
            learnt.shared,
            learnt.hashed,
            learnt.over,
        )
