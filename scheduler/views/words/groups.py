# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for the state of lease groups and for their settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .amounts import duration, percent, size
from .reasons import reason_text

#: The name of each state, in the order of lists; JupyterLab and the Hub page use the same words.
STATES = {
    "running": "running",
    "finishing": "finishing",
    "restoring": "restoring",
    "waking": "waking",
    "waiting": "waiting",
    "prefetching": "getting ready",
    "idle_lease": "idle lease",
    "idle": "idle",
    "hibernated": "hibernated",
}


def rank(group: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the key by which lists of groups are sorted."""
    order, state = list(STATES), group.get("state")
    return (
        order.index(state) if state in order else len(order),
        group.get("position") or 0,
        str(group.get("name")),
    )


def state_text(group: Mapping[str, Any]) -> str:
    """Return a group's state, and its position in the queue."""
    state, position = str(group.get("state")), group.get("position")
    word = STATES.get(state, state)
    return word if state != "waiting" or position is None else f"{word} ({position})"


def estimate_text(found: Any) -> str:
    """Return about how much longer a wait lasts, with the interval in which 90% of such waits end."""
    try:
        seconds, low, high = (max(0.0, float(found[key])) for key in ("seconds", "low", "high"))
    except (KeyError, TypeError, ValueError):
        return ""
    if low < 0.1:
        return f"about {duration(seconds)} (at most {duration(high)})"
    if high >= 59.5:
        return f"about {duration(seconds)} ({duration(low)} to {duration(high)})"
    # The interval is rounded outwards, because it is a promise.
    step = 1.0 if seconds >= 0.95 else 0.1
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    about, low_text, high_text = (f"{value:.{int(step < 1)}f}" for value in (seconds, low, high))
    return f"about {about} s ({low_text}-{high_text} s)"


def preferences_text(preferences: Mapping[str, Any] | None) -> str:
    """Return the settings of a group that differ from the defaults."""
    given = preferences or {}
    parts = [
        str(given["priority"]) if given.get("priority", "auto") != "auto" else "",
        "keep" if given.get("keep") else "",
        "frozen" if given.get("frozen") else "",
        "on hold" if given.get("on_hold") else "",
        "memory {}".format(size(given["memory"])) if given.get("memory") else "",
        "request {}".format(percent(given["request"])) if given.get("request") else "",
        "limit {}".format(percent(given["limit"])) if given.get("limit") else "",
        "weight {:g}".format(given["weight"]) if given.get("weight", 1) != 1 else "",
        "exclusive" if given.get("exclusive") else "",
    ]
    return ", ".join(word for word in parts if word)


def queued_text(count: int) -> str:
    """Return how many cells wait in a group's Jupyter kernel; empty: none."""
    if not count:
        return ""
    return "1 more cell is queued" if count == 1 else f"{count} more cells are queued"


def remark(group: Mapping[str, Any]) -> str:
    """Return why a group is waiting and for about how much longer, or when its turn ends; and what follows."""
    parts = [reason_text(group.get("reason")), estimate_text(group.get("estimate"))]
    if not parts[0] and group.get("yields_in") is not None:
        parts.append("turn ends within {}".format(duration(group["yields_in"])))
    parts.append(queued_text(group.get("queued") or 0))
    parts += [reservation_text(group), sleep_text(group)]
    return "; ".join(text for text in parts if text)


def reservation_text(group: Mapping[str, Any]) -> str:
    """Return for how long the GPU is reserved for a group."""
    found = group.get("reservation") or {}
    if found.get("until_in") is None:
        return ""
    return f"the GPU is reserved for it for another {duration(found['until_in'])}"


def sleep_text(group: Mapping[str, Any]) -> str:
    """Return what hibernation freed and how long waking takes, or why a group was not hibernated."""
    found, state = group.get("hibernation") or {}, group.get("state")
    if state == "hibernated":
        freed, seconds = size(found.get("frees") or 0), found.get("estimate")
        return f"freed {freed}" + (
            "" if seconds is None else f"; wakes in about {duration(seconds)}"
        )
    if found.get("state") in ("parking", "hibernating"):
        return "is being hibernated"
    if found.get("state") == "ordered":
        return "will hibernate as soon as it is idle"
    # A user who turned hibernation off needs no reminder.
    is_shown = found.get("state") == "refused" and found.get("code") not in ("off", "nothing")
    return "cannot hibernate: {}".format(found.get("text") or found.get("code")) if is_shown else ""


def hibernation_text(status: Mapping[str, Any]) -> str:
    """Return why hibernation is unavailable; nothing if it is available, or has not been tried."""
    found = status.get("hibernation") or {}
    if found.get("able") is not False:
        return ""
    return "Hibernation is unavailable: {}".format(found.get("text") or found.get("code"))
