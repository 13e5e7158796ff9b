# SPDX-License-Identifier: BSD-3-Clause
"""What policies see of the core: ``policy_api.View``."""

from __future__ import annotations

from .activity import Classes
from .costs import Costs
from .messages import Class
from .model import Group, Model
from .turn import Turn
from .usage import GpuTime


class PolicyView:
    """Answers a policy's questions. It changes nothing."""

    def __init__(
        self, model: Model, turn: Turn, times: GpuTime, costs: Costs, classes: Classes
    ) -> None:
        self._model, self._turn = model, turn
        self.queue, self.leased, self.gpus = model.queue, model.leased, model.gpus
        self.times = times
        self.cost_quantum, self.footprint_cost = costs.cost_quantum, costs.footprint_cost
        self.move_cost = costs.move_cost
        self.due_since = classes.due_since

    @property
    def now(self) -> float:
        """The time of the event that is handled, seconds."""
        return self._turn.now

    @property
    def longest_quantum(self) -> float:
        """The upper bound of quanta that follow from costs, seconds."""
        return self._model.rules.longest_quantum

    @property
    def background_quantum(self) -> float:
        """How long a holder that must make way soon keeps its lease, seconds."""
        return self._model.rules.background_quantum

    def class_of(self, group: Group) -> Class:
        """Return the class of a group."""
        return group.classed

    def expected(self, group: Group) -> float:
        """Return for how many more seconds of GPU time a group's burst is expected to go on."""
        return group.burst.expected(self._turn.now, group.busy > 0)

    def focused(self, group: Group) -> bool:
        """Whether a group's notebook is the one in front of its user."""
        return self._model.focus.get(group.user) == group.id
