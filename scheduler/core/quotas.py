# SPDX-License-Identifier: BSD-3-Clause
"""What administrators bound: on how many GPUs somebody may hold leases at once, and which GPUs are to be empty.

Who would exceed a quota of GPUs is passed over and holds nobody up, other than its own: those of the same user or team
that come later get no GPU that it will need. Its own also make way for it, as they would for one that waits for their
memory: at once if they do nothing, else once they have had their quantum.
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
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Quotas:
    """Keeps the bounds that administrators set."""

    model: Model
    turn: Turn
    times: GpuTime
    readings: Readings
    residency: Residency
    planner: Planner
    orders: EvictionOrders
    leases: Leases

    #: In one look at the queue: by whose quota, the GPUs that earlier waits will need; and those on which groups hold
    #: leases, with the groups. None: to be found.
    _reserved: dict[str, set[str]] = field(default_factory=dict, init=False)
    _held: dict[str, dict[str, list[Group]]] | None = field(default=None, init=False)

    def on_drain(self, event: Drain) -> None:
        """An administrator drains a GPU, or ends that."""
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

    def empty(self, gpu: Gpu) -> None:
        """Have leases on a drained GPU end after their quantum, and all memory that can move leave."""
        for group in list(gpu.holders.values()):
            if group.yielding:
                continue
            if group.exclusive:
                self.leases.end_exclusive(group)
            end = self.residency.quantum_end(group) if group.runs else self.turn.now
            if end > self.turn.now:
                self.turn.look_at(end)
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
                self.turn.look_at(stuck)
            else:
                self.orders.evict(share, share.movable)

    def is_barred(self, wait: Wait) -> bool:
        """Whether one that waits is passed over for what administrators bound."""
        # One that is woken for its lease needs all that the lease does: awake without it, it would be in the way.
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
            reserved = self._reserved.get(claim.whose, set())
            if len(held.keys() | reserved | own) <= most:
                continue
            # Who does not answer gives nothing up.
            lost = {u for u, groups in held.items() if any(g.overdue for g in groups)}
            if len(lost | own) > most:
                return bar
            plan = self.planner.plan(wait)
            if plan.short:
                # Nobody makes way for one that could not be served all the same.
                return bar
            self.reserve(wait)
            # Nor before others do: but not for longer than a turn, since it is not its turn there yet.
            ready = max((when for when, _ in plan.later), default=0.0)
            ready = min(ready, wait.since + self.model.rules.longest_quantum)
            return self._make_way(wait, bar, held, own, ready)
        return None

    def reserve(self, wait: Wait) -> None:
        """Let nobody of the same user or team who comes later take the GPUs that one that waits will need."""
        if wait.grow is None and self.times.counted:
            for claim in self.times.quotas(wait.group):
                self._reserved.setdefault(claim.whose, set()).update(used_by(wait.group))

    def start_over(self) -> None:
        """Begin to look at those that wait: until the next lease, the same ones hold them."""
        self._reserved.clear()
        self._held = None

    def waited_for(self) -> dict[str, dict[str, None]]:
        """Return by whose quota the GPUs that those in the queue wait for."""
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
        """Have its own give up as many GPUs as are too many, those first that can be had first; not before a time."""
        ends = {
            uuid: max(ready, *(self._yields_at(group, wait) for group in groups))
            for uuid, groups in held.items()
            # Who does not answer gives nothing up.
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
                    self.turn.look_at(end)
                elif not group.yielding:
                    self.leases.revoke(group, wait)
            if not bar.holder:
                last = max(held[uuid], key=lambda g: (self._yields_at(g, wait), g.number))
                until = ends[uuid] if ends[uuid] > self.turn.now else None
                bar = bar._replace(holder=last.id, holder_name=last.name, until=until)
        return bar

    def _yields_at(self, group: Group, wait: Wait) -> float:
        if group.yielding or not group.runs:
            return self.turn.now
        return max(self.turn.now, self.residency.quantum_end(group, wait))

    def keep_quotas(self) -> None:
        """Take back leases beyond a quota: it was lowered, or a holder began to use another GPU. The oldest stay."""
        kept: dict[str, set[str]] = {}
        for group in sorted(self.model.leased.values(), key=lambda g: (g.turn, g.number)):
            quotas = () if group.yielding else self.times.quotas(group)
            own = used_by(group) if quotas else set()
            if any(len(kept.get(c.whose, own) | own) > c.entitlement.gpus for c in quotas):
                self.leases.revoke(group)
                continue
            for claim in quotas:
                kept.setdefault(claim.whose, set()).update(own)
        # Whom a quota kept waiting may be served on another GPU than the one that something happened on.
        for wait in self.model.queue:
            if wait.barred is not None:
                self.turn.dirty.update((gpu.uuid, gpu) for gpu in wait.gpus.values())


def used_by(group: Group) -> set[str]:
    """Return the GPUs on which a group has anything."""
    return {uuid for uuid, share in group.shares.items() if share.used}
