# SPDX-License-Identifier: BSD-3-Clause
"""Logs waits, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import reasons
from .model import Model, Wait
from .plan import Plan
from .planner import Planner
from .queue import WaitQueue
from .reasons import Sources
from .turn import Turn


@dataclass(slots=True, eq=False)
class WaitLog:
    """Logs the waits that were not served at once."""

    model: Model
    turn: Turn
    sources: Sources
    planner: Planner
    queue: WaitQueue

    def log_waits(self, plans: Mapping[Wait, Plan]) -> None:
        """Those who were not served at once do wait, unless only a reading is out."""
        if not self.queue.new:
            return
        explainer = reasons.Explainer(self.sources, self.turn.now, plans)
        for wait in list(self.queue.new):
            if any(
                g.asked_at is not None for g in wait.among(self.model.gpus)
            ) and self.planner.fits(wait):
                continue
            self.queue.new.remove(wait)
            wait.logged = True
            for gpu in wait.among(self.model.gpus):
                self.turn.crowded[gpu.uuid] = gpu
            self.turn.log("wait", wait.group, reason=explainer.reason(wait))
