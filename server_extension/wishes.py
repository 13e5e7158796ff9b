# SPDX-License-Identifier: BSD-3-Clause
"""Remembers what people asked for their groups, for the scheduler that comes after this one."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict
from typing import Any

from ..scheduler.core import model as state

#: Most groups whose wishes are remembered; the oldest are forgotten.
MAX_GROUPS = 1000

#: What nobody wished. A whole cell's lease (``exclusive``) ends with the scheduler that gave it, and what an
#: administrator does (``held``) is not for us to say.
NONE = {
    name: none for name, none in asdict(state.Wishes()).items() if name not in ("exclusive", "held")
}


class Wishes:
    """The wishes of groups by id, as the scheduler last told them."""

    def __init__(self) -> None:
        self._wishes: dict[str, dict[str, Any]] = {}

    def note(self, group: str, wishes: dict[str, Any]) -> None:
        """Remember a group's wishes as they are now."""
        self._wishes.pop(group, None)
        kept = _kept(wishes)
        if kept != NONE:
            self._wishes[group] = kept
            if len(self._wishes) > MAX_GROUPS:
                del self._wishes[next(iter(self._wishes))]

    def forget(self, group: str) -> None:
        """Forget a group that does not come back."""
        self._wishes.pop(group, None)

    def untold(self, status: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return what a new scheduler has not been told: of a group that has wishes there, somebody may know better."""
        told = {group["id"] for group in status["groups"] if _kept(group["wishes"]) != NONE}
        return {group: kept for group, kept in self._wishes.items() if group not in told}

    def learn(self, groups: Iterable[dict[str, Any]], but: Container[str]) -> None:
        """Take the wishes of groups as a scheduler has them, but for some."""
        for group in groups:
            if group["id"] not in but:
                self.note(group["id"], group["wishes"])


def _kept(wishes: dict[str, Any]) -> dict[str, Any]:
    return {name: wishes.get(name, none) for name, none in NONE.items()}
