# SPDX-License-Identifier: BSD-3-Clause
"""Who hears how many wait for a GPU and hold a lease there: a crowd is told without looking at each of its groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Client, Group


@dataclass(slots=True)
class Audience:
    """The holders of one GPU, in the order in which they came to hold it."""

    #: Clients of those for whom nothing but this GPU counts: they are told the same.
    alike: dict[int, Client] = field(default_factory=dict)
    #: Groups that use others too, or go on whoever waits.
    apart: dict[str, Group] = field(default_factory=dict)

    @classmethod
    def of(cls, holders: Iterable[Group]) -> Audience:
        """Return that of these holders."""
        audience = cls()
        for group in holders:
            audience.add(group)
        return audience

    def add(self, group: Group) -> None:
        """Take in that a group holds a lease."""
        if len(group.shares) > 1 or group.wishes.exclusive:
            self.apart[group.id] = group
        else:
            self.alike.update(group.clients)

    def remove(self, group: Group) -> None:
        """Take in that a group holds none any longer."""
        self.apart.pop(group.id, None)
        for number in group.clients:
            self.alike.pop(number, None)
