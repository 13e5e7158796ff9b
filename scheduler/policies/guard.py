# SPDX-License-Identifier: BSD-3-Clause
"""Keeps the core from a policy's faults: what raises is replaced, and the event is handled all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .burst import Burst
from .fcfs import FirstComeFirstServed

if TYPE_CHECKING:
    from ..state import Gpu, Group, Wait
    from . import Parts, Policy, Rank, Speed, View

_T = TypeVar("_T")


class Guard:
    """A policy, until it fails; then ``burst``.

    Parameters
    ----------
    policy
        The policy.
    view
        What its replacement may look at.
    """

    def __init__(self, policy: Policy, view: View) -> None:
        self._policy = policy
        self._view = view
        #: What failed and is not told yet: its name, and the error.
        self.failure: tuple[str, str] | None = None
        self._failures = 0

    @property
    def name(self) -> str:
        """The name of the policy that is asked now."""
        return self._policy.name

    @property
    def serialises(self) -> bool:
        """Whether leases are granted one at a time."""
        return self._policy.serialises

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever ranks may have changed."""
        try:
            return self._failures, self._policy.version
        except Exception as error:
            self._replace("version", error)
            return self.version

    def rank(self, wait: Wait) -> tuple[Parts, Rank]:
        """Return the order of one that waits, by parts and in all."""

        def ask(policy: Policy) -> tuple[Parts, Rank]:
            parts = tuple(policy.queue_parts(wait))
            rank = tuple(sum(part.values()) for part in parts)
            _check(rank)
            return parts, rank

        return self._ask("queue_parts", ask)

    def victim_rank(self, group: Group) -> Rank:
        """Return the order in which groups lose memory."""
        try:
            return self._policy.victim_rank(group)
        except Exception as error:
            self._replace("victim_rank", error)
            return self.victim_rank(group)

    def quantum(self, group: Group, wait: Wait | None) -> float | None:
        """Return the seconds for which a running holder is left alone; None: as the core thinks."""

        def ask(policy: Policy) -> float | None:
            length = policy.quantum(group, wait)
            if length is not None:
                _check((length,))
            return length

        return self._ask("quantum", ask)

    def paces(self, gpu: Gpu) -> dict[str, Speed]:
        """Return how fast the holders on a GPU may submit."""
        try:
            return dict(self._policy.paces(gpu))
        except Exception as error:
            self._replace("paces", error)
            return self.paces(gpu)

    def pace_again(self, gpu: Gpu) -> float | None:
        """When the paces may change by themselves."""

        def ask(policy: Policy) -> float | None:
            return policy.pace_again(gpu)

        return self._ask("pace_again", ask)

    def _ask(self, what: str, ask: Callable[[Policy], _T]) -> _T:
        try:
            return ask(self._policy)
        except Exception as error:
            self._replace(what, error)
        return self._ask(what, ask)

    def _replace(self, what: str, error: Exception) -> None:
        failed = self._policy
        # Ours could only fail for a fault of ours; the simplest has no state that could be wrong.
        if type(failed) is FirstComeFirstServed:
            raise error
        simpler = FirstComeFirstServed if type(failed) is Burst else Burst
        self._policy = simpler(self._view)
        self._failures += 1
        self.failure = failed.name, f"{what}: {str(error) or type(error).__name__}"


def _check(numbers: tuple[float, ...]) -> None:
    for number in numbers:
        if number != number:
            raise ValueError("it is not a number")
