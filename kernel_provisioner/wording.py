# SPDX-License-Identifier: BSD-3-Clause
"""Words for what the scheduler says in codes (``docs/control.md``).

Most are those of ``%gpushare``, which lives in a folder of its own in other environments and so has them.
"""

from __future__ import annotations

from typing import Any

from .in_kernel.amounts import duration, percent, size
from .in_kernel.groups import STATES, rank, remark
from .in_kernel.groups import estimate_text as estimate
from .in_kernel.groups import hibernation_text as hibernation
from .in_kernel.groups import state_text as state
from .in_kernel.groups import wishes_text as wishes
from .in_kernel.reasons import REASONS
from .in_kernel.reasons import reason_text as reason

__all__ = [
    "REASONS",
    "STATES",
    "duration",
    "estimate",
    "hibernation",
    "notice",
    "percent",
    "rank",
    "reason",
    "recording_end",
    "remark",
    "size",
    "state",
    "wishes",
]


def notice(found: dict[str, Any], name: str) -> str:
    """Word a notice about ``name``; a code of a newer scheduler stays a code."""
    if found.get("code") == "started_without_interposer":
        status = found.get("params", {}).get("status")
        ended = "" if status is None else f" (status {status})"
        return f"{name} runs without gpushare: its first start under it failed{ended}"
    if found.get("code") == "stuck":
        return (
            f"{name} was told to give the GPU up and does not answer: others are served around it"
        )
    if found.get("code") == "hibernation_stuck":
        params = found.get("params", {})
        doing = "waking" if params.get("step") == "restore" else "hibernating"
        # Of others' processes it is 0.
        process = f" (pid {params['pid']})" if params.get("pid") else ""
        return f"{name}: {doing} it{process} does not end; it goes on by itself"
    if found.get("code") == "recording_ended":
        params = found.get("params", {})
        why = recording_end(params.get("why"), str(params.get("error", "")))
        return f"the recording to {params.get('file')} ended: {why}"
    if found.get("code") == "maintenance":
        return f"maintenance: {found.get('params', {}).get('text')}"
    if found.get("code") == "underreported":
        params = found.get("params", {})
        held = f"{size(params.get('bytes') or 0)} of GPU memory that it does not state"
        # Others are not told whose it is.
        whose = (
            f"{params['user']} (pid {params.get('pid')})" if params.get("user") else "another user"
        )
        return f"a process of {whose} holds {held}"
    return f"{name}: {str(found.get('code')).replace('_', ' ')}"


def recording_end(why: object, error: str) -> str:
    """Word why a recording ended before its time."""
    return {
        "full": "it is as long as a recording may be",
        "slow": "more came than could be written",
        "failed": f"it cannot be written: {error}",
    }.get(str(why), str(why))
