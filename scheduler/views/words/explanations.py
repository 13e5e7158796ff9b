# SPDX-License-Identifier: BSD-3-Clause
"""Which rule put whom before whom, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .amounts import duration, fine, percent, within
from .codes import code_text
from .reasons import gpus, owner, reason_text


def _names(found: Any) -> str:
    names = [str(name) for name in found]
    return names[0] if len(names) == 1 else "{} and {}".format(", ".join(names[:-1]), names[-1])


CLASSES: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "asked": lambda cls, given: f"{cls}, as somebody asked",
    "fresh_cell": lambda cls, given: (
        f"{cls}: its cell has had less than {duration(given['after'])} of GPU time"
    ),
    "long_cell": lambda cls, given: (
        f"{cls}: its cell has had {duration(given['after'])} of GPU time; the next cell is interactive again"
    ),
    "short_use": lambda cls, given: (
        f"{cls}: it has used the GPU for less than {duration(given['after'])} since it last paused"
    ),
    "long_use": lambda cls, given: (
        f"{cls}: it has used the GPU for {duration(given['after'])}; after a pause it is interactive again"
    ),
}


def _use(given: dict[str, Any], prefix: str) -> str:
    return "{} has had {}".format(owner(given[prefix + "whose"]), percent(given[prefix + "used"]))


RULES: dict[str, Callable[[dict[str, Any]], str]] = {
    "came": lambda given: f"came {duration(given['own'] - given['theirs'])} earlier",
    "background": lambda given: (
        f"is interactive; one in the background counts as {duration(given['own'] - given['theirs'])} later"
    ),
    "length": lambda given: (
        "is expected to keep the others waiting for {}, this one for {}: short ones first".format(
            duration(given["theirs"]), duration(given["own"])
        )
    ),
    "focus": lambda given: (
        f"is in front of its user, which counts as {duration(given['own'] - given['theirs'])} earlier"
    ),
    "user_share": lambda given: "comes first by GPU time in the last 10 s: {}, {}{}".format(
        _use(given, "their_"),
        _use(given, ""),
        "; it is guaranteed {}".format(percent(given["their_request"]))
        if given.get("their_request")
        else "",
    ),
    "turn": lambda given: "belongs to a user whose turn was longer ago",
    "share": lambda given: "has had less GPU time in the last 10 s for its share and weight",
    "request": lambda given: "has had less of the GPU time that it is guaranteed",
    "use": lambda given: "has had less GPU time in the last 10 s",
    "class": lambda given: "has the higher priority",
    "weight": lambda given: "has the larger weight",
    "growth": lambda given: "waits in the middle of an allocation",
    "number": lambda given: "came first",
    "retry": lambda given: "has its old place again, since there was no room for it",
    "made_way": lambda given: "is the one that this one had to make way for",
}


PACES: dict[str, Callable[[dict[str, Any]], str]] = {
    "paused": lambda given: (
        f"paused while {_names(given['names'])} runs"
        if given["names"]
        else "paused: the others are to have their share first"
    ),
    "bounded": lambda given: "bounded to {} of work at a time{}".format(
        fine(given["inflight"]),
        f" while {_names(given['names'])} is about" if given["names"] else "",
    ),
    "share": lambda given: f"held to {percent(given['share'])} of the GPU's time",
}


NEXT: dict[str, Callable[[dict[str, Any]], str]] = {
    "unfreeze": lambda given: "somebody has to unfreeze it",
    "limit": lambda given: (
        f"{owner(given['whose'])} has to wait{within(given['until_in'], '')}, or to get a higher limit"
    ),
    "administrator": lambda given: "an administrator has to let it go on",
    "quota": lambda given: (
        f"{owner(given['whose'])} has to use a GPU less, or to get more than {gpus(given['gpus'])}"
    ),
    "room": lambda given: "it is next: it only waits for what is said above",
    "interactive": lambda given: (
        "make it interactive, or begin a new cell, and it no longer counts as later"
    ),
    "focus": lambda given: "bring it to the front in the browser",
    "use": lambda given: f"it has to wait until {given['ahead']} has had as much for its share",
    "served": lambda given: (
        f"{given['ahead']} has to be served before it"
        if given["count"] == 1
        else f"{given['count']} have to be served before it, {given['ahead']} first"
    ),
}


def with_texts(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group of an explanation with the sentence of each of its codes."""
    texts = {
        "why_class": code_text(CLASSES, group["why_class"], str(group["class"] or "class")),
        "pace": code_text(PACES, group["pace"]),
        "reason": reason_text(group["reason"]),
        "next": code_text(NEXT, group["next"]),
    }
    said = {key: group[key] and {**group[key], "text": text} for key, text in texts.items()}
    before = [{**other, "text": code_text(RULES, other)} for other in group["before"]]
    return {**group, **said, "before": before}


def explanation_lines(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a whole explanation, from groups that have their sentences: a line for each thing."""
    lines: list[str] = []
    for group in groups:
        head = str(group["state"])
        if group["waited"] is not None:
            head = f"waits for {duration(group['waited'])}"
        said = "; ".join(group[key]["text"] for key in ("reason", "pace") if group[key])
        name = group["name"] or group["group"]
        lines.append(f"{name} {head}: {said}" if said else f"{name} {head}")
        lines.append(f"  {group['why_class']['text']}")
        for place, other in enumerate(group["before"], start=1):
            lines.append(f"  {place}. {other['name'] or other['group']} {other['text']}")
        if group["next"]:
            lines.append(f"  to be served: {group['next']['text']}")
    return lines or ["Nobody waits for the GPU, and nobody is held back."]
