# SPDX-License-Identifier: BSD-3-Clause
"""One line of the report of ``gpushare doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    topic
        What was checked.
    state
        Whether it works.
    found
        What was found.
    remedy
        What the user can do about it.
    """

    topic: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""
