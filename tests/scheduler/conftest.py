# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of these tests."""

from __future__ import annotations

from tests.scheduler.disk_tiers import lab, make_tier, pipe
from tests.scheduler.stand_in import make_hibernator, pid, processes, stand_in, stand_in_library
from tests.scheduler.usage_histories import open_history
from tests.support.scheduler import environ, scheduler, start

__all__ = [
    "environ",
    "lab",
    "make_hibernator",
    "make_tier",
    "open_history",
    "pid",
    "pipe",
    "processes",
    "scheduler",
    "stand_in",
    "stand_in_library",
    "start",
]
