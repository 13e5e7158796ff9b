# SPDX-License-Identifier: BSD-3-Clause
"""Events, and what users and processes have, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import duration, percent, size
from .codes import UNFIT
from .groups import wishes_text
from .notices import notice_text
from .reasons import reason_text

EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "join": lambda found: "uses the GPU from here on",
    "leave": lambda found: "has ended",
    "wait": lambda found: f"waits: {reason_text(found['reason'])}",
    "grant": lambda found: (
        f"has its turn after {duration(found['waited'])}"
        if found.get("waited")
        else "has its turn at once"
    ),
    "evict": lambda found: f"{size(found['copied'])} of it moved to host memory",
    "refuse": lambda found: f"was refused memory: {found['text']}",
    "hibernate": lambda found: (
        f"was hibernated in {duration(found['seconds'])}; frees {size(found['bytes'])}"
    ),
    "wake": lambda found: (
        f"was woken in {duration(found['seconds'])}"
        + (f", on {found['gpu']}" if found.get("gpu") else "")
    ),
    # Of others, the code alone is told.
    "hibernate_failed": lambda found: f"was not hibernated: {found['text'] or found['code']}",
    "wake_failed": lambda found: f"could not be woken: {found['text'] or found['code']}",
    "cancel": lambda found: "was interrupted while it waited",
    "adjust": lambda found: f"was adjusted: {wishes_text(found['wishes']) or 'as usual'}",
    "stuck": lambda found: f"keeps others waiting: its kernel {found['kernel']} does not end",
    "settings": lambda found: settings_text(found),
    "entitle": lambda found: f"{found['whose']} is entitled to {quota_text(found) or 'the usual'}",
    "drain": lambda found: f"{found['gpu']} {'drains' if found['on'] else 'is in use again'}",
    "maintenance": lambda found: "the message to all has ended",
    "notice": lambda found: notice_text(found, ""),
}


def settings_text(found: Mapping[str, Any]) -> str:
    """Return the scheduler's settings in words."""
    quantum = found["quantum"]
    said = [
        f"policy {found['policy']}",
        f"quantum {quantum if quantum == 'auto' else duration(quantum)}",
        f"anti-thrash {found['anti_thrash']}",
    ]
    # Older schedulers do not hibernate.
    if "hibernate_after" in found:
        after = found["hibernate_after"]
        said.append(f"hibernate {'off' if after is None else f'after {duration(after)}'}")
    return ", ".join(said)


def event_text(found: Mapping[str, Any]) -> str:
    """Return an event in words; one of a newer scheduler is named by its kind."""
    kind = str(found.get("kind"))
    try:
        return EVENTS[kind](found)
    except UNFIT:
        return kind.replace("_", " ")


def quota_text(found: Mapping[str, Any]) -> str:
    """Return what a user or team is entitled to: nothing, where it is the usual."""
    said = [
        f"request {percent(found['request'])}" if found.get("request") else "",
        f"limit {percent(found['limit'])}" if found.get("limit") else "",
        f"weight {found['weight']:g}" if found.get("weight", 1) not in (0, 1) else "",
        f"{size(found['memory'])} on each GPU" if found.get("memory") else "",
        f"{found['gpus']} {'GPU' if found['gpus'] == 1 else 'GPUs'} at once"
        if found.get("gpus")
        else "",
        f"{size(found['host'])} in all" if found.get("host") else "",
    ]
    return ", ".join(text for text in said if text)


def process_text(found: Mapping[str, Any], gpu: int | None) -> str:
    """Return what a process holds and does not state, of the GPU with this index."""
    who = f"{found.get('user') or 'unknown'}, pid {found['pid']}"
    where = "" if gpu is None else f" of GPU {gpu}"
    if found["code"] == "outside":
        return f"a program outside gpushare ({who}) holds {size(found['bytes'])}{where}"
    return (
        f"a kernel ({who}) holds {size(found['bytes'])}{where} and states {size(found['claimed'])}"
    )
