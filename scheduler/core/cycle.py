# SPDX-License-Identifier: BSD-3-Clause
"""One scheduling cycle: which waits are served on the GPUs that an event affects."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Activity
from .filling import Filling
from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .host_reserve import HostReserve
from .messages import Tick
from .model import Gpu, Model
from .policy_guard import PolicyGuard
from .prefetch import Prefetcher
from .pressure import Pressure
from .queue import WaitQueue
from .quotas import Quotas
from .readings import Readings
from .relief import OvercommitRelief
from .reservations import Reservations
from .serving import Admission, Serving
from .timer_events import TimerEvents
from .timers import Timers
from .turn import Turn
from .usage import GpuTime

#: Seconds after which shares are checked again without an event on GPUs with waits.
LOOK = 1.0


@dataclass(slots=True, eq=False)
class Cycle:
    """Decides, after each event, on the GPUs where something may have changed."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    policy: PolicyGuard
    queue: WaitQueue
    activity: Activity
    hibernation: HibernationManager
    admission: Admission
    quotas: Quotas
    timer_events: TimerEvents
    gpu_cycle: GpuCycle
    prefetcher: Prefetcher
    reservations: Reservations

    def run(self) -> None:
        """Decide, after an event, on the GPUs where something may have changed."""
        turn, model = self.turn, self.model
        # 1. Handle the timers that are due.
        if self.timers.soonest <= turn.now:
            for timer in self.timers.due(turn.now):
                self.timer_events.on_timer(timer)
        # 2. Evict memory of groups that hibernate.
        if model.evacuating:
            for group in list(model.evacuating.values()):
                self.hibernation.evacuate(group)
        # 3. Rank: the classes of groups, and the order of the queue.
        if turn.to_classify:
            self.activity.classify()
        self._sort()
        # 4. Revoke leases beyond a quota.
        self._keep_quotas()
        # 5. Follow reservations, which may add waits.
        if model.reserving:
            self.reservations.run()
        # 6. Grant, or evict and revoke, on the GPUs where something happened.
        if model.nowhere:
            self._admit_nowhere()
        if turn.dirty:
            self._decide_where_needed()
        # 7. Park groups whose memory has left. That may change what the others can have.
        if model.evacuating:
            self.hibernation.park_those_that_left()
            if turn.dirty:
                self._decide_where_needed()
        # 8. Quotas again, because a group may have been admitted on another GPU. Then the classes again.
        if self.times.counted:
            self._keep_quotas()
        if turn.to_classify:
            self.activity.classify()
        # 9. Prefetch what groups will probably use, after all demand.
        if model.hinted or model.prefetching:
            self.prefetcher.run()

    def on_tick(self, event: Tick) -> None:
        """Do nothing: only the time has changed, and each cycle handles the timers that are due."""

    def _sort(self) -> None:
        """Sort the queue if the policy's ranks may have changed."""
        failures, sorted_by = self.policy.failures, self.queue.sorted_by
        if failures != sorted_by[0]:
            # It is another policy.
            self.turn.paces_stale.update(self.model.gpus)
        elif not self.model.queue:
            return  # there is nothing to sort
        if (failures, self._time_version()) != sorted_by:
            self.queue.sort()
            # Afterwards, because sorting looks up groups, and GPU time counts the new ones.
            self.queue.sorted_by = failures, self._time_version()

    def _time_version(self) -> int:
        """Return a number that changes when GPU time may have changed the order of the queue."""
        return self.times.version_at(self.turn.now) if self.policy.orders_by_gpu_time else 0

    def _keep_quotas(self) -> None:
        if self.turn.quotas_stale:
            self.turn.quotas_stale = False
            if self.times.counted:
                self.quotas.keep_quotas()

    def _decide_where_needed(self) -> None:
        """Decide on the GPUs that something happened to, except those where there is nothing to decide."""
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
                # A group that is revoked on one GPU occupies room on another.
                self.gpu_cycle.run(concerned)
                done |= concerned

    def _fills_on(self, uuid: str) -> bool:
        for group in self.model.filling.values():  # noqa: SIM110 - asked at each event
            if uuid in group.shares:
                return True
        return False

    def _admit_nowhere(self) -> None:
        """Grant leases to groups that use no GPU yet."""
        for wait in [w for w in self.model.nowhere if not w.passed_over]:
            if wait.group.lease is None and not wait.group.shares:
                self.admission.admit(wait)


