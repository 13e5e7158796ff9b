# SPDX-License-Identifier: BSD-3-Clause
"""Notifications after a scheduling cycle."""

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
    """Notifies clients of what has changed for them."""

    turn: Turn
    timers: Timers
    policy: Guard
    host_reserve: HostReserve
    pacer: Pacer
    contention: ContentionNotices
    notices: NoticeBoard

    def run(self) -> None:
        """Notify clients of what has changed for them."""
        turn = self.turn
        # 1. Their paces.
        if turn.paces_stale or turn.pace_unsent:
            self.pacer.pace()
        # 2. The failure of a policy.
        if self.policy.failure is not None:
            self._tell_failure()
        # 3. The host memory to prepare.
        if turn.reserve_stale or self.host_reserve.asked:
            said, again = self.host_reserve.decide(turn.now, turn.reserve_stale)
            turn.decisions += said
            self.timers.set(("pool", ""), again)
            turn.reserve_stale.clear()
        # 4. Contention: whether other groups wait for their GPUs or run there.
        self.contention.notify_holders()
        # 5. Record since when groups are in the state that the status shows.
        for group in turn.touched.values():
            state = group.state
            if state != group.shown:
                group.shown, group.since = state, turn.now
        turn.touched.clear()
        # 6. Deal with the marks that are left at once: a grant may have changed the class of a group, and so the order.
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
