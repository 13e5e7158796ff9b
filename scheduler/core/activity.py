# SPDX-License-Identifier: BSD-3-Clause
"""Whether groups are at work: bursts, absences, GPU time, and the class that follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from .burst_model import Classes
from .burst_predictor import Predictor
from .model import Client, Group
from .queue import WaitQueue
from .timers import Timers
from .turn import Turn, stir
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Activity:
    """Follows what each group does."""

    turn: Turn
    timers: Timers
    times: GpuTime
    classes: Classes
    predictor: Predictor
    absences: Predictor
    queue: WaitQueue

    def count_time(self, group: Group) -> None:
        """Count what a burst had of the GPU so far, unless its clients say."""
        if not group.busy:
            return
        since = max(group.burst.ran_since, group.burst.counted_until)
        group.burst.counted_until = self.turn.now
        if (group.metered and not group.overdue) or self.turn.now <= since:
            return
        for uuid in group.shares:
            self.times.add(group, uuid, self.turn.now - since, self.turn.now)
        self.classes.ran(group, self.turn.now - since, self.turn.now)

    def end_absence(self, group: Group) -> None:
        """It has work again: from how long it had none, the next absence is guessed."""
        if group.away_since is not None:
            self.absences.remember(group.id, self.turn.now - group.away_since)
            group.away_since = None

    def end_burst(self, group: Group) -> None:
        """The burst is over: from its length, the next one's is guessed."""
        length = group.burst.so_far(self.turn.now, group.busy > 0)
        if length > 0:
            self.predictor.remember(group.id, length)
        group.burst.burst_before, group.burst.counted_burst = 0.0, group.burst.ran_before

    def classify(self) -> None:
        """See what has become of those that something happened to."""
        touched, self.turn.unclassed = self.turn.unclassed, {}
        for group in touched.values():
            for uuid, share in group.shares.items():
                self.turn.paces_stale[uuid] = share.gpu
            found = self.classes.of(group)
            if found != group.classed:
                group.classed = found
                stir(group)
                if group.lease is not None:
                    for share in group.shares.values():
                        share.gpu.background += 1 if found == "background" else -1
                self.queue.rank_anew(group)
            self.time_class(group)

    def time_class(self, group: Group) -> None:
        """Look again when a burst that goes on would change what its group counts as."""
        at = None
        if group.busy and (not group.metered or group.overdue):
            at = self.classes.changes_at(
                group, max(group.burst.ran_since, group.burst.counted_until)
            )
        self.timers.set(group.ages, at)

    def set_busy(self, client: Client, busy: bool) -> None:
        """Note that a client is at work, or is not any longer."""
        if client.busy == busy:
            return
        client.busy = busy
        group = client.group
        if busy:
            if not group.busy:
                self.end_absence(group)
                group.burst.ran_since = self.turn.now
            group.busy += 1
        else:
            if group.busy == 1:
                self.count_time(group)
            group.busy -= 1
            if not group.busy:
                group.burst.ran_before += self.turn.now - group.burst.ran_since

    def forget(self, group_id: str) -> None:
        """Forget a group that is gone."""
        self.classes.forget(group_id)
        self.predictor.forget(group_id)
        self.absences.forget(group_id)
