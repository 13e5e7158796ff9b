# SPDX-License-Identifier: BSD-3-Clause
"""Bounds that administrators set: the number of GPUs on which a user or team may hold leases, and drained GPUs.

A group that would exceed a quota of GPUs is passed over and holds up only waits under the same quota: later waits of
the same user or team do not get a GPU that it will need. Holders under the same quota also make way for it, as they
would for a wait that needs their memory: at once if they are idle, otherwise after their quantum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .eviction_orders import EvictionOrders
from .leases import Leases
from .messages import Drain, Log
from .model import Bar, Gpu, Group, Model, Wait
from .planner import Planner
from .readings import Readings
from .residency import Residency
from .turn import Turn
from .usage import Claim, GpuTime


@dataclass(slots=True, eq=False)
class Quotas:
    """Enforces the bounds that administrators set."""

    model: Model
    turn: Turn
    times: GpuTime
    readings: Readings
    residency: Residency
    planner: Planner
    orders: EvictionOrders
    leases: Leases

    #: During one walk through the queue: by user or team, the GPUs that earlier waits will need; and those on which
    #: groups hold leases, with the groups. None: to be computed.
    _claimed: dict[str, set[str]] = field(default_factory=dict, init=False)
    _held: dict[str, dict[str, list[Group]]] | None = field(default=None, init=False)

    def on_drain(self, event: Drain) -> None:
        """Drain a GPU, or end that, as an administrator wants."""
        gpu = self.model.gpus.get(event.gpu)
        if gpu is None:
            known = ", ".join(self.model.gpus) or "none"
            raise ValueError(f"the scheduler knows no GPU {event.gpu!r}; it knows {known}")
        if gpu.drained == event.on:
            return
        gpu.drained = event.on
        self.turn.dirty.update(self.model.gpus)
        self.turn.contention_stale[gpu.uuid] = gpu
        self.turn.decisions.append(Log("drain", "", {"gpu": gpu.uuid, "on": gpu.drained}))

    def evacuate(self, gpu: Gpu) -> None:
        """End leases on a drained GPU after their quantum, and evict all memory."""
        for group in list(gpu.holders.values()):
            if group.yielding:
                continue
            if group.exclusive:
                self.leases.end_exclusive(group)
            end = self.residency.quantum_end(group) if group.runs else self.turn.now
            if end > self.turn.now:
                self.turn.recheck_at(end)
            else:
                self.leases.revoke(group)
        leaving = [
            share for share in gpu.shares.values() if share.group.lease is None and share.movable
        ]
        if not leaving or not self.readings.is_fresh(gpu):
            return
        for share in leaving:
            found = (h.stuck_until for h in share.holdings.values() if not h.lost)
            stuck = max(found, default=0.0)
            if stuck > self.turn.now:
                self.turn.recheck_at(stuck)
            else:
                self.orders.evict(share, share.movable)

    def is_barred(self, wait: Wait) -> bool:
        """Whether a wait is passed over because of a bound."""
        # A wait to wake for a lease needs all that the lease needs: awake without it, the group would only occupy room.
        gpus = wait.group.gpus if wait.wakes and wait.for_lease else wait.gpus
        drained = next((uuid for uuid, gpu in gpus.items() if gpu.drained), None)
        bar = None
        ends = wait.grow is not None and self.model.clients[wait.grow.client].ends
        if drained is not None and not ends:
            bar = Bar("gpu_draining", gpu=drained)
        elif self.times.counted and wait.for_lease:
            bar = self._quota_bar(wait)
        if (bar is None) != (wait.barred is None):
            for gpu in wait.gpus.values():
                self.turn.contention_stale[gpu.uuid] = gpu
        wait.barred = bar
        return bar is not None

    def _quota_bar(self, wait: Wait) -> Bar | None:
        group = wait.group
        own = used_by(group)
        for claim in self.times.quotas(group):
            most = claim.entitlement.gpus
            bar = Bar("quota_gpus", whose=claim.whose, most=most, own=len(own))
            if len(own) > most:
                return bar
            held = self._held_by(claim.whose)
            claimed = self._claimed.get(claim.whose, set())
            if len(held.keys() | claimed | own) <= most:
                continue
            # A group that does not answer releases nothing.
            lost = {u for u, groups in held.items() if any(g.overdue for g in groups)}
            if len(lost | own) > most:
                return bar
            plan = self.planner.plan(wait)
            if plan.short:
                # No group makes way for a wait that could not be served even then.
                return bar
            self.claim_for(wait)
            # Nor before other waits are served; but for no longer than a time slice, since it is not first there yet.
            ready = max((when for when, _ in plan.later), default=0.0)
            ready = min(ready, wait.since + self.model.rules.longest_quantum)
            return self._make_way(wait, bar, held, own, ready)
        return None

    def claim_for(self, wait: Wait) -> None:
        """Keep the GPUs that a wait will need from later waits of the same user or team."""
        if wait.grow is None and self.times.counted:
            for claim in self.times.quotas(wait.group):
                self._claimed.setdefault(claim.whose, set()).update(used_by(wait.group))

    def begin_walk(self) -> None:
        """Start a walk through the queue. Until the next lease, the holders do not change."""
        self._claimed.clear()
        self._held = None

    def waited_for(self) -> dict[str, dict[str, None]]:
        """Return, by user or team with a quota, the GPUs that the waits in the queue are for."""
        found: dict[str, dict[str, None]] = {}
        for wait in self.model.queue:
            for claim in self.times.quotas(wait.group):
                found.setdefault(claim.whose, {}).update(dict.fromkeys(wait.gpus))
        return found

    def _held_by(self, whose: str) -> dict[str, list[Group]]:
        """Return the GPUs on which the groups of a user or team with a quota hold leases, with those groups."""
        if self._held is None:
            self._held = {}
            for group in self.model.leased.values():
                for claim in self.times.quotas(group):
                    held = self._held.setdefault(claim.whose, {})
                    for uuid in sorted(used_by(group)):
                        held.setdefault(uuid, []).append(group)
        return self._held.get(whose, {})

    def _make_way(
        self, wait: Wait, bar: Bar, held: dict[str, list[Group]], own: set[str], ready: float
    ) -> Bar:
        """Release the excess GPUs of a user or team, beginning with those that are available first, from a time on."""
        ends = {
            uuid: max(ready, *(self._yields_at(group, wait) for group in groups))
            for uuid, groups in held.items()
            # A group that does not answer releases nothing.
            if uuid not in own and not any(group.overdue for group in groups)
        }
        kept = held.keys() | own
        for uuid in sorted(ends, key=lambda uuid: (ends[uuid], uuid)):
            if len(kept) <= bar.most:
                break
            kept -= {uuid}
            for group in held[uuid]:
                end = max(ready, self._yields_at(group, wait))
                if end > self.turn.now:
                    self.turn.recheck_at(end)
                elif not group.yielding:
                    self.leases.revoke(group, wait)
            if not bar.holder:
                last = max(held[uuid], key=lambda g: (self._yields_at(g, wait), g.number))
                until = ends[uuid] if ends[uuid] > self.turn.now else None
                bar = bar._replace(holder=last.id, holder_name=last.name, until=until)
        return bar

    def _yields_at(self, group: Group, wait: Wait) -> float:
        if group.yielding:
            return self.turn.now
        if group.runs:
            return max(self.turn.now, self.residency.quantum_end(group, wait))
        return max(self.turn.now, self.residency.next_cell_by(group, wait))

    def keep_quotas(self) -> None:
        """Revoke leases beyond a quota that was lowered, or that a holder exceeds with another GPU. The oldest stay."""
        kept: dict[str, set[str]] = {}
        for group in sorted(
            self.model.leased.values(), key=lambda g: (g.lease_ahead, g.turn, g.number)
        ):
            quotas = () if group.yielding else self.times.quotas(group)
            own = used_by(group) if quotas else set()
            if any(len(kept.get(c.whose, own) | own) > c.entitlement.gpus for c in quotas):
                self.leases.revoke(group)
                continue
            for claim in quotas:
                kept.setdefault(claim.whose, set()).update(own)
        # A wait under a quota may now be served on another GPU than the one of this event.
        for wait in self.model.queue:
            if wait.barred is not None:
                self.turn.dirty.update((gpu.uuid, gpu) for gpu in wait.gpus.values())


def used_by(group: Group) -> set[str]:
    """Return the GPUs on which a group has anything."""
    return {uuid for uuid, share in group.shares.items() if share.used}


def exceeded_by(group: Group, own: set[str], model: Model, times: GpuTime) -> Claim | None:
    """Return the claim whose quota a group would exceed if it held leases on its ``own`` GPUs, too; None: it would not.

    Unlike the walk through the queue, this does not consider which groups would make way.
    """
    for claim in times.quotas(group):
        held = [
            used_by(other) for other in model.leased.values() if times.applies(claim.whose, other)
        ]
        if len(own.union(*held)) > claim.entitlement.gpus:
            return claim
    return None
