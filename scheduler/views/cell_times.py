# SPDX-License-Identifier: BSD-3-Clause
"""How long the cells of groups occupy the GPU, from the recent ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean, pvariance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .timeline import GroupSnapshot

#: The number of cells of each group that are remembered.
CELLS = 16


class CellTimes:
    """Records how long cells occupy the GPU: from when they first have work there until they end."""

    def __init__(self) -> None:
        #: By group and msg_id: since when each open cell has occupied the GPU; None: it has not.
        self._open: dict[str, dict[str, float | None]] = {}
        self._lengths: dict[str, deque[float]] = {}

    def observe(self, seen: GroupSnapshot) -> None:
        """Apply the new state of a group."""
        if seen.left:
            self.forget(seen.group)
            return
        before = self._open.get(seen.group, {})
        for cell, since in before.items():
            if cell not in seen.cells:
                # A cell that uses no GPU counts, too, because some of the queued cells will use none either.
                length = 0.0 if since is None else seen.time - since
                self._lengths.setdefault(seen.group, deque(maxlen=CELLS)).append(length)
        now_open: dict[str, float | None] = {}
        for cell, began in seen.cells.items():
            since = before.get(cell)
            if since is None and seen.leased and seen.ran_since is not None:
                since = max(began, seen.ran_since)
            now_open[cell] = since
        self._open[seen.group] = now_open

    def learnt(self) -> dict[str, tuple[float, ...]]:
        """Return the lengths of each group's recent cells, oldest first."""
        return {group: tuple(lengths) for group, lengths in self._lengths.items()}

    def recall(self, learnt: Mapping[str, Iterable[float]]) -> None:
        """Apply the lengths that another scheduler has learnt."""
        for group, lengths in learnt.items():
            self._lengths[group] = deque(lengths, maxlen=CELLS)

    def forget(self, group: str) -> None:
        """Forget a group that has left."""
        self._open.pop(group, None)
        self._lengths.pop(group, None)

    def usual(self, group: str) -> tuple[float, float] | None:
        """Return the mean length of a group's recent cells in seconds, and the variance; None: there were none."""
        lengths = self._lengths.get(group)
        return None if not lengths else (fmean(lengths), pvariance(lengths))

    def so_far(self, group: str, now: float) -> float:
        """Return for how long a group's open cell has occupied the GPU."""
        begun = [at for at in self._open.get(group, {}).values() if at is not None]
        return max(0.0, now - max(begun, default=now))
