# SPDX-License-Identifier: BSD-3-Clause
"""Growth: promises, refuses or delays the memory that clients request in addition."""

from __future__ import annotations

from dataclasses import dataclass

from .eviction_orders import EvictionOrders
from .leases import Leases
from .ledger import Ledger
from .limits import Demand, Limits, Refusal, Relief
from .messages import Grow, Grown, Growth
from .model import (
    Client,
    Delayed,
    Gpu,
    Group,
    Holding,
    Model,
    Obstacle,
    Share,
    charge_for_contexts,
    excess,
    growth,
    staying,
)
from .planner import Planner
from .policy_guard import PolicyGuard
from .queue import WaitQueue
from .readings import Readings
from .rooms import Rooms
from .shares import Shares
from .turn import Turn


@dataclass(slots=True, eq=False)
class GrowthAdmission:
    """Answers requests for more memory."""

    model: Model
    turn: Turn
    policy: PolicyGuard
    ledger: Ledger
    readings: Readings
    limits: Limits
    planner: Planner
    queue: WaitQueue
    rooms: Rooms
    orders: EvictionOrders
    leases: Leases
    shares: Shares

    def promise(self, holding: Holding, event: Grow, more: int, fixed: int, status: Growth) -> None:
        """Promise more bytes."""
        least = event.least
        promised = holding.promised + max(0, more)
        unevictable = max(holding.unevictable, least.unevictable)
        stated = max(holding.stated, least.context)
        context = charge_for_contexts(holding, stated)
        if stated != holding.stated:
            self.readings.begin_context_trial(holding)
        self.ledger.set_stated_contexts(holding, stated)
        self.ledger.add_unsettled(holding, max(0, fixed))
        self.ledger.set_spare(holding, max(0, promised - least.promised))
        share = holding.share
        if share.ceiling is not None:
            give = self._charged(holding, promised - holding.promised)
            share.ceiling = share.goal + give
            holding.room += give
        self.ledger.account(holding, promised, holding.resident, unevictable, context)
        self.rooms.send_room(holding.client)
        self.turn.decisions.append(Grown(holding.client.number, event.serial, status, promised))
        if more > 0 or fixed > 0:
            gpu = holding.share.gpu
            self.turn.log(
                "grow", holding.client.group,
                promised=holding.share.promised, gpu=gpu.uuid, beyond=max(0, excess(gpu)),
            )  # fmt: skip

    def refuse_growth(self, holding: Holding, event: Grow, status: Growth, text: str) -> None:
        """Refuse a growth request."""
        self.turn.decisions.append(
            Grown(holding.client.number, event.serial, status, holding.promised, text)
        )
        self.turn.log("refuse", holding.client.group, code=status, text=text)

    def _charged(self, holding: Holding, more: int) -> int:
        """Return how much of a holder's growth comes to the GPU. The GPU accesses the rest in host memory."""
        share = holding.share
        if share.ceiling is None or not holding.client.oversubscribes:
            return more
        return min(more, max(0, share.gpu.capacity - share.gpu.pending_reclaim - share.goal))

    def grow(self, event: Grow, before: Delayed | None = None) -> None:
        """Answer a growth request, or delay the answer; ``before``: its delay so far."""
        client = self.model.clients[event.client]
        holding = self.shares.holding(client, event.least.gpu)
        more, fixed = growth(holding, event)
        if event.oversubscribe and not client.oversubscribes:
            self._oversubscribe(client)
        unevictable = max(0, event.least.unevictable - holding.unevictable)
        stays = staying(holding, event)
        demand = Demand(holding.share, client, more, fixed, event.oversubscribe, unevictable, stays)
        refusal = self.limits.refusal(demand)
        if refusal is not None:
            self._refuse_or_delay(holding, event, refusal, before)
        elif fixed:
            self._queue_unevictable(holding.share, event, fixed)
        elif not self._admit_urgent(holding, event, more, before):
            self._admit(holding, event, more)

    def _refuse_or_delay(
        self, holding: Holding, event: Grow, refusal: Refusal, before: Delayed | None
    ) -> None:
        """Refuse a request that cannot be served now, unless the obstacle may soon be gone."""
        gpu, now = holding.share.gpu, self.turn.now
        obstacle = self._obstacle(gpu, refusal.relief)
        since = now if before is None or before.obstacle != obstacle else before.since
        if obstacle == "host_memory" and since + self.model.rules.host_patience <= now:
            obstacle = None
        if obstacle is None:
            self.refuse_growth(holding, event, refusal.status, refusal.text)
            return
        gpu.delayed_growth.append(Delayed(event, obstacle, since))
        self.turn.touch(holding.client.group)

    def _queue_unevictable(self, share: Share, event: Grow, fixed: int) -> None:
        """Let a request for unevictable memory wait in the queue, because it may need evictions."""
        group = share.group
        # Stuck clients of its group may wait for this client, and all other groups for them.
        self.queue.enqueue(group, event, front=group.yielding and group.stuck is not None)
        if share.ceiling is not None and fixed > share.gpu.free:
            self.leases.revoke(group)  # its own memory takes the room

    def _admit_urgent(
        self, holding: Holding, event: Grow, more: int, before: Delayed | None
    ) -> bool:
        """Promise or delay an urgent request of a holder, which cannot release its lease; return whether it was one."""
        client, share, gpu = holding.client, holding.share, holding.share.gpu
        if not event.urgent or client.lease is None or client.group.filling is not None:
            return False
        if more <= 0 and gpu.free >= 0:
            return False
        since = self.turn.now if before is None else before.since
        if not self.readings.is_fresh(gpu, self.model.rules.fresh_for_growth):
            gpu.delayed_growth.append(Delayed(event, "reading", since))
            return True
        charged = self._charged(holding, more)
        if charged <= gpu.free:
            self.promise(holding, event, more, 0, "resident")
            return True
        if self._make_room_now(gpu, charged - gpu.free):
            gpu.delayed_growth.append(Delayed(event, "reading", since))
            return True
        leased = any(s.group.lease is not None for s in gpu.shares.values() if s is not share)
        if leased and self.turn.now < since + self.model.rules.holders_patience:
            gpu.delayed_growth.append(Delayed(event, "holders", since))
            return True
        return False

    def _admit(self, holding: Holding, event: Grow, more: int) -> None:
        """Promise evictable memory: on the GPU if the group holds a lease and there is room, otherwise swapped."""
        client, group, gpu = holding.client, holding.client.group, holding.share.gpu
        wanted = event.most - holding.promised - more
        demand = Demand(holding.share, client, more, 0, event.oversubscribe)
        extra = self.limits.headroom(demand, wanted)
        if group.lease is None or group.yielding:
            there = not more and not (event.urgent and gpu.free < 0)
            self.promise(holding, event, more + extra, 0, "resident" if there else "swapped")
            return
        if more and not self.readings.is_fresh(gpu, self.model.rules.fresh_for_growth):
            gpu.delayed_growth.append(Delayed(event, "reading", self.turn.now))
            return
        charged = self._charged(holding, more)
        if charged <= 0 or group.floating or self._may_take(group, gpu, charged):
            extra = min(extra, max(0, gpu.free - charged))
            if any(w.counts(self.turn.now) for w in gpu.queue if w.group is not group):
                extra = 0
            leased = client.lease is not None or not more
            self.promise(holding, event, more + extra, 0, "resident" if leased else "swapped")
            return
        # Resident memory of other groups takes the room. Waiting for it under a lease would be hold-and-wait. The
        # client releases the lease by itself, unless it was granted but has not been restored yet: hence Revoke.
        self.promise(holding, event, more + extra, 0, "swapped")
        self.leases.revoke(group)

    def _obstacle(self, gpu: Gpu, relief: Relief | None) -> Obstacle | None:
        """Return what a growth request should wait for; None: it is refused."""
        if relief == "others":
            if self.model.awaited:
                return "returning"
            # Only other programs' use is in the way, so read the GPU again before refusing.
            return None if self.readings.is_fresh(gpu) else "reading"
        return "host_memory" if relief == "host" else None

    def _oversubscribe(self, client: Client) -> None:
        """Let a client hold more than a GPU has from now on."""
        self.ledger.let_oversubscribe(client)
        group = client.group
        if group.lease is None or group.floating:
            return
        for share in group.shares.values():
            if share.ceiling is None:
                share.ceiling = share.promised
                self.ledger.charge_share(share)

    def _may_take(self, group: Group, gpu: Gpu, more: int) -> bool:
        """Whether a holder may have more room now without delaying the head of the queue."""
        if more > gpu.free:
            return False
        for wait in gpu.queue:
            if wait.group is not group and wait.counts(self.turn.now):
                barrier = self.model.last_lease if wait.barrier is None else wait.barrier
                return group.turn <= barrier or self.planner.leaves_room(wait, gpu, group, more)
        return True

    def _make_room_now(self, gpu: Gpu, lack: int) -> bool:
        """Evict groups without a lease, whatever their residency; return whether that suffices.

        This is for stream captures and running CUDA kernels. Waits for the lease depend on their end, which may depend
        on this memory.
        """
        lack -= gpu.coming
        victims = [s for s in gpu.shares.values() if s.group.lease is None]
        victims.sort(key=lambda s: self.policy.victim_rank(s.group))
        orders: list[tuple[Share, int]] = []
        for share in victims:
            stuck = any(
                h.stuck_until > self.turn.now and not h.lost for h in share.holdings.values()
            )
            size = 0 if stuck else min(lack, share.movable)
            if size <= 0:
                continue
            lack -= size
            ended = share.group.ended_at
            if ended is not None and ended + self.model.rules.debounce > self.turn.now:
                self.turn.recheck_at(ended + self.model.rules.debounce)
            else:
                orders.append((share, size))
        if lack > 0 or gpu.filling is not None:
            return False
        for share, size in orders:
            self.orders.evict(share, size)
        return True
