# SPDX-License-Identifier: BSD-3-Clause
"""Decides on GPUs that depend on each other."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Activity
from .filling import Filling
from .growth import GrowthAdmission
from .host_reserve import HostReserve
from .model import Gpu, Model
from .pressure import Pressure
from .quotas import Quotas
from .readings import Readings
from .relief import OvercommitRelief
from .serving import Serving
from .timers import Timers
from .turn import Turn
from .usage import GpuTime

#: Where somebody waits, shares are looked at each so many seconds if nothing happens.
LOOK = 1.0


@dataclass(slots=True, eq=False)
class GpuCycle:
    """Decides on some GPUs: works over-commitments down, and serves the waits there."""

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
        """Decide on these GPUs, and those that hang together with them."""
        self.turn.again = None
        due: dict[str, float | None] = {}
        for gpu in list(gpus.values()):
            if gpu.parked and (gpu.asked_at is None or self.readings.is_overdue(gpu)):
                parked, gpu.parked = gpu.parked, []
                for delayed in parked:
                    client = self.model.clients[delayed.grow.client]
                    self.growth.grow(delayed.grow, delayed)
                    self.turn.touch(client.group)
                    self.host_reserve.concern(client)
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
            for delayed in gpu.parked:
                if delayed.obstacle == "host_memory":
                    self.turn.look_at(delayed.since + self.model.rules.host_patience)
                elif delayed.obstacle == "holders":
                    self.turn.look_at(delayed.since + self.model.rules.holders_patience)
            if gpu.drained:
                self.quotas.empty(gpu)
                self.pressure.dismiss(gpu)
            if gpu.queue and self.times.active:
                self._look_at_shares(gpu)
            due[gpu.uuid] = self.turn.again
        # Who fills has had its place before all that wait.
        short = self.filling.fill(ordered, due) if self.model.filling else []
        short += self.serving.run(ordered, gpus, due)
        for gpu in ordered:
            self.turn.again = due[gpu.uuid]
            self.readings.watch(gpu, gpu in short)
            self.timers.set(gpu.looks, self.turn.again)

    def _extend(self, gpus: dict[str, Gpu]) -> None:
        """Add the GPUs that are waited for together with these, or that fill together."""
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
                    # Those of one quota wait for each other, wherever they are.
                    for uuid in quotas.pop(claim.whose, ()):
                        if uuid not in gpus:
                            gpus[uuid] = self.model.gpus[uuid]
                            more.append(self.model.gpus[uuid])

    def _look_at_shares(self, gpu: Gpu) -> None:
        """Count what the holders have had, metered or not: who is below its request changes by itself."""
        for group in gpu.holders.values():
            if not group.metered or group.overdue:
                self.activity.count_time(group)
        self.turn.look_at(self.turn.now + LOOK)
