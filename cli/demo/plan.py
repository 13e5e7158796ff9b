# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare demo`` runs on, and the cells that it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ...scheduler.gpu.drivers import Driver


class DemoError(Exception):
    """The demo cannot begin; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo runs on."""

    driver: Driver
    #: Of the GPU's memory, for each notebook.
    fraction: float
    #: Why the fraction is what it is, if it is not what one expects.
    remark: str
    environ: dict[str, str]
    #: What the notebooks check their results against.
    against: str = "the CPU"


@dataclass(slots=True)
class Cell:
    """A code cell, and what became of it."""

    source: str
    title: str
    #: Seconds for which a person thinks before running it.
    pause: float
    #: Whether it must find something right.
    checks: bool
    done: asyncio.Future[None]
    printed: str = ""
    error: str = ""
    state: set[str] = field(default_factory=set)

    @property
    def found(self) -> list[str]:
        """What it found to be right."""
        return [line[2:] for line in self.printed.splitlines() if line.startswith("✓ ")]
