# SPDX-License-Identifier: BSD-3-Clause
"""Groups that take turns, and groups that wait, on the GPU of ``core_machine.py``."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import Lab, Process


class Turns(Lab):
    """Groups of which one fits at a time: each has bursts to run all the time, and releases at once when told."""

    def __init__(self, **settings: Any) -> None:
        self.lengths: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.waits: dict[int, float] = {}
        self.longest: dict[int, float] = {}
        super().__init__(**settings)

    def plays(self, group: str, length: float, gib: float = 60, **more: Any) -> Process:
        process = self.process(group, gib, **more)
        self.lengths[process.number] = length
        self._asks(process)
        return process

    def _asks(self, process: Process) -> None:
        self.left[process.number] = self.lengths[process.number]
        self.waits[process.number] = self.now
        self.begin(process.group)
        self.react(process.request())

    def react(self, decisions: list[ev.Decision]) -> None:
        while decisions:
            decision = decisions.pop(0)
            if isinstance(decision, ev.Revoke):
                process = self.processes[decision.client]
                decisions += process.release()
                if self.left[process.number] > 0:
                    # The burst goes on where it can.
                    self.waits[process.number] = self.now
                    decisions += process.request()
            elif isinstance(decision, ev.Evict):
                decisions += self.processes[decision.client].evict(decision)
            elif isinstance(decision, ev.Grant):
                process = self.processes[decision.client]
                waited = self.now - self.waits.pop(process.number, self.now)
                self.longest[process.number] = max(waited, self.longest.get(process.number, 0.0))
                if process.resident < process.promised:
                    decisions += process.restore()

    def play(self, seconds: float, step: float = 0.1) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            running = [p for p in self.processes.values() if p.lease]
            self.react(self.sleep(step))
            for process in running:
                number = process.number
                self.busy[number] = self.busy.get(number, 0.0) + step
                self.done[number] = self.done.get(number, 0.0) + step / len(running)
                self.submissions[number] = self.submissions.get(number, 0) + 1
                self.meter(process)
                self.left[number] -= step
                if self.left[number] <= 1e-9:
                    for msg_id in list(self.core.groups[process.group].cells):
                        self.react(self.do(ev.Cell(process.group, "end", msg_id, self.now, True)))
                    if process.lease:
                        self.react(process.end())
                    self._asks(process)
        for number, since in self.waits.items():
            self.longest[number] = max(self.now - since, self.longest.get(number, 0.0))


def waiting(lab: Lab, **groups: dict[str, Any]) -> dict[str, Process]:
    """Groups that wait in vain, each a second after the one before, with what it is."""
    full = lab.runs("full", 100)
    assert full.lease
    lab.asks("full", priority="interactive")
    found = {}
    for name, traits in groups.items():
        lab.sleep(1)
        priority = traits.get("priority")
        if priority:
            lab.asks(name, priority=priority)
        found[name] = lab.process(name, traits.get("gib", 20), user=traits.get("user", ""))
        found[name].request()
    return found
