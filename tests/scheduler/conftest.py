# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of these tests."""

from __future__ import annotations

from tests.scheduler.usage_histories import open_history
from tests.support.scheduler import environ, scheduler, start

__all__ = ["environ", "open_history", "scheduler", "start"]
