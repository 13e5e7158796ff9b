# SPDX-License-Identifier: BSD-3-Clause
"""Why a group waits, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import duration, size, within
from .codes import code_text


def reason_text(reason: Mapping[str, Any] | None) -> str:
    """Why a group waits, in words (docs/reference/control.md names the codes)."""
    return code_text(REASONS, reason)


def _holder(given: dict[str, Any]) -> str:
    return str(given.get("holder_name") or given.get("holder") or "another")


def _soon(given: dict[str, Any]) -> str:
    return within(given.get("yields_in"), " when its work is over")


def _lacks(given: dict[str, Any]) -> str:
    # Nothing, where one at a time is to run.
    return "lacks {}; ".format(size(given["lack"])) if given["lack"] else ""


def _for(given: dict[str, Any]) -> str:
    seconds = given.get("until_in")
    return "" if seconds is None else f" for {duration(seconds)} more at most"


REASONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "needs_memory": lambda given: (
        f"needs {size(given['need'])}, lacks {size(given['lack'])}; {_holder(given)} yields{_soon(given)}"
    ),
    "serialised": lambda given: (
        f"one at a time (anti-thrash is on); {_holder(given)} yields{_soon(given)}"
    ),
    "making_room": lambda given: (
        f"moving {size(given['lack'])} of {', '.join(map(str, given['victims'])) or 'others'} out to make room"
    ),
    "filling": lambda given: (
        f"its memory is arriving{' while that of ' * bool(given['victims'])}"
        f"{', '.join(map(str, given['victims']))}{' leaves' * bool(given['victims'])}: "
        f"{size(given['arrived'])} of {size(given['footprint'])}"
    ),
    "draining": lambda given: (
        f"the kernel {_short(given['kernel'])} of {_holder(given)} has been running for "
        f"{duration(given['kernel_for'])}"
        if given.get("kernel")
        else f"{_holder(given)}'s last GPU work has been ending for {duration(given['for'])}"
    ),
    "stuck": lambda given: (
        f"{_holder(given)} has not given the GPU up for {duration(given['for'])}"
        + (
            f": its kernel {_short(given['kernel'])} has been running for {duration(given['kernel_for'])}"
            if given.get("kernel")
            else ": it was stopped, or its GPU work does not end"
        )
        + "; interrupt or restart it"
    ),
    "behind": lambda given: f"{given.get('ahead_name') or given.get('ahead')} is first",
    "residency": lambda given: (
        f"{_holder(given)} only just got its memory in; it may go{within(given.get('until_in'), '')}"
    ),
    "foreign_use": lambda given: (
        f"lacks {size(given['lack'])}; programs outside gpushare hold {size(given['foreign'])}"
    ),
    "crowded": lambda given: (
        f"lacks {size(given['lack'])}; others hold {size(given['fixed'])} that cannot move "
        "(CUDA contexts, shared memory): shut a notebook down, or restart one that holds such memory"
    ),
    "frozen": lambda given: "it is frozen, and waits until somebody unfreezes it",
    "on_hold": lambda given: (
        "an administrator took the GPU from it, and only an administrator can let it go on"
    ),
    "quota_gpus": lambda given: (
        f"{owner(given['whose'])} may use {gpus(given['gpus'])} at once; "
        + (
            f"it uses {given['own']} by itself: free its memory on the others, or restart it on fewer"
            if given["own"] > given["gpus"]
            else f"{_holder(given)} yields{_soon(given)}"
            if given.get("holder_name")
            else "others of the same user or team come first"
        )
    ),
    "gpu_draining": lambda given: (
        "an administrator wants its GPU empty; it waits until that is over, or restart it on another GPU"
    ),
    "kept": lambda given: (
        f"{_lacks(given)}{_holder(given)} keeps its idle memory on the GPU{_for(given)}"
    ),
    "exclusive": lambda given: (
        f"{_lacks(given)}{_holder(given)} has the GPU for a whole cell{_for(given)}"
    ),
    "limited": lambda given: (
        f"{owner(given['whose'])} has had its limit of the GPU's time; more{within(given['until_in'], ' later')}"
    ),
    "thrashing": lambda given: (
        f"side by side both were slowed by paging, so they take turns; {_holder(given)} yields{_soon(given)}"
    ),
    "waking": lambda given: (
        "it was hibernated, and is being woken"
        + (f" (about {duration(given['estimate'])} more)" if given.get("estimate") else "")
    ),
    "dying": lambda given: f"{size(given['ghosts'])} of a process that has ended are not free yet",
    "returning": lambda given: (
        f"lacks {size(given['lack'])} until {_processes(given['clients'])} of the previous scheduler "
        f"{'has' if given['clients'] == 1 else 'have'} connected again"
    ),
    "host_memory": lambda given: (
        f"lacks {size(given['lack'])}: the host has too little free memory at the moment; "
        f"the allocation fails{within(given['until_in'], ' soon')} unless that changes"
    ),
    "restore_failed": lambda given: (
        "its memory could not be moved back to the GPU{} ({}); trying again, nothing is lost".format(
            " (CUDA error {})".format(given["error"]) if given.get("error") else "",
            "1 attempt" if given["attempts"] == 1 else "{} attempts".format(given["attempts"]),
        )
    ),
}


def owner(whose: Any) -> str:
    """Whose share it is: ``user:ada``, ``team:course``, or that of the one that it is said of."""
    kind, _, name = str(whose).partition(":")
    return f"the {kind} {name}" if kind in ("user", "team") and name else "it"


def _processes(count: Any) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def gpus(count: Any) -> str:
    """So many GPUs."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _short(text: Any) -> str:
    """The name of a kernel, of which templates make long ones."""
    name = str(text)
    return name if len(name) <= 60 else name[:57] + "..."
