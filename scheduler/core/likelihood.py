# SPDX-License-Identifier: BSD-3-Clause
"""How likely a group is to use the GPU soon, learnt from what followed earlier signs of it.

A *hint* is a sign that a notebook will soon use the GPU: its user returned to it, or began to type in it. A *trial* is
a hint and the minute after it (``HORIZON``). It is a *hit* if the group's GPU work begins within that minute. Hints of
the same kind during a trial belong to it.

The estimate for a hint is the fraction of hits among the group's own trials of that kind. While there are few of them,
the fraction among all groups counts as well, and at first that starts from ``PRIORS``. A user's command to be ready is
certain, and nothing is learnt from it.

The times of the events are the only clock, so a replay of the same events gives the same estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .messages import LearntTrials, Sign
from .model import Group

#: Seconds after a hint within which GPU work counts as its result.
HORIZON = 60.0
#: Seconds after the beginning of a cell before it counts as a hint. Most cells that use the GPU do so earlier.
CELL_DELAY = 0.1
#: For each kind of hint, the fraction of hits that is assumed at first.
PRIORS: dict[Sign, float] = {"focus": 0.3, "typing": 0.6, "cell": 0.8, "queued": 0.9}
#: The number of trials that the assumed fraction counts for; and those of all groups, for one group.
PRIOR_TRIALS, COMMON_TRIALS = 10.0, 2.0
#: Trials after which older ones count half, so that the estimate follows a change of habits.
MOST_TRIALS = 32.0
#: The likelihood without a hint, while the group's absences show nothing else.
UNHINTED = 0.05


class Estimate(NamedTuple):
    """How likely a group is to use the GPU soon, and the hint from which that follows."""

    likelihood: float
    sign: Sign
    #: When this hint was given first, and until when it counts.
    since: float
    until: float
    #: The group's own trials of this kind so far, and how many of them were hits.
    trials: float = 0.0
    hits: float = 0.0


@dataclass(slots=True)
class _Record:
    """Trials, and how many of them were hits."""

    trials: float = 0.0
    hits: float = 0.0

    def add(self, *, hit: bool) -> None:
        self.trials += 1
        self.hits += hit
        if self.trials >= MOST_TRIALS:
            self.trials, self.hits = self.trials / 2, self.hits / 2


@dataclass(slots=True)
class UseLikelihood:
    """Estimates how likely groups are to use the GPU soon."""

    #: When each hint was given that still counts, by group and kind: ``Model.hinted``.
    live: dict[str, dict[Sign, float]] = field(default_factory=dict)
    _own: dict[str, dict[Sign, _Record]] = field(default_factory=dict)
    _common: dict[Sign, _Record] = field(default_factory=dict)

    def hint(self, group_id: str, sign: Sign, now: float) -> None:
        """Note a hint."""
        self.expire(group_id, now)
        signs = self.live.setdefault(group_id, {})
        # A repeated command begins again, because its user means it.
        if sign == "ready" or sign not in signs:
            signs[sign] = now

    def use(self, group_id: str, now: float) -> None:
        """Note that a group's GPU work begins: all hints that still count were right."""
        self.expire(group_id, now)
        for sign in self.live.pop(group_id, {}):
            self._learn(group_id, sign, hit=True)

    def expire(self, group_id: str, now: float) -> None:
        """Note which hints were followed by nothing within the horizon."""
        signs = self.live.get(group_id)
        if signs is None:
            return
        for sign in [sign for sign, at in signs.items() if at + HORIZON <= now]:
            del signs[sign]
            self._learn(group_id, sign, hit=False)
        if not signs:
            del self.live[group_id]

    def next_change(self, group_id: str, now: float) -> float | None:
        """Return when the next hint of a group begins or ceases to count; None: it has none."""
        signs = self.live.get(group_id, {})
        starts = [start for sign, at in signs.items() if (start := _start(sign, at)) > now]
        return min([*starts, *(at + HORIZON for at in signs.values())], default=None)

    def estimate(self, group_id: str, now: float) -> Estimate | None:
        """Return the estimate from the strongest hint that counts; None if no hint counts."""
        best: Estimate | None = None
        for sign, at in self.live.get(group_id, {}).items():
            if not _start(sign, at) <= now < at + HORIZON:
                continue
            own = self._own.get(group_id, {}).get(sign, _Record())
            likelihood = self._likelihood(own, sign)
            if best is None or likelihood > best.likelihood:
                best = Estimate(likelihood, sign, at, at + HORIZON, own.trials, own.hits)
        return best

    def _likelihood(self, own: _Record, sign: Sign) -> float:
        if sign == "ready":
            return 1.0
        every = self._common.get(sign, _Record())
        common = (every.hits + PRIOR_TRIALS * PRIORS[sign]) / (every.trials + PRIOR_TRIALS)
        return (own.hits + COMMON_TRIALS * common) / (own.trials + COMMON_TRIALS)

    def _learn(self, group_id: str, sign: Sign, *, hit: bool) -> None:
        if sign != "ready":
            self._own.setdefault(group_id, {}).setdefault(sign, _Record()).add(hit=hit)
            self._common.setdefault(sign, _Record()).add(hit=hit)

    def learnt(self, group_id: str | None = None) -> dict[str, LearntTrials]:
        """Return the trials of a group by the kind of hint; None: those of all groups."""
        records = self._common if group_id is None else self._own.get(group_id, {})
        return {sign: LearntTrials(record.trials, record.hits) for sign, record in records.items()}

    def recall(self, learnt: Mapping[str, LearntTrials], group_id: str | None = None) -> None:
        """Apply the trials that another scheduler has learnt, in place of those known here."""
        records = {
            sign: _Record(
                min(found.trials, MOST_TRIALS), min(found.hits, found.trials, MOST_TRIALS)
            )
            for sign in PRIORS
            if (found := learnt.get(sign)) is not None
        }
        if group_id is None:
            self._common.update(records)
        elif records:
            self._own[group_id] = records

    def drop(self, group_id: str) -> None:
        """Drop the hints of a group, and learn nothing from them."""
        self.live.pop(group_id, None)

    def forget(self, group_id: str) -> None:
        """Forget a group that has left, except its trials in the sums of all groups."""
        self.live.pop(group_id, None)
        self._own.pop(group_id, None)


def _start(sign: Sign, at: float) -> float:
    """Return from when on a hint counts."""
    return at + CELL_DELAY if sign == "cell" else at


def unhinted(group: Group, now: float) -> float:
    """Return how likely an idle group without a hint is to use the GPU soon, from how long its absences lasted."""
    if group.away_since is None:
        return UNHINTED
    return group.absences.ends_within(now - group.away_since, HORIZON, UNHINTED)
