# SPDX-License-Identifier: BSD-3-Clause
"""One scheduling cycle: on the GPUs that an event concerns, which waits are served."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Activity
from .alarms import Alarms
from .gpu_cycle import GpuCycle
from .hibernation import HibernationManager
from .model import Gpu, Model
from .policy_guard import Guard
from .queue import WaitQueue
from .quotas import Quotas
from .serving import Admission
from .timers import Timers
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class Cycle:
    """Decides, after each event, where something may have changed."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    policy: Guard
    queue: WaitQueue
    activity: Activity
    hibernation: HibernationManager
    admission: Admission
    quotas: Quotas
    alarms: Alarms
    gpu_cycle: GpuCycle

    def run(self) -> None:
        """Decide, after an event, where something may have changed."""
        turn, model = self.turn, self.model
        # 1. Timers that are due mark what they are for.
        earliest = self.timers.earliest()
        if earliest is not None and earliest <= turn.now:
            for timer in self.timers.due(turn.now):
                self.alarms.look_again(timer)
        # 2. Memory of groups that hibernate leaves.
        if model.evacuating:
            for group in list(model.evacuating.values()):
                self.hibernation.evacuate(group)
        # 3. Rank: what groups count as, and the order of the queue.
        if turn.unclassed:
            self.activity.classify()
        self._sort()
        # 4. Leases beyond a quota are revoked.
        self._keep_quotas()
        # 5. Grant, or evict and revoke, on the GPUs where something happened.
        if model.nowhere:
            self._admit_nowhere()
        if turn.dirty:
            self._decide_where_needed()
        # 6. Groups whose memory has left park: that may change what the others can have.
        if model.evacuating:
            self.hibernation.park_those_that_left()
            if turn.dirty:
                self._decide_where_needed()
        # 7. A group that was admitted on another GPU may be beyond a quota now.
        if self.times.counted:
            self._keep_quotas()
        if turn.unclassed:
            self.activity.classify()

    def _sort(self) -> None:
        """Sort the queue where the policy would have it otherwise."""
        version, sorted_by = self.policy.version, self.queue.sorted_by
        if version != sorted_by:
            if version[0] != sorted_by[0]:
                # It is another policy.
                self.turn.paces_stale.update(self.model.gpus)
            self.queue.sort()

    def _keep_quotas(self) -> None:
        if self.turn.recount:
            self.turn.recount = False
            if self.times.counted:
                self.quotas.keep_quotas()

    def _decide_where_needed(self) -> None:
        """Decide on the GPUs that something happened to, but for those where nobody waits for anything."""
        done: dict[str, Gpu] = {}
        while self.turn.dirty:
            dirty, self.turn.dirty = self.turn.dirty, {}
            concerned: dict[str, Gpu] = {}
            for uuid, gpu in dirty.items():
                if uuid in done:
                    continue
                if _is_calm(gpu) and not self._fills_on(uuid):
                    self.timers.set(gpu.looks, None)
                else:
                    concerned[uuid] = gpu
            if concerned:
                # Who is revoked on one GPU holds room on another.
                self.gpu_cycle.run(concerned)
                done |= concerned

    def _fills_on(self, uuid: str) -> bool:
        for group in self.model.filling.values():  # noqa: SIM110 - asked at each event
            if uuid in group.shares:
                return True
        return False

    def _admit_nowhere(self) -> None:
        """Grant those that use no GPU yet."""
        for wait in [w for w in self.model.nowhere if not w.passed_over]:
            if wait.group.lease is None and not wait.group.shares:
                self.admission.admit(wait, False)


def _is_calm(gpu: Gpu) -> bool:
    """Whether nobody waits for anything here, and there is not too much: then there is nothing to decide."""
    return (
        not (gpu.queue or gpu.parked or gpu.ghosts or gpu.drained)
        and gpu.asked_at is None
        and gpu.free >= 0
    )
