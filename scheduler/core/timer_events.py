# SPDX-License-Identifier: BSD-3-Clause
"""What happens when a timer is due."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Activity
from .collectives import Collectives
from .disk_tier import DiskTier
from .hibernation import HibernationManager
from .hints import Hints
from .host_reserve import HostReserve
from .leases import Leases
from .model import Model
from .reservations import Reservations
from .timers import Timer
from .turn import Turn


@dataclass(slots=True, eq=False)
class TimerEvents:
    """Handles timers that are due."""

    model: Model
    turn: Turn
    host_reserve: HostReserve
    disk: DiskTier
    activity: Activity
    leases: Leases
    hibernation: HibernationManager
    collectives: Collectives
    hints: Hints
    reservations: Reservations

    def on_timer(self, timer: Timer) -> None:
        """Do what a timer is for."""
        kind, key = timer
        match kind, key:
            case "gpu", str(uuid):
                self.turn.dirty[uuid] = self.model.gpus[uuid]
            case "pace", str(uuid):
                self.turn.paces_stale[uuid] = self.model.gpus[uuid]
            case "class", str(name):
                group = self.model.groups[name]
                self.activity.count_time(group)
                self.turn.touch(group)
            case "hint", str(name):
                self.hints.review(self.model.groups[name])
            case "reservation", str(name):
                self.reservations.expire(self.model.groups[name])
            case "disk", _:
                self.disk.stale = True
            case "pool", _:
                self.host_reserve.asked = True
            case "client", int(number):
                self.leases.on_answer_timeout(self.model.clients[number])
            case "step", str(name):
                self.collectives.step(name)
            case "holding", (number, uuid):
                self.leases.retry_eviction(self.model.clients[number].holdings[uuid])
            case "rest", str(name):
                self.hibernation.check(self.model.groups[name])
            case "wake", int(number):
                self.hibernation.wake_again(self.model.clients[number])
