# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for the entries of the audit log. The page's own labels are in ``page/text.ts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Kinds of events that occur with every cell. The page does not show them.
QUIET = frozenset({"burst", "cell", "grow", "restore", "release", "revoke"})

#: Operations that servers send for every kernel without a user's action.
AUTOMATIC = frozenset({"login", "ticket", "tickets", "revoke"})

#: What a user did, by the scheduler's operation; the sentence begins with the user's name.
ACTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "release": lambda given: "released the GPU held by {}",
    "evict": lambda given: "evicted the memory of {}",
    "hibernate": lambda given: "hibernated {}",
    "wake": lambda given: "woke {}",
    "hold": lambda given: "put {} on hold" if given.get("on", True) else "resumed {}",
    "drain": lambda given: "drained {}" if given.get("on", True) else "stopped draining {}",
    "maintenance": lambda given: (
        "set the maintenance message" if given.get("text") else "cleared the maintenance message"
    ),
    "adjust": lambda given: "changed the settings of {}",
    "cancel": lambda given: "interrupted {}",
    "set": lambda given: "changed the scheduler's settings",
    "entitle": lambda given: "changed the quotas of {}",
    "record": lambda given: "started recording to {}",
}
#: Parameters that are part of the sentences above.
_WORDED = frozenset({"group", "gpu", "whose", "file", "on", "later"})


def action_text(entry: dict[str, Any], target: str) -> str:
    """Return the sentence for an entry of the audit log; for an unknown operation, its name."""
    op, given = str(entry["op"]), entry.get("given") or {}
    try:
        text = ACTIONS[op](given).format(target or "a notebook")
    except (KeyError, TypeError, ValueError, IndexError):
        text = f"{op.replace('_', ' ')} {target}".strip()
    parameters = ", ".join(
        str(value) if name == "text" else f"{name} {value}"
        for name, value in given.items()
        if name not in _WORDED and value not in ("", None)
    )
    outcome = entry.get("outcome", "ok")
    return (
        text
        + (f": {parameters}" if parameters else "")
        + ("" if outcome == "ok" else f" (failed: {outcome})")
    )
