# SPDX-License-Identifier: BSD-3-Clause
"""Keeps the core from a policy's faults: what raises is replaced, and the event is handled all the same."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar, cast

from .model import Gpu, Group, Wait
from .policy_api import LastingPolicy, Parts, Policy, PolicyRegistry, Rank, Speed, View

_T = TypeVar("_T")


class Guard:
    """A policy, until it fails; then a simpler one.

    Parameters
    ----------
    registry
        The policies that there are.
    name
        Of the policy.
    view
        What it, and its replacement, may look at.

    Raises
    ------
    ValueError
        The policy is unknown, or its creation failed.
    """

    def __init__(self, registry: PolicyRegistry, name: str, view: View) -> None:
        self._registry, self._view = registry, view
        self._fallbacks = tuple(registry.fallbacks)
        self._install(registry.make(name, view))
        #: What failed and is not told yet: its name, and the error.
        self.failure: tuple[str, str] | None = None
        self._failures = 0

    def use(self, name: str) -> None:
        """Ask another policy from now on.

        Raises
        ------
        ValueError
            There is none of this name, or it cannot be made; the one before goes on.
        """
        self._install(self._registry.make(name, self._view))
        self.failure = None

    def _install(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        #: Whether leases are granted one at a time.
        self.serialises = policy.serialises
        self._lasts = _lasts(type(policy))

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever ranks may have changed."""
        try:
            return self._failures, self.policy.version
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
            return self.policy.victim_rank(group)
        except Exception as error:
            self._replace("victim_rank", error)
            return self.victim_rank(group)

    def lasting_rank(self, group: Group) -> tuple[Rank, float]:
        """Return the order in which groups lose memory, and until when it holds if nothing happens to the group."""
        if not self._lasts:
            return self.victim_rank(group), -inf
        try:
            return cast("LastingPolicy", self.policy).lasting_victim_rank(group)
        except Exception as error:
            self._replace("victim_rank", error)
            return self.lasting_rank(group)

    def quantum(self, group: Group, wait: Wait | None) -> float | None:
        """Return the seconds for which a running holder is left alone; None: as the core thinks."""

        def ask(policy: Policy) -> float | None:
            length = policy.quantum(group, wait)
            if length is not None:
                _check((length,))
            return length

        return self._ask("quantum", ask)

    def paces(self, gpu: Gpu) -> tuple[dict[str, Speed], float | None]:
        """Return how fast the holders on a GPU may submit, and when that may change by itself."""
        asked = "paces"
        try:
            paces = dict(self.policy.paces(gpu))
            asked = "pace_again"
            return paces, self.policy.pace_again(gpu)
        except Exception as error:
            self._replace(asked, error)
            return self.paces(gpu)

    def _ask(self, what: str, ask: Callable[[Policy], _T]) -> _T:
        try:
            return ask(self.policy)
        except Exception as error:
            self._replace(what, error)
        return self._ask(what, ask)

    def _replace(self, what: str, error: Exception) -> None:
        failed = self.policy
        kind, place = type(failed), 0
        if kind in self._fallbacks:
            place = self._fallbacks.index(kind) + 1
        if place == len(self._fallbacks):
            # Ours could only fail for a fault of ours.
            raise error
        self._install(self._fallbacks[place](self._view))
        self._failures += 1
        self.failure = failed.name, f"{what}: {str(error) or type(error).__name__}"


def _lasts(kind: type) -> bool:
    """Whether a policy says for how long its ranks hold: not what it inherits from one that ranks otherwise."""
    by = [
        next((k for k in kind.__mro__ if name in vars(k)), None)
        for name in ("victim_rank", "lasting_victim_rank")
    ]
    return by[0] is not None and by[0] is by[1]


def _check(numbers: tuple[float, ...]) -> None:
    for number in numbers:
        if number != number:
            raise ValueError("it is not a number")
