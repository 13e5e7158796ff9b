# SPDX-License-Identifier: BSD-3-Clause
"""Remembers the preferences that users set for their groups, for the next scheduler."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict
from typing import Any

from ..scheduler.core import model as state

#: Maximum number of groups whose preferences are remembered; the oldest are forgotten.
MAX_GROUPS = 1000

#: The defaults. A whole cell's lease (``exclusive``) ends with the scheduler that gave it, and what an
#: administrator does (``on_hold``) is not for us to repeat.
NONE = {
    name: none
    for name, none in asdict(state.Preferences()).items()
    if name not in ("exclusive", "on_hold")
}


class Preferences:
    """The preferences of groups by id, as the scheduler last reported them."""

    def __init__(self) -> None:
        self._preferences: dict[str, dict[str, Any]] = {}

    def note(self, group: str, preferences: dict[str, Any]) -> None:
        """Remember a group's preferences as they are now."""
        self._preferences.pop(group, None)
        kept = _kept(preferences)
        if kept != NONE:
            self._preferences[group] = kept
            if len(self._preferences) > MAX_GROUPS:
                del self._preferences[next(iter(self._preferences))]

    def forget(self, group: str) -> None:
        """Forget a group that does not come back."""
        self._preferences.pop(group, None)

    def untold(self, status: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the preferences that a new scheduler lacks, except for groups for which it already has some."""
        told = {group["id"] for group in status["groups"] if _kept(group["preferences"]) != NONE}
        return {group: kept for group, kept in self._preferences.items() if group not in told}

    def learn(self, groups: Iterable[dict[str, Any]], but: Container[str]) -> None:
        """Take over the preferences of groups as a scheduler has them, except for the groups in ``but``."""
        for group in groups:
            if group["id"] not in but:
                self.note(group["id"], group["preferences"])


def _kept(preferences: dict[str, Any]) -> dict[str, Any]:
    return {name: preferences.get(name, none) for name, none in NONE.items()}
