# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of these tests."""

from __future__ import annotations

from tests.interposer.bed import make_bed
from tests.support.machine import machine, make_machine, make_script
from tests.support.sanitizers import sanitized

__all__ = ["machine", "make_bed", "make_machine", "make_script", "sanitized"]
