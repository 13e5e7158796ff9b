# SPDX-License-Identifier: BSD-3-Clause
"""First come, first served; the longest idle loses its memory first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..state import Group, Wait


class FirstComeFirstServed:
    """The default policy."""

    name = "fcfs"

    def queue_rank(self, wait: Wait) -> tuple[float, ...]:
        """Order by age; what cannot move first: whoever waits for it is inside an allocation."""
        return (wait.since, 0 if wait.grow else 1, wait.number)

    def victim_rank(self, group: Group) -> tuple[float, ...]:
        """Order by idle time; of those that wait, the last in the queue first."""
        if group.wait is not None:
            return (1, -group.wait.since, -group.wait.number)
        return (0, group.idle_since, group.number)
