# SPDX-License-Identifier: BSD-3-Clause
"""What clients are told after a cycle."""

from __future__ import annotations

from dataclasses import dataclass

from .contention import ContentionNotices
from .host_reserve import HostReserve
from .messages import Notice
from .notices import NoticeBoard
from .pacing import Pacer
from .policy_guard import Guard
from .timers import Timers
from .turn import Turn


@dataclass(slots=True, eq=False)
class Announcements:
    """Tells clients what has changed for them."""

    turn: Turn
    timers: Timers
    policy: Guard
    host_reserve: HostReserve
    pacer: Pacer
    contention: ContentionNotices
    notices: NoticeBoard

    def run(self) -> None:
        """Tell clients what has changed for them."""
        turn = self.turn
        # 1. How fast they may submit.
        if turn.paces_stale or turn.pace_unsent:
            self.pacer.pace()
        # 2. That a policy failed.
        if self.policy.failure is not None:
            self._tell_failure()
        # 3. How much host memory to have ready.
        if turn.reserve_stale or self.host_reserve.asked:
            said, again = self.host_reserve.decide(turn.now, turn.reserve_stale)
            turn.decisions += said
            self.timers.set(("stock", ""), again)
            turn.reserve_stale.clear()
        # 4. Whether other groups wait for their GPUs or run there.
        self.contention.notify_holders()
        # 5. Since when groups are in the state that the status shows.
        for group in turn.touched.values():
            state = group.state
            if state != group.shown:
                group.shown, group.since = state, turn.now
        turn.touched.clear()
        # 6. Marks that are left are dealt with at once: a grant changed what a group counts as, and so the order.
        if turn.dirty:
            self.timers.set(("again", ""), turn.now)

    def _tell_failure(self) -> None:
        failure, self.policy.failure = self.policy.failure, None
        if failure is not None:
            name, error = failure
            self.notices.on_notice(
                Notice(
                    "",
                    "policy_failed",
                    {"policy": name, "error": error, "instead": self.policy.name},
                )
            )
