# SPDX-License-Identifier: BSD-3-Clause
"""The size of the simulated node, its users, and the settings that all its schedulers have."""

from __future__ import annotations

MIB = 1 << 20
#: Bytes of each GPU.
TOTAL = 1000 * MIB
#: Bytes of each GPU that the scheduler keeps free.
RESERVE = 20 * MIB
GPUS = ("GPU-0", "GPU-1")
GROUPS = ("a", "b", "c", "d")
USERS = {"a": "ada", "b": "ada", "c": "ben", "d": "cy"}
#: The system's groups of each group's user.
TEAMS = {"a": (), "b": (), "c": ("lab",), "d": ("lab", "all")}
#: Bytes per second that move between GPU and host.
SPEED = 1e9
#: Bytes that are moved at once.
PIECE = 64 * MIB
#: Seconds. They are shorter than by default, so that these limits are reached as often as all others.
PATIENCE = {
    "keep_patience": 50.0,
    "exclusive_limit": 80.0,
    "revoke_deadline": 20.0,
    "hibernate_after": 30.0,
    "prefetch_away": 5.0,
}
#: How a step of the driver ends: done, failed, not ended, not ended in time but done later, or without room.
OUTCOMES = ["", "", "failed", "helper", "stuck", "late", "room"]
#: Single submissions are let through more rarely than by default: otherwise nothing else happens.
SLOW = {"shortest_step": 0.2, "room_step": 0.2, "own_step": 0.2, "longest_step": 1.6}
