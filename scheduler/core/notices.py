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

    def report_policy_failure(self, name: str, error: str, instead: str) -> None:
        """Add the notice that a policy failed, and which one replaces it."""
        params = {"policy": name, "error": error, "instead": instead}
        self.on_notice(Notice("", "policy_failed", params))

    def withdraw(self, matches: Callable[[Notice], bool]) -> None:
        """Remove the notices that match."""
        kept = [entry for entry in self.model.notices if not matches(entry[1])]
        self.model.notices.clear()
        self.model.notices.extend(kept)

    def on_notice(self, event: Notice) -> None:
        """Keep a notice, and log it."""
        self.model.notices.append((self.turn.now, event))
        self.turn.decisions.append(
            Log("notice", event.group, {"code": event.code, "params": event.params})
        )
