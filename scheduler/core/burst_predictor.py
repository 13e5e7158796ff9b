# SPDX-License-Identifier: BSD-3-Clause
"""How long a burst, or an absence, is expected to go on, from how long the group's recent ones lasted. In seconds."""

from __future__ import annotations

from collections import deque


class Predictor:
    """Remembers the last bursts of each group.

    Parameters
    ----------
    unknown
        What is expected of a group of which no burst is known.
    remembered
        How many bursts of each group count.
    fading
        How much less a burst counts than the one after it.
    """

    def __init__(self, unknown: float = 1.0, remembered: int = 16, fading: float = 0.85) -> None:
        self.unknown, self.remembered, self.fading = unknown, remembered, fading
        self._bursts: dict[str, deque[float]] = {}

    def remember(self, group_id: str, seconds: float) -> None:
        """Remember one that ended after so many seconds."""
        bursts = self._bursts.get(group_id)
        if bursts is None:
            bursts = self._bursts[group_id] = deque(maxlen=self.remembered)
        bursts.append(seconds)

    def expected(self, group_id: str, so_far: float) -> float:
        """Return for how long a burst is expected to go on that has lasted so far.

        Bursts are heavy-tailed: one that has outlived most is likely to be one of the long ones. So only those that
        lasted longer count, and with the weight of those that it outlived, that it lasts as long again.
        """
        bursts = self._bursts.get(group_id)
        if not bursts:
            return max(self.unknown, so_far)
        weight, longer, outlived, rest = 1.0, 0.0, 0.0, 0.0
        for seconds in reversed(bursts):
            if seconds > so_far:
                longer += weight
                rest += weight * (seconds - so_far)
            else:
                outlived += weight
            weight *= self.fading
        doubt = outlived / (outlived + longer)
        return (rest + doubt * so_far) / (longer + doubt)

    def forget(self, group_id: str) -> None:
        """The group is gone."""
        self._bursts.pop(group_id, None)
