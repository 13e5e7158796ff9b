# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for events, settings, quotas and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import duration, percent, size
from .codes import UNFIT
from .groups import preferences_text
from .notices import notice_text
from .reasons import reason_text

#: By result of a prefetch, what follows the notebook's name.
PREFETCHES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "begun": lambda found: "is getting ready, because it will probably be used soon",
    "used": lambda found: (
        f"used {size(found['bytes'])} that a prefetch had restored, which saved about {duration(found['seconds'])}"
    ),
    "vain": lambda found: f"was ready ({size(found['bytes'])} restored), but was not used",
    "abandoned": lambda found: "is no longer getting ready",
}
#: By result of a reservation, what follows the notebook's name.
RESERVATIONS: Mapping[str, str] = {
    "waiting": "entered the queue to reserve the GPU",
    "ready": "has the GPU reserved for it",
    "used": "used its reservation",
    "lapsed": "did not use its reservation in time",
    "lost": "lost its reservation",
    "cancelled": "cancelled its reservation",
}


def _spares(found: Mapping[str, Any]) -> bool:
    """Whether an eviction found that part of the memory needs no copy."""
    return any(found.get(name) for name in ("hashed", "zero", "shared"))


#: By kind of event, its sentence; of those about a notebook or program, what follows its name.
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "join": lambda found: "started using the GPU",
    "leave": lambda found: "ended",
    "wait": lambda found: f"is waiting: {reason_text(found['reason'])}",
    "grant": lambda found: (
        f"was granted the GPU after {duration(found['waited'])}"
        if found.get("waited")
        else "was granted the GPU immediately"
    ),
    "evict": lambda found: (
        f"had {size(found['bytes'])} of its memory evicted, {size(found['copied'])} of it with a copy"
        if _spares(found)
        else f"had {size(found['copied'])} of its memory evicted to the host"
    ),
    "refuse": lambda found: f"was refused memory: {found['text']}",
    "hibernate": lambda found: (
        f"was hibernated in {duration(found['seconds'])}, which freed {size(found['bytes'])}"
    ),
    "wake": lambda found: (
        f"woke in {duration(found['seconds'])}"
        + (f" on {found['gpu']}" if found.get("gpu") else "")
    ),
    # Viewers see only the code if the notebook belongs to another user.
    "hibernate_failed": lambda found: f"could not be hibernated: {found['text'] or found['code']}",
    "wake_failed": lambda found: (
        f"could not be woken{' yet' if found['code'] == 'room' else ''}: {found['text'] or found['code']}"
    ),
    "prefetch": lambda found: PREFETCHES[found["result"]](found),
    "reservation": lambda found: RESERVATIONS[found["result"]],
    "cancel": lambda found: "stopped waiting, because its cell was interrupted",
    "adjust": lambda found: (
        f"has new settings: {preferences_text(found['preferences']) or 'the defaults'}"
    ),
    "stuck": lambda found: (
        f"is keeping others waiting: its CUDA kernel {found['kernel']} has not finished"
    ),
    "settings": lambda found: settings_text(found),
    "entitle": lambda found: (
        f"{found['whose']} is now entitled to {quota}"
        if (quota := quota_text(found))
        else f"default quotas now apply to {found['whose']}"
    ),
    "drain": lambda found: (
        f"{found['gpu']} is draining" if found["on"] else f"{found['gpu']} accepts leases again"
    ),
    "maintenance": lambda found: "the maintenance message was cleared",
    "notice": lambda found: notice_text(found, ""),
}


def settings_text(found: Mapping[str, Any]) -> str:
    """Return the scheduler's settings as text."""
    quantum = found["quantum"]
    parts = [
        f"policy {found['policy']}",
        f"quantum {quantum if quantum == 'auto' else duration(quantum)}",
        f"anti-thrash {found['anti_thrash']}",
    ]
    after = found["hibernate_after"]
    parts.append("hibernation off" if after is None else f"hibernate after {duration(after)}")
    if not found.get("prefetch", True):
        parts.append("prefetch off")
    return ", ".join(parts)


def event_text(found: Mapping[str, Any]) -> str:
    """Return the sentence for an event; for an unknown event, its kind."""
    kind = str(found.get("kind"))
    try:
        return EVENTS[kind](found)
    except UNFIT:
        return kind.replace("_", " ")


def quota_text(found: Mapping[str, Any]) -> str:
    """Return the quotas of a user or team that differ from the defaults."""
    parts = [
        f"request {percent(found['request'])}" if found.get("request") else "",
        f"limit {percent(found['limit'])}" if found.get("limit") else "",
        f"weight {found['weight']:g}" if found.get("weight", 1) not in (0, 1) else "",
        f"{size(found['memory'])} per GPU" if found.get("memory") else "",
        f"{found['gpus']} {'GPU' if found['gpus'] == 1 else 'GPUs'} at once"
        if found.get("gpus")
        else "",
        f"{size(found['host'])} in total" if found.get("host") else "",
    ]
    return ", ".join(text for text in parts if text)


def process_text(found: Mapping[str, Any], gpu: int | None) -> str:
    """Return the sentence for a process with unaccounted memory on the GPU with this index."""
    who = f"{found.get('user') or 'unknown'}, pid {found['pid']}"
    where = "" if gpu is None else f" on GPU {gpu}"
    if found["code"] == "outside":
        return f"a program not managed by gpushare ({who}) uses {size(found['bytes'])}{where}"
    return f"a kernel ({who}) uses {size(found['bytes'])}{where} but reports only {size(found['claimed'])}"
