# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's world (world.py), searched by hypothesis."""

from __future__ import annotations

from tests.scheduler.world import World

TestWorld = World.TestCase
