# SPDX-License-Identifier: BSD-3-Clause
"""Sentences that explain the order of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...._version import docs_url
from .amounts import duration, fine, percent, size
from .codes import code_text
from .groups import queued_text
from .reasons import REASONS, gpus, owner, reason_text


def _are(found: Any, what: str) -> str:
    names = [str(name) for name in found]
    if len(names) == 1:
        return f"{names[0]} is {what}"
    return "{} and {} are {}".format(", ".join(names[:-1]), names[-1], what)


CLASSES: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "asked": lambda cls, given: f"{cls} (set manually)",
    "fresh_cell": lambda cls, given: (
        f"{cls}: its cell has used less than {duration(given['after'])} of GPU time"
    ),
    "long_cell": lambda cls, given: (
        f"{cls}: its cell has used {duration(given['after'])} of GPU time; the next cell is interactive again"
    ),
    "short_use": lambda cls, given: (
        f"{cls}: it has used less than {duration(given['after'])} of GPU time since its last pause"
    ),
    "agent_cell": lambda cls, given: (
        f"{cls}: an agent ran its last cell; it is interactive again when a person runs one"
    ),
    "long_use": lambda cls, given: (
        f"{cls}: it has used {duration(given['after'])} of GPU time; it becomes interactive again after a pause"
    ),
}


def _use(given: dict[str, Any], prefix: str) -> str:
    return "{} used {}".format(owner(given[prefix + "whose"]), percent(given[prefix + "used"]))


#: Why another notebook is ahead: what follows its name.
RULES: dict[str, Callable[[dict[str, Any]], str]] = {
    "came": lambda given: f"has been waiting {duration(given['own'] - given['theirs'])} longer",
    "background": lambda given: (
        f"is interactive (background notebooks count as {duration(given['own'] - given['theirs'])} later)"
    ),
    "length": lambda given: (
        "is expected to need the GPU for {}, and this notebook for {}; short bursts go first".format(
            duration(given["theirs"]), duration(given["own"])
        )
    ),
    "focus": lambda given: (
        "is open in its user's browser (counts as waiting "
        f"{duration(given['own'] - given['theirs'])} longer)"
    ),
    "user_share": lambda given: "is ahead: over the last 10 s, {} of the GPU and {}{}".format(
        _use(given, "their_"),
        _use(given, ""),
        "; it is guaranteed {}".format(percent(given["their_request"]))
        if given.get("their_request")
        else "",
    ),
    "turn": lambda given: "belongs to a user whose notebooks last ran longer ago",
    "share": lambda given: (
        "has had less GPU time over the last 10 s, relative to its entitlement and weight"
    ),
    "request": lambda given: "has had less than its guaranteed GPU time",
    "use": lambda given: "has had less GPU time over the last 10 s",
    "people": lambda given: (
        "goes first, because people's cells go before agents and background notebooks"
    ),
    "agent_time": lambda given: "has had less GPU time over the last 10 min",
    "class": lambda given: "has a higher priority",
    "weight": lambda given: "has a greater weight",
    "growth": lambda given: "is in the middle of an allocation",
    "number": lambda given: "arrived first",
    "retry": lambda given: "keeps its place in the queue, because there was no room for it before",
    "made_way": lambda given: "preempted this notebook",
}


PACES: dict[str, Callable[[dict[str, Any]], str]] = {
    "paused": lambda given: (
        f"paused while {_are(given['names'], 'running')}"
        if given["names"]
        else "paused until other notebooks have had their GPU time"
    ),
    "bounded": lambda given: "throttled to {} of work at a time{}".format(
        fine(given["inflight"]),
        f", because {_are(given['names'], 'in use')}" if given["names"] else "",
    ),
    "share": lambda given: f"limited to {percent(given['share'])} of GPU time",
}


#: By kind of hint, the sign that the notebook will soon use the GPU.
HINTS = {
    "focus": "its user has returned to it",
    "typing": "its user is typing in it",
    "queued": "more of its cells are queued",
    "ready": "its user asked to get it ready",
    "cell": "its cell has begun",
}


def _hint(given: dict[str, Any]) -> str:
    """Return what the hint was, and how often GPU work followed such a hint."""
    text = HINTS.get(str(given["hint"]), "it will probably be used")
    if given["hint"] == "ready":
        return text
    if given["trials"] < 1:
        return f"{text}; GPU work follows within a minute in about {percent(given['likelihood'])} of cases"
    return f"{text}; GPU work followed within a minute {given['hits']:.0f} of {given['trials']:.0f} times"


def _not_ready(why: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: f"not getting ready: {why}"


#: Why a notebook is getting ready before it uses the GPU, or why not.
PREFETCHES: dict[str, Callable[[dict[str, Any]], str]] = {
    "evicting": lambda given: f"getting ready, evicting idle memory: {_hint(given)}",
    "waking": lambda given: f"getting ready, waking up: {_hint(given)}",
    "restoring": lambda given: f"getting ready, restoring its memory: {_hint(given)}",
    "ready": lambda given: f"ready: {_hint(given)}",
    "soon": lambda given: f"about to get ready: {_hint(given)}",
    "there": lambda given: "ready: all of its memory is on the GPU",
    "at_work": lambda given: "ready: it is using the GPU or waiting for it",
    "off": _not_ready("prefetch is off"),
    "unlikely": lambda given: (
        f"not getting ready, because it will probably not be used soon: {_hint(given)}"
    ),
    "stopped": _not_ready("it is frozen or on hold"),
    "unsupported": _not_ready("it uses managed memory, or more memory than the GPU has"),
    "unavailable": _not_ready("it is being hibernated, or its processes do not respond"),
    "draining": _not_ready("its GPU is being drained"),
    "limit": _not_ready("it has reached its limit of GPU time"),
    "quota": _not_ready("its user has reached the quota of GPUs"),
    "one_at_a_time": _not_ready("notebooks take turns, and another one is using the GPU"),
    "busy": _not_ready("other notebooks are waiting, or their memory is being moved"),
    "no_room": _not_ready(
        "there is no room, because the memory of other notebooks is in use, kept, or likely to be needed sooner"
    ),
}


def _wait(seconds: float | None) -> str:
    return "wait" if seconds is None else f"wait up to {duration(seconds)}"


def _own(whose: Any) -> str:
    subject = owner(whose)
    return "its" if subject == "it" else f"{subject}'s"


#: What it takes to run next.
NEXT: dict[str, Callable[[dict[str, Any]], str]] = {
    "unfreeze": lambda given: "unfreeze it",
    "limit": lambda given: (
        f"{_wait(given['until_in'])}, or raise {_own(given['whose'])} GPU time limit"
    ),
    "administrator": lambda given: "wait until an administrator lets it run",
    "quota": lambda given: (
        f"release a GPU that {owner(given['whose'])} uses, or raise the quota of {gpus(given['gpus'])}"
    ),
    "room": lambda given: "it is next in line; see the reason above",
    "interactive": lambda given: "make it interactive, or start a new cell",
    "focus": lambda given: "open it in the browser",
    "use": lambda given: (
        f"wait until {given['ahead']} has had as much GPU time, relative to its weight"
    ),
    "served": lambda given: (
        f"wait for {given['ahead']}"
        if given["count"] == 1
        else f"wait for {given['count']} notebooks, {given['ahead']} first"
    ),
}


def _uncopied(given: dict[str, Any]) -> str:
    """Return how much of an eviction left without a copy, and why."""
    reasons = [
        (given["clean"], "had not changed since the last copy"),
        (given["zero"], "contained only zeros"),
        (given["shared"], "was already in host memory for another notebook of the same user"),
    ]
    found = [(part, text) for part, text in reasons if part]
    when = f"the last eviction was {duration(given['for'])} ago"
    if not found:
        return f"{when}; all {size(given['bytes'])} were copied, because they had changed"
    if len(found) == 1 and given["clean"]:
        why = ", because they had not changed"
    else:
        why = ": " + ", ".join(f"{size(part)} {text}" for part, text in found)
    whole = sum(part for part, _ in found)
    return f"{when}; {size(whole)} of {size(given['bytes'])} left without a copy{why}"


#: How much an eviction moved.
MOVES: dict[str, Callable[[dict[str, Any]], str]] = {"evicted": _uncopied}


def with_texts(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group of an explanation with the sentence for each of its codes."""
    texts = {
        "why_class": code_text(CLASSES, group["why_class"], str(group["class"] or "class")),
        "pace": code_text(PACES, group["pace"]),
        "prefetch": code_text(PREFETCHES, group.get("prefetch")),
        "reason": reason_text(group["reason"]),
        "next": code_text(NEXT, group["next"]),
        "moved": code_text(MOVES, group.get("moved")),
    }
    worded = {key: group.get(key) and {**group[key], "text": text} for key, text in texts.items()}
    before = [{**other, "text": code_text(RULES, other)} for other in group["before"]]
    return {**group, **worded, "before": before}


def explanation_lines(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return an explanation as lines of text, from groups that have their sentences."""
    lines: list[str] = []
    for group in groups:
        head = str(group["state"])
        if group["waited"] is not None:
            head = f"has been waiting for {duration(group['waited'])}"
        why = "; ".join(group[key]["text"] for key in ("reason", "pace") if group[key])
        name = group["name"] or group["group"]
        lines.append(f"{name} {head}: {why}" if why else f"{name} {head}")
        lines.append(f"  {group['why_class']['text']}")
        if group.get("queued"):
            lines.append(f"  {queued_text(group['queued'])}")
        if group.get("prefetch"):
            lines.append(f"  {group['prefetch']['text']}")
        for place, other in enumerate(group["before"], start=1):
            lines.append(f"  {place}. {other['name'] or other['group']} {other['text']}")
        if group.get("moved"):
            lines.append(f"  {group['moved']['text']}")
        if group["next"]:
            lines.append(f"  to run next: {group['next']['text']}")
        if group["reason"] and group["reason"]["code"] in REASONS:
            anchor = str(group["reason"]["code"]).replace("_", "-")
            lines.append(f"  see {docs_url('reference/messages')}#{anchor}")
    return lines or ["No notebook is waiting for the GPU or being throttled."]
