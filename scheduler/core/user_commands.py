# SPDX-License-Identifier: BSD-3-Clause
"""Handles commands of users and reports of their notebooks: cells, preferences, shares, focus, settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from msgspec import structs

from . import preferences as preferences
from .activity import Activity, ActivityClassifier
from .cell_queue import CellQueue
from .eviction_orders import EvictionOrders
from .hibernation import HibernationManager
from .hints import Hints
from .leases import Leases
from .messages import (
    Adjust,
    Cancel,
    CancelWaits,
    Cell,
    Configure,
    EndBurst,
    Entitle,
    Focus,
    Hold,
    Log,
    Maintain,
    Notice,
    Release,
    Rename,
)
from .model import Model, Preferences
from .notices import NoticeBoard
from .policy_guard import PolicyGuard
from .preferences import PreferenceStore
from .queue import WaitQueue
from .reservations import Reservations
from .turn import Turn
from .usage import GpuTime

#: The code of the notice with the administrators' message to all users.
MAINTENANCE = "maintenance"
#: The number of ended cells of a group that are remembered.
ENDED_CELLS = 32


@dataclass(slots=True, eq=False)
class UserCommands:
    """Handles commands of users and administrators."""

    model: Model
    turn: Turn
    times: GpuTime
    policy: PolicyGuard
    classes: ActivityClassifier
    preferences: PreferenceStore
    queue: WaitQueue
    activity: Activity
    cell_queue: CellQueue
    notices: NoticeBoard
    orders: EvictionOrders
    leases: Leases
    hibernation: HibernationManager
    hints: Hints
    reservations: Reservations

    def preferences_of(self, group: str) -> Preferences:
        """Return the preferences for the group with this id, even if it has no client at present."""
        found = self.model.groups.get(group)
        return self.preferences.load(group) if found is None else found.preferences

    def settings(self) -> dict[str, Any]:
        """Return the settings that can be changed. They are the same in every replay of the same events."""
        return {
            "quantum": self.model.rules.quantum,
            "anti_thrash": self.model.rules.anti_thrash,
            "policy": self.policy.name,
            "hibernate_after": self.model.rules.hibernate_after,
            "prefetch": self.model.rules.prefetch,
        }

    def on_cell(self, event: Cell) -> None:
        """Note that a cell began or ended."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        if event.phase == "begin":
            # The Jupyter server's report of a cell may arrive after the kernel's report of its end.
            if event.msg_id in group.ended_cells:
                return
            if event.msg_id in group.cells:
                if self.classes.note_origin(group, event.agent):
                    self.turn.touch(group)
                return
            group.cells[event.msg_id] = event.at
            if group.hibernation is not None:
                self.hibernation.request_wake(group)
            # Work until now was before this cell.
            self.activity.count_time(group)
            self.classes.begin_cell(group, self.turn.now, event.agent)
            self.hints.note(group, "cell")
            self.cell_queue.begin_cell(group)
            self.turn.record("cell", group, phase="begin", msg_id=event.msg_id)
            return
        if event.msg_id in group.ended_cells:
            return
        if not group.metered:
            self.activity.count_time(group)
        group.cells.pop(event.msg_id, None)
        self.classes.end_cell(group, self.turn.now)
        group.active_at = self.turn.now
        self.turn.touch(group)
        group.ended_cells[event.msg_id] = None
        if len(group.ended_cells) > ENDED_CELLS:
            del group.ended_cells[next(iter(group.ended_cells))]
        self.turn.log("cell", group, phase="end", msg_id=event.msg_id)
        if not group.cells:
            self.cell_queue.end_cell(group)
        if not group.cells and event.at >= group.exclusive_at:
            self.leases.end_exclusive(group)
        if not group.cells and not group.busy and group.ended_at is None:
            # It went quiet first, and now the burst is over.
            group.ended_at = self.turn.now
        # The Jupyter kernel reports the end of a burst itself. For the Jupyter server, it ends with the last open cell.
        if not event.from_kernel and not group.cells:
            for client in group.granted.values():
                if client.busy and client.burst_at <= event.at:
                    self.turn.decisions.append(EndBurst(client.number, event.at))

    def on_cancel(self, event: Cancel) -> None:
        """Cancel the waits of a group, as its user wants."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        for wait in self.queue.waits_of(group):
            self.queue.dequeue(wait)
        for gpu in self.model.gpus.values():
            gpu.delayed_growth = [
                d for d in gpu.delayed_growth if d.grow.client not in group.clients
            ]
        for client in group.clients.values():
            client.wants = False
            self.turn.decisions.append(CancelWaits(client.number))
        self.hibernation.cancel_wakes(group)
        if group.reservation is not None:
            self.reservations.end(group, "cancelled")
        self.turn.record("cancel", group)

    def on_release(self, event: Release) -> None:
        """End a group's burst, as its user wants."""
        group = self.model.groups.get(event.group)
        if group is None:
            return
        self.turn.touch(group)
        self.hints.drop(group)
        if group.reservation is not None:
            self.reservations.end(group, "cancelled")
        group.evict_on_release = group.evict_on_release or event.evict
        if group.exclusive:
            self.leases.end_exclusive(group)
        if group.lease is not None:
            group.ended_at = self.turn.now - self.model.rules.debounce
            self.leases.revoke(group)
        elif group.evict_on_release:
            self.orders.evict_all(group)

    def on_rename(self, event: Rename) -> None:
        """Change the name of a group."""
        group = self.model.groups.get(event.group)
        if group is not None:
            group.name = event.name

    def on_adjust(self, event: Adjust) -> None:
        """Change a user's preferences for a group."""
        group = self.model.groups.get(event.group)
        if group is None and not event.later:
            raise ValueError(f"no group on the GPU has the id {event.group!r}")
        before = self.preferences_of(event.group)
        after = preferences.adjusted(before, event)
        if group is None:
            # A preference for one cell is not for a process that has none yet.
            after = replace(after, exclusive=False)
        self._apply(event.group, before, after)

    def on_hold(self, event: Hold) -> None:
        """An administrator puts a group on hold, or ends that."""
        before = self.preferences_of(event.group)
        self._apply(event.group, before, replace(before, on_hold=event.on))

    def _apply(self, name: str, before: Preferences, after: Preferences) -> None:
        """Apply changed preferences to a group."""
        if after == before:
            return
        self.preferences.store(name, after)
        self.turn.decisions.append(Log("adjust", name, {"preferences": asdict(after)}))
        group = self.model.groups.get(name)
        if group is None:
            return
        group.preferences = after
        self.turn.notify_again(group)
        if after.exclusive and not before.exclusive:
            group.exclusive_at = self.turn.now
        if after.keep:
            group.hibernate_asked_at = None
        self.times.of(group)
        self.turn.paces_stale.update(self.model.gpus)
        self.turn.touch(group)
        if group.wait is not None:
            self.turn.contention_stale.update(self.turn.dirty)
        if after.stopped:
            self.leases.revoke(group)

    def on_entitle(self, event: Entitle) -> None:
        """Set an entitlement."""
        preferences.check(event)
        self.times.entitle(event.whose, event.entitlement, event.members)
        for group in self.model.groups.values():
            # Otherwise the first reader would do this, and a status must not change anything.
            self.times.of(group)
        self.turn.quotas_stale = True
        self.turn.paces_stale.update(self.model.gpus)
        self.turn.dirty.update(self.model.gpus)
        self.turn.decisions.append(
            Log("entitle", "", {"whose": event.whose, **structs.asdict(event.entitlement),
                                "members": list(event.members)})
        )  # fmt: skip

    def on_maintain(self, event: Maintain) -> None:
        """Set the administrators' message to all users."""
        if event.text == self.model.maintenance:
            return
        self.model.maintenance = event.text
        self.notices.withdraw(lambda notice: notice.code == MAINTENANCE)
        if event.text:
            self.notices.on_notice(Notice("", MAINTENANCE, {"text": event.text}))
        else:
            self.turn.decisions.append(Log("maintenance", "", {"text": ""}))

    def on_focus(self, event: Focus) -> None:
        """Note which notebook is in front of a user."""
        before = self.model.focus.pop(event.user, "")
        if event.group:
            self.model.focus[event.user] = event.group
        for group_id in {before: None, event.group: None} if before != event.group else ():
            group = self.model.groups.get(group_id)
            if group is not None:
                group.focused = self.model.focus.get(group.user) == group.id
                self.queue.rank_again(group)
                self.turn.touch(group)

    def on_configure(self, event: Configure) -> None:
        """Change settings."""
        changes = {
            name: value
            for name in ("quantum", "anti_thrash", "policy", "hibernate_after", "prefetch")
            if (value := getattr(event, name)) is not None
        }
        rules = replace(self.model.rules, **changes)
        if event.policy is not None and event.policy != self.policy.name:
            self.policy.use(event.policy)
            self.queue.sort()
        self.model.rules = rules
        if event.hibernate_after is not None:
            self.hibernation.schedule_all()
        self.turn.paces_stale.update(self.model.gpus)
        self.turn.dirty.update(self.model.gpus)
        self.turn.decisions.append(Log("settings", "", self.settings()))
