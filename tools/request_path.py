#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Follows a request for a lease that finds room, and the end of a cell, through the core's code.

For each event it prints the number of calls, of files, and of calls and returns that lead to another file. With
``--calls``, it also prints each call. docs/contributing/architecture.md describes the same path.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from jupyter_gpushare.scheduler import core as core_package
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.policies import REGISTRY

GPU, GIB = "GPU-0", 1 << 30
CORE = Path(core_package.__path__[0]).resolve()
ROOTS = (CORE, CORE.with_name("policies"))


@dataclass
class Way:
    """A profiler hook that records the calls within the core and the policies."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    changes: int = 0
    _file: str = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record a call, or a return to another file."""
        entered = frame if event == "call" else frame.f_back
        if event not in ("call", "return") or entered is None:
            return
        file = Path(entered.f_code.co_filename)
        if not any(root in file.resolve().parents for root in ROOTS):
            return
        if event == "call":
            self.calls.append((file.name, entered.f_code.co_name))
        self.changes += bool(self._file) and str(file) != self._file
        self._file = str(file)

    @property
    def files(self) -> set[str]:
        """Names of the files on the path."""
        return {file for file, _ in self.calls}


class Machine:
    """A core with one GPU of 80 GiB, and one process that holds 10 GiB of it."""

    def __init__(self) -> None:
        self.core, self.now = Core(REGISTRY), 1000.0
        self.feed(self.reading(), ev.HostMemory(100 * GIB))
        self.feed(ev.Attach(1, 101, "notebook", "notebook", "swap", user="ada"))
        usage = ev.Usage(GPU, 10 * GIB, 0, 0, GIB // 2)
        self.feed(ev.Grow(1, 1, usage, 10 * GIB), ev.UsageChanged(1, usage))

    def reading(self) -> ev.Device:
        """Return a reading of the GPU."""
        return ev.Device(GPU, 80 * GIB, 2 * GIB, "GPU", 0)

    def feed(self, *events: ev.Event) -> list[ev.Decision]:
        """Pass events to the core, and the readings that it asks for."""
        decisions: list[ev.Decision] = []
        for event in events:
            decisions += self.core.handle(event, self.now)
        if any(isinstance(d, ev.ReadDevice) for d in decisions):
            decisions += self.feed(self.reading())
        return decisions

    def follow(self, event: ev.Event) -> tuple[Way, list[ev.Decision]]:
        """Pass one event to the core while the hook records."""
        way = Way()
        sys.setprofile(way)
        try:
            decisions = self.core.handle(event, self.now)
        finally:
            sys.setprofile(None)
        return way, decisions


def main() -> None:
    """Follow both events and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="print each call")
    options = parser.parse_args()
    machine = Machine()
    machine.feed(machine.reading())
    request, decisions = machine.follow(ev.Request(1, 0))
    lease = next(d.lease for d in decisions if isinstance(d, ev.Grant))
    machine.now += 1.0
    machine.feed(machine.reading())
    end, _ = machine.follow(ev.Released(1, lease, "cell"))
    for name, way in (("a request that finds room", request), ("the end of a cell", end)):
        print(
            f"{name}: {len(way.calls)} calls in {len(way.files)} files, "
            f"{way.changes} changes of file"
        )
        for file, function in way.calls if options.calls else ():
            print(f"  {file:24} {function}")


if __name__ == "__main__":
    main()
