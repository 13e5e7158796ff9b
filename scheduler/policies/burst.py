# SPDX-License-Identifier: BSD-3-Clause
"""The default: who waits in front of the screen first, everybody in the end, and nobody at the cost of another user.

The rules are those of docs/explanation/scheduling.md. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..core.policy_api import (
    FREE,
    SHARE_STALL,
    GpuView,
    GroupView,
    Parts,
    Rank,
    Speed,
    View,
    WaitView,
)
from .fcfs import FirstComeFirstServed


class Burst(FirstComeFirstServed):
    """Weighs what each decision costs against how long the bursts are expected to last."""

    name = "burst"
    serialises = False
    #: How much later one in the background ranks than it came, how much later at most for what it is expected to cost
    #: the others, and how much earlier in focus.
    background_delay, longest_favour, focus_favour = 30.0, 10.0, 5.0
    #: An interactive group is about for so long after its cell; and within call, who reads and thinks, for so long.
    about, within_call = 30.0, 600.0
    #: While one is about: work in flight of the others, and after how long one submission is let through.
    bound, bound_stall = 0.001, 0.010
    #: While one is within call: so much that the GPU never idles for want of work, and less than people notice.
    loose_bound = 0.020
    #: Work of a cell that has just begun is expected for so long.
    lead = 0.010
    #: One that pauses for a burst may submit once in so long; one that pauses because of shares, in so long.
    pause_stall, share_stall = 0.050, SHARE_STALL
    #: Fraction of the window by which shares may be off before others pause for them.
    slack = 0.01
    #: How often shares are looked at if nothing happens: what is metered brings events by itself.
    look = 1.0

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._metered = Speed(meter=True)
        #: By whether they are metered.
        self._paused = [Speed(0.0, self.pause_stall, meter=m) for m in (False, True)]
        self._held = Speed(0.0, self.share_stall, meter=True)
        self._bounded = [Speed(self.bound, self.bound_stall, meter=m) for m in (False, True)]
        self._loosely = [Speed(self.loose_bound, self.bound_stall, meter=m) for m in (False, True)]
        #: By GPU: groups that run below their request, and those that pause as they are ahead of their weight.
        self._needy: dict[str, set[str]] = {}
        self._ahead: dict[str, set[str]] = {}
        #: By GPU: when the paces may change by themselves.
        self._again: dict[str, float] = {}

    @property
    def version(self) -> int:
        """Ranks follow from GPU time."""
        return self.view.times.version_at(self.view.now)

    # --- Order ------------------------------------------------------------------------------------

    def queue_parts(self, wait: WaitView) -> Parts:
        """Order users by shares and GPU time; of one user's own, by age and what they are."""
        view, group = self.view, wait.group
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

    def _delay(self, group: GroupView) -> float:
        return self.background_delay if group.activity_class == "background" else 0.0

    def victim_rank(self, group: GroupView) -> Rank:
        """Order in which groups lose memory.

        The background first; then those that lost some already, which cannot go on before it is back; then who is
        expected back last; then the largest, so that fewer lose any.
        """
        return self.lasting_victim_rank(group)[0]

    def lasting_victim_rank(self, group: GroupView) -> tuple[Rank, float]:
        """Return the same, and when one that does not wait will have been away for twice as long."""
        kept = group.wishes.keep and not group.wishes.stopped
        interactive = group.activity_class == "interactive"
        resident = 0
        for share in group.shares.values():
            resident += share.resident
        wait = group.wait
        if wait is not None and not wait.frozen:
            place = (-sum(parts.values()) for parts in self.queue_parts(wait))
            return (kept, 1, interactive, group.intact, *place, -resident), -math.inf
        # Who was away for long stays away for long. Twice as long tells something, a little longer does not.
        doublings = math.floor(math.log2(max(self.view.now - group.idle_since, 0.001)))
        # A little earlier: one that is asked once more than needed is asked in time.
        until = group.idle_since + 2.0 ** (doublings + 1) * (1 - 1e-9)
        return (kept, 0, interactive, group.intact, -doublings, -resident), until

    # --- Quantum ----------------------------------------------------------------------------------

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return ten times the cost of the switch, or less for whom it has to make way soon, or until it ends."""
        length = self.view.cost_quantum(group)
        if wait is None:
            return length
        if self._makes_way(group, wait.group):
            return min(length, self.view.background_quantum)
        if self._is_owed_more(group, wait.group):
            return self.view.longest_quantum
        if group.busy:
            # To let a burst end costs the one that waits less than to take its memory out and have it back.
            rest = self.view.expected(group)
            end = self.view.now - group.turn_at + rest
            cost = group.footprint_cost + wait.group.move_cost
            if rest < cost and end <= self.view.longest_quantum:
                length = max(length, end)
        return length

    def _makes_way(self, group: GroupView, other: GroupView) -> bool:
        """Whether a holder has to make way soon for another."""
        times, now = self.view.times, self.view.now
        if times.active:
            needy = any(times.deficit(other, u, now) > self.slack for u in other.shares)
            if needy and not any(times.deficit(group, u, now) > 0 for u in group.shares):
                return True
        return (
            group.activity_class == "background"
            and other.activity_class == "interactive"
            and self._may_favour(other, group)
        )

    def _is_owed_more(self, group: GroupView, other: GroupView) -> bool:
        """Whether a holder would come before another by its shares: with turns of one length, all would be the same."""
        view, times = self.view, self.view.times
        if not times.active:
            return False
        swing = (view.cost_quantum(other) + other.footprint_cost) / times.window
        return times.owed_more(group, other, view.now, swing)

    def _may_favour(self, group: GroupView, other: GroupView) -> bool:
        """Whether its class may favour a group over another: of another user, only while that one has had more.

        So nobody gains by calling everything interactive.
        """
        if group.user == other.user:
            return True
        return self.view.times.had_less(group, other, other.shares, self.view.now)

    # --- Paces ------------------------------------------------------------------------------------

    def paces(self, gpu: GpuView) -> dict[str, Speed]:
        """Return how fast the holders on a GPU may submit."""
        # The core asks at each burst: most of the time there is nothing to weigh, and it is to cost nothing.
        times, holders = self.view.times, gpu.holders
        self._again.pop(gpu.uuid, None)
        shared = times.active
        if len(holders) < 2:
            self._needy.pop(gpu.uuid, None)
            self._ahead.pop(gpu.uuid, None)
            return {}
        by_time = shared or (times.several_users and len({g.user for g in holders.values()}) > 1)
        if not by_time and gpu.background in (0, len(holders)):
            return {}
        interactive: list[GroupView] = []
        background: list[GroupView] = []
        for group in holders.values():
            (interactive if group.activity_class == "interactive" else background).append(group)

        # Among one user's own without shares, nothing depends on what they had to the microsecond: they are spared the
        # events.
        paused, bounded = self._paused[by_time], self._bounded[by_time]
        loosely = self._loosely[by_time]
        speeds: dict[str, Speed] = dict.fromkeys(holders if by_time else (), self._metered)
        ends: list[float] = []
        held: set[str] = set()
        if shared:
            held = self._paused_for_shares(gpu, list(holders.values()))
            if any(g.busy for g in holders.values()):
                ends.append(self.view.now + self.look)
            # Nobody pauses for one that has to pause itself, and what was requested comes before what counts as what.
            needy = self._needy[gpu.uuid]
            interactive = [g for g in interactive if not self._is_held(g, gpu, held)]
            background = [g for g in background if g.id not in needy]
        if background:
            # Of a crowd, hardly anybody has a cell open.
            due = {
                g.id: until
                for g in interactive
                if g.cells and (until := self._due_until(g)) is not None
            }
            ends += due.values()
            # One that is held to a limit would keep the GPU idle while it waits for it: the others are only bounded.
            strained = [g for g in interactive if g.busy and times.limit(g) < 1]
            busy = [g for g in interactive if (g.busy or g.id in due) and g not in strained]
            if busy and not times.several_users:
                speeds.update(dict.fromkeys((g.id for g in background), paused))
            else:
                about, within_call, soonest = self._near(interactive, due)
                about = strained + about
                ends.append(soonest)
                for group in background:
                    if any(self._may_favour(g, group) for g in busy):
                        speeds[group.id] = paused
                    elif any(self._may_favour(g, group) for g in about):
                        speeds[group.id] = bounded
                    elif any(self._may_favour(g, group) for g in within_call):
                        speeds[group.id] = loosely
        speeds.update(dict.fromkeys(held, self._held))
        now = self.view.now
        again = min((end for end in ends if now < end < math.inf), default=None)
        if again is not None:
            self._again[gpu.uuid] = again
        return {group_id: speed for group_id, speed in speeds.items() if speed != FREE}

    def pace_again(self, gpu: GpuView) -> float | None:
        """When somebody is about no longer, or the shares are to be looked at again."""
        return self._again.get(gpu.uuid)

    def _due_until(self, group: GroupView) -> float | None:
        """Until when the work of a cell that has just begun is waited for: what pauses first is out of its way."""
        since = None if group.busy else self.view.due_since(group)
        if since is None or self.view.now >= since + self.lead:
            return None
        return since + self.lead

    def _near(
        self, interactive: list[GroupView], due: Iterable[str]
    ) -> tuple[list[GroupView], list[GroupView], float]:
        """Return who is about, of those without work, who is within call, and until when that holds."""
        now, soonest = self.view.now, math.inf
        about: list[GroupView] = []
        within_call: list[GroupView] = []
        for group in interactive:
            if group.busy or group.id in due:
                continue
            if group.cells:
                about.append(group)
                continue
            since = group.idle_since if group.ended_at is None else group.ended_at
            end = since + self.about
            if now < end:
                about.append(group)
            else:
                end = since + self.within_call
                if now >= end:
                    continue
                within_call.append(group)
            soonest = min(soonest, end)
        return about, within_call, soonest

    def _is_held(self, group: GroupView, gpu: GpuView, held: set[str]) -> bool:
        """Whether shares keep a group from submitting."""
        if group.id in held:
            return True
        return self.view.times.throttled_until(group, gpu.uuid, self.view.now) is not None

    def _paused_for_shares(self, gpu: GpuView, holders: list[GroupView]) -> set[str]:
        """Return who pauses so that others get their request or, of what is spare, what their weight gives them."""
        times, now, uuid = self.view.times, self.view.now, gpu.uuid
        # Not those whose memory has yet to come in.
        busy = [g for g in holders if g.state == "running"]
        # Until the request is more than reached: else they would pause each moment anew. And a little above it: who is
        # seldom at work side by side may be charged for too much.
        needy, was = set(), self._needy.get(uuid, set())
        for group in busy:
            deficit = times.deficit(group, uuid, now)
            if deficit > -self.slack * (2 if group.id in was else 1):
                needy.add(group.id)
        self._needy[uuid] = needy
        # To pause for one that reaches its limit beside all others would only idle the GPU.
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
        """Return those that the others slow down: what an equal division gives them is less than their limit."""
        limits = sorted((self.view.times.limit(group), group.number, group) for group in busy)
        rest = 1.0
        for place, (limit, _, _) in enumerate(limits):
            if limit * (len(limits) - place) > rest:
                return [group for _, _, group in limits[place:]]
            rest -= limit
        return []

    def _ahead_by(self, group: GroupView, other: GroupView, gpu: str) -> float:
        """Return by how much one has had more than another for its weight; 0 where their weights are the same."""
        times, now = self.view.times, self.view.now
        for mine, theirs in zip(times.of(group), times.of(other), strict=False):
            if mine.whose != theirs.whose:
                weight, its = mine.entitlement.weight, theirs.entitlement.weight
                if weight == its:
                    return 0.0
                had = times.share(mine.whose, gpu, now)
                # In terms of the smaller weight's time, so that the slack is not a multiple of it.
                return (had / weight - times.share(theirs.whose, gpu, now) / its) * min(weight, its)
        return 0.0
