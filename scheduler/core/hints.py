# SPDX-License-Identifier: BSD-3-Clause
"""Handles signs that groups will soon use the GPU, and notes whether that happens."""

from __future__ import annotations

from dataclasses import dataclass

from .likelihood import UseLikelihood
from .messages import Hint, Sign
from .model import Group, Model
from .timers import Timers
from .turn import Turn


@dataclass(slots=True, eq=False)
class Hints:
    """Follows the hints of each group."""

    model: Model
    turn: Turn
    timers: Timers
    likelihood: UseLikelihood

    def on_hint(self, event: Hint) -> None:
        """Handle a hint of a notebook or its user."""
        group = self.model.groups.get(event.group)
        if group is not None:
            self.note(group, event.kind)

    def note(self, group: Group, sign: Sign) -> None:
        """Note a hint, unless the group is at work already, or nothing would follow from it."""
        if not self.model.rules.prefetch or group.busy or group.wait is not None:
            return
        self.likelihood.hint(group.id, sign, self.turn.now)
        self._schedule(group)
        self.turn.touch(group)

    def note_use(self, group: Group) -> None:
        """Note that a group's GPU work begins."""
        if group.id in self.model.hinted:
            self.likelihood.use(group.id, self.turn.now)
            self.timers.set(("hint", group.id), None)

    def drop(self, group: Group) -> None:
        """Drop the hints of a group that cannot get ready, so that this is not tried again."""
        self.likelihood.drop(group.id)
        self.timers.set(("hint", group.id), None)

    def review(self, group: Group) -> None:
        """End the hints of a group that no longer count. Another one may count from now on."""
        self.likelihood.expire(group.id, self.turn.now)
        self._schedule(group)
        self.turn.touch(group)

    def forget(self, group: Group) -> None:
        """Forget a group that has left."""
        self.likelihood.forget(group.id)
        self.timers.set(("hint", group.id), None)

    def _schedule(self, group: Group) -> None:
        when = self.likelihood.next_change(group.id, self.turn.now)
        self.timers.set(("hint", group.id), when)
