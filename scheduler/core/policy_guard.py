# SPDX-License-Identifier: BSD-3-Clause
"""Protects the core from a policy's faults: a policy that raises is replaced, and the event is still handled."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar, cast

from .model import Gpu, Group, Wait
from .policy_api import LastingPolicy, Paces, Parts, Policy, PolicyRegistry, Rank, View

_T = TypeVar("_T")


class PolicyGuard:
    """A policy and, once it has failed, a simpler one.

    Parameters
    ----------
    registry
        The installed policies.
    name
        The name of the policy.
    view
        What the policy, and its replacement, may read.

    Raises
    ------
    ValueError
        The policy is unknown, or its creation failed.
    """

    def __init__(self, registry: PolicyRegistry, name: str, view: View) -> None:
        self._registry, self._view = registry, view
        self._fallbacks = tuple(registry.fallbacks)
        self._install(registry.make(name, view))
        #: The name of the policy that failed and its error, until a notice was made.
        self.failure: tuple[str, str] | None = None
        #: The number of policies that have failed.
        self.failures = 0

    def use(self, name: str) -> None:
        """Use another policy from now on.

        Raises
        ------
        ValueError
            There is none of this name, or it cannot be made. The previous policy stays.
        """
        self._install(self._registry.make(name, self._view))
        self.failure = None

    def _install(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        #: Whether leases are granted one at a time; and whether ranks depend on GPU time.
        self.serialises, self.orders_by_gpu_time = policy.serialises, policy.orders_by_gpu_time
        self._lasts = _lasts(type(policy))

    def rank(self, wait: Wait) -> tuple[Parts, Rank]:
        """Return the rank of a wait, by parts and in total."""

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
        """Return the order in which groups lose memory, and until when it is valid if nothing happens to the group."""
        if not self._lasts:
            return self.victim_rank(group), -inf
        try:
            return cast("LastingPolicy", self.policy).lasting_victim_rank(group)
        except Exception as error:
            self._replace("victim_rank", error)
            return self.lasting_rank(group)

    def quantum(self, group: Group, wait: Wait | None) -> float | None:
        """Return the seconds for which a running holder keeps its lease; None: the core's choice."""

        def ask(policy: Policy) -> float | None:
            length = policy.quantum(group, wait)
            if length is not None:
                _check((length,))
            return length

        return self._ask("quantum", ask)

    def paces(self, gpu: Gpu) -> Paces:
        """Return how fast the holders on a GPU may submit, and when that may change by itself."""
        try:
            paces, again = self.policy.paces(gpu)
            return dict(paces), again
        except Exception as error:
            self._replace("paces", error)
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
            # The last policy belongs to this package, so this is a defect of the scheduler.
            raise error
        self._install(self._fallbacks[place](self._view))
        self.failures += 1
        self.failure = failed.name, f"{what}: {str(error) or type(error).__name__}"


def _lasts(kind: type) -> bool:
    """Whether a policy states how long its ranks are valid. An inherited statement does not count for other ranks."""
    by = [
        next((k for k in kind.__mro__ if name in vars(k)), None)
        for name in ("victim_rank", "lasting_victim_rank")
    ]
    return by[0] is not None and by[0] is by[1]


def _check(numbers: tuple[float, ...]) -> None:
    for number in numbers:
        if number != number:
            raise ValueError("it is not a number")
