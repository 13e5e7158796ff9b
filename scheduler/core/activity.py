# SPDX-License-Identifier: BSD-3-Clause
"""Whether groups are at work: bursts, absences, GPU time, and the class that follows from them.

Users may set the class of a group: interactive, agent or background. Otherwise, it follows from what the group does, as
in a multi-level feedback queue of two levels, unless an agent began its last cell. All times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Class, LearntWork
from .model import Client, Group, Model
from .queue import WaitQueue
from .timers import Timers
from .turn import Turn, mark_shares
from .usage import GpuTime


@dataclass(slots=True)
class _WorkPeriod:
    """GPU time since the cell began or, without a cell, since the last pause."""

    had: float = 0.0
    last: float = 0.0
    #: Whether the previous cell used the GPU, so that this one is expected to.
    due: bool = True
    #: Whether the previous period without a cell was long, so that this one is expected to be.
    long: bool = False
    #: Whether an agent began its cell. What the group does afterwards is the agent's, too, until a person begins one.
    agent: bool = False


class ActivityClassifier:
    """Computes the class of each group.

    Parameters
    ----------
    interactive_burst
        GPU time after which a cell, or a period without a cell, counts as background.
    interactive_pause
        Without cells, work after a pause of this length is a new period.
    """

    def __init__(self, interactive_burst: float = 2.0, interactive_pause: float = 2.0) -> None:
        self.interactive_burst, self.interactive_pause = interactive_burst, interactive_pause
        self._periods: dict[str, _WorkPeriod] = {}

    def begin_cell(self, group: Group, now: float, agent: bool | None = None) -> None:
        """Note that a cell, the group's last open one, began: a person is waiting for it, or an agent goes on."""
        before = self._periods.get(group.id)
        due = before is None or before.had > 0
        was = before is not None and before.agent
        self._periods[group.id] = _WorkPeriod(last=now, due=due, agent=was)
        self.note_origin(group, agent)

    def note_origin(self, group: Group, agent: bool | None) -> bool:
        """Note who began the group's last open cell, if that is known; return whether that is new."""
        period = self._periods.get(group.id)
        if period is None or agent in (None, period.agent):
            return False
        if agent and len(group.cells) > 1:
            # A person may still be waiting for another open cell.
            return False
        period.agent = bool(agent)
        return True

    def due_since(self, group: Group) -> float | None:
        """Return since when a cell is expected to use the GPU: an open one, or a queued one after such a cell."""
        period = self._periods.get(group.id)
        if period is None:
            return None
        used = period.had > 0
        due = period.due and not used if group.cells else group.queued > 0 and used
        return period.last if due else None

    def end_cell(self, group: Group, now: float) -> None:
        """Note that a cell ended. The group keeps its class until the next cell begins or it pauses."""
        period = self._periods.get(group.id)
        if period is not None:
            period.last = max(period.last, now)

    def add_time(self, group: Group, seconds: float, now: float) -> None:
        """Add GPU time of a group up to now."""
        period = self._periods.setdefault(group.id, _WorkPeriod(last=now - seconds))
        # A group that was interrupted during a burst did not pause.
        paused = not group.busy or group.burst.ran_since > period.last
        if not group.cells and paused and now - seconds - period.last >= self.interactive_pause:
            period.long = self._is_long(period)
            period.had = 0.0
        period.had += seconds
        period.last = now

    def class_of(self, group: Group) -> Class:
        """Return the class of a group."""
        priority = group.preferences.priority
        if priority != "auto":
            return priority
        period = self._periods.get(group.id)
        if period is None:
            return "interactive"
        if period.agent:
            return "agent"
        if not group.cells:
            # It may have come back after a pause without any GPU time since.
            came = group.burst.ran_since if group.busy else period.last
            if group.wait is not None and group.lease is None:
                came = group.wait.since
            if came - period.last >= self.interactive_pause:
                return "background" if self._is_long(period) else "interactive"
        return "background" if period.long or self._is_long(period) else "interactive"

    def changes_at(self, group: Group, now: float) -> float | None:
        """Return when a busy interactive group would change to background if it goes on; None: it would not."""
        if (
            not group.busy
            or group.preferences.priority != "auto"
            or self.class_of(group) != "interactive"
        ):
            return None
        period = self._periods.get(group.id)
        return now + self.interactive_burst - (0.0 if period is None else period.had)

    def learnt(self, group_id: str) -> LearntWork | None:
        """Return the present period of a group's work."""
        period = self._periods.get(group_id)
        if period is None:
            return None
        return LearntWork(period.had, period.last, period.due, period.long, period.agent)

    def recall(self, group_id: str, work: LearntWork) -> None:
        """Apply the period of a group's work that another scheduler knew."""
        self._periods[group_id] = _WorkPeriod(work.had, work.last, work.due, work.long, work.agent)

    def forget(self, group_id: str) -> None:
        """Forget a group that has left."""
        self._periods.pop(group_id, None)

    def _is_long(self, period: _WorkPeriod) -> bool:
        # The tolerance is for rounding: a class that was predicted to change at a time must have changed then.
        return period.had >= self.interactive_burst - 1e-9


