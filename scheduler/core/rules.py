# SPDX-License-Identifier: BSD-3-Clause
"""All settings of the core, declared once. Times are seconds, sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast, get_args

from .messages import AntiThrash, Quantum

MIB = 1 << 20
#: The longest quantum and the longest idleness that can be set.
LONGEST_QUANTUM = 3600.0
LONGEST_IDLENESS = 30 * 86400.0
ANTI_THRASH: tuple[AntiThrash, ...] = get_args(AntiThrash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings in effect. A change replaces the whole object.

    Raises
    ------
    ValueError
        A setting is not valid. The text is one sentence for the user.

    Attributes
    ----------
    quantum, anti_thrash, policy
        The settings of docs/contributing/design.md, "Decisions". ``policy`` is the name that was requested.
    reserve
        Bytes of each GPU that are never promised; by default ``default_reserve`` of its size.
    debounce
        Seconds for which a group's memory stays after the end of a cell.
    next_cell, first_work
        Seconds after the end of a cell for which the next one is expected, if it is queued; and after its begin, for
        which its first work is expected. Until then, the lease and the memory stay, within the time slice.
    residency_factor
        Memory stays for at least this many times the time of its restore; also the factor of ``quantum="auto"``.
    shortest_quantum, longest_quantum
        Bounds of ``quantum="auto"``.
    longest_turn
        The longest time for which any policy may let a holder keep its lease.
    bandwidth
        Bytes per second of moves, until they are measured.
    fresh
        Seconds for which a reading of a GPU's memory may be used for a decision.
    fresh_for_growth
        The same for growth under a lease and for the next piece of a lease that fills, which are frequent and can be
        returned.
    reading_timeout
        Seconds after which a requested reading that has not arrived is no longer waited for.
    shortest_pause, longest_pause, idle_pause, foreign_pause
        Pauses between readings while memory of exited processes is expected to become free, the last of them if the
        queue is empty; and while other programs use what a head lacks.
    host_slack, host_in_flight
        Host memory that is never promised: for each client, the most that rounding to whole chunks may take; and for
        pieces that leave before those that replace them have arrived.
    margin
        Bytes by which an eviction exceeds what is missing, if the victim has them; at most 1/256 of the GPU.
    background_quantum
        Seconds after which a background holder makes way for an interactive group, unless the policy decides.
    agent_patience
        Seconds for which an agent must wait for the memory of a person's idle notebook.
    interactive_burst, interactive_pause
        Seconds; see ``activity.ActivityClassifier``.
    window
        Seconds over which entitlements to the GPU's time apply.
    keep_patience
        Seconds for which a group must wait for memory that users keep.
    exclusive_limit
        Seconds for which a cell may keep its lease while others wait.
    revoke_deadline
        Seconds, in addition to ten times the duration of its moves, after which no wait depends on a client that has
        not answered an order to free something.
    filling_patience, starving_patience
        Seconds without new room after which a lease that was granted before its room was there is revoked: while memory
        is being evicted, and while none is.
    shortest_retry, longest_retry
        Pauses after a move that failed.
    shortest_step, longest_step, own_step
        Seconds between two steps of a group, at first and at most; and of a stuck client (``collectives.py``).
    room_step
        Seconds until the next check whether there is room for what clients lack that could get a step.
    hibernate_after
        Seconds of idleness after which a group hibernates, if possible; 0 or None: never.
    host_patience, holders_patience
        Seconds for which growth waits for host memory that was available recently; and urgent growth for other groups
        to release their leases. Both are short, because those groups may wait for this one's lease.
    hibernate_pressure
        Seconds of idleness after which it hibernates for a group that lacks room.
    prefetch
        Whether groups that will probably use the GPU soon get ready (``prefetch.py``).
    prefetch_likelihood
        How likely that must be, from 0 to 1.
    prefetch_away
        Seconds for which another group must have been idle before its memory is evicted for that.
    reservation_hold
        Seconds for which the lease of a reservation is kept for its group (``reservations.py``).
    disk_after
        Seconds of idleness after which a group's host memory goes to the disk, if there is one; 0 or None: only when
        host memory is needed.
    """

    quantum: Quantum = "auto"
    anti_thrash: AntiThrash = "auto"
    policy: str = "burst"
    reserve: int | None = None
    debounce: float = 0.010
    next_cell: float = 1.0
    first_work: float = 0.050
    residency_factor: float = 10.0
    shortest_quantum: float = 1.0
    longest_quantum: float = 30.0
    longest_turn: float = LONGEST_QUANTUM
    bandwidth: float = 10e9
    fresh: float = 0.001
    fresh_for_growth: float = 0.050
    reading_timeout: float = 0.1
    shortest_pause: float = 0.005
    longest_pause: float = 0.1
    idle_pause: float = 1.0
    foreign_pause: float = 0.050
    host_slack: int = 128 * MIB
    host_in_flight: int = 512 * MIB
    margin: int = 64 * MIB
    background_quantum: float = 2.0
    agent_patience: float = 60.0
    interactive_burst: float = 2.0
    interactive_pause: float = 2.0
    window: float = 10.0
    keep_patience: float = 300.0
    exclusive_limit: float = 600.0
    revoke_deadline: float = 30.0
    filling_patience: float = 30.0
    starving_patience: float = 1.0
    shortest_retry: float = 0.010
    longest_retry: float = 1.0
    host_patience: float = 30.0
    holders_patience: float = 2.0
    shortest_step: float = 0.002
    longest_step: float = 0.064
    own_step: float = 0.020
    room_step: float = 0.010
    hibernate_after: float | None = 600.0
    hibernate_pressure: float = 2.0
    prefetch: bool = True
    prefetch_likelihood: float = 0.5
    prefetch_away: float = 10.0
    reservation_hold: float = 60.0
    disk_after: float | None = 1800.0

    def __post_init__(self) -> None:
        """Check the settings that can change while the scheduler runs."""
        object.__setattr__(self, "quantum", valid_quantum(self.quantum))
        object.__setattr__(self, "anti_thrash", valid_anti_thrash(self.anti_thrash))
        object.__setattr__(self, "hibernate_after", valid_hibernate_after(self.hibernate_after))
        object.__setattr__(self, "disk_after", self.disk_after or None)
        if not 0 <= self.prefetch_likelihood <= 1:
            raise ValueError(
                f"prefetch_likelihood must be a number from 0 to 1, not {self.prefetch_likelihood!r}"
            )

    def reserve_of(self, total: int) -> int:
        """Return the bytes of a GPU of this size that are never promised."""
        return default_reserve(total) if self.reserve is None else self.reserve

    def stated(self) -> dict[str, Any]:
        """Return the settings that are not the default, by name: ``Rules(**stated)`` is equal to this one."""
        return {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) != item.default
        }


