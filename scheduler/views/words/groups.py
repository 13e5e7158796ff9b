# SPDX-License-Identifier: BSD-3-Clause
"""What lease groups do and what is asked for them, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .amounts import duration, percent, size
from .reasons import reason_text

#: What each state is called, in the order in which they are listed; the Lab and the Hub page have the same words.
STATES = {
    "running": "running",
    "yielding": "yielding",
    "moving": "moving in",
    "waking": "waking",
    "waiting": "waiting",
    "held": "idle lease",
    "idle": "idle",
    "hibernated": "hibernated",
}


def rank(group: Mapping[str, Any]) -> tuple[int, int, str]:
    """By what groups are sorted in a list."""
    order, state = list(STATES), group.get("state")
    return (
        order.index(state) if state in order else len(order),
        group.get("position") or 0,
        str(group.get("name")),
    )


def state_text(group: Mapping[str, Any]) -> str:
    """A group's state, and its place in the queue."""
    state, position = str(group.get("state")), group.get("position")
    word = STATES.get(state, state)
    return word if state != "waiting" or position is None else f"{word} ({position})"


def estimate_text(found: Any) -> str:
    """How long a wait goes on, with the interval in which nine of ten such waits end."""
    try:
        seconds, low, high = (max(0.0, float(found[key])) for key in ("seconds", "low", "high"))
    except (KeyError, TypeError, ValueError):
        return ""
    if high >= 59.5:
        return f"about {duration(seconds)} ({duration(low)} to {duration(high)})"
    # Outwards, for it is the interval that is promised.
    step = 1.0 if seconds >= 0.95 else 0.1
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    about, low_text, high_text = (f"{value:.{int(step < 1)}f}" for value in (seconds, low, high))
    return f"about {about} s ({low_text}-{high_text} s)"


def wishes_text(wishes: Mapping[str, Any] | None) -> str:
    """What people ask for a group, where it is not the usual."""
    given = wishes or {}
    said = [
        str(given["priority"]) if given.get("priority", "auto") != "auto" else "",
        "keep" if given.get("keep") else "",
        "frozen" if given.get("frozen") else "",
        "on hold" if given.get("held") else "",
        "memory {}".format(size(given["memory"])) if given.get("memory") else "",
        "request {}".format(percent(given["request"])) if given.get("request") else "",
        "limit {}".format(percent(given["limit"])) if given.get("limit") else "",
        "weight {:g}".format(given["weight"]) if given.get("weight", 1) != 1 else "",
        "exclusive" if given.get("exclusive") else "",
    ]
    return ", ".join(word for word in said if word)


def remark(group: Mapping[str, Any]) -> str:
    """Why a group waits and for about how long, or when it yields."""
    said = [reason_text(group.get("reason")), estimate_text(group.get("estimate"))]
    if not said[0] and group.get("yields_in") is not None:
        said.append("yields within {}".format(duration(group["yields_in"])))
    said.append(sleep_text(group))
    return "; ".join(text for text in said if text)


def sleep_text(group: Mapping[str, Any]) -> str:
    """What one that is hibernated gives back, and how long it takes to wake it; or why it was left alone."""
    found, state = group.get("hibernation") or {}, group.get("state")
    if state == "hibernated":
        freed, seconds = size(found.get("frees") or 0), found.get("estimate")
        return f"frees {freed}" + (
            "" if seconds is None else f"; about {duration(seconds)} to wake"
        )
    if found.get("state") in ("parking", "hibernating"):
        return "it is being hibernated"
    if found.get("state") == "ordered":
        return "it hibernates once it is idle"
    # What people asked for, they know.
    told = found.get("state") == "refused" and found.get("code") not in ("off", "nothing")
    return "not hibernated: {}".format(found.get("text") or found.get("code")) if told else ""


def hibernation_text(status: Mapping[str, Any]) -> str:
    """Why no kernel can be hibernated; nothing where they can be, or nobody has tried."""
    found = status.get("hibernation") or {}
    if found.get("able") is not False:
        return ""
    return "Kernels cannot be hibernated: {}".format(found.get("text") or found.get("code"))
