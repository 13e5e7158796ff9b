# SPDX-License-Identifier: BSD-3-Clause
"""The machine that ``gpushare demo`` runs on, and the cells that it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ...scheduler.gpu.drivers import Driver


class DemoError(Exception):
    """The demo cannot start; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo runs on."""

    driver: Driver
    #: Share of the GPU's memory that each notebook takes.
    fraction: float
    #: A sentence about how that was chosen, or an empty string.
    remark: str
    environ: dict[str, str]
    #: What the notebooks compare their results with.
    against: str = "the CPU"


@dataclass(slots=True)
class Cell:
    """A code cell and its result."""

    source: str
    title: str
    #: Seconds that the user thinks before running the cell.
    pause: float
    #: Whether the cell must verify a result.
    checks: bool
    done: asyncio.Future[None]
    printed: str = ""
    error: str = ""
    state: set[str] = field(default_factory=set)

    @property
    def found(self) -> list[str]:
        """The results that the cell verified."""
        return [line[2:] for line in self.printed.splitlines() if line.startswith("✓ ")]
