# SPDX-License-Identifier: BSD-3-Clause
"""The time by which the disk tier finds out that a disk hangs."""

from __future__ import annotations

import time

#: Seconds that the disk may take for one thing. Clients give up after as long without a beat.
DEADLINE = 10.0
#: The most that counts as time between two looks: during a pause of this machine, the disk was paused, too.
LONGEST_LOOK = 1.0


class DiskClock:
    """Time without pauses of this machine."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self.now = 0.0

    def look(self) -> None:
        """Let time pass; called in each round of the tier."""
        now = time.monotonic()
        self.now += min(now - self._looked_at, LONGEST_LOOK)
        self._looked_at = now

    def is_late(self, since: float) -> bool:
        """Whether something that has been under way since then takes too long."""
        return self.now - since > DEADLINE
