# SPDX-License-Identifier: BSD-3-Clause
"""Groups whose memory is away, and what becomes of their prefetches."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GPU, Machine, Process, of

ALL_OF_IT = ev.Room(1, 2, GPU, ev.ALL)


def away(m: Machine, group: str, gib: float, **more: Any) -> Process:
    """Return a process that has run, and whose memory was evicted since."""
    process = m.runs(group, gib, **more)
    process.end("cell")
    m.sleep(1.0)
    (revoke,) = of(ev.Revoke, m.do(ev.Release(group, evict=True)))
    assert revoke.client == process.number
    (order,) = of(ev.Evict, process.release())
    process.evict(order)
    assert process.state == "idle"
    return process


def idle(m: Machine, group: str, gib: float, seconds: float = 0.0) -> Process:
    """Return a process that has run, and has been idle for so long with its memory on the GPU."""
    process = m.runs(group, gib)
    process.end("cell")
    m.sleep(seconds)
    assert process.state == "idle_lease"
    return process


def results(m: Machine, group: str) -> list[str]:
    return [x.fields["result"] for x in m.history if x.kind == "prefetch" and x.group == group]


def prefetch(m: Machine, group: str) -> Any:
    return m.group(group)["prefetch"]
