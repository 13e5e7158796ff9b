# SPDX-License-Identifier: BSD-3-Clause
"""The notices that the status shows."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Log, Notice
from .model import Model
from .turn import Turn


@dataclass(slots=True, eq=False)
class NoticeBoard:
    """Keeps the last notices."""

    model: Model
    turn: Turn

    def on_notice(self, event: Notice) -> None:
        """Keep a notice, and log it."""
        self.model.notices.append((self.turn.now, event))
        self.turn.decisions.append(
            Log("notice", event.group, {"code": event.code, "params": event.params})
        )