@dataclass(slots=True, eq=False)
class GpuCycle:
    """Decides on some GPUs: corrects over-commitments, and serves the waits there."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    host_reserve: HostReserve
    readings: Readings
    activity: Activity
    growth: GrowthAdmission
    filling: Filling
    pressure: Pressure
    quotas: Quotas
    relief: OvercommitRelief
    serving: Serving

    def run(self, gpus: dict[str, Gpu]) -> None:
        """Decide on these GPUs, and on those that depend on them."""
        self.turn.again = None
        due: dict[str, float | None] = {}
        for gpu in list(gpus.values()):
            if gpu.delayed_growth and (
                gpu.reading.asked_at is None or self.readings.is_overdue(gpu)
            ):
                parked, gpu.delayed_growth = gpu.delayed_growth, []
                for delayed in parked:
                    client = self.model.clients[delayed.grow.client]
                    self.growth.grow(delayed.grow, delayed)
                    self.turn.touch(client.group)
                    self.host_reserve.note_change(client)
        if self.model.filling or any(gpu.queue for gpu in gpus.values()):
            self._extend(gpus)
        ordered = (
            [gpu for uuid, gpu in self.model.gpus.items() if uuid in gpus]
            if len(gpus) > 1
            else list(gpus.values())
        )
        for gpu in ordered:
            self.turn.again = None
            if gpu.free < 0:
                self.relief.relieve(gpu)
            for delayed in gpu.delayed_growth:
                if delayed.obstacle == "host_memory":
                    self.turn.recheck_at(delayed.since + self.model.rules.host_patience)
                elif delayed.obstacle == "holders":
                    self.turn.recheck_at(delayed.since + self.model.rules.holders_patience)
            if gpu.drained:
                self.quotas.evacuate(gpu)
                self.pressure.dismiss(gpu)
            if gpu.queue and self.times.active:
                self._look_at_shares(gpu)
            due[gpu.uuid] = self.turn.again
        # Groups that fill had their place before all waits.
        short = self.filling.fill(ordered, due) if self.model.filling else []
        short += self.serving.run(ordered, gpus, due)
        for gpu in ordered:
            self.turn.again = due[gpu.uuid]
            if gpu.reading.asked_at is not None or gpu.pending_reclaim or gpu in short:
                self.readings.watch(gpu)
            self.timers.set(gpu.looks, self.turn.again)

    def _extend(self, gpus: dict[str, Gpu]) -> None:
        """Add the GPUs that waits or filling groups use together with these."""
        quotas = self.quotas.waited_for() if self.times.counted else {}
        more = list(gpus.values())
        while more:
            gpu = more.pop()
            linked = [w.group for w in gpu.queue]
            linked += [g for g in self.model.filling.values() if gpu.uuid in g.shares]
            for group in linked:
                if len(group.shares) > 1:
                    for uuid, share in group.shares.items():
                        if uuid not in gpus:
                            gpus[uuid] = share.gpu
                            more.append(share.gpu)
                for claim in self.times.quotas(group) if quotas else ():
                    # The waits under one quota depend on each other on all GPUs.
                    for uuid in quotas.pop(claim.whose, ()):
                        if uuid not in gpus:
                            gpus[uuid] = self.model.gpus[uuid]
                            more.append(self.model.gpus[uuid])

    def _look_at_shares(self, gpu: Gpu) -> None:
        """Count the holders' time, metered or not, because a group can fall below its request without an event."""
        for group in gpu.holders.values():
            if not group.metered or group.overdue:
                self.activity.count_time(group)
        self.turn.recheck_at(self.turn.now + LOOK)


def _is_calm(gpu: Gpu) -> bool:
    """Whether there is nothing to decide on a GPU: no wait and no over-commitment."""
    return (
        not (gpu.queue or gpu.delayed_growth or gpu.pending_reclaim or gpu.drained)
        and gpu.reading.asked_at is None
        and gpu.free >= 0
    )
