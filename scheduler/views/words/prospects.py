# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for when a notebook would run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import duration, size
from .codes import code_text
from .groups import estimate_text
from .reasons import REASONS, owner


def when_text(found: Mapping[str, Any]) -> str:
    """Return when a notebook would run, and why not at once (docs/reference/control.md, "Forecasts")."""
    reason = code_text(PROSPECTS, found["reason"])
    restore = found.get("restore") or 0.0
    after = (
        f"; restoring its memory then takes about {duration(restore)}" if restore >= 0.05 else ""
    )
    if found["likely"] is None:
        return f"It cannot run at present: {reason}"
    if found["reason"]["code"] in NOW:
        return f"It can run now: {reason}{after}"
    if not found["latest"]:
        return f"It can run in a moment: {reason}{after}"
    estimate = estimate_text(
        {"seconds": found["likely"], "low": found["earliest"], "high": found["latest"]}
    )
    return f"It can run in {estimate}: {reason}{after}"


#: The codes of notebooks that need not wait.
NOW = ("has_lease", "room", "no_gpu")
#: The reasons of waits, and the reasons that only a forecast has.
PROSPECTS: dict[str, Callable[[dict[str, Any]], str]] = {
    **REASONS,
    "has_lease": lambda given: "it has the GPU",
    "room": lambda given: "the GPU has room for it",
    "no_gpu": lambda given: "it does not use a GPU yet",
    "too_large": lambda given: (
        f"it needs {size(given['need'])}, but this GPU has room for at most {size(given['most'])}; use less memory"
    ),
    "over_cap": lambda given: (
        f"{owner(given['whose'])} may use only {size(given['room'])} more on this GPU; use less memory, or shut down "
        "another notebook"
    ),
}
