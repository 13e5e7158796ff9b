# SPDX-License-Identifier: BSD-3-Clause
"""The default policy: interactive work first, all groups in the end, and none at the cost of another user.

Agents make way for the cells of all people, and share among themselves by GPU time. Next to agents, background work
comes last. docs/explanation/scheduling.md describes its rules. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ..core.policy_api import (
    FREE,
    SHARE_STALL,
    GpuView,
    GroupView,
    Paces,
    Parts,
    Rank,
    Speed,
    View,
    WaitView,
)
from .fcfs import FirstComeFirstServed


class Burst(FirstComeFirstServed):
    """Weighs the cost of each decision against the expected lengths of bursts."""

    name = "burst"
    serialises = False
    orders_by_gpu_time = True
    #: Seconds by which a background wait ranks later; by which a wait ranks later at most for its cost to other
    #: groups; and by which a wait in focus ranks earlier.
    background_delay, longest_favour, focus_favour = 30.0, 10.0, 5.0
    #: Sort key of waits that come after those of people; no number that follows from GPU time reaches it.
    behind_people = 1e12
    #: Seconds by which an agent ranks later at most because of the GPU time that it has had.
    agent_favour = 60.0
    #: Seconds after its cell for which an interactive group is *present*, and *thinking*.
    present, thinking = 30.0, 600.0
    #: While a group is present: the others' work in flight, and the pause after which one submission is let through.
    bound, bound_stall = 0.001, 0.010
    #: While a group is thinking: enough work in flight that the GPU never idles, and less than a user notices.
    loose_bound = 0.020
    #: Seconds for which the work of a cell that has just begun is expected.
    lead = 0.010
    #: Seconds between submissions of a group that pauses for a burst; of an agent, or because of shares.
    pause_stall, share_stall = 0.050, SHARE_STALL
    #: Fraction of the window by which shares may be off before other groups pause for them.
    slack = 0.01
    #: Seconds after which shares are checked without an event; meters bring events by themselves.
    look = 1.0

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._metered = Speed(meter=True)
        #: By whether they are metered.
        self._paused = [Speed(0.0, self.pause_stall, meter=m) for m in (False, True)]
        self._share_pause = Speed(0.0, self.share_stall, meter=True)
        self._bounded = [Speed(self.bound, self.bound_stall, meter=m) for m in (False, True)]
        self._loosely = [Speed(self.loose_bound, self.bound_stall, meter=m) for m in (False, True)]
        #: By GPU: groups that run below their request, and groups that pause because they are ahead of their weight.
        self._needy: dict[str, set[str]] = {}
        self._ahead: dict[str, set[str]] = {}

    # --- Order ------------------------------------------------------------------------------------

    def queue_parts(self, wait: WaitView) -> Parts:
        """Return the parts: users by shares and GPU time; the groups of one user by age and class."""
        view, group = self.view, wait.group
        if view.agents and not group.attended and self._stays_behind(wait):
            return self._behind_people(wait)
        user, turn, own = view.times.rank(group, group.shares, view.now)
        cost = min(view.expected(group) + group.move_cost, self.longest_favour)
        return (
            {"user_share": user},
            {"turn": turn},
            {"share": own},
            {
                "came": wait.since,
                "background": self._delay(group),
                "length": cost,
                "focus": -self.focus_favour if group.focused else 0.0,
            },
            *self.ties(wait),
        )

    def _stays_behind(self, wait: WaitView) -> bool:
        """Whether a wait of an agent, or of background work next to agents, is after the waits of all people.

        It is not if the group is below its request, or has waited for long, so that it does not starve.
        """
        times, now, group = self.view.times, self.view.now, wait.group
        if now - wait.since > times.longest_patience:
            return False
        return not times.active or all(times.deficit(group, u, now) <= 0 for u in group.shares)

    def _behind_people(self, wait: WaitView) -> Parts:
        """Return the parts of such a wait: agents by age and GPU time, then background work."""
        group, had, later = wait.group, 0.0, 0.0
        if group.activity_class == "agent":
            had = self.view.times.lately(group, group.shares, self.view.now)
        else:
            later = self.agent_favour + self.background_delay
        return (
            {"people": self.behind_people},
            {"turn": 0.0},
            {"share": 0.0},
            {"came": wait.since, "agent_time": min(had, self.agent_favour), "class": later},
            *self.ties(wait),
        )

    def _delay(self, group: GroupView) -> float:
        return self.background_delay if group.activity_class == "background" else 0.0

    def victim_rank(self, group: GroupView) -> Rank:
        """Return the order in which groups lose memory.

        The background comes first, then agents; then groups that lost some already, which cannot go on before it is
        back; then groups that are expected back last, compared with what their moves cost; then the largest, so that
        fewer groups lose any.
        """
        return self.lasting_victim_rank(group)[0]

    def lasting_victim_rank(self, group: GroupView) -> tuple[Rank, float]:
        """Return this order and, for a group that does not wait, when it will have been away for twice as long."""
        kept = group.preferences.keep and not group.preferences.stopped
        standing = self.standing(group)
        resident = 0
        for share in group.shares.values():
            resident += share.resident
        wait = group.wait
        if wait is not None and not wait.frozen:
            place = (-sum(parts.values()) for parts in self.queue_parts(wait))
            return (kept, 1, standing, group.intact, *place, -resident), -math.inf
        # A group that was away for long is likely to stay away for long. Only a doubling of the time changes the
        # estimate.
        doublings = math.floor(math.log2(max(self.view.now - group.idle_since, 0.001)))
        # A little earlier, so that the rank is computed again in time, if once more than needed.
        until = group.idle_since + 2.0 ** (doublings + 1) * (1 - 1e-9)
        away = doublings + self._cheapness(group, resident)
        return (kept, 0, standing, group.intact, -away, -resident), until

    def _cheapness(self, group: GroupView, resident: int) -> float:
        """Return how many doublings of the time away a group's clean memory is worth: from 0 to 1, in quarters.

        Evicting and restoring a group costs so much for each second that it is away. Clean memory has only the way
        back, so a group all of whose memory is clean costs as much as another one that is away for twice as long.
        """
        clean = min(self.view.clean(group), resident)
        if clean <= 0:
            return 0
        return round(4 * (1 - math.log2(2 - clean / resident))) / 4

    # --- Quantum ----------------------------------------------------------------------------------

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return ten times the cost of the switch, or less if the group must make way soon, or until its burst ends."""
        length = self.view.cost_quantum(group)
        if wait is None:
            return length
        if self._makes_way(group, wait.group):
            return min(length, self.view.background_quantum)
        if group.attended and wait.group.activity_class == "agent" and self._stays_behind(wait):
            return wait.since + self.view.times.longest_patience - group.turn_at
        if self._is_owed_more(group, wait.group):
            return self.view.longest_quantum
        if group.busy:
            # Letting the burst end costs the waiting group less than evicting and restoring the holder's memory.
            rest = self.view.expected(group)
            end = self.view.now - group.turn_at + rest
            cost = self.view.eviction_cost(group) + wait.group.move_cost
            if rest < cost and end <= self.view.longest_quantum:
                length = max(length, end)
        return length

    def _makes_way(self, group: GroupView, other: GroupView) -> bool:
        """Whether a holder must make way soon for another group."""
        times, now = self.view.times, self.view.now
        if times.active:
            needy = any(times.deficit(other, u, now) > self.slack for u in other.shares)
            if needy and not any(times.deficit(group, u, now) > 0 for u in group.shares):
                return True
        own, theirs = group.activity_class, other.activity_class
        if own == "agent":
            return other.attended
        return (
            own == "background"
            and (theirs == "interactive" or (theirs == "agent" and not group.attended))
            and self._may_favour(other, group)
        )

    def _is_owed_more(self, group: GroupView, other: GroupView) -> bool:
        """Whether a holder comes before another group by its shares. With equal time slices, all would get the same."""
        view, times = self.view, self.view.times
        if not times.active:
            return False
        swing = (view.cost_quantum(other) + other.footprint_cost) / times.window
        return times.owed_more(group, other, view.now, swing)

    def _may_favour(self, group: GroupView, other: GroupView) -> bool:
        """Whether its class may favour a group over another; that of another user only while that user has had more.

        So no user gains by calling everything interactive.
        """
        if group.user == other.user:
            return True
        return self.view.times.had_less(group, other, other.shares, self.view.now)

    # --- Paces ------------------------------------------------------------------------------------

    def paces(self, gpu: GpuView) -> Paces:
        """Return how fast the holders on a GPU may submit, and when that may change by itself."""
        # The core calls this at each burst, and mostly there is nothing to weigh, so that case must be fast.
        times, holders = self.view.times, gpu.holders
        if len(holders) < 2:
            self._needy.pop(gpu.uuid, None)
            self._ahead.pop(gpu.uuid, None)
            return {}, None
        by_time = times.active or (
            times.several_users and len({g.user for g in holders.values()}) > 1
        )
        if not by_time and not self.view.agents and gpu.background in (0, len(holders)):
            return {}, None
        speeds, ends = self._weigh(gpu, list(holders.values()), by_time)
        now = self.view.now
        again = min((end for end in ends if now < end < math.inf), default=None)
        return {group_id: speed for group_id, speed in speeds.items() if speed != FREE}, again

    def _weigh(
        self, gpu: GpuView, holders: list[GroupView], by_time: bool
    ) -> tuple[dict[str, Speed], list[float]]:
        """Return the paces of several holders, and times at which they may change; ``by_time``: GPU time matters."""
        interactive: list[GroupView] = []
        background: list[GroupView] = []
        agents: list[GroupView] = []
        for group in holders:
            if group.activity_class == "interactive":
                interactive.append(group)
            elif group.activity_class == "agent":
                agents.append(group)
            else:
                background.append(group)
        people = interactive + [g for g in background if g.attended]
        # Among the groups of one user without shares, nothing depends on exact times, so they are spared the events.
        speeds: dict[str, Speed] = {}
        if by_time:
            speeds = dict.fromkeys((g.id for g in holders), self._metered)
        ends: list[float] = []
        paused: set[str] = set()
        if self.view.times.active:
            paused = self._paused_for_shares(gpu, holders)
            if any(g.busy for g in holders):
                ends.append(self.view.now + self.look)
            # No group pauses for one that must pause itself, and requests come before classes.
            needy = self._needy[gpu.uuid]
            interactive = [g for g in interactive if not self._must_pause(g, gpu, paused)]
            people = [g for g in people if not self._must_pause(g, gpu, paused)]
            agents = [g for g in agents if g.id not in needy]
            background = [g for g in background if g.id not in needy]
        if agents:
            slower, changes = self._slow_agents(people, agents, by_time)
            speeds.update(slower)
            ends += changes
            # No group pauses for an agent that has to pause itself.
            agents = [g for g in agents if slower.get(g.id, FREE).inflight != 0.0]
        if background:
            slower, changes = self._slow_background(interactive, background, by_time)
            if agents:
                jobs = [g for g in background if not g.attended]
                beside, more = self._slow_background(agents, jobs, by_time)
                for group_id, speed in beside.items():
                    other = slower.get(group_id, speed)
                    slower[group_id] = min(speed, other, key=lambda s: s.inflight or 0.0)
                changes += more
            speeds.update(slower)
            ends += changes
        speeds.update(dict.fromkeys(paused, self._share_pause))
        return speeds, ends

    def _slow_agents(
        self, people: list[GroupView], agents: list[GroupView], by_time: bool
    ) -> tuple[dict[str, Speed], list[float]]:
        """Return the paces of agents next to the cells of people of all users, and times at which they may change."""
        slower, ends = self._slow_background(people, agents, by_time, any_user=True)
        # There may be many agents, and together they must not slow a person down.
        return {
            group_id: replace(speed, stall=self.share_stall) if speed.inflight == 0.0 else speed
            for group_id, speed in slower.items()
        }, ends

    def _slow_background(
        self,
        interactive: list[GroupView],
        background: list[GroupView],
        by_time: bool,
        any_user: bool = False,
    ) -> tuple[dict[str, Speed], list[float]]:
        """Return the paces of background groups next to interactive ones, and times at which they may change.

        ``any_user``: also next to those of users that have had more GPU time.
        """
        times = self.view.times
        paused, bounded = self._paused[by_time], self._bounded[by_time]
        # Of many groups, hardly any has an open cell.
        due = {
            g.id: until
            for g in interactive
            if (g.cells or g.queued) and (until := self._due_until(g)) is not None
        }
        # A group that is held to its limit would leave the GPU idle while it waits, so the others are only bounded.
        strained = [g for g in interactive if g.busy and times.limit(g) < 1]
        busy = [g for g in interactive if (g.busy or g.id in due) and g not in strained]
        if busy and not times.several_users:
            return dict.fromkeys((g.id for g in background), paused), list(due.values())
        present, thinking, soonest = self._nearby(interactive, due)
        present = strained + present
        speeds: dict[str, Speed] = {}
        for group in background:
            if any(any_user or self._may_favour(g, group) for g in busy):
                speeds[group.id] = paused
            elif any(any_user or self._may_favour(g, group) for g in present):
                speeds[group.id] = bounded
            elif any(any_user or self._may_favour(g, group) for g in thinking):
                speeds[group.id] = self._loosely[by_time]
        return speeds, [*due.values(), soonest]

    def _due_until(self, group: GroupView) -> float | None:
        """Return until when a cell that has just begun, or is next in the queue, is expected to submit work.

        Until then, other groups pause in advance.
        """
        since = None if group.busy else self.view.due_since(group)
        if since is None or self.view.now >= since + self.lead:
            return None
        return since + self.lead

    def _nearby(
        self, interactive: list[GroupView], due: Iterable[str]
    ) -> tuple[list[GroupView], list[GroupView], float]:
        """Return the groups without work that are present, the groups that are thinking, and until when that is so."""
        now, soonest = self.view.now, math.inf
        present: list[GroupView] = []
        thinking: list[GroupView] = []
        for group in interactive:
            if group.busy or group.id in due:
                continue
            if group.cells:
                present.append(group)
                continue
            since = group.idle_since if group.ended_at is None else group.ended_at
            end = since + self.present
            if now < end:
                present.append(group)
            else:
                end = since + self.thinking
                if now >= end:
                    continue
                thinking.append(group)
            soonest = min(soonest, end)
        return present, thinking, soonest

    def _must_pause(self, group: GroupView, gpu: GpuView, paused: set[str]) -> bool:
        """Whether shares keep a group from submitting."""
        if group.id in paused:
            return True
        return self.view.times.throttled_until(group, gpu.uuid, self.view.now) is not None

    def _paused_for_shares(self, gpu: GpuView, holders: list[GroupView]) -> set[str]:
        """Return the groups that pause so that others get their request or, of the spare time, their weight's part."""
        times, now, uuid = self.view.times, self.view.now, gpu.uuid
        # Except groups whose memory is still being restored.
        busy = [g for g in holders if g.state == "running"]
        # Until the request is exceeded; otherwise they would pause again at each moment. And a little more, because a
        # group that is seldom at work with others may be charged too much.
        needy, was = set(), self._needy.get(uuid, set())
        for group in busy:
            deficit = times.deficit(group, uuid, now)
            if deficit > -self.slack * (2 if group.id in was else 1):
                needy.add(group.id)
        self._needy[uuid] = needy
        # To pause for a group that reaches its limit besides all others would only idle the GPU.
        slowed = self._slowed(busy)
        if any(group.id in needy for group in slowed):
            return {g.id for g in holders} - needy
        ahead, was = set(), self._ahead.get(uuid, set())
        for group in busy:
            if group.id in needy:
                continue
            for other in slowed:
                more = self._ahead_by(group, other, uuid)
                if more > self.slack or (more > 0 and group.id in was):
                    ahead.add(group.id)
                    break
        self._ahead[uuid] = ahead
        return ahead

    def _slowed(self, busy: list[GroupView]) -> list[GroupView]:
        """Return the groups that the others slow down: an equal division gives them less than their limit."""
        limits = sorted((self.view.times.limit(group), group.number, group) for group in busy)
        rest = 1.0
        for place, (limit, _, _) in enumerate(limits):
            if limit * (len(limits) - place) > rest:
                return [group for _, _, group in limits[place:]]
            rest -= limit
        return []

    def _ahead_by(self, group: GroupView, other: GroupView, gpu: str) -> float:
        """Return by how much a group has had more than another for its weight; 0 if their weights are equal."""
        times, now = self.view.times, self.view.now
        for mine, theirs in zip(times.of(group), times.of(other), strict=False):
            if mine.whose != theirs.whose:
                weight, its = mine.entitlement.weight, theirs.entitlement.weight
                if weight == its:
                    return 0.0
                had = times.share(mine.whose, gpu, now)
                # In units of the smaller weight's time, so that the slack is not a multiple of it.
                return (had / weight - times.share(theirs.whose, gpu, now) / its) * min(weight, its)
        return 0.0
