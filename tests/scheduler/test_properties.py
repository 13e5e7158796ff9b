# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's world (the modules in ``world/``), searched by hypothesis."""

from __future__ import annotations

from tests.scheduler.world.world import World

TestWorld = World.TestCase
