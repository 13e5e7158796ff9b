# SPDX-License-Identifier: BSD-3-Clause
"""The cells that wait in a group's Jupyter kernel.

About 4 ms pass between two cells of a "Run All". A group that is between two cells keeps its lease and its memory for
the next one, as long as its time slice lasts (``Residency``). The number of cells is only a hint, so this ends after
``next_cell`` seconds if no cell begins, and ``first_work`` after its begin if the cell submits no work.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hints import Hints
from .messages import Queued
from .model import Group, Model
from .turn import Turn


@dataclass(slots=True, eq=False)
class CellQueue:
    """Follows which groups are between two cells."""

    model: Model
    turn: Turn
    hints: Hints

    def on_queued(self, event: Queued) -> None:
        """Note how many cells wait in a group's Jupyter kernel."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        if event.count and group.cells:
            self.hints.note(group, "queued")
        changed = (group.queued > 0) != (event.count > 0)
        group.queued = event.count
        if changed:
            if not (group.queued or group.cells):
                group.next_cell_by = 0.0
            self.turn.touch(group)

    def end_cell(self, group: Group) -> None:
        """Note that a group has no open cell any more, or that the burst of its cell has ended."""
        group.next_cell_by = self.turn.now + self.model.rules.next_cell if group.queued else 0.0

    def begin_cell(self, group: Group) -> None:
        """Note that a cell begins, which may have been queued."""
        if group.next_cell_by > self.turn.now:
            group.next_cell_by = self.turn.now + self.model.rules.first_work
