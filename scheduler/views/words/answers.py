# SPDX-License-Identifier: BSD-3-Clause
"""Adds sentences to the replies for a viewer (docs/reference/control.md, "Sentences").

The replies must already be redacted for the viewer, because a sentence contains every name in its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .events import process_text, settings_text
from .explanations import explanation_lines, with_texts
from .groups import hibernation_text, preferences_text, rank, remark, state_text
from .notices import notice_text
from .prospects import when_text
from .reasons import reason_text

Answer = dict[str, Any]


def status(found: Mapping[str, Any]) -> Answer:
    """Return a status with sentences, and with its groups in the order of lists."""
    names = {group["id"]: group["name"] for group in found["groups"]}
    indices = {gpu["uuid"]: gpu["index"] for gpu in found["gpus"]}
    answer = {
        **found,
        "words": {
            "draining": [
                f"GPU {gpu['index']} is draining: no new leases are granted"
                for gpu in found["gpus"]
                if gpu.get("draining")
            ],
            "hibernation": hibernation_text(found),
            "settings": settings_text(found["settings"]),
        },
        "groups": [_group(group) for group in sorted(found["groups"], key=rank)],
        "notices": [
            {**notice, "text": notice_text(notice, names.get(notice["group"], notice["group"]))}
            for notice in found["notices"]
        ],
    }
    if found.get("processes"):
        answer["processes"] = [
            {**one, "text": process_text(one, indices.get(one["gpu"]))}
            for one in found["processes"]
        ]
    return answer


def explanation(found: Mapping[str, Any]) -> Answer:
    """Return an explanation with the sentence for each code, and with all sentences as lines of text."""
    groups = [with_texts(group) for group in found["groups"]]
    return {**found, "groups": groups, "lines": explanation_lines(groups)}


def when(found: Mapping[str, Any]) -> Answer:
    """Return a forecast with its sentence."""
    return {**found, "text": when_text(found)}


def _group(group: Mapping[str, Any]) -> Answer:
    words = {
        "state": state_text(group),
        "preferences": preferences_text(group.get("preferences")),
        "why": remark(group),
    }
    reason = group["reason"]
    return {
        **group,
        "reason": reason and {**reason, "text": reason_text(reason)},
        "words": words,
    }
