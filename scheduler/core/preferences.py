# SPDX-License-Identifier: BSD-3-Clause
"""Users' preferences for groups: which values are valid, and how long they are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_args

from msgspec import structs

from .checks import LARGEST
from .messages import Adjust, Entitle, Priority
from .model import Preferences

#: The number of groups whose preferences are remembered. Groups that were absent for longest are forgotten first.
MOST_REMEMBERED = 1000
#: More GPUs than a machine has.
MOST_GPUS = 1024
#: The largest weight.
HEAVIEST = 1000


class PreferenceStore:
    """Preferences by the id of their group. A Jupyter kernel that is restarted has the same preferences again."""

    def __init__(self) -> None:
        self._preferences: OrderedDict[str, Preferences] = OrderedDict()

    def load(self, group: str) -> Preferences:
        """Return the preferences for a group."""
        found = self._preferences.get(group)
        return Preferences() if found is None else replace(found)

    def store(self, group: str, preferences: Preferences) -> None:
        """Remember the preferences for a group, except those for one cell."""
        lasting = replace(preferences, exclusive=False)
        self._preferences.pop(group, None)
        if lasting != Preferences():
            self._preferences[group] = lasting
        while len(self._preferences) > MOST_REMEMBERED:
            # Many preferences of users must not undo what an administrator did.
            oldest = next((name for name, w in self._preferences.items() if not w.on_hold), None)
            self._preferences.pop(next(iter(self._preferences)) if oldest is None else oldest)

    def learnt(self) -> dict[str, dict[str, Any]]:
        """Return what users want for groups without a client."""
        found = {group: lasting(preferences) for group, preferences in self._preferences.items()}
        return {group: asked for group, asked in found.items() if asked}

    def recall(self, learnt: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply preferences that another scheduler remembered. Invalid ones are dropped."""
        for group, asked in learnt.items():
            with suppress(TypeError, ValueError):
                self.store(group, adjusted(self.load(group), Adjust(group, **asked)))


_LASTING = {
    f.name: f.default for f in fields(Preferences) if f.name not in ("exclusive", "on_hold")
}


def lasting(preferences: Preferences) -> dict[str, Any]:
    """Return a user's preferences for a group that differ from the defaults, except those for one cell."""
    return {
        name: value
        for name, default in _LASTING.items()
        if (value := getattr(preferences, name)) != default
    }


def adjusted(preferences: Preferences, event: Adjust) -> Preferences:
    """Return the changed preferences.

    Raises
    ------
    ValueError
        A value is not valid. The text is one sentence for the user.
    """
    changes = {
        f.name: value
        for f in fields(Preferences)
        if f.name != "on_hold" and (value := getattr(event, f.name)) is not None
    }
    if preferences.on_hold and changes.get("frozen") is False:
        raise ValueError(
            "an administrator put this notebook on hold; only an administrator can let it continue"
        )
    for name, value in changes.items():
        if name == "priority":
            if value not in get_args(Priority):
                raise ValueError(
                    f"priority must be auto, interactive, agent or background, not {value!r}"
                )
        elif name == "memory":
            if not _is_bytes(value):
                raise ValueError(
                    f"memory must be a whole number of bytes, 0 for no limit, not {value!r}"
                )
        elif name in ("request", "limit"):
            if not (_is_number(value) and 0 <= value <= 1):
                raise ValueError(
                    f"{name} must be a fraction of a GPU's time, from 0 (none) to 1, not {value!r}"
                )
        elif name == "weight":
            if not (_is_number(value) and 0 < value <= HEAVIEST):
                raise ValueError(
                    f"weight must be a number above 0 and at most {HEAVIEST}, not {value!r}"
                )
        elif not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
    return replace(preferences, **changes)


def check(event: Entitle) -> None:
    """Check an entitlement.

    Raises
    ------
    ValueError
        It is not valid. The text is one sentence for the user.
    """
    kind, _, name = event.whose.partition(":")
    if kind not in ("user", "team") or not name:
        raise ValueError(f"shares are for user:NAME or team:NAME, not {event.whose!r}")
    if event.members and kind == "user":
        raise ValueError("only a team has members")
    stated = structs.asdict(event.entitlement)
    gpus, host = stated.pop("gpus"), stated.pop("host")
    if not (isinstance(gpus, int) and not isinstance(gpus, bool) and 0 <= gpus <= MOST_GPUS):
        raise ValueError(
            f"gpus must be a whole number of GPUs, at most {MOST_GPUS}, 0 for no limit, not {gpus!r}"
        )
    if not _is_bytes(host):
        raise ValueError(f"host must be a whole number of bytes, 0 for no limit, not {host!r}")
    adjusted(Preferences(), Adjust("", **stated))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_bytes(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
