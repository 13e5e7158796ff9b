# SPDX-License-Identifier: BSD-3-Clause
"""What events and decisions are made of."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Backend = Literal["plain", "swap", "managed"]
Phase = Literal["begin", "end"]
Cause = Literal["none", "cell", "idle", "quiet", "release", "revoke", "growth", "failed", "exit"]
Growth = Literal["resident", "swapped", "device", "cap", "host"]
MoveStatus = Literal["done", "partial", "failed"]
#: What a client answers to ``Park``: ``done``, or why it is not to be checkpointed.
Parking = Literal["done", "busy", "capture", "gpus", "nccl", "ipc", "managed", "pinned", "plain"]
WakeCause = Literal["call", "exit"]
#: The order of the GPUs that a group without one gets: the scheduler's, the one that is stated, or none still.
Keep = Literal["none", "it", "ask"]
AntiThrash = Literal["auto", "on", "off"]
#: What people ask for; with ``auto``, the group's class follows from what it does (``activity.py``).
Priority = Literal["auto", "interactive", "background"]
#: What a group counts as.
Class = Literal["interactive", "background"]
#: Seconds, or ``"auto"``: from the measured cost of moving.
Quantum = float | Literal["auto"]
#: As ``Room.resident``: the room for all that is promised is there.
ALL = (1 << 64) - 1


class Usage(Struct):
    """What one client holds on one GPU. Not frozen: the core keeps what a parked client needs up to date."""

    gpu: str
    promised: int = 0
    resident: int = 0
    pinned: int = 0
    context: int = 0
    host: int = 0
