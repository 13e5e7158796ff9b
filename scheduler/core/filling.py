# SPDX-License-Identifier: BSD-3-Clause
"""Leases that begin before all of their room is there (``core.py``, "Filling")."""

from __future__ import annotations

from dataclasses import dataclass

from .leases import Leases
from .model import Gpu, Group, Model, Wait
from .plan import Plan
from .planner import Planner
from .readings import Readings
from .residency import Residency
from .room_maker import RoomMaker
from .rooms import Rooms
from .turn import Turn


@dataclass(slots=True, eq=False)
class Filling:
    """Grants leases whose room is about to appear, and makes sure that it does."""

    model: Model
    turn: Turn
    readings: Readings
    residency: Residency
    planner: Planner
    rooms: Rooms
    leases: Leases
    room_maker: RoomMaker

    def may_fill(self, wait: Wait, plan: Plan) -> bool:
        """Whether all that the head lacks is already being evicted, so that its lease can begin."""
        if wait.grow is not None or wait.group.lease is not None or self.planner.floats(wait.group):
            return False
        gpus = wait.gpus.values()
        if plan.later or plan.revoke or plan.draining or plan.serialised:
            return False
        if any(gpu.filling is not None for gpu in gpus):
            return False
        return self.readings.ensure_fresh(wait) and all(
            self.model.need(wait, gpu)
            <= gpu.free + gpu.coming - wait.group.shares[gpu.uuid].leaving
            for gpu in gpus
        )

    def fill(self, gpus: list[Gpu], due: dict[str, float | None]) -> list[Gpu]:
        """Allot free room to groups that fill; return the GPUs on which no more is available now."""
        starved: list[Gpu] = []
        groups = {g.filling.group.id: g.filling.group for g in gpus if g.filling}
        for group in groups.values():
            if group.yielding:
                continue
            for share in group.shares.values():
                self.rooms.allot(share)
            for client in group.granted.values():
                self.rooms.send_room(client)
            if not any(share.missing for share in group.shares.values()):
                self.rooms.end_filling(group)
                continue
            first = next(iter(group.shares))
            self.turn.again = due[first]
            self._make_more_room(group, starved)
            due[first] = self.turn.again
        return starved

    def _make_more_room(self, group: Group, starved: list[Gpu]) -> None:
        """Replace evictions that failed or fell short for a group that fills."""
        assert group.filling is not None
        if self._is_on_its_way(group):
            self.turn.recheck_at(group.filled_at + self.model.rules.filling_patience)
            return
        plan = self.planner.plan(group.filling)
        patience = self.model.rules.filling_patience
        if plan.short:
            starved += [gpu for gpu, _ in plan.short]
            if any(gpu.pending_reclaim < lack for gpu, lack in plan.short):
                patience = self.model.rules.starving_patience
        elif plan.later or plan.revoke or plan.draining:
            # It must not reserve room for long that another group could use.
            patience = self.model.rules.starving_patience
            self.room_maker.carry_out(plan)
        else:
            self.room_maker.carry_out(plan)
        end = group.filled_at + patience
        if self.turn.now >= end:
            self.leases.revoke_stalled(group)
        else:
            self.turn.recheck_at(end)

    def _is_on_its_way(self, group: Group) -> bool:
        """Whether all that a group that fills still lacks is being evicted, without waiting for another lease."""
        if (
            self.turn.now >= group.filled_at + self.model.rules.filling_patience
            or self.residency.one_at_a_time
        ):
            return False
        return all(
            share.missing <= share.gpu.free + share.gpu.coming - share.leaving
            and all(other.overdue for other in share.gpu.yielding.values())
            for share in group.shares.values()
        )