@dataclass(slots=True, eq=False)
class Activity:
    """Follows the work of each group."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    classes: ActivityClassifier
    queue: WaitQueue

    def count_time(self, group: Group) -> None:
        """Count the GPU time of the current burst so far, unless the clients report it."""
        if not group.busy:
            return
        since = max(group.burst.ran_since, group.burst.counted_until)
        group.burst.counted_until = self.turn.now
        if (group.metered and not group.overdue) or self.turn.now <= since:
            return
        for uuid in group.shares:
            self.times.add(group, uuid, self.turn.now - since, self.turn.now)
        self.classes.add_time(group, self.turn.now - since, self.turn.now)

    def end_absence(self, group: Group) -> None:
        """Note that a group has work again. The length of its absence serves to predict the next one."""
        if group.away_since is not None:
            group.absences.remember(self.turn.now - group.away_since)
            group.away_since = None

    def classify(self) -> None:
        """Compute the classes of groups that something happened to."""
        touched, self.turn.to_classify = self.turn.to_classify, {}
        for group in touched.values():
            for uuid, share in group.shares.items():
                self.turn.paces_stale[uuid] = share.gpu
            before, found = group.activity_class, self.classes.class_of(group)
            if found != before:
                group.activity_class = found
                mark_shares(group)
                if group.lease is not None and not group.lease_ahead:
                    for share in group.shares.values():
                        share.gpu.background += (found == "background") - (before == "background")
                note_agent(self.model, self.times, group)
                self.queue.rank_again(group)
            self.schedule_class_change(group)

    def schedule_class_change(self, group: Group) -> None:
        """Set the timer for when a burst that goes on would change the class of its group."""
        if not group.busy:
            return
        at = None
        if not group.metered or group.overdue:
            at = self.classes.changes_at(
                group, max(group.burst.ran_since, group.burst.counted_until)
            )
        self.timers.set(group.ages, at)

    def set_busy(self, client: Client, busy: bool) -> None:
        """Note whether a client is at work."""
        if client.busy == busy:
            return
        client.busy = busy
        group = client.group
        if busy:
            if not group.busy:
                self.end_absence(group)
                group.burst.ran_since = self.turn.now
            group.next_cell_by = 0.0
            group.busy += 1
        else:
            if group.busy == 1:
                self.count_time(group)
            group.busy -= 1
            if not group.busy:
                self.timers.set(group.ages, None)
                group.burst.ran_before += self.turn.now - group.burst.ran_since


def note_agent(model: Model, times: GpuTime, group: Group) -> None:
    """Note whether a group is an agent's, after its class changed, or it came or left.

    While there are agents, other groups are ordered differently, too: both their waits and the victims.
    """
    before = bool(model.agents)
    if group.activity_class == "agent" and group.id in model.groups:
        model.agents[group.id] = group
    else:
        model.agents.pop(group.id, None)
    if bool(model.agents) != before:
        times.version += 1
        for other in model.groups.values():
            mark_shares(other)
