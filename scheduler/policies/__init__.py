# SPDX-License-Identifier: BSD-3-Clause
"""Policies order the queue and the victims, nothing else: one small file each, registered by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .fcfs import FirstComeFirstServed

if TYPE_CHECKING:
    from ..state import Group, Wait

#: What a policy sorts by: smaller comes first.
Rank = tuple[float, ...]


class Policy(Protocol):
    """The choices that are not a matter of correctness. The core's hard rules hold under any."""

    name: str

    def queue_rank(self, wait: Wait) -> Rank:
        """Order of the waiting; must not change while one waits, and must let nobody pass forever.

        ``Wait.delay`` is how much later than it came it is to count; where that changes, the core places it anew.
        """
        ...

    def victim_rank(self, group: Group) -> Rank:
        """Order in which groups lose memory, among those that are equally free to lose it."""
        ...


POLICIES: dict[str, type[Policy]] = {FirstComeFirstServed.name: FirstComeFirstServed}
