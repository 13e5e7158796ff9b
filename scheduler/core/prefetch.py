# SPDX-License-Identifier: BSD-3-Clause
"""Gets groups ready before they use the GPU, if that costs no working group anything.

After a hint, a group may be likely to use the GPU within a minute (``likelihood.py``). What it will need is then
fetched ahead of its first request: others' idle memory is evicted, it is woken from hibernation, and its memory is
restored. This ends as soon as any demand appears.

Where
-----
Only on GPUs that are *calm*: no wait in the queue could be served, no group fills, no growth is delayed, and no memory
moves on demand. When a GPU is not calm any more, each prefetch in progress there is abandoned. What has arrived stays,
unprotected, until another group needs the room. On a GPU, one prefetch is in progress at a time, the most likely first.

Room
----
Free room comes first, except for a part that is left for running groups to grow into. Then the room of idle groups that
have been away for a while (``Rules.prefetch_away``), have no hint, and are less likely to come back. Their memory is
evicted in slices, each as large as the bus moves in 20 ms, and only if all that is missing can be had in this way. So
a demand that appears waits for one slice at most.

The lease ahead
---------------
Memory is restored under a lease that the group did not ask for (``Leases.grant_ahead``). Until its first use, the
group holds no GPU: it does not run, has no time slice, and is in no list of holders. Its lease ends when its GPU is
no longer calm, and a minute after the hint. Its memory has no residency, and a preference to keep it does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .eviction import VictimChooser
from .eviction_orders import EvictionOrders
from .hibernation import HibernationManager
from .hints import Hints
from .leases import Leases
from .likelihood import Estimate, unhinted
from .messages import Wake
from .model import Client, Gpu, Group, Model, Prefetch, PrefetchStage, Share
from .policy_guard import PolicyGuard
from .quotas import exceeded_by, used_by
from .readings import Readings
from .residency import Residency
from .turn import Turn
from .usage import GpuTime

#: Why a group is not getting ready, as a code.
Obstacle = Literal[
    "off", "no_hint", "unlikely", "at_work", "there", "stopped", "unsupported", "unavailable", "draining", "limit",
    "quota", "one_at_a_time", "busy", "no_room",
]  # fmt: skip
#: How a prefetch ended.
Result = Literal["used", "vain", "abandoned"]


@dataclass(slots=True, eq=False)
class Prefetcher:
    """Fetches what groups will need, and gives way to every demand."""

    model: Model
    turn: Turn
    times: GpuTime
    policy: PolicyGuard
    residency: Residency
    chooser: VictimChooser
    readings: Readings
    hints: Hints
    leases: Leases
    orders: EvictionOrders
    hibernation: HibernationManager

    #: Seconds for which one eviction order keeps the bus busy.
    slice: ClassVar[float] = 0.020
    #: A victim must be less likely to be used than the group, by this factor.
    less_likely: ClassVar[float] = 0.9
    #: The part (1/n) of a GPU that is left for the growth of groups that hold leases there.
    headroom: ClassVar[int] = 16

    #: The GPUs of eviction orders that were given here and are not answered yet, by serial.
    ordered: dict[int, Gpu] = field(default_factory=dict, init=False)
    #: During one run: whether each GPU is calm.
    _calm: dict[str, bool] = field(default_factory=dict, init=False)
    #: Groups whose idle lease was revoked for their memory.
    _victims: dict[str, Group] = field(default_factory=dict, init=False)

    # --- Events -----------------------------------------------------------------------------------

    def note_use(self, group: Group) -> None:
        """Note that a group's GPU work begins."""
        self.hints.note_use(group)
        if group.lease_ahead and not group.yielding:
            self.leases.use(group)
        if group.prefetch is not None:
            self._end(group, "used")

    def on_wake(self, client: Client, event: Wake) -> None:
        """Handle a parked client that must wake: what was begun ahead of need is needed now."""
        if event.cause == "call":
            self.note_use(client.group)
        self.hibernation.on_wake(client, event)

    # --- The step of the cycle --------------------------------------------------------------------

    def run(self) -> None:
        """Begin, continue and end prefetches, after all demand was served. There is a hint, or a prefetch."""
        for serial in [serial for serial in self.ordered if serial not in self.model.evictions]:
            del self.ordered[serial]
        for name, group in list(self._victims.items()):
            if not group.yielding:
                del self._victims[name]
        self._calm.clear()
        for group in list(self.model.prefetching.values()):
            self._review(group)
        if not self.model.rules.prefetch:
            return
        taken = {u for g in self.model.prefetching.values() if is_in_progress(g) for u in g.shares}
        for group, estimate in self._candidates(taken):
            if group.prefetch is not None or taken.isdisjoint(group.shares):
                self._advance(group, estimate)
                if is_in_progress(group):
                    taken.update(group.shares)

    def _candidates(self, taken: set[str]) -> list[tuple[Group, Estimate]]:
        """Return the groups for which something can be done, those in progress first, then the most likely.

        ``taken``: the GPUs where something is in progress already.
        """
        found = []
        for name in self.model.hinted:
            group = self.model.groups[name]
            if group.lease is not None or group.wait is not None:
                continue
            if group.prefetch is None:
                if not taken.isdisjoint(group.shares):
                    continue
            elif group.prefetch.stage == "ready":
                continue
            if not self._is_calm(group):
                # Checked before the other obstacles, because most events come while a GPU has demand.
                continue
            estimate = self.hints.likelihood.estimate(name, self.turn.now)
            if estimate is not None and self._obstacle(group, estimate) is None:
                found.append((group, estimate))
        found.sort(key=lambda pair: (pair[0].prefetch is None, -pair[1].likelihood, pair[0].number))
        return found

    def _obstacle(self, group: Group, estimate: Estimate | None) -> Obstacle | None:
        """Return why a group may not get ready, apart from lack of room; None: it may."""
        state, shares = group.hibernation, group.shares.values()
        if not self.model.rules.prefetch:
            return "off"
        if group.preferences.stopped:
            return "stopped"
        if group.busy or group.wait is not None or group.delayed is not None:
            return "at_work"
        if group.waking and (group.prefetch is None or group.prefetch.stage != "waking"):
            return "at_work"  # it is being woken because it is needed
        if state is None and not any(share.exceeds_spare for share in shares):
            return "there"
        if group.lease is not None and not group.lease_ahead:
            return "at_work"
        if estimate is None:
            return "no_hint"
        if estimate.likelihood < self.model.rules.prefetch_likelihood:
            return "unlikely"
        if any(c.backend == "managed" or c.oversubscribes for c in group.clients.values()):
            return "unsupported"
        if group.silent or group.departs or any(share.lost or share.evicting for share in shares):
            return "unavailable"
        return self._bound(group) or (None if self._is_calm(group) else "busy")

    def why_not(self, group: Group) -> Obstacle | None:
        """Return why a group may not get ready; None: it may, and has the room."""
        self._calm.clear()
        estimate = self.hints.likelihood.estimate(group.id, self.turn.now)
        obstacle = self._obstacle(group, estimate)
        if obstacle is None and estimate is not None and not self.has_room(group, estimate):
            return "no_room"
        return obstacle

    def _bound(self, group: Group) -> Obstacle | None:
        """Return the administrators' bound because of which a group may have no lease now, or None."""
        if any(share.gpu.drained for share in group.shares.values()):
            return "draining"
        now, times = self.turn.now, self.times
        # A view asks as well, so nothing may be remembered.
        if times.active and any(
            (times.limited_until(group, u, now) or now) > now for u in group.shares
        ):
            return "limit"
        if exceeded_by(group, used_by(group), self.model, times) is not None:
            return "quota"
        if self.residency.one_at_a_time:
            for other in self.model.leased.values():
                if other is not group and other.shares.keys() & group.shares:
                    return "one_at_a_time"
        return None

    def _is_calm(self, group: Group) -> bool:
        """Whether no demand needs the GPUs of a group, or moves memory there."""
        for uuid, share in group.shares.items():
            calm = self._calm.get(uuid)
            if calm is None:
                calm = self._calm[uuid] = self._has_no_demand(share.gpu)
            if not calm:
                return False
        return True

    def _has_no_demand(self, gpu: Gpu) -> bool:
        if gpu.drained or gpu.filling is not None or gpu.delayed_growth or gpu.free < 0:
            return False
        now = self.turn.now
        for wait in gpu.queue:
            if wait.counts(now):
                return False
        evictions = self.model.evictions
        own = sum(evictions[n][1] for n, where in self.ordered.items() if where is gpu)
        if gpu.leaving > own:
            return False
        return not any(g.restoring and not g.overdue for g in gpu.holders.values())

    def _review(self, group: Group) -> None:
        """Move a prefetch on to its next stage, or end it."""
        record = group.prefetch
        assert record is not None
        if not self.model.rules.prefetch or group.id not in self.model.hinted:
            self._end(group)
        elif record.stage == "ready":
            if not group.lease_ahead:
                if any(share.evicting or share.exceeds_spare for share in group.shares.values()):
                    self._end(group)
            elif not group.yielding and not self._is_calm(group):
                self.leases.revoke(group)
        elif record.stage == "restoring":
            if not group.lease_ahead or group.yielding or not self._is_calm(group):
                self._end(group)
            elif not group.restoring and not any(s.exceeds_spare for s in group.shares.values()):
                self._enter(group, "ready")
        elif record.stage == "waking":
            if group.waking:
                return  # it has its room already, and cannot be stopped
            if group.hibernation is not None:
                # It could not be woken.
                self.hints.drop(group)
                self._end(group)
                return
            obstacle = self._obstacle_now(group)
            if obstacle == "there":
                self._enter(group, "ready")
            elif obstacle is not None:
                self._end(group)
        elif self._obstacle_now(group) is not None:
            self._end(group)

    def _obstacle_now(self, group: Group) -> Obstacle | None:
        estimate = self.hints.likelihood.estimate(group.id, self.turn.now)
        return self._obstacle(group, estimate)

    # --- Steps of one prefetch ----------------------------------------------------------------------

    def _advance(self, group: Group, estimate: Estimate) -> None:
        """Take the next step for a group: make room, wake it, or restore its memory."""
        lacks = self._lacks(group)
        if lacks and any(self._is_under_way(gpu) for gpu, _ in lacks):
            return
        if lacks:
            plan = self._plan(group, estimate, lacks)
            if plan is None:
                if group.prefetch is not None:
                    self._end(group)
            elif self._are_fresh(gpu for gpu, _ in lacks):
                self._enter(group, "evicting", estimate)
                self._carry_out(plan)
        elif not self._are_fresh(s.gpu for s in group.shares.values() if self._need(s) > 0):
            return  # the reading is on its way
        elif group.waking:
            return  # it has its room already, or has been needed since and waits for it
        elif group.hibernation is not None:
            self._enter(group, "waking", estimate)
            self.hibernation.wake_ahead(group)
        elif any(share.exceeds_spare for share in group.shares.values()):
            self._enter(group, "restoring", estimate)
            self.leases.grant_ahead(group)
        else:
            self._enter(group, "ready", estimate)

    def _are_fresh(self, gpus: Iterator[Gpu]) -> bool:
        fresh = True
        for gpu in gpus:
            fresh = self.readings.is_fresh(gpu) and fresh
        return fresh

    def _need(self, share: Share) -> int:
        """Return the room that a group takes once it is awake and its memory is restored."""
        fixed = left = 0
        for holding in share.holdings.values():
            needs = holding.client.needs
            if holding.client.gone and needs is not None and needs.gpu == share.gpu.uuid:
                fixed += needs.unevictable + needs.context
                left += holding.left
        return max(0, fixed - share.gpu.freed_without(left)) + share.need

    def _lacks(self, group: Group) -> list[tuple[Gpu, int]]:
        """Return the GPUs without room for a group, and the missing bytes."""
        found = []
        for share in group.shares.values():
            gpu, need = share.gpu, self._need(share)
            spare = gpu.total // self.headroom if gpu.holders else 0
            if need > 0 and need > gpu.free - spare:
                found.append((gpu, need + spare - gpu.free))
        return found

    def _plan(
        self, group: Group, estimate: Estimate, lacks: list[tuple[Gpu, int]]
    ) -> list[tuple[Gpu, int, list[Share]]] | None:
        """Return how much to evict on each GPU, and the victims in order; None: on some GPU, they are too small."""
        found = []
        for gpu, lack in lacks:
            lack -= gpu.coming
            for other in self._victims.values():
                if gpu.uuid in other.shares:
                    lack -= other.shares[gpu.uuid].resident
            victims = self._victims_on(gpu, group, estimate)
            if sum(share.movable for share in victims) < lack:
                return None
            found.append((gpu, lack, victims))
        return found

    def has_room(self, group: Group, estimate: Estimate) -> bool:
        """Whether a group has room, including that of idle groups that are less likely to be used."""
        return self._plan(group, estimate, self._lacks(group)) is not None

    def _victims_on(self, gpu: Gpu, group: Group, estimate: Estimate) -> list[Share]:
        """Return the shares on a GPU that may lose memory for a group: agents' and background groups' before people's.

        Of each, the least likely to be used comes first. People's memory stays unless it makes room for a person's.
        """
        self.chooser.volatile(gpu)
        now = self.turn.now
        found = []
        for spot in (*gpu.victims.idle, *gpu.victims.held):
            other: Group = spot.share.group
            since = other.idle_since if other.away_since is None else other.away_since
            if (
                other is group
                or other.cells
                or other.wait is not None
                or other.prefetch is not None
            ):
                continue
            if now < since + self.model.rules.prefetch_away or other.id in self.model.hinted:
                continue
            if other.attended and not group.attended:
                continue
            chance = unhinted(other, now)
            if chance < estimate.likelihood * self.less_likely:
                victim = (other.attended, chance, self.policy.victim_rank(other), spot.number)
                found.append((victim, spot.share))
        found.sort(key=lambda victim: victim[0])
        return [share for _, share in found]

    def _carry_out(self, plan: list[tuple[Gpu, int, list[Share]]]) -> None:
        """Order the next slice of each eviction, unless the last one is still under way."""
        for gpu, lack, victims in plan:
            if not victims or self._is_under_way(gpu):
                continue
            share = victims[0]
            if share.group.lease is not None:
                self._victims[share.group.id] = share.group
                self.leases.revoke(share.group)
                continue
            before = self.model.last_serial
            size = min(lack + self.chooser.margin_of(gpu), self._slice_of(gpu), share.movable)
            self.orders.evict(share, size)
            for serial in range(before + 1, self.model.last_serial + 1):
                self.ordered[serial] = gpu

    def _is_under_way(self, gpu: Gpu) -> bool:
        """Whether memory is leaving a GPU for a prefetch, or the lease of a victim there is ending."""
        return gpu in self.ordered.values() or any(
            gpu.uuid in other.shares for other in self._victims.values()
        )

    def _slice_of(self, gpu: Gpu) -> int:
        return max(1, int(gpu.bandwidth * self.slice))

    # --- Records ----------------------------------------------------------------------------------

    def _enter(self, group: Group, stage: PrefetchStage, estimate: Estimate | None = None) -> None:
        """Note the stage of a prefetch, which may begin with it."""
        record = group.prefetch
        if record is None:
            assert estimate is not None
            group.prefetch = record = Prefetch(
                estimate.sign, estimate.likelihood, stage, self.turn.now, group.totals.restored
            )
            self.model.prefetching[group.id] = group
            self._log(group, record, "begun")
        elif record.stage == stage:
            return
        record.pass_time(self.turn.now)
        record.stage, record.since = stage, self.turn.now
        record.woken = record.woken or stage == "waking"
        self.turn.touch(group)

    def _end(self, group: Group, result: Result | None = None) -> None:
        """End a prefetch, and the lease ahead with it."""
        record = group.prefetch
        assert record is not None
        record.pass_time(self.turn.now)
        if result is None:
            result = "vain" if record.stage == "ready" else "abandoned"
        self._log(group, record, result)
        group.prefetch = None
        if record.woken and result != "used":
            # It goes back to where it was, as soon as it may.
            self.hibernation.schedule(group, self.turn.now + self.hibernation.look_again)
        del self.model.prefetching[group.id]
        if group.lease_ahead and not group.yielding:
            self.leases.revoke(group)
        self.turn.touch(group)

    def _log(self, group: Group, record: Prefetch, result: str) -> None:
        self.turn.log(
            "prefetch", group, result=result, hint=record.hint, likelihood=record.likelihood,
            bytes=group.totals.restored - record.restored_before, seconds=record.spent,
        )  # fmt: skip


def is_in_progress(group: Group) -> bool:
    """Whether a group is getting ready."""
    return group.prefetch is not None and group.prefetch.stage != "ready"
