# SPDX-License-Identifier: BSD-3-Clause
"""Serves the queue: admits waits, makes room for the heads, and logs those that were not served at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from . import reasons
from .filling import Filling
from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .leases import Leases
from .limits import Limits
from .messages import Grow
from .model import Gpu, Group, Model, Wait, growth, staying
from .plan import Plan
from .planner import Planner
from .pressure import Pressure
from .queue import WaitQueue, place
from .quotas import Quotas
from .readings import Readings
from .reasons import Sources
from .room_maker import RoomMaker
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Admission:
    """Admits waits for which there is room."""

    model: Model
    turn: Turn
    limits: Limits
    queue: WaitQueue
    leases: Leases
    growth: GrowthAdmission
    hibernation: HibernationManager

    def admit(self, wait: Wait, continues: bool = False, filling: bool = False) -> None:
        """Grant a wait its lease, or its growth."""
        self.queue.dequeue(wait)
        if wait.logged:
            wait.group.totals.waits += 1
        if wait.grow is None:
            self.leases.serve(wait, continues, filling)
        else:
            self._admit_growth(wait.group, wait, wait.grow)

    def _admit_growth(self, group: Group, wait: Wait, grow: Grow) -> None:
        """Promise the memory that a wait is for, or wake the client that needs it."""
        self.turn.touch(group)
        client = self.model.clients[grow.client]
        if client.stage == "waiting":
            group.place = wait
            self.hibernation.wake_up(client)
            return
        holding = client.holdings[grow.least.gpu]
        more, fixed = growth(holding, grow)
        unevictable = max(0, grow.least.unevictable - holding.unevictable)
        stays = staying(holding, grow)
        # Other growth was admitted since it asked.
        unserved = self.limits.crowded_out(holding.share, fixed, unevictable, stays)
        if unserved is not None:
            self.growth.refuse_growth(holding, grow, "device", unserved[1])
            return
        mapped = more <= 0 or client.lease is not None
        self.growth.promise(holding, grow, more, fixed, "resident" if mapped else "swapped")


@dataclass(slots=True, eq=False)
class WaitLog:
    """Logs waits that were not served at once."""

    model: Model
    turn: Turn
    sources: Sources
    planner: Planner
    queue: WaitQueue

    def log_waits(self, plans: Mapping[Wait, Plan]) -> None:
        """Log the waits that were not served at once, except those that only wait for a reading."""
        if not self.queue.new:
            return
        explainer = reasons.Explainer(self.sources, self.turn.now, plans)
        for wait in list(self.queue.new):
            if any(
                g.reading.asked_at is not None for g in wait.gpus.values()
            ) and self.planner.fits(wait):
                continue
            self.queue.new.remove(wait)
            wait.logged = True
            for gpu in wait.gpus.values():
                self.turn.contention_stale[gpu.uuid] = gpu
            self.turn.log("wait", wait.group, reason=explainer.reason(wait))


@dataclass(slots=True, eq=False)
class Serving:
    """Walks through the waits in order."""

    model: Model
    turn: Turn
    times: GpuTime
    planner: Planner
    readings: Readings
    room_maker: RoomMaker
    leases: Leases
    filling: Filling
    hibernation: HibernationManager
    pressure: Pressure
    admission: Admission
    quotas: Quotas
    wait_log: WaitLog

    #: Seconds for which a process that lacks room to wake waits for other programs. Then, what they seem to use may be
    #: its own residue.
    foreign_patience: ClassVar[float] = 10.0
    #: Seconds for which a process that lacks room to wake waits while its own group has the turn.
    turn_patience: ClassVar[float] = 5.0
    #: The plans of waits that could not be served yet.
    _plans: dict[Wait, Plan] = field(default_factory=dict, init=False)

    def run(
        self, ordered: list[Gpu], gpus: dict[str, Gpu], due: dict[str, float | None]
    ) -> list[Gpu]:
        """Serve the waits for some GPUs; return the GPUs that lack room even if all holders yield."""
        short: list[Gpu] = []
        if any(gpu.queue for gpu in ordered):
            while self._serve(short, gpus, due):
                short.clear()
        self.wait_log.log_waits(self._plans)
        self._plans.clear()
        return short

    def _serve(self, short: list[Gpu], gpus: dict[str, Gpu], due: dict[str, float | None]) -> bool:
        """Grant one wait for these GPUs, or make room for the heads; return whether one was granted."""
        heads: dict[str, Wait] = {}
        served: list[tuple[Wait, Plan]] = []
        self._plans.clear()
        if self.times.counted:
            self.quotas.begin_walk()
        for wait in self._waits_on(gpus):
            if wait.grow is None and wait.group.lease is not None:
                continue  # its old lease has yet to be released
            if wait.passed_over:
                if wait.grow is None and self.hibernation.is_waking(wait.group):
                    self._make_head(wait, heads)
                continue
            first = next(iter(wait.gpus), None)
            self.turn.again = None if first is None else due.get(first)
            granted = self._serve_one(wait, heads, served, short)
            if first is not None:
                due[first] = self.turn.again
            if granted:
                return True
        # Last, so that it takes no room from a group that continues its time slice.
        for wait, plan in served:
            if self.filling.may_fill(wait, plan):
                self.admission.admit(wait, filling=True)
                return True
        return False

    def _waits_on(self, gpus: dict[str, Gpu]) -> list[Wait]:
        """Return the waits for any of these GPUs, in order."""
        if len(gpus) == 1:
            return next(iter(gpus.values())).queue
        found = {wait: None for gpu in gpus.values() for wait in gpu.queue}
        return sorted(found, key=place)

    def _serve_one(
        self,
        wait: Wait,
        heads: dict[str, Wait],
        served: list[tuple[Wait, Plan]],
        short: list[Gpu],
    ) -> bool:
        if wait.not_before > self.turn.now:
            self.turn.recheck_at(wait.not_before)
            return False
        if self.times.active and self._is_limited(wait):
            if wait.barrier is not None and len(wait.group.shares) > 1:
                # Holders have made way for it. On its other GPUs, they would otherwise return each time before it is
                # served.
                self._make_head(wait, heads)
            return False
        if self.quotas.is_barred(wait):
            return False
        ahead = [heads[u] for u in wait.gpus if u in heads] if heads else None
        if self.planner.fits(wait):
            continues = ahead is not None and self.planner.continues(wait, ahead)
            if (
                not ahead or continues or self.planner.may_pass(wait, ahead)
            ) and self.readings.ensure_fresh(wait):
                self.admission.admit(wait, continues=bool(ahead) and continues)
                return True
        elif not ahead:
            plan = self._plans[wait] = self.planner.plan(wait)
            if wait.wakes and wait.group.lease is not None:
                self._give_up_turn(wait)
            if plan.short:
                short += [gpu for gpu, _ in plan.short]
                pressed = self.pressure.press(plan)
                if pressed == "insufficient":
                    if wait.wakes and self.turn.now >= wait.since + self.foreign_patience:
                        for gpu, _ in plan.short:
                            self.readings.trust_supposed_residue(gpu)
                    return False
                if pressed == "begun":
                    self._plans.clear()
            else:
                if self.room_maker.carry_out(plan):
                    self._plans.clear()
                served.append((wait, plan))
        elif self.planner.continues(wait, ahead):
            self._let_grow(wait)
        self._make_head(wait, heads)
        return False

    def _give_up_turn(self, wait: Wait) -> None:
        """End a group's turn if another of its processes has waited too long for the room that it needs to wake.

        The wake then gets the room in which the turn would have restored data. It also frees host memory, without which
        other groups' memory may not be able to leave the GPU.
        """
        patient = wait.since + self.turn_patience
        if self.turn.now >= patient:
            self.leases.revoke(wait.group)
        else:
            self.turn.recheck_at(patient)

    def _make_head(self, wait: Wait, heads: dict[str, Wait]) -> None:
        """Make a wait the head on the GPUs where it is the first, so that no later wait postpones it."""
        if wait.barrier is None and not any(uuid in heads for uuid in wait.gpus):
            wait.barrier = self.model.last_lease
        for uuid in wait.gpus:
            heads.setdefault(uuid, wait)
        self.quotas.claim_for(wait)

    def _is_limited(self, wait: Wait) -> bool:
        """Whether its group has reached its limit of the GPU's time."""
        limited = 0.0
        if wait.for_lease:
            for uuid in wait.group.shares:
                until = self.times.throttled_until(wait.group, uuid, self.turn.now)
                if (
                    until is not None
                    and until > self.turn.now
                    and not self._takes_turns(wait, uuid)
                ):
                    limited = max(limited, until)
        if bool(limited) != bool(wait.limited_until):
            for gpu in wait.gpus.values():
                self.turn.contention_stale[gpu.uuid] = gpu
        wait.limited_until = limited
        if limited == 0.0:
            return False
        self.turn.recheck_at(limited)
        return True

    def _takes_turns(self, wait: Wait, uuid: str) -> bool:
        """Whether a holder is under the same limit, so that the wait is for its lease rather than for the limit.

        Otherwise the holder could use up the limit forever. Their paces keep both groups within the limit.
        """
        whose = self.times.limited_by(wait.group, uuid, self.turn.now)
        return any(
            claim.whose == whose
            for other in self.model.gpus[uuid].holders.values()
            if other is not wait.group
            for claim in self.times.of(other)
        )

    def _let_grow(self, wait: Wait) -> None:
        """Make room for a group that released its lease to grow, also from groups that do not run.

        Its memory stays until the time slice is over, so the GPU would be idle that long if the group had to queue.
        """
        plan = self.planner.plan(wait, waiters=True)
        if plan.short:
            return
        # The time slice of a whole cell is long, so the time slices of the others end first.
        runs = plan.later or any(g.runs for g in plan.revoke)
        if (wait.group.exclusive or not runs) and self.room_maker.carry_out(plan):
            self._plans.clear()
