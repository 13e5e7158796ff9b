# SPDX-License-Identifier: BSD-3-Clause
"""Handles commands about hibernation, and whether the machine supports it."""

from __future__ import annotations

from dataclasses import dataclass

from .eligibility import unfit_code
from .hibernation import TEXTS, HibernationManager
from .hints import Hints
from .messages import (
    Hibernatable,
    HibernateNow,
    WakeNow,
)
from .model import Group, Model
from .reservations import Reservations
from .turn import Turn


@dataclass(slots=True, eq=False)
class HibernationCommands:
    """Handles commands to hibernate and to wake, and whether the machine supports it."""

    model: Model
    turn: Turn
    hibernation: HibernationManager
    hints: Hints
    reservations: Reservations

    def on_hibernatable(self, event: Hibernatable) -> None:
        """Note whether processes can hibernate on this machine."""
        self.model.hibernatable = event
        for group in self.model.groups.values():
            # Handle the commands that arrived before this was known.
            if group.hibernate_asked_at is None or group.hibernation is not None:
                continue
            if event.able:
                self.hibernation.check(group)
            else:
                self.hibernation.refuse(group, event.code, event.text)
                self.turn.touch(group)
        self.hibernation.schedule_all()
        self.turn.dirty.update(self.model.gpus)

    def on_hibernate_now(self, event: HibernateNow) -> None:
        """Have a group hibernate, as its user wants."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        if group.hibernation is not None:
            self._give_up(group)
            # It may still be stopped on the way; and a group that wakes will be idle again.
            on_the_way = group.hibernation.stage != "hibernated"
            group.hibernate_asked_at = self.turn.now if on_the_way else None
            return
        if self.model.rules.hibernate_after is None:
            raise ValueError(
                f"{group.name} does not hibernate: hibernation is switched off; an administrator can switch it on: "
                "gpushare set --hibernate-after 600"
            )
        found = self.model.hibernatable
        if found is not None and not found.able:
            raise ValueError(f"nothing can hibernate here: {found.text}")
        if group.preferences.keep:
            raise ValueError(
                f"{group.name} does not hibernate: its memory is to stay on the GPU (keep); end that first"
            )
        if code := unfit_code(group):
            raise ValueError(f"{group.name} does not hibernate: {TEXTS[code]}")
        self._give_up(group)
        # An earlier refusal no longer counts: its cause may be gone.
        group.unfit = None
        group.hibernate_asked_at = self.turn.now
        if found is not None:
            self.hibernation.check(group)

    def _give_up(self, group: Group) -> None:
        """End what would keep a group from hibernating, because its user has changed their mind."""
        self.hints.drop(group)
        if group.reservation is not None:
            self.reservations.end(group, "cancelled")

    def on_wake_now(self, event: WakeNow) -> None:
        """Have a group wake, as its user wants."""
        group = self.model.groups.get(event.group)
        if group is not None:
            group.hibernate_asked_at = None
            self.hibernation.request_wake(group)
