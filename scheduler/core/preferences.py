# SPDX-License-Identifier: BSD-3-Clause
"""What people ask for groups: which of it can be, and how long it is remembered."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, fields, replace
from typing import Any

from msgspec import structs

from .checks import LARGEST
from .messages import Adjust, Entitle
from .model import Wishes

#: Groups whose wishes are remembered: those that were not heard of for the longest are forgotten first.
MOST_REMEMBERED = 1000
#: More GPUs than a machine has.
MOST_GPUS = 1024
#: The largest weight.
HEAVIEST = 1000


class Memory:
    """Wishes by the id of their group, while it has no process too: a kernel that is restarted has them again."""

    def __init__(self) -> None:
        self._wishes: OrderedDict[str, Wishes] = OrderedDict()

    def recall(self, group: str) -> Wishes:
        """Return what was asked for a group."""
        return replace(self._wishes.get(group, Wishes()))

    def remember(self, group: str, wishes: Wishes) -> None:
        """Keep what was asked for a group, other than for one cell."""
        lasting = replace(wishes, exclusive=False)
        self._wishes.pop(group, None)
        if lasting != Wishes():
            self._wishes[group] = lasting
        while len(self._wishes) > MOST_REMEMBERED:
            # What an administrator did is not to be undone by many wishes.
            oldest = next((name for name, w in self._wishes.items() if not w.held), None)
            self._wishes.pop(next(iter(self._wishes)) if oldest is None else oldest)


def lasting(wishes: Wishes) -> dict[str, Any]:
    """Return what a user asked for a group, other than for one cell: all that is not as it is without."""
    unasked = asdict(Wishes(exclusive=wishes.exclusive, held=wishes.held))
    return {name: value for name, value in asdict(wishes).items() if value != unasked[name]}


def adjusted(wishes: Wishes, event: Adjust) -> Wishes:
    """Return the wishes as somebody wants them to be.

    Raises
    ------
    ValueError
        Something that is asked for cannot be; the text is one sentence for the person who asked.
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
    """Check what somebody is said to be entitled to.

    Raises
    ------
    ValueError
        It cannot be; the text is one sentence for the person who asked.
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
