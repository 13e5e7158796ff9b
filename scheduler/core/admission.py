# SPDX-License-Identifier: BSD-3-Clause
"""What clients ask for beside what they have: promised, refused, or waited for."""

from __future__ import annotations

from .filling import Filler
from .ledger import Relief, growth, staying
from .messages import Grow
from .model import Client, Delayed, Gpu, Group, Obstacle, Share


class Grower(Filler):
    """Answers growth."""

    #: Seconds for which growth waits for host memory that there was a short while ago.
    host_patience = 30.0
    #: And urgent growth for others to give their leases back. Not for long: they may wait for this one's.
    holders_patience = 2.0

    def _grow(self, event: Grow, before: Delayed | None = None) -> None:
        """Answer growth, or put that off; ``before``: as it was already."""
        client = self.model.clients[event.client]
        group = client.group
        holding = self._holding(client, event.least.gpu)
        share, gpu = holding.share, holding.share.gpu
        more, fixed = growth(holding, event)
        if event.oversubscribe and not client.oversubscribes:
            self._oversubscribe(client)
        pinned = max(0, event.least.pinned - holding.pinned)
        stays = staying(holding, event)
        refusal = self._refusal(share, more, fixed, event.oversubscribe, pinned, stays)
        if refusal is not None:
            status, relief, text = refusal
            obstacle = self._obstacle(gpu, relief)
            since = self.turn.now if before is None or before.obstacle != obstacle else before.since
            if obstacle == "host_memory" and since + self.host_patience <= self.turn.now:
                obstacle = None
            if obstacle is not None:
                gpu.parked.append(Delayed(event, obstacle, since))
                self.turn.touch(group)
                return
            self._refuse_growth(holding, event, status, text)
            return
        if fixed:
            # The stuck ones of its group may wait for what asks, and all others for them.
            self._enqueue(group, event, front=group.yielding and group.stuck is not None)
            if share.ceiling is not None and fixed > gpu.free:
                self._revoke(group)  # its own memory is in the way
            return
        charged = self._charged(holding, more)
        lacks_room = more > 0 or gpu.free < 0
        if event.urgent and lacks_room and client.lease is not None and group.filling is None:
            since = self.turn.now if before is None else before.since
            if not self._is_fresh(gpu, self.model.rules.fresh_for_growth):
                gpu.parked.append(Delayed(event, "reading", since))
                return
            if charged <= gpu.free:
                self._promise(holding, event, more, fixed, "resident")
                return
            if self._make_room_now(gpu, charged - gpu.free):
                gpu.parked.append(Delayed(event, "reading", since))
                return
            held = any(s.group.lease is not None for s in gpu.shares.values() if s is not share)
            if held and self.turn.now < since + self.holders_patience:
                gpu.parked.append(Delayed(event, "holders", since))
                return
        wish = event.most - holding.promised - more
        extra = self._headroom(share, more, wish, event.oversubscribe)
        if group.lease is None or group.yielding:
            there = not more and not (event.urgent and lacks_room)
            self._promise(holding, event, more + extra, fixed, "resident" if there else "swapped")
            return
        if more and not self._is_fresh(gpu, self.model.rules.fresh_for_growth):
            gpu.parked.append(Delayed(event, "reading", self.turn.now))
            return
        if charged <= 0 or group.floating or self._may_take(group, gpu, charged):
            extra = min(extra, max(0, gpu.free - charged))
            if any(self.counts(w) for w in gpu.queue if w.group is not group):
                extra = 0
            leased = client.lease is not None or not more
            self._promise(holding, event, more + extra, 0, "resident" if leased else "swapped")
            return
        # Resident bytes of others are in the way. Waiting for them under a lease would be hold-and-wait.
        # The client gives the lease up by itself, unless it was granted but is not in yet: hence Revoke.
        self._promise(holding, event, more + extra, 0, "swapped")
        self._revoke(group)

    def _obstacle(self, gpu: Gpu, relief: Relief | None) -> Obstacle | None:
        """Return what a growth that is refused for now waits for; None: it is refused."""
        if relief == "others":
            if self.model.awaited:
                return "returning"
            # Only foreign use is in the way: look again before saying no.
            return None if self._is_fresh(gpu) else "reading"
        return "host_memory" if relief == "host" else None

    def _oversubscribe(self, client: Client) -> None:
        """From now on, what it holds may be more than a GPU has."""
        client.oversubscribes = True
        group = client.group
        if group.lease is None or group.floating:
            return
        for share in group.shares.values():
            if share.ceiling is None:
                share.ceiling = share.promised
                self._charge_share(share)

    def _may_take(self, group: Group, gpu: Gpu, more: int) -> bool:
        """Whether a holder may have more room now without holding up the head of the queue any longer."""
        if more > gpu.free:
            return False
        for wait in gpu.queue:
            if wait.group is not group and self.counts(wait):
                barrier = self.model.last_lease if wait.barrier is None else wait.barrier
                return group.turn <= barrier or self._leaves_room(wait, gpu, group, more)
        return True

    def _make_room_now(self, gpu: Gpu, lack: int) -> bool:
        """Have memory moved out of those without a lease, whatever their residency; return whether that will do.

        For a stream capture, or a kernel that runs: who waits for its lease waits for its end, and that may wait for
        this memory.
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
                self.turn.look_at(ended + self.model.rules.debounce)
            else:
                orders.append((share, size))
        if lack > 0 or gpu.filling is not None:
            return False
        for share, size in orders:
            self._evict(share, size)
        return True
