# SPDX-License-Identifier: BSD-3-Clause
"""How long groups keep their leases and their memory: the protection that ``core.py`` describes."""

from __future__ import annotations

from dataclasses import dataclass

from .costs import Costs
from .model import Group, Model, Share, Wait
from .policy_guard import PolicyGuard
from .queue import place
from .turn import Turn


@dataclass(slots=True, eq=False)
class Residency:
    """Computes from when on leases and memory may be taken."""

    model: Model
    turn: Turn
    policy: PolicyGuard
    costs: Costs

    @property
    def one_at_a_time(self) -> bool:
        """Whether only one lease at a time is granted on a GPU, even if several fit."""
        return self.model.rules.anti_thrash == "on" or self.policy.serialises

    def _precedes(self, wait: Wait, group: Group) -> bool:
        """Whether a group must soon make way for a wait."""
        own, other = group.activity_class, wait.group.activity_class
        if own == "agent":
            return wait.group.attended
        return wait.group.user == group.user and own == "background" and other != "background"

    def quantum_of(self, group: Group, wait: Wait | None = None) -> float:
        """Return the seconds for which a running holder keeps its lease while another group waits."""
        if group.exclusive:
            return self.model.rules.exclusive_limit
        if self.model.rules.quantum != "auto":
            length = self.model.rules.quantum
        else:
            wanted = self.policy.quantum(group, wait)
            if wanted is not None:
                return min(max(wanted, 0.0), self.model.rules.longest_turn)
            length = self.costs.cost_quantum(group)
        if wait is not None and self._precedes(wait, group):
            length = min(length, self.model.rules.background_quantum)
        return length

    def quantum_end(self, group: Group, wait: Wait | None = None) -> float:
        """Return when a running holder may be revoked for a wait; by default, for the first one."""
        if wait is None:
            wait = self.first_from(group)
        kept = None if group.reservation is None else group.reservation.until
        # A reservation keeps its time, but no person waits longer for that of an agent.
        if kept is not None and not (wait is not None and self._precedes(wait, group)):
            return kept
        end = group.turn_at + self.quantum_of(group, wait)
        if group.state == "restoring":
            # Its clock starts when its memory has been restored, but an endless restore must not block others.
            end += max(1.0, self.model.rules.residency_factor * group.footprint_cost)
        return end

    def first_from(self, group: Group) -> Wait | None:
        """Return the first wait of another group for a GPU of this group."""
        found = [
            next((w for w in s.gpu.queue if w.group is not group and w.counts(self.turn.now)), None)
            for s in group.shares.values()
        ]
        return min((w for w in found if w is not None), key=place, default=None)

    def residency(self, group: Group, wait: Wait | None = None) -> float:
        """Return the seconds for which a group's memory stays once it is resident."""
        quantum = self.quantum_of(group, wait)
        if group.exclusive:
            return quantum
        return min(self.costs.worth_moving(group), quantum)

    def expects_cell(self, group: Group) -> bool:
        """Whether a group keeps its lease for the work of a cell that is queued, or has just begun."""
        return (
            group.next_cell_by > self.turn.now
            and group.lease is not None
            and not (group.yielding or group.preferences.stopped)
        )

    def queued_cells(self, group: Group) -> int:
        """Return the number of cells that will probably follow: 0 if none runs or is about to begin."""
        return group.queued if group.cells or self.expects_cell(group) else 0

    def next_cell_by(self, group: Group, wait: Wait | None = None) -> float:
        """Return until when a group that does not run keeps its lease for its next cell; 0: it expects none.

        That is no later than a running holder would keep it. So a number of queued cells that is wrong delays a wait
        by little.
        """
        if not self.expects_cell(group):
            return 0.0
        return min(group.next_cell_by, self.quantum_end(group, wait))

    def movable_at(self, group: Group, wait: Wait | None = None) -> float:
        """Return when the memory of a group that does not run may be taken."""
        if group.turn == 0 or group.lease_ahead or group.preferences.stopped:
            return 0.0
        if group.lease is None and not group.intact:
            # Part of it was evicted already. The rest is of no use, since the group cannot run before the others
            # anyway.
            return 0.0
        held = self.next_cell_by(group, wait)
        if group.ended_at is not None and not group.cells:
            return max(group.ended_at + self.model.rules.debounce, held)
        stays = group.turn_at + self.residency(group, wait)
        if wait is None or group.away_since is None or group.exclusive:
            return max(stays, held)
        return max(held, min(stays, group.away_since + self._patience(group, wait)))

    def _patience(self, group: Group, wait: Wait) -> float:
        """Return the seconds without work after which a group's memory is taken for a wait.

        An absence that lasts as long as the move has cost as much as the move. Waiting for that long costs at most
        twice as much as knowing the length in advance (ski rental). If the absence is expected to last longer, the wait
        ends as soon as it is clear that it is not one of the group's short ones.
        """
        cost = 0.0
        for uuid in wait.gpus:
            share = group.shares.get(uuid)
            if share is not None:
                lack = max(0, self.model.need(wait, share.gpu) - share.gpu.free)
                cost = max(cost, self.costs.absence_cost(share, min(share.resident, lack)))
        short = cost / 10
        known = group.absences.expected(short) >= cost
        return max(self.model.rules.debounce, short if known else cost)

    def evictable_at(self, share: Share, wait: Wait | None = None) -> float:
        """Return when the memory of a group without a lease may be taken."""
        stuck = max((h.stuck_until for h in share.holdings.values() if not h.lost), default=0.0)
        return max(self.movable_at(share.group, wait), stuck)

    def is_kept(self, group: Group, wait: Wait) -> bool:
        """Whether the user wants the memory of a group that does not run to stay."""
        preferences = group.preferences
        if not preferences.keep or preferences.stopped or group.spent or group is wait.group:
            return False
        if group.lease is not None or group.wait is None:
            return True
        # A group that could run at once does. Otherwise, each could wait for the other's memory.
        return not self.one_at_a_time and all(
            s.need <= s.spare and not s.evicting for s in group.shares.values()
        )

    def keeps(self, group: Group, wait: Wait) -> bool:
        """Whether a wait cannot have the memory of a group yet because its user keeps it."""
        return (
            self.turn.now < wait.since + self.model.rules.keep_patience
            and not (group.runs or group.yielding)
            and self.is_kept(group, wait)
        )
