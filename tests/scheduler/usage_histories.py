# SPDX-License-Identifier: BSD-3-Clause
"""Usage histories that begin at noon, and nodes whose use they add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.observability.usage_report import HOUR, By, History
from tests.scheduler.quota_node import Node

NOON = 1_000_000 * HOUR

Opener = Callable[[Path | None], History]


@pytest.fixture
def open_history() -> Iterator[Opener]:
    """Return what opens a history at noon, and close all of them at the end."""
    opened: list[History] = []

    def open_one(path: Path | None) -> History:
        opened.append(History(path, NOON))
        return opened[-1]

    yield open_one
    for history in opened:
        history.close()


class Clock:
    """Adds up the use of a node in steps of a second.

    Parameters
    ----------
    node, history
        What is added up, and where.
    watts
        The power of each GPU in the following steps; None: its energy is not measured.
    """

    def __init__(
        self, node: Node, history: History, watts: dict[str, float | None] | None = None
    ) -> None:
        self.node, self.history, self.wall = node, history, float(NOON)
        self.watts = watts or {}
        self.joules = dict.fromkeys(self.watts, 1000.0)
        self.counts = True
        self.began: dict[int, float] = {}
        self.look()

    def look(self) -> None:
        readings = {
            gpu: Reading(self.node.now, self.joules[gpu] if self.counts else None, watts)
            for gpu, watts in self.watts.items()
            if watts is not None
        }
        self.history.usage.update(self.node.core, self.wall, self.node.now, readings)

    def run(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.node.sleep(step)
            self.report_meters()
            self.wall += step
            for gpu, watts in self.watts.items():
                self.joules[gpu] += (watts or 0.0) * step
            self.look()

    def report_meters(self) -> None:
        """Let all busy processes report the GPU time that they have had."""
        for number, kernel in self.node.kernels.items():
            client = self.node.core.clients[number]
            if client.busy and client.group.metered:
                busy = self.node.now - self.began.setdefault(number, client.burst_at)
                for gpu in kernel.usages:
                    self.node.do(ev.Meter(number, gpu, busy, self.node.now, 0))

    def report(self, *by: By, user: str | None = None) -> dict[str, Any]:
        found = self.history.report(NOON, self.wall)
        return (
            {**found, "rows": self.history.uses(NOON, self.wall, by, user, self.wall)()}
            if by
            else found
        )


class Reading(NamedTuple):
    at: float
    joules: float | None
    watts: float | None
