# SPDX-License-Identifier: BSD-3-Clause
"""What users and administrators did, in words; the page's own labels are in ``page/text.ts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Events that come with every cell: the page leaves them out.
QUIET = frozenset({"burst", "cell", "grow", "restore", "release", "revoke"})

#: What servers ask for with every kernel: nobody did it.
BY_THEMSELVES = frozenset({"login", "ticket", "tickets", "revoke"})

#: What somebody did, by the scheduler's operation.
ACTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "release": lambda given: "released the GPU for {}",
    "evict": lambda given: "evicted the memory of {}",
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
