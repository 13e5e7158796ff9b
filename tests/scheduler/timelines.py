# SPDX-License-Identifier: BSD-3-Clause
"""A timeline as control programs receive it."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.views.timeline import Timeline


def told(timeline: Timeline, version: int, now: float) -> dict[str, Any]:
    """What a control program reads."""
    frame = protocol.encode_json(protocol.REPLY, timeline.since(version, now))
    return protocol.decode_json(frame[protocol.HEADER_SIZE :])
