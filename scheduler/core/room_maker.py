# SPDX-License-Identifier: BSD-3-Clause
"""Carries plans out."""

from __future__ import annotations

from dataclasses import dataclass

from .eviction_orders import EvictionOrders
from .leases import Leases
from .model import Model
from .plan import Plan
from .readings import Readings
from .turn import Turn


@dataclass(slots=True, eq=False)
class RoomMaker:
    """Orders the evictions and revocations of a plan."""

    model: Model
    turn: Turn
    readings: Readings
    orders: EvictionOrders
    leases: Leases

    def carry_out(self, plan: Plan) -> bool:
        """Take what is available now; return whether anything was taken."""
        now = self.turn.now
        when = max((w for w, _ in plan.later), default=now)
        if when > now + self.model.rules.debounce:
            # Everything is taken at once when all of it is available. Room that is taken earlier would be unused
            # meanwhile.
            self.turn.recheck_at(when)
            return False
        for later, _ in plan.later:
            self.turn.recheck_at(later)
        if not plan.evict and not plan.revoke:
            return False
        fresh = True
        for gpu, _ in plan.lacks:
            fresh = self.readings.is_fresh(gpu) and fresh
        if fresh:
            for group in plan.revoke:
                self.leases.revoke(group, plan.wait)
            for share, size in plan.evict:
                self.orders.evict(share, size)
        return fresh
