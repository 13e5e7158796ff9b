# SPDX-License-Identifier: BSD-3-Clause
"""Corrects over-commitments."""

from __future__ import annotations

from dataclasses import dataclass

from .eviction_orders import EvictionOrders
from .leases import Leases
from .model import Gpu, Group, Share
from .policy_guard import PolicyGuard
from .readings import Readings
from .residency import Residency
from .turn import Turn


@dataclass(slots=True, eq=False)
class OvercommitRelief:
    """Evicts and revokes on GPUs where more is charged than there is."""

    turn: Turn
    policy: PolicyGuard
    readings: Readings
    residency: Residency
    orders: EvictionOrders
    leases: Leases

    def relieve(self, gpu: Gpu) -> None:
        """Correct an over-commitment, which comes from re-attached leases or from other programs that use more."""
        over = -gpu.free
        idle: list[tuple[tuple[float, ...], Share]] = []
        leased: list[Group] = []
        for share in gpu.shares.values():
            group = share.group
            if group.lease is None:
                over -= share.leaving
                if share.movable:
                    idle.append((self.policy.victim_rank(group), share))
            elif group.overdue or group.stuck is not None:
                continue  # it may be stuck because it lacks room
            elif group.yielding:
                over -= share.resident + share.arriving
            else:
                leased.append(group)
        evict: list[tuple[Share, int]] = []
        idle.sort(key=lambda item: item[0])
        for _, share in idle:
            size = min(over, share.movable)
            if size <= 0:
                break
            over -= size
            when = self.residency.evictable_at(share)
            if when <= self.turn.now:
                evict.append((share, size))
            else:
                self.turn.recheck_at(when)
        revoke: list[Group] = []
        # Within the reserve nothing can fail, and other programs' use varies by that much.
        leased.sort(key=lambda g: (g.runs, not g.lease_ahead, -g.turn))
        for group in leased:
            if over <= gpu.reserve:
                break
            share = group.shares[gpu.uuid]
            if share.resident + share.arriving > 0:
                over -= share.resident + share.arriving
                revoke.append(group)
        if (evict or revoke) and self.readings.is_fresh(gpu):
            for group in revoke:
                self.leases.revoke(group)
            for share, size in evict:
                self.orders.evict(share, size)
