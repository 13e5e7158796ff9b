# SPDX-License-Identifier: BSD-3-Clause
"""What users, and teams of users, are entitled to (docs/explanation/scheduling.md, "GPU time, and shares")."""

from __future__ import annotations

from typing import Any

from ..scheduler.node.entitlements import NONE, Shares


def merged(shares: Shares, patch: Any) -> Any:
    """Return shares as a JSON merge patch (RFC 7396) changes them."""
    if not isinstance(patch, dict):
        return patch
    found: dict[str, Any] = dict(shares)
    for whose, change in patch.items():
        if change is None:
            found.pop(whose, None)
        elif isinstance(change, dict):
            stated = {**found.get(whose, {}), **change}
            found[whose] = {key: value for key, value in stated.items() if value is not None}
        else:
            found[whose] = change
    return found


def stated(reply: dict[str, Any]) -> Shares:
    """Return the shares that the scheduler has, without values that are the defaults."""
    found = {
        whose: {name: held[name] for name, none in NONE.items() if held[name] != none}
        for whose, held in reply["shares"].items()
    }
    return {whose: one for whose, one in found.items() if one}


def used(reply: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the fraction of each GPU's time that they have had, by whose it is."""
    return {whose: held["used"] for whose, held in reply["shares"].items()}