def valid_quantum(quantum: object) -> Quantum:
    """Return the quantum if it is valid, or raise ValueError with one sentence for the user."""
    if quantum == "auto":
        return "auto"
    number = isinstance(quantum, (int, float)) and not isinstance(quantum, bool)
    if number and 0 < cast("float", quantum) <= LONGEST_QUANTUM:
        return float(cast("float", quantum))
    raise ValueError(
        "The quantum must be 'auto', or a number of seconds above 0 and at most "
        f"{LONGEST_QUANTUM:.0f}; {quantum!r} is neither"
    )


def valid_anti_thrash(mode: AntiThrash) -> AntiThrash:
    """Return the mode if it is valid, or raise ValueError with one sentence for the user."""
    if mode in ANTI_THRASH:
        return mode
    raise ValueError(f"anti_thrash must be auto, on or off, not {mode!r}")


def valid_hibernate_after(seconds: object) -> float | None:
    """Return the seconds of idleness, or None for 0 or None: off; or raise ValueError with one sentence."""
    if seconds is None:
        return None
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if number and 0 <= cast("float", seconds) <= LONGEST_IDLENESS:
        return float(cast("float", seconds)) or None
    raise ValueError(
        "hibernate_after must be a number of seconds from 0 (off) to "
        f"{LONGEST_IDLENESS:.0f}, not {seconds!r}"
    )


def default_reserve(total: int) -> int:
    """Return the bytes of a GPU that are never promised: for allocations that are not stated, and for rounding.

    1 % of the GPU, at least 64 MiB, but no more than 2 % of small simulated GPUs.
    """
    return max(total // 100, min(64 * MIB, total // 50))


#: The defaults of the command line, a node's configuration and a Jupyter server.
DEFAULTS = Rules()
