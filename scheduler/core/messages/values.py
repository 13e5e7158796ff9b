# SPDX-License-Identifier: BSD-3-Clause
"""Types of the fields of events and decisions."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Backend = Literal["plain", "swap", "managed"]
Phase = Literal["begin", "end"]
Cause = Literal["none", "cell", "idle", "quiet", "release", "revoke", "growth", "failed", "exit"]
Growth = Literal["resident", "swapped", "device", "cap", "host"]
MoveStatus = Literal["done", "partial", "failed"]
#: A client's answer to ``Park``: ``done``, or why it must not be checkpointed.
Parking = Literal[
    "done", "busy", "capture", "gpus", "nccl", "ipc", "managed", "unevictable", "plain"
]
WakeCause = Literal["call", "exit"]
#: The order of GPUs for a group without one: the scheduler's, the stated one, or still none.
Keep = Literal["none", "it", "ask"]
AntiThrash = Literal["auto", "on", "off"]
#: The priority that a user chose. With ``auto``, the class follows from the group's activity (``activity.py``).
Priority = Literal["auto", "interactive", "agent", "background"]
#: The class of a group. A program runs an agent's cells on a person's behalf, so no person waits for each.
Class = Literal["interactive", "agent", "background"]
#: Signs that a group will soon use the GPU: its notebook came to the front, its user began to type in it, more of its
#: cells are queued, or its user asks to get it ready.
HintKind = Literal["focus", "typing", "queued", "ready"]
#: A hint, or the beginning of a cell, of which the core itself takes note.
Sign = Literal["focus", "typing", "queued", "ready", "cell"]
#: Seconds, or ``"auto"``: from the measured cost of moving.
Quantum = float | Literal["auto"]
#: The value of ``Room.resident`` when there is room for all that is promised.
ALL = (1 << 64) - 1


class Usage(Struct):
    """What one client holds on one GPU. It can change, because the core updates what a parked client needs."""

    gpu: str
    promised: int = 0
    resident: int = 0
    unevictable: int = 0
    context: int = 0
    host: int = 0
    #: Bytes of ``resident`` that can be evicted without a copy, as far as the client knows.
    clean: int = 0
    #: Bytes of ``host`` that other clients of the same user hold, too; and evicted bytes on disk. Like ``host``, both
    #: are sums over all of the client's GPUs.
    shared: int = 0
    disk: int = 0
