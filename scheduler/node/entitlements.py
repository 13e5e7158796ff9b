# SPDX-License-Identifier: BSD-3-Clause
"""Entitlements of users, teams and notebooks as administrators write them (scheduling.md, "GPU time, and shares")."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import asdict

from ..core.messages import Adjust, Entitlement
from ..core.model import Preferences
from ..core.preferences import adjusted

#: The entitlement of users without one of their own.
NONE: dict[str, Any] = {**asdict(Entitlement()), "members": []}

#: Shares by ``user:NAME`` or ``team:NAME``.
Shares = dict[str, dict[str, Any]]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Read a number of bytes such as ``20GiB``, ``1.5G`` or ``1073741824``; units are powers of 1024.

    Raises
    ------
    ValueError
        The text is not a size, or not one that memory can have.
    """
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text, re.ASCII | re.IGNORECASE
    )
    if match is None:
        raise ValueError(
            f"invalid size {text!r}; use a number with a unit, such as 20GiB or 512MiB, or a number of bytes"
        )
    factor = _UNITS[match[2].upper()]
    # Whole numbers stay exact.
    size = int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
    if not 0 < size < 1 << 63:
        raise ValueError(f"invalid size {text!r}; use a realistic amount of memory, such as 20GiB")
    return size


def parse_share(name: str, value: object) -> object:
    """Read one share as it is written; the sizes ``memory`` and ``host`` become numbers of bytes.

    Raises
    ------
    ValueError
        It is not valid. The message is one sentence for its author.
    """
    if name in ("memory", "host"):
        # A bare number is bytes. A boolean is a number in Python, but not to users.
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f'invalid size {value!r}; use a number with a unit, such as "20GiB"')
        return parse_size(str(value))
    if name == "gpus":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"gpus must be a whole number of GPUs, 1 or more, not {value!r}")
        return value
    adjusted(Preferences(), Adjust("", **{name: value}))  # type: ignore[arg-type]
    return value


def parsed(shares: Any, *, members_needed: bool = True) -> Shares:
    """Return shares as they are written, with sizes as numbers of bytes.

    Parameters
    ----------
    shares
        The shares by user or team.
    members_needed
        Whether a team must list its members. Otherwise, its members' clients may name it.

    Raises
    ------
    ValueError
        They are not valid. The message is one sentence for their author.
    """
    if not isinstance(shares, dict):
        raise ValueError(
            f'shares must be an object such as {{"user:ada": {{"limit": 0.5}}}}, not {shares!r}'
        )
    found = {whose: _parsed(whose, stated) for whose, stated in shares.items()}
    for whose, stated in found.items():
        if members_needed and whose.startswith("team:") and "members" not in stated:
            raise ValueError(
                f'the shares of {whose} must list its members, such as "members": ["ada"]'
            )
    return found


def _parsed(whose: Any, stated: Any) -> dict[str, Any]:
    kind, _, name = str(whose).partition(":")
    if kind not in ("user", "team") or not name:
        raise ValueError(f"shares must be for 'user:NAME' or 'team:NAME', not {whose!r}")
    if not isinstance(stated, dict):
        raise ValueError(
            f'the shares of {whose} must be an object such as {{"limit": 0.5}}, not {stated!r}'
        )
    known = [name for name in NONE if kind == "team" or name != "members"]
    if unknown := stated.keys() - set(known):
        raise ValueError(
            f"unknown share {', '.join(sorted(map(str, unknown)))} of {whose}; "
            f"use {', '.join(known)}"
        )
    found: dict[str, Any] = {}
    for key, value in stated.items():
        try:
            found[key] = _member_names(value) if key == "members" else parse_share(key, value)
        except ValueError as error:
            raise ValueError(f"invalid shares of {whose}: {error}") from None
    return found


def _member_names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f'members must be names of users such as ["ada", "ben"], not {value!r}')
    return value


def entitlement(stated: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of the request ``entitle`` (control.md) for a share; None: the share ends."""
    return {**NONE, **(stated or {})}
