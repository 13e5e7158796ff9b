# SPDX-License-Identifier: BSD-3-Clause
"""First come, first served; the longest idle loses its memory first, the background before the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..state import Group, Wait


class FirstComeFirstServed:
    """The default policy."""

    name = "fcfs"

    def queue_rank(self, wait: Wait) -> tuple[float, ...]:
        """Order by age; what cannot move first: whoever waits for it is inside an allocation."""
        return (wait.since + wait.delay, 0 if wait.grow else 1, wait.number)

    def victim_rank(self, group: Group) -> tuple[float, ...]:
        """Order by idle time; of those that wait, the last in the queue first. What people keep comes last."""
        wishes, wait = group.wishes, group.wait
        kept = wishes.keep and not wishes.frozen
        interactive = wishes.priority == "interactive"
        if wait is not None and not wait.frozen:
            return (kept, 1, interactive, -wait.since - wait.delay, -wait.number)
        return (kept, 0, interactive, group.idle_since, group.number)
