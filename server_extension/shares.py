# SPDX-License-Identifier: BSD-3-Clause
"""What users, and teams of users, are entitled to (docs/scheduling.md, "GPU time, and shares")."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..kernel_provisioner.launch import parse_share
from ..scheduler.events import Entitlement

#: What nobody stated.
NONE: dict[str, Any] = {**asdict(Entitlement()), "members": []}

#: What is stated, by whose it is: ``user:NAME`` or ``team:NAME``.
Shares = dict[str, dict[str, Any]]


def parsed(shares: Any) -> Shares:
    """Return shares as people state them with sizes as numbers of bytes.

    Raises
    ------
    ValueError
        If they cannot be; the message is one sentence for whoever stated them.
    """
    if not isinstance(shares, dict):
        raise ValueError(
            f'shares must be an object such as {{"user:ada": {{"limit": 0.5}}}}, not {shares!r}'
        )
    return {whose: _parsed(whose, stated) for whose, stated in shares.items()}


def _parsed(whose: Any, stated: Any) -> dict[str, Any]:
    kind, _, name = str(whose).partition(":")
    if kind not in ("user", "team") or not name:
        raise ValueError(f"shares are those of 'user:NAME' or 'team:NAME', not of {whose!r}")
    if not isinstance(stated, dict):
        raise ValueError(
            f'the shares of {whose} must be an object such as {{"limit": 0.5}}, not {stated!r}'
        )
    known = [name for name in NONE if kind == "team" or name != "members"]
    if unknown := stated.keys() - set(known):
        raise ValueError(
            f"the shares of {whose} know no {', '.join(sorted(map(str, unknown)))}; "
            f"there are {', '.join(known)}"
        )
    found: dict[str, Any] = {}
    for key, value in stated.items():
        try:
            found[key] = _member_names(value) if key == "members" else parse_share(key, value)
        except ValueError as error:
            raise ValueError(f"the shares of {whose}: {error}") from None
    if kind == "team" and "members" not in found:
        raise ValueError(f'the shares of {whose} must say who is in it, as "members": ["ada"]')
    return found


def _member_names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f'members must be names of users such as ["ada", "ben"], not {value!r}')
    return value


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


def entitlement(stated: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the scheduler is told of one's shares (docs/control.md, ``entitle``); None: of nobody's any more."""
    return {**NONE, **(stated or {})}


def stated(reply: dict[str, Any]) -> Shares:
    """Return the shares that the scheduler has, less what is as nobody stated it."""
    found = {
        whose: {name: held[name] for name, none in NONE.items() if held[name] != none}
        for whose, held in reply["shares"].items()
    }
    return {whose: one for whose, one in found.items() if one}


def used(reply: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the fraction of each GPU's time that they have had, by whose it is."""
    return {whose: held["used"] for whose, held in reply["shares"].items()}
