# SPDX-License-Identifier: BSD-3-Clause
"""Notices, and why a recording ended, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .amounts import size
from .codes import code_text


def notice_text(found: Mapping[str, Any], name: str) -> str:
    """Return a notice in words.

    Parameters
    ----------
    found
        Its ``code`` and ``params``.
    name
        The notebook or program that it is about; empty if there is none, or if the reader sees the name elsewhere.
    """
    text = code_text(NOTICES, found, name)
    if found.get("code") not in NOTICES:
        text = f"{name}: {text}"
    return text.removeprefix(": ").strip()


def recording_end(why: object, error: str) -> str:
    """Return why a recording ended before its time."""
    return {
        "full": "it is as long as a recording may be",
        "slow": "more came than could be written",
        "failed": f"it cannot be written: {error}",
    }.get(str(why), str(why))


def _unstated(given: Mapping[str, Any]) -> str:
    held = f"{size(given.get('bytes') or 0)} of GPU memory that it does not state"
    # Others are not told whose it is.
    whose = f"{given['user']} (pid {given.get('pid')})" if given.get("user") else "another user"
    return f"a process of {whose} holds {held}"


def _policy_failed(given: Mapping[str, Any]) -> str:
    # Others than administrators are not told what it raised.
    error = f": {given['error']}" if given.get("error") else ""
    return f'the policy "{given["policy"]}" failed, and "{given["instead"]}" took over{error}'


def _hibernation_stuck(name: str, given: Mapping[str, Any]) -> str:
    doing = "waking" if given.get("step") == "restore" else "hibernating"
    # Of others' processes it is 0.
    process = f" (pid {given['pid']})" if given.get("pid") else ""
    return f"{name}: {doing} it{process} does not end; it goes on by itself"


def _started_without(name: str, given: Mapping[str, Any]) -> str:
    status = given.get("status")
    ended = "" if status is None else f" (status {status})"
    return f"{name} runs without gpushare: its first start under it failed{ended}"


NOTICES: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "started_without_interposer": _started_without,
    "stuck": lambda name, given: (
        f"{name} was told to give the GPU up and does not answer: others are served around it"
    ),
    "hibernation_stuck": _hibernation_stuck,
    "recording_ended": lambda name, given: (
        f"the recording to {given.get('file')} ended: "
        + recording_end(given.get("why"), str(given.get("error", "")))
    ),
    "maintenance": lambda name, given: f"maintenance: {given.get('text')}",
    "policy_failed": lambda name, given: _policy_failed(given),
    "underreported": lambda name, given: _unstated(given),
}
