# SPDX-License-Identifier: BSD-3-Clause
"""Which rule put whom before whom, in words."""

from typing import Any, Callable, Dict, List, Optional

from .amounts import duration, fine, percent, within
from .reasons import gpus, owner, reason_text


def _names(found: Any) -> str:
    names = [str(name) for name in found]
    return names[0] if len(names) == 1 else "{} and {}".format(", ".join(names[:-1]), names[-1])


CLASSES: Dict[str, Callable[[str, Dict[str, Any]], str]] = {
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


def _use(given: Dict[str, Any], prefix: str) -> str:
    return "{} has had {}".format(owner(given[prefix + "whose"]), percent(given[prefix + "used"]))


RULES: Dict[str, Callable[[Dict[str, Any]], str]] = {
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


PACES: Dict[str, Callable[[Dict[str, Any]], str]] = {
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


NEXT: Dict[str, Callable[[Dict[str, Any]], str]] = {
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


def _worded(
    words: Dict[str, Callable[..., str]], found: Optional[Dict[str, Any]], *more: Any
) -> str:
    """Word a code with its parameters; a code of a newer scheduler stays a code."""
    if not found:
        return ""
    code = str(found.get("code", ""))
    try:
        return words[code](*more, found.get("params", {}))
    except (KeyError, TypeError, ValueError, IndexError):
        return code.replace("_", " ")


def explanation_lines(explanation: Dict[str, Any]) -> List[str]:
    """What ``explain`` answers, a line for each thing."""
    lines: List[str] = []
    for group in explanation.get("groups", []):
        reason, pace = reason_text(group.get("reason")), _worded(PACES, group.get("pace"))
        if group.get("waited") is not None:
            head = "waits for {}".format(duration(group["waited"]))
        else:
            head = str(group.get("state"))
        said = [text for text in (reason, pace) if text]
        name = str(group.get("name") or group.get("group"))
        lines.append("{} {}".format(name, ": ".join([head, "; ".join(said)]) if said else head))
        lines.append(
            "  " + _worded(CLASSES, group.get("why_class"), str(group.get("class") or "class"))
        )
        for place, other in enumerate(group.get("before", []), start=1):
            lines.append(
                "  {}. {} {}".format(
                    place, other.get("name") or other.get("group"), _worded(RULES, other)
                )
            )
        if group.get("next"):
            lines.append("  to be served: " + _worded(NEXT, group["next"]))
    return lines or ["Nobody waits for the GPU, and nobody is held back."]
