# SPDX-License-Identifier: BSD-3-Clause
"""Who hears how many wait for a GPU and hold a lease there: a crowd is told without looking at each of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

ClientT = TypeVar("ClientT")
ClientT_co = TypeVar("ClientT_co", covariant=True)


class _Wishes(Protocol):
    @property
    def exclusive(self) -> bool: ...


class Holder(Protocol[ClientT_co]):
    """A group that holds a lease, of which no more is known here, because the model keeps an ``Audience`` itself."""

    @property
    def id(self) -> str:
        """What it is known by."""
        ...

    @property
    def shares(self) -> Sized:
        """What it holds, by GPU."""
        ...

    @property
    def wishes(self) -> _Wishes:
        """What users asked for it."""
        ...

    @property
    def clients(self) -> Mapping[int, ClientT_co]:
        """Its processes, by number."""
        ...


@dataclass(slots=True)
class Audience(Generic[ClientT]):
    """The holders of one GPU, in the order in which they came to hold it."""

    #: Clients of those for whom nothing but this GPU counts: they are told the same.
    alike: dict[int, ClientT] = field(default_factory=dict)
    #: Groups that use others too, or go on whoever waits.
    apart: dict[str, Holder[ClientT]] = field(default_factory=dict)

    @classmethod
    def of(cls, holders: Iterable[Holder[ClientT]]) -> Audience[ClientT]:
        """Return that of these holders."""
        audience = cls()
        for group in holders:
            audience.add(group)
        return audience

    def add(self, group: Holder[ClientT]) -> None:
        """Take in that a group holds a lease."""
        if len(group.shares) > 1 or group.wishes.exclusive:
            self.apart[group.id] = group
        else:
            self.alike.update(group.clients)

    def remove(self, group: Holder[ClientT]) -> None:
        """Take in that a group holds none any longer."""
        self.apart.pop(group.id, None)
        for number in group.clients:
            self.alike.pop(number, None)
