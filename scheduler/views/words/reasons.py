# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for why a group is waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import duration, size, within
from .codes import code_text


def reason_text(reason: Mapping[str, Any] | None) -> str:
    """Return why a group is waiting (docs/reference/control.md lists the codes)."""
    return code_text(REASONS, reason)


def _holder(given: dict[str, Any]) -> str:
    return str(given.get("holder_name") or given.get("holder") or "another notebook")


def _turn(given: dict[str, Any]) -> str:
    end = within(given.get("yields_in"), " when its work is done")
    return f"{_holder(given)}'s turn ends{end}"


def _needs(given: dict[str, Any]) -> str:
    # Nothing is missing if only one notebook is to run at a time.
    return "needs {} more; ".format(size(given["lack"])) if given["lack"] else ""


def _at_most(given: dict[str, Any]) -> str:
    seconds = given.get("until_in")
    return "" if seconds is None else f", for at most {duration(seconds)} more"


def _in(seconds: float | None) -> str:
    return "later" if seconds is None else f"in {duration(seconds)}"


def _victims(given: dict[str, Any]) -> str:
    return ", ".join(map(str, given["victims"]))


REASONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "needs_memory": lambda given: f"needs {size(given['lack'])} more; {_turn(given)}",
    "serialised": lambda given: f"one notebook at a time (anti-thrash is on); {_turn(given)}",
    "making_room": lambda given: (
        f"making room by evicting {size(given['lack'])}"
        + (f" of {_victims(given)}" if given["victims"] else "")
        + (
            f", {size(given['clean'])} of it without a copy because it has not changed"
            if given.get("clean")
            else ""
        )
    ),
    "filling": lambda given: (
        "restoring its memory"
        + (f" while evicting {_victims(given)}" if given["victims"] else "")
        + f": {size(given['arrived'])} of {size(given['footprint'])}"
    ),
    "draining": lambda given: (
        f"the CUDA kernel `{_short(given['kernel'])}` of {_holder(given)} has been running for "
        f"{duration(given['kernel_for'])}"
        if given.get("kernel")
        else f"waiting for {_holder(given)} to finish its queued GPU work ({duration(given['for'])} so far)"
    ),
    "stuck": lambda given: (
        f"{_holder(given)} has not released the GPU: its CUDA kernel `{_short(given['kernel'])}` has been running for "
        f"{duration(given['kernel_for'])}. Interrupt or restart it."
        if given.get("kernel")
        else f"{_holder(given)} has not responded for {duration(given['for'])}. It may be stopped, or its GPU work may "
        "be stuck. Interrupt or restart it."
    ),
    "behind": lambda given: (
        f"{given.get('ahead_name') or given.get('ahead')} is ahead in the queue"
    ),
    "residency": lambda given: (
        f"{_holder(given)}'s memory was just restored; it can be evicted {_in(given.get('until_in'))}"
    ),
    "foreign_use": lambda given: (
        f"needs {size(given['lack'])} more; programs not managed by gpushare hold {size(given['foreign'])}"
    ),
    "crowded": lambda given: (
        f"needs {size(given['lack'])} more; other notebooks hold {size(given['fixed'])} of unevictable memory (CUDA "
        "contexts, shared memory). Shut one of them down or restart it."
    ),
    "frozen": lambda given: "frozen; unfreeze it to continue",
    "on_hold": lambda given: "on hold; only an administrator can resume it",
    "quota_gpus": lambda given: (
        f"{owner(given['whose'])} may use {gpus(given['gpus'])} at once"
        + (
            f", and this notebook alone uses {given['own']}; restart it on fewer GPUs"
            if given["own"] > given["gpus"]
            else f"; {_turn(given)}"
            if given.get("holder_name")
            else "; other notebooks of the same user or team are ahead"
        )
    ),
    "gpu_draining": lambda given: (
        "an administrator is draining its GPU; wait, or restart the kernel to get another GPU"
    ),
    "kept": lambda given: (
        f"{_needs(given)}{_holder(given)} keeps its idle memory on the GPU{_at_most(given)}"
    ),
    "exclusive": lambda given: (
        f"{_holder(given)} has the GPU to itself for one cell{_at_most(given)}"
    ),
    "limited": lambda given: (
        f"{owner(given['whose'])} has reached the GPU time limit; more {_in(given['until_in'])}"
    ),
    "thrashing": lambda given: (
        "paging slowed both notebooks down when they ran side by side, so they take turns; "
        f"{_turn(given)}"
    ),
    "waking": lambda given: (
        "waking up from hibernation"
        + (f" (about {duration(given['estimate'])} more)" if given.get("estimate") else "")
    ),
    "no_room": lambda given: (
        f"needs {size(given['need'])} of free GPU memory to wake up, and more is in use than expected; trying again. "
        "No data is lost."
    ),
    "dying": lambda given: (
        f"needs {size(given['lack'])} more; waiting for the driver to free {size(given['pending_reclaim'])} of a "
        "process that has exited"
    ),
    "returning": lambda given: (
        f"needs {size(given['lack'])} more; waiting for {_processes(given['clients'])} to reconnect to the "
        "restarted scheduler"
    ),
    "host_memory": lambda given: (
        f"needs {size(given['lack'])} more, but the host has too little free memory; "
        f"the allocation fails{within(given['until_in'], ' soon')} unless memory is freed"
    ),
    "restore_failed": lambda given: (
        "restoring its memory failed {}{}; trying again. No data is lost.".format(
            "once" if given["attempts"] == 1 else "{} times".format(given["attempts"]),
            " (CUDA error {})".format(given["error"]) if given.get("error") else "",
        )
    ),
}


def owner(whose: Any) -> str:
    """Return the subject of a sentence about a user, a team, or the group itself."""
    kind, _, name = str(whose).partition(":")
    return f"{kind} {name}" if kind in ("user", "team") and name else "it"


def _processes(count: Any) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def gpus(count: Any) -> str:
    """Return a number of GPUs as text."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _short(text: Any) -> str:
    """Shorten the name of a CUDA kernel, because templates make long names."""
    name = str(text)
    return name if len(name) <= 60 else name[:57] + "..."
