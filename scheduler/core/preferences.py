# SPDX-License-Identifier: BSD-3-Clause
"""Users' wishes for groups: which values are valid, and how long they are remembered."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, fields, replace
from typing import Any

from msgspec import structs

from .checks import LARGEST
from .messages import Adjust, Entitle
from .model import Wishes

#: The number of groups whose wishes are remembered. Groups that were absent for longest are forgotten first.
MOST_REMEMBERED = 1000
#: More GPUs than a machine has.
MOST_GPUS = 1024
#: The largest weight.
HEAVIEST = 1000


class Memory:
    """Wishes by the id of their group. A Jupyter kernel that is restarted has the same wishes again."""

    def __init__(self) -> None:
        self._wishes: OrderedDict[str, Wishes] = OrderedDict()

    def recall(self, group: str) -> Wishes:
        """Return the wishes for a group."""
        return replace(self._wishes.get(group, Wishes()))

    def remember(self, group: str, wishes: Wishes) -> None:
        """Remember the wishes for a group, except those for one cell."""
        lasting = replace(wishes, exclusive=False)
        self._wishes.pop(group, None)
        if lasting != Wishes():
            self._wishes[group] = lasting
        while len(self._wishes) > MOST_REMEMBERED:
            # Many wishes of users must not undo what an administrator did.
            oldest = next((name for name, w in self._wishes.items() if not w.held), None)
            self._wishes.pop(next(iter(self._wishes)) if oldest is None else oldest)


def lasting(wishes: Wishes) -> dict[str, Any]:
    """Return a user's wishes for a group that differ from the defaults, except those for one cell."""
    unasked = asdict(Wishes(exclusive=wishes.exclusive, held=wishes.held))
    return {name: value for name, value in asdict(wishes).items() if value != unasked[name]}


def adjusted(wishes: Wishes, event: Adjust) -> Wishes:
    """Return the changed wishes.

    Raises
    ------
    ValueError
        A value is not valid. The text is one sentence for the user.
    """
    changes = {
        f.name: value
        for f in fields(Wishes)
        if f.name != "held" and (value := getattr(event, f.name)) is not None
    }
    if wishes.held and changes.get("frozen") is False:
        raise ValueError(
            "an administrator took the GPU from it: only an administrator can let it go on"
        )
    for name, value in changes.items():
        if name == "priority":
            if value not in ("auto", "interactive", "background"):
                raise ValueError(f"priority must be auto, interactive or background, not {value!r}")
        elif name == "memory":
            if not _is_bytes(value):
                raise ValueError(
                    f"memory must be a whole number of bytes, 0 for no cap, not {value!r}"
                )
        elif name in ("request", "limit"):
            if not (_is_number(value) and 0 <= value <= 1):
                raise ValueError(
                    f"{name} must be a fraction of a GPU's time from 0, for none, to 1, "
                    f"not {value!r}"
                )
        elif name == "weight":
            if not (_is_number(value) and 0 < value <= HEAVIEST):
                raise ValueError(
                    f"weight must be a number above 0 and at most {HEAVIEST}, not {value!r}"
                )
        elif not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
    return replace(wishes, **changes)


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
            f"gpus must be a whole number of GPUs, at most {MOST_GPUS}, 0 for all, not {gpus!r}"
        )
    if not _is_bytes(host):
        raise ValueError(f"host must be a whole number of bytes, 0 for no cap, not {host!r}")
    adjusted(Wishes(), Adjust("", **stated))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_bytes(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
