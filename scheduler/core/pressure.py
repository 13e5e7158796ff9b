# SPDX-License-Identifier: BSD-3-Clause
"""Makes groups hibernate for others that lack room, or because their GPU is drained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from .eligibility import Eligibility, freed_by
from .hibernation import HibernationManager
from .model import Gpu, Model, Share, Wait
from .plan import Plan
from .residency import Residency
from .turn import Turn

Pressed = Literal["insufficient", "waiting", "begun"]
"""The result of making groups hibernate for a wait: insufficient, too early, or begun."""


class Candidate(NamedTuple):
    """A group that could hibernate for another: when, and its place in the order."""

    share: Share
    ready: float
    order: tuple[int, float, int]


@dataclass(slots=True, eq=False)
class Pressure:
    """Makes groups hibernate for others."""

    model: Model
    turn: Turn
    eligibility: Eligibility
    residency: Residency
    hibernation: HibernationManager

    #: Seconds after which a wait that lacks room looks for groups that could hibernate again.
    press_pause: ClassVar[float] = 0.5

    def press(self, plan: Plan) -> Pressed:
        """Make groups hibernate for the head of a queue; return the result."""
        found = self.remedy(plan)
        if found is None:
            return "insufficient"
        begun = False
        for gpu, candidates in found:
            if gpu.press_at > self.turn.now:
                self.turn.recheck_at(gpu.press_at)
                continue
            for candidate in candidates:
                if candidate.ready > self.turn.now:
                    self.turn.recheck_at(candidate.ready)
                elif self.hibernation.begin(candidate.share.group, plan.wait):
                    gpu.press_at = self.turn.now + self.press_pause
                    begun = True
        return "begun" if begun else "waiting"

    def remedy(self, plan: Plan) -> list[tuple[Gpu, list[Candidate]]] | None:
        """Return, by GPU, the groups that must still hibernate for a wait that lacks room even if all holders yield.

        None: that would not suffice.
        """
        if not self.eligibility.may_press():
            return None
        found: list[tuple[Gpu, list[Candidate]]] = []
        for gpu, lack in plan.short:
            candidates: list[Candidate] = []
            leaving = [group.shares[gpu.uuid] for group in self.eligibility.hibernating_on(gpu)]
            if 0 < lack - freed_by(gpu, leaving) <= gpu.pending_reclaim:
                return None  # memory of exited clients is free soon
            lack -= gpu.pending_reclaim
            if lack > freed_by(gpu, leaving):
                for candidate in sorted(
                    self._candidates(plan.wait, gpu), key=lambda found: found.order
                ):
                    candidates.append(candidate)
                    leaving.append(candidate.share)
                    if lack <= freed_by(gpu, leaving):
                        break
            if lack > freed_by(gpu, leaving):
                return None
            found.append((gpu, candidates))
        return found

    def _candidates(self, wait: Wait, gpu: Gpu) -> Iterator[Candidate]:
        """Iterate over the groups that could hibernate for the head of a queue."""
        patient = wait.since + self.model.rules.hibernate_pressure
        for share in gpu.shares.values():
            group = share.group
            if group is wait.group or not self.eligibility.can_leave(share):
                continue
            since = self.eligibility.idle_since(group)
            if group.preferences.keep and not group.preferences.stopped:
                ready = wait.since + self.model.rules.keep_patience
                if group.runs and not group.yielding:
                    ready = max(ready, self.residency.quantum_end(group, wait))
                yield Candidate(share, ready, (4, 0.0, group.number))
            elif since is not None:
                ready = min(patient, since + self.model.rules.hibernate_pressure)
                # Between two queued cells, it is not idle yet.
                ready = max(ready, self.residency.next_cell_by(group, wait))
                yield Candidate(share, ready, (0, since, group.number))
            elif group.runs and not group.yielding:
                ready = max(patient, self.residency.quantum_end(group, wait))
                yield Candidate(share, ready, (3, ready, group.number))
            elif group.wait is None:
                yield Candidate(share, patient, (1, 0.0, group.number))
            else:
                # The last in the queue comes first.
                yield Candidate(share, patient, (2, -gpu.queue.index(group.wait), group.number))

    def dismiss(self, gpu: Gpu) -> None:
        """Make all idle groups on a GPU hibernate, because it is drained."""
        if not self.eligibility.may_press():
            return
        if gpu.press_at > self.turn.now:
            self.turn.recheck_at(gpu.press_at)
            return
        gpu.press_at = self.turn.now + self.press_pause
        for share in list(gpu.shares.values()):
            group = share.group
            since = self.eligibility.idle_since(group)
            if since is None or group.preferences.keep or not self.eligibility.can_leave(share):
                continue
            ready = since + self.model.rules.hibernate_pressure
            if ready <= self.turn.now:
                self.hibernation.begin(group)
            self.turn.recheck_at(max(ready, gpu.press_at))
