# SPDX-License-Identifier: BSD-3-Clause
"""What the page is told in words: reasons and events; its own labels are in ``page/text.ts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel_provisioner.wording import (
    duration,
    notice,
    percent,
    rank,
    reason,
    remark,
    size,
    wishes,
)

__all__ = [
    "BY_THEMSELVES",
    "EVENTS",
    "QUIET",
    "action",
    "event",
    "process",
    "quota",
    "rank",
    "remark",
    "wishes",
]

#: Events that come with every cell: the page leaves them out.
QUIET = frozenset({"burst", "cell", "grow", "restore", "release", "revoke"})

EVENTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "join": lambda found: "uses the GPU from here on",
    "leave": lambda found: "has ended",
    "wait": lambda found: f"waits: {reason(found['reason'])}",
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
    "adjust": lambda found: f"was adjusted: {wishes(found['wishes']) or 'as usual'}",
    "stuck": lambda found: f"keeps others waiting: its kernel {found['kernel']} does not end",
    "settings": lambda found: (
        f"policy {found['policy']}, quantum {found['quantum']}, anti-thrash {found['anti_thrash']}"
        + _idleness(found)
    ),
    "entitle": lambda found: f"{found['whose']} is entitled to {quota(found) or 'the usual'}",
    "drain": lambda found: f"{found['gpu']} {'drains' if found['on'] else 'is in use again'}",
    "maintenance": lambda found: "the message to all has ended",
    "notice": lambda found: notice(found, "").removeprefix(": "),
}


def _idleness(found: dict[str, Any]) -> str:
    if "hibernate_after" not in found:
        return ""
    after = found["hibernate_after"]
    return ", hibernate " + ("off" if after is None else f"after {duration(after)}")


def event(found: dict[str, Any]) -> str:
    """Word an event; one of a newer scheduler is named by its kind."""
    kind = str(found.get("kind"))
    try:
        return EVENTS[kind](found)
    except (KeyError, TypeError, ValueError):
        return kind.replace("_", " ")


def quota(found: dict[str, Any]) -> str:
    """Word what somebody is entitled to: nothing, where it is the usual."""
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


#: What servers ask for with every kernel: nobody did it.
BY_THEMSELVES = frozenset({"login", "ticket", "tickets", "revoke"})

#: What somebody did, by the scheduler's operation.
ACTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "release": lambda given: "ended the turn of {}",
    "offload": lambda given: "moved {} out",
    "evict": lambda given: "moved {} out",
    "hibernate": lambda given: "hibernated {}",
    "wake": lambda given: "woke {}",
    "hold": lambda given: "put {} on hold" if given.get("on", True) else "took {} off hold",
    "drain": lambda given: "drained {}" if given.get("on", True) else "put {} back into use",
    "maintenance": lambda given: "told all" if given.get("text") else "ended the message to all",
    "adjust": lambda given: "adjusted {}",
    "cancel": lambda given: "interrupted {}",
    "set": lambda given: "changed the settings",
    "entitle": lambda given: "changed what {} is entitled to",
    "record": lambda given: "recorded to {}",
}
#: Parameters that the words above say.
_SAID = frozenset({"group", "gpu", "whose", "file", "on", "later"})


def action(entry: dict[str, Any], target: str) -> str:
    """Word a line of the audit log; an operation that is not known is named."""
    op, given = str(entry["op"]), entry.get("given") or {}
    try:
        said = ACTIONS[op](given).format(target or "it")
    except (KeyError, TypeError, ValueError, IndexError):
        said = f"{op.replace('_', ' ')} {target}".strip()
    more = ", ".join(
        str(value) if name == "text" else f"{name} {value}"
        for name, value in given.items()
        if name not in _SAID and value not in ("", None)
    )
    outcome = entry.get("outcome", "ok")
    return (
        said
        + (f": {more}" if more else "")
        + ("" if outcome == "ok" else f" (not done: {outcome})")
    )


def process(found: dict[str, Any], gpu: int | None) -> str:
    """Word what a process holds and does not state."""
    who = f"{found.get('user') or 'unknown'}, pid {found['pid']}"
    where = "" if gpu is None else f" of GPU {gpu}"
    if found["code"] == "outside":
        return f"a program outside gpushare ({who}) holds {size(found['bytes'])}{where}"
    return (
        f"a kernel ({who}) holds {size(found['bytes'])}{where} and states {size(found['claimed'])}"
    )
