# SPDX-License-Identifier: BSD-3-Clause
"""What policies see of the core: ``policy_api.View``."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import Classes
from .burst_predictor import Predictor
from .costs import Costs
from .messages import Class
from .model import Gpu, Group, Model, Wait
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class PolicyView:
    """Answers what policies ask. It changes nothing."""

    model: Model
    turn: Turn
    times: GpuTime
    costs: Costs
    classes: Classes
    predictor: Predictor

    @property
    def now(self) -> float:
        """The time of the event that is handled, seconds."""
        return self.turn.now

    @property
    def queue(self) -> list[Wait]:
        """The waits, in order."""
        return self.model.queue

    @property
    def leased(self) -> dict[str, Group]:
        """The groups that hold a lease, by id."""
        return self.model.leased

    @property
    def gpus(self) -> dict[str, Gpu]:
        """All GPUs, by UUID."""
        return self.model.gpus

    @property
    def longest_quantum(self) -> float:
        """Bound of quanta that follow from costs, seconds."""
        return self.model.rules.longest_quantum

    @property
    def background_quantum(self) -> float:
        """For how long a holder that has to make way soon is left alone, seconds."""
        return self.model.rules.background_quantum

    def class_of(self, group: Group) -> Class:
        """Return what a group counts as."""
        return group.classed

    def expected(self, group: Group) -> float:
        """Return for how many seconds of GPU time its burst is expected to go on."""
        return self.predictor.expected(group.id, group.burst.so_far(self.turn.now, group.busy > 0))

    def cost_quantum(self, group: Group) -> float:
        """Return the quantum that follows from what it costs to move a group's footprint, seconds."""
        return self.costs.cost_quantum(group)

    def footprint_cost(self, group: Group) -> float:
        """Return the seconds that it takes to move a group's footprint one way."""
        return self.costs.footprint_cost(group)

    def move_cost(self, group: Group) -> float:
        """Return the seconds that it takes to bring in what a group lacks."""
        return self.costs.move_cost(group)

    def due_since(self, group: Group) -> float | None:
        """Return when its cell began, if that is expected to use the GPU and has not yet."""
        return self.classes.due_since(group)

    def focused(self, group: Group) -> bool:
        """Whether it is in front of its user."""
        return self.model.focus.get(group.user) == group.id
