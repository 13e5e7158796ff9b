# SPDX-License-Identifier: BSD-3-Clause
"""Words for what the scheduler says in codes (``docs/control.md``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Params = dict[str, Any]


def size(count: int) -> str:
    """Word a number of bytes: ``5.2 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 1023.96 KiB would be printed as 1024.0 KiB.
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Word a duration: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _in(params: Params, key: str) -> str:
    seconds = params.get(key)
    return "" if seconds is None else f" within {duration(seconds)}"


def _holder(params: Params) -> str:
    return str(params.get("holder_name") or params.get("holder") or "another")


def needs_memory(params: Params) -> str:
    """Word the lack of room that a holder has."""
    lack, need = size(params["lack"]), size(params["need"])
    return f"needs {need}, {lack} more than is free; {_holder(params)} yields{_soon(params)}"


def _soon(params: Params) -> str:
    return _in(params, "yields_in") or " when its work is over"


def serialised(params: Params) -> str:
    """Word that anti-thrashing lets one run at a time."""
    return f"one at a time (anti-thrash is on); {_holder(params)} yields{_soon(params)}"


def making_room(params: Params) -> str:
    """Word that idle memory is being moved out."""
    victims = ", ".join(map(str, params["victims"])) or "others"
    return f"moving {size(params['lack'])} of {victims} out to make room"


def filling(params: Params) -> str:
    """Word that memory arrives while another's leaves."""
    arrived, footprint = size(params["arrived"]), size(params["footprint"])
    victims = ", ".join(map(str, params["victims"]))
    place = f" while that of {victims} leaves" if victims else ""
    return f"its memory is arriving{place}: {arrived} of {footprint}"


def draining(params: Params) -> str:
    """Word that a holder's last kernel is still running."""
    return f"{_holder(params)}'s last GPU work has been ending for {duration(params['for'])}"


def behind(params: Params) -> str:
    """Word that another is first in the queue."""
    return f"{params.get('ahead_name') or params.get('ahead')} is first"


def residency(params: Params) -> str:
    """Word that a holder only just got its memory in."""
    return f"{_holder(params)} only just got its memory in; it may go{_in(params, 'until_in')}"


def foreign_use(params: Params) -> str:
    """Word that programs outside the sharing hold the room."""
    foreign, lack = size(params["foreign"]), size(params["lack"])
    return f"lacks {lack}; programs outside gpushare hold {foreign}"


def crowded(params: Params) -> str:
    """Word that others hold the room with what cannot move, and what to do."""
    fixed, lack = size(params["fixed"]), size(params["lack"])
    return (
        f"lacks {lack}; others hold {fixed} that cannot move (CUDA contexts, shared memory): "
        "shut a notebook down, or restart one that holds such memory"
    )


def dying(params: Params) -> str:
    """Word that a dead process's memory is not free yet."""
    return f"{size(params['ghosts'])} of a process that has ended are not free yet"


REASONS: dict[str, Callable[[Params], str]] = {
    word.__name__: word
    for word in (
        needs_memory,
        serialised,
        making_room,
        filling,
        draining,
        behind,
        residency,
        foreign_use,
        crowded,
        dying,
    )
}


def notice(found: dict[str, Any], name: str) -> str:
    """Word a notice about ``name``; a code of a newer scheduler stays a code."""
    if found.get("code") == "started_without_interposer":
        status = found.get("params", {}).get("status")
        ended = "" if status is None else f" (status {status})"
        return f"{name} runs without gpushare: its first start under it failed{ended}"
    return f"{name}: {str(found.get('code')).replace('_', ' ')}"


def reason(found: dict[str, Any] | None) -> str:
    """Word why a group waits; a code of a newer scheduler stays a code."""
    if not found:
        return ""
    code = str(found.get("code", ""))
    word = REASONS.get(code)
    if word is None:
        return code
    try:
        return word(found.get("params", {}))
    except (KeyError, TypeError):
        return code
