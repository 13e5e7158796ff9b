# SPDX-License-Identifier: BSD-3-Clause
"""Judges whether groups can share a GPU that pages their memory, by their throughput with and without. In seconds.

Throughput is submissions per second of the group's own work on the GPU. Paging makes the same submissions take longer;
less work, or waiting for the host, does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .messages import LearntThroughput

Verdict = Literal["try", "thrashing"]


@dataclass(slots=True)
class _Rate:
    """A mean that fades with the amount of work."""

    submissions: float = 0.0
    busy: float = 0.0

    def feed(self, submissions: float, busy: float, memory: float) -> None:
        keep = max(0.0, 1.0 - busy / memory)
        self.submissions = self.submissions * keep + submissions
        self.busy = self.busy * keep + busy

    @property
    def value(self) -> float:
        return self.submissions / self.busy if self.busy else 0.0


@dataclass(slots=True)
class _Throughput:
    resident: _Rate
    floating: _Rate


class ThrashingDetector:
    """Judges by each group's meters.

    Parameters
    ----------
    threshold
        The fraction of its resident throughput below which a group thrashes.
    evidence
        GPU time to measure in each way before the first judgement.
    memory
        GPU time over which throughput is averaged.
    retry
        The pause before the first new try; later pauses are twice as long, up to ``longest_retry``.
    """

    def __init__(
        self,
        threshold: float = 1 / 3,
        evidence: float = 0.5,
        memory: float = 5.0,
        retry: float = 60.0,
        longest_retry: float = 3600.0,
    ) -> None:
        self.threshold, self.evidence, self.memory = threshold, evidence, memory
        self.retry, self.longest_retry = retry, longest_retry
        self._groups: dict[str, _Throughput] = {}
        #: By group: until when it takes turns, and the pause after the next failure.
        self._until: dict[str, tuple[float, float]] = {}

    def feed(self, group_id: str, floating: bool, busy: float, submissions: int, at: float) -> bool:
        """Add what a group had since the last call; return whether it thrashes from now on.

        With ``floating``, it ran besides others without being resident.
        """
        if busy <= 0:
            return False
        throughput = self._groups.get(group_id)
        if throughput is None:
            throughput = self._groups[group_id] = _Throughput(_Rate(), _Rate())
        if not floating:
            throughput.resident.feed(submissions, busy, self.memory)
            return False
        if self.retry_at((group_id,), at) is not None:
            # Work that was under way at the last report does not belong to the next try.
            return False
        beside, alone = throughput.floating, throughput.resident
        beside.feed(submissions, busy, self.memory)
        if beside.busy < self.evidence or not self.measured(group_id):
            return False
        if beside.value >= self.threshold * alone.value:
            return False
        pause = self._until[group_id][1] if group_id in self._until else self.retry
        self._until[group_id] = (at + pause, min(2 * pause, self.longest_retry))
        throughput.floating = _Rate()
        return True

    def verdict(self, group_ids: Iterable[str], now: float) -> Verdict:
        """Return whether these groups may run side by side without being resident."""
        return "try" if self.retry_at(group_ids, now) is None else "thrashing"

    def retry_at(self, group_ids: Iterable[str], now: float) -> float | None:
        """Return when these groups may try again; None: now."""
        times = [self._until[g][0] for g in group_ids if g in self._until]
        latest = max(times, default=now)
        return latest if latest > now else None

    def measured(self, group_id: str) -> bool:
        """Whether a group's throughput with resident memory is known."""
        throughput = self._groups.get(group_id)
        return throughput is not None and throughput.resident.busy >= self.evidence

    def slowdown(self, group_id: str) -> float | None:
        """Return how many times longer a group's work takes besides others; None: not measured."""
        throughput = self._groups.get(group_id)
        if throughput is None or not throughput.floating.value:
            return None
        return throughput.resident.value / throughput.floating.value

    def learnt(self, group_id: str) -> LearntThroughput | None:
        """Return a group's throughput, and until when it takes turns."""
        known = self._groups.get(group_id)
        if known is None:
            return None
        resident, floating = known.resident, known.floating
        return LearntThroughput(
            (resident.submissions, resident.busy),
            (floating.submissions, floating.busy),
            *self._until.get(group_id, (0.0, 0.0)),
        )

    def recall(self, group_id: str, learnt: LearntThroughput) -> None:
        """Apply what another scheduler has learnt of a group."""
        self._groups[group_id] = _Throughput(_Rate(*learnt.resident), _Rate(*learnt.floating))
        if learnt.pause:
            self._until[group_id] = learnt.until, min(learnt.pause, self.longest_retry)

    def forget(self, group_id: str) -> None:
        """Forget a group that has left."""
        self._groups.pop(group_id, None)
        self._until.pop(group_id, None)
