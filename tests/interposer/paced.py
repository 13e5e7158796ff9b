# SPDX-License-Identifier: BSD-3-Clause
"""A client whose work the scheduler paces."""

from __future__ import annotations

import time
from collections.abc import Callable

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import PATIENCE, Machine, Program, Script

KERNELS = str(LIBRARIES / "bench" / "empty.so")
#: Long enough never to be what lets a submission through.
NEVER = 600.0


class Paced:
    """A program with a lease and a kernel, and the scheduler that it hears."""

    def __init__(self, machine: Machine, **environ: str) -> None:
        machine.kill_scheduler()
        self.machine = machine
        self.script = Script(machine)
        self.program: Program = machine.program("a", **environ)
        loading = self.program.start("load", path=KERNELS)
        self.grant()
        assert self.program.result(loading)["result"] == 0
        # From now on, what grows does so under the lease.
        self.script.growth = "resident"
        self.said = self.beside = 0

    def grant(self) -> None:
        self.script.next(ev.Request)
        self.script.send(*self.script.grant(filling=False))

    def revoke(self) -> ev.Released:
        self.script.send(protocol.revoke(self.script.lease))
        return self.script.next(ev.Released)

    def pace(
        self,
        inflight: float | None = None,
        *,
        stall: float = NEVER,
        share: float = 1.0,
        meter: bool = False,
    ) -> None:
        """Say PACE, and wait until it has been heard."""
        self.said += 1
        told = ev.Pace(1, inflight, stall, share, meter)
        self.script.send(protocol.pace(told), protocol.contended(self.said, self.beside))
        self.until(lambda: self.progress("contended") == self.said)
        self.script.send(protocol.contended(0, self.beside))

    def start(self, op: str, **parameters: object) -> int:
        """Start a call that may wait in another thread."""
        return self.program.start(op, thread="work", **parameters)

    def progress(self, what: str) -> int:
        return int(self.program.call("progress")[what])

    def has_launched(self, least: int) -> bool:
        return self.progress("launched") >= least

    def ran(self) -> int:
        return int(self.program.call("counters")["kernels"])

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.program.errors
            time.sleep(0.005)
