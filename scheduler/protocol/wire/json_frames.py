# SPDX-License-Identifier: BSD-3-Clause
"""Frames that carry JSON: commands, their replies, and events for subscribers."""

from __future__ import annotations

from typing import Any

from ...._protocol import ffi
from ..text import parse_json, to_json
from .frames import FROM_CLIENT, FROM_SCHEDULER, HEADER_P, HEADER_SIZE, REPLY, ProtocolError


def encode_json(kind: int, value: Any) -> bytes:
    """A CONTROL, REPLY or EVENT frame.

    Raises
    ------
    ProtocolError
        If it is longer than its receiver reads.
    """
    body = to_json(value)
    if len(body) > FROM_CLIENT.get(kind, FROM_SCHEDULER[REPLY])[1]:
        raise ProtocolError(f"a message of {len(body)} bytes is too long")
    length = HEADER_SIZE + len(body)
    return bytes(ffi.buffer(ffi.new(HEADER_P, (length, kind, 0)))[:]) + body


def decode_json(body: bytes) -> dict[str, Any]:
    """The object of a CONTROL, REPLY or EVENT frame, whose texts can be shown.

    Raises
    ------
    ProtocolError
        If it is no JSON object.
    """
    try:
        value = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("a message that is no JSON object")
    return value
