# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of these tests."""

from __future__ import annotations

from tests.interposer.bed import bed, make_bed
from tests.interposer.pool_clients import build_pool_client, make_client, make_pool
from tests.support.machine import machine, make_machine, make_script
from tests.support.sanitizers import sanitized

__all__ = [
    "bed",
    "build_pool_client",
    "machine",
    "make_bed",
    "make_client",
    "make_machine",
    "make_pool",
    "make_script",
    "sanitized",
]
