# SPDX-License-Identifier: BSD-3-Clause
"""What policies see of the core: ``policy_api.View``."""

from __future__ import annotations

from .activity import ActivityClassifier
from .costs import Costs
from .model import Group, Model
from .usage import GpuTime


class PolicyView:
    """Answers a policy's questions. It changes nothing."""

    def __init__(
        self, model: Model, times: GpuTime, costs: Costs, classes: ActivityClassifier
    ) -> None:
        self._model = model
        self.queue, self.leased, self.gpus = model.queue, model.leased, model.gpus
        self.agents = model.agents
        self.times = times
        self.cost_quantum, self.due_since = costs.cost_quantum, classes.due_since
        self.clean, self.eviction_cost = costs.clean, costs.eviction_cost
        #: The time of the event that is being handled, seconds.
        self.now = 0.0

    @property
    def longest_quantum(self) -> float:
        """The upper bound of quanta that follow from costs, seconds."""
        return self._model.rules.longest_quantum

    @property
    def background_quantum(self) -> float:
        """How long a holder that must make way soon keeps its lease, seconds."""
        return self._model.rules.background_quantum

    def expected(self, group: Group) -> float:
        """Return for how many more seconds of GPU time a group's burst is expected to go on."""
        return group.burst.expected(self.now, group.busy > 0)
