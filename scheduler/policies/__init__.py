# SPDX-License-Identifier: BSD-3-Clause
"""Policies order the queue and the victims, and set quanta and paces: one small file each, chosen by name.

The core's hard rules (``core.py``) hold under any policy: none can grant room that is not there, or take memory from
a running group. Third parties register a class under the entry point group ``jupyter_gpushare.policies``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points

from ..core.policy_api import FREE, Parts, Policy, Rank, Speed, View
from .burst import Burst
from .fcfs import FirstComeFirstServed
from .gemini import Gemini
from .priority import HighestPriority
from .tgs import Tgs

__all__ = [
    "ENTRY_POINTS",
    "FREE",
    "OURS",
    "REGISTRY",
    "Parts",
    "Policy",
    "Rank",
    "Registry",
    "Speed",
    "View",
    "available",
    "make",
    "names",
]

#: The entry point group under which other packages register policies.
ENTRY_POINTS = "jupyter_gpushare.policies"

OURS: dict[str, Callable[[View], Policy]] = {
    policy.name: policy for policy in (Burst, FirstComeFirstServed, Gemini, HighestPriority, Tgs)
}


def available() -> dict[str, Callable[[View], Policy]]:
    """Return all policies by name, including those that other packages register."""
    found = dict(OURS)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in found:
            found[entry.name] = entry.load()
    return found


@cache
def _registered() -> frozenset[str]:
    # The installed packages do not change while this runs, and finding them reads the disk.
    return frozenset(entry.name for entry in entry_points(group=ENTRY_POINTS))


def names() -> list[str]:
    """Return the names of all policies, sorted, without loading other packages' code."""
    return sorted({*OURS, *_registered()})


def make(name: str, view: View) -> Policy:
    """Return a new policy.

    Raises
    ------
    ValueError
        There is none of this name, or it cannot be made. The text is one sentence for the user.
    """
    try:
        # Other packages' code is not loaded for a policy of this package.
        found = OURS.get(name) or available().get(name)
        if found is not None:
            return found(view)
    except Exception as error:
        raise ValueError(f"the policy {name!r} cannot be used: {error}") from None
    raise ValueError(f"policy must be one of {', '.join(names())}, not {name!r}")


class Registry:
    """The installed policies, as they are passed to the core."""

    @property
    def fallbacks(self) -> Sequence[Callable[[View], Policy]]:
        """The default policy, then the simplest one, which has no state that could be wrong."""
        return (Burst, FirstComeFirstServed)

    def make(self, name: str, view: View) -> Policy:
        """Return a new policy; see ``make``."""
        return make(name, view)


REGISTRY = Registry()
