# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from tests.cli.steer.program import program

__all__ = ["program"]
