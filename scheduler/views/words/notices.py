# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for notices, and for the ends of recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import size
from .codes import code_text


def notice_text(found: Mapping[str, Any], name: str) -> str:
    """Return the sentence for a notice.

    Parameters
    ----------
    found
        The ``code`` and ``params`` of the notice.
    name
        The notebook or program that the notice is about; empty if there is none, or if the name is shown elsewhere.
    """
    text = code_text(NOTICES, found, name)
    if found.get("code") not in NOTICES:
        text = f"{name}: {text}"
    return text.removeprefix(": ").strip()


def recording_end(why: object, error: str) -> str:
    """Return why a recording ended early."""
    return {
        "full": "it reached the maximum size",
        "slow": "events arrived faster than they could be written",
        "failed": f"it cannot be written: {error}",
    }.get(str(why), str(why))


def _unstated(given: Mapping[str, Any]) -> str:
    held = f"{size(given.get('bytes') or 0)} of GPU memory that gpushare cannot account for"
    # Only the owner and administrators see the user.
    whose = f"{given['user']} (pid {given.get('pid')})" if given.get("user") else "another user"
    return f"a process owned by {whose} is using {held}"


def _policy_failed(given: Mapping[str, Any]) -> str:
    # Only administrators see the exception.
    error = f": {given['error']}" if given.get("error") else ""
    return f'the policy "{given["policy"]}" failed and was replaced by "{given["instead"]}"{error}'


def _hibernation_stuck(name: str, given: Mapping[str, Any]) -> str:
    step = "wake" if given.get("step") == "restore" else "hibernate"
    # The pid is 0 if the process belongs to another user.
    process = f" (pid {given['pid']})" if given.get("pid") else ""
    return f"{name} is taking longer than expected to {step}{process}. It will continue in the background."


def _started_without(name: str, given: Mapping[str, Any]) -> str:
    status = given.get("status")
    ended = "" if status is None else f" (status {status})"
    return f"{name} uses the GPU without taking turns, because it failed to start with GPU sharing{ended}"


NOTICES: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "started_without_interposer": _started_without,
    "stuck": lambda name, given: (
        f"{name} was asked to release the GPU and has not responded. Other notebooks continue without it. Interrupt "
        "or restart it."
    ),
    "hibernation_stuck": _hibernation_stuck,
    "recording_ended": lambda name, given: (
        f"the recording to {given.get('file')} ended: "
        + recording_end(given.get("why"), str(given.get("error", "")))
    ),
    "maintenance": lambda name, given: f"maintenance: {given.get('text')}",
    "policy_failed": lambda name, given: _policy_failed(given),
    "reservation_lapsed": lambda name, given: (
        f"{name} did not use its reservation in time. Reserve again"
        if given.get("why") == "lapsed"
        else f"{name} lost its reservation, because its lease ended or it could not be woken. Reserve again"
    ),
    "second_kernel": lambda name, given: (
        f"{name} has two kernels, {str(given['first'])[:8]} and {str(given['second'])[:8]}. Each has its own variables "
        "and GPU memory. Shut down the kernel that you do not use"
    ),
    "underreported": lambda name, given: _unstated(given),
}
