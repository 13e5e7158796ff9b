# SPDX-License-Identifier: BSD-3-Clause
"""The notices that the status shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .messages import Log, Notice
from .model import Model
from .turn import Turn


@dataclass(slots=True, eq=False)
class NoticeBoard:
    """Keeps the last notices."""

    model: Model
    turn: Turn

    def withdraw(self, matches: Callable[[Notice], bool]) -> None:
        """Remove the notices that match."""
        kept = [told for told in self.model.notices if not matches(told[1])]
        self.model.notices.clear()
        self.model.notices.extend(kept)

    def on_notice(self, event: Notice) -> None:
        """Keep a notice, and log it."""
        self.model.notices.append((self.turn.now, event))
        self.turn.decisions.append(
            Log("notice", event.group, {"code": event.code, "params": event.params})
        )
