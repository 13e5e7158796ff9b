# SPDX-License-Identifier: BSD-3-Clause
"""Divides the energy of one GPU among its users. Sans-IO.

NVML's energy counter shows what a GPU has consumed. Without the counter (GPUs before Volta), the power is integrated
over time. Without either (MIG slices), the energy is not measured, and nothing is assumed.

What the GPU would have consumed without work is idle energy: the power in the last period without work, for the time
without work. The rest is divided among the users of the GPU in proportion to their GPU time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..core.usage_windows import PARTS, divide

#: A user of the GPU.
User = TypeVar("User")

#: Seconds for which nothing is divided while work runs whose GPU time is only known when it ends.
LONGEST_RUN = 30.0
#: Powers that are further apart (seconds) are not integrated, because the machine was asleep.
LONGEST_GAP = 10.0


class Reading(Protocol):
    """A reading of a GPU (``gpu/devices.py``)."""

    @property
    def at(self) -> float:
        """When it was read, seconds on CLOCK_MONOTONIC."""

    @property
    def joules(self) -> float | None:
        """The energy counter."""

    @property
    def watts(self) -> float | None:
        """The power."""


class Part(NamedTuple):
    """What one user had of a GPU in a period: seconds of GPU time, and joules (None: not measured)."""

    seconds: float
    joules: float | None


class Divided(NamedTuple, Generic[User]):
    """A period, and each user's part of it."""

    parts: Mapping[User, Part]
    #: Joules of the whole period, and the idle energy in it; 0 if the energy was not measured.
    joules: float
    idle: float
    #: The seconds for which the energy was measured.
    measured: float


@dataclass(slots=True)
class EnergyMeter(Generic[User]):
    """The account of one GPU between two divisions. All times are seconds on one clock."""

    #: Seconds for which each user was busy.
    _busy: dict[User, float] = field(default_factory=dict)
    _span: float = 0.0
    _joules: float = 0.0
    _measured: float = 0.0
    #: The power in the last period without work.
    _idle_watts: float | None = None
    _last: Reading | None = None
    #: Whether the reading is not newer than the last one, because a thread has not finished the next one.
    _is_late: bool = False

    def add_busy(self, user: User, seconds: float) -> None:
        """Add time for which a user was busy."""
        if seconds > 0:
            self._busy[user] = self._busy.get(user, 0.0) + seconds

    def add_time(self, seconds: float, reading: Reading | None) -> None:
        """Add a period, and the reading at its end."""
        self._span += seconds
        before, self._last = self._last, reading
        self._is_late = False
        if before is None or reading is None:
            return
        if reading.at <= before.at:
            self._is_late = True
            return
        joules = _between(before, reading)
        if joules is not None:
            self._joules += joules
            self._measured += reading.at - before.at

    def divide(self, running: Collection[User] = ()) -> Divided[User] | None:
        """Divide what was added since the last time.

        Parameters
        ----------
        running
            Users whose work runs now, and whose processes report its GPU time later. Until all of them have had some,
            and the energy has been read, None is returned, and the next division includes this period. After
            ``LONGEST_RUN``, they count as busy for all of it.
        """
        silent = [user for user in running if user not in self._busy]
        if (silent or self._is_late) and self._span < LONGEST_RUN:
            return None
        self._busy.update(dict.fromkeys(silent, self._span))
        # A longer time is that of an earlier period, in which the user counted as busy.
        charges = _charges({user: min(b, self._span) for user, b in self._busy.items()}, self._span)
        total = sum(charges.values())
        idle = self._idle_joules(total)
        parts = {
            user: Part(
                seconds,
                (self._joules - idle) * seconds / total if self._measured and total else None,
            )
            for user, seconds in charges.items()
        }
        divided = Divided(parts, self._joules, idle, self._measured)
        if not total and self._measured:
            self._idle_watts = self._joules / self._measured
        self._busy, self._span, self._joules, self._measured = {}, 0.0, 0.0, 0.0
        return divided

    def _idle_joules(self, used: float) -> float:
        if not used or not self._span:
            return self._joules
        idle = max(0.0, 1.0 - used / self._span) * self._measured
        if self._idle_watts is None:
            return self._joules * idle / self._measured if self._measured else 0.0
        return min(self._joules, self._idle_watts * idle)


def _charges(busy: Mapping[User, float], span: float) -> dict[User, float]:
    """Return the seconds for which each user is charged. Users that were busy at once divide the time equally."""
    parts = {user: round(seconds * PARTS) for user, seconds in busy.items()}
    return {user: part / PARTS for user, part in divide(parts, round(span * PARTS))}


def _between(before: Reading, after: Reading) -> float | None:
    """Return the joules between two readings; None: not measured."""
    if before.joules is not None and after.joules is not None and after.joules >= before.joules:
        return after.joules - before.joules
    passed = after.at - before.at
    if before.watts is None or after.watts is None or passed > LONGEST_GAP:
        return None
    return (before.watts + after.watts) / 2 * passed
