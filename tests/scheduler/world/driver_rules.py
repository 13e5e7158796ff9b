# SPDX-License-Identifier: BSD-3-Clause
"""Processes hibernate and wake up, and the driver succeeds or fails."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import OUTCOMES
from tests.scheduler.world.driver import CheckpointingDriver


class DriverRules(CheckpointingDriver):
    """Rules by which processes hibernate."""

    @precondition(lambda self: self.hibernates and self.processes)
    @rule(
        told=st.booleans(),
        outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=6),
        calling=st.lists(st.booleans(), max_size=6),
    )
    def all_processes_go_idle(self, told: bool, outcomes: list[str], calling: list[bool]) -> None:
        """All processes end their work, and then nothing happens for a while."""
        self.settle()
        for group in self.core.groups.values():
            for cell in list(group.cells):
                self.end_cell(group, cell, from_kernel=True)
        for process in self.processes.values():
            if process.busy and not process.stopped:
                process.busy = False
                process.outbox.append(ev.Burst(process.number, "end", "cell", self.now))
        self.settle()
        self.advance(self.now + 31.0)
        if told:
            # Their memory is evicted: now they are told to park.
            for _ in range(2):
                for process in self.processes.values():
                    while process.inbox and self.may_receive(process):
                        self.receive_next(process)
                    while process.leaving and self.move_piece(process, patient=False):
                        pass
                    while self.may_send(process):
                        self.send_next(process)
        for process, calls in zip(list(self.processes.values()), calling, strict=False):
            if calls and process.parked and not process.stopped:
                self.request_wake(process)
                while self.may_send(process):
                    self.send_next(process)
        for outcome in outcomes:
            having = [p for p in self.processes.values() if p.steps]
            if having:
                self.driver_steps(having[len(outcomes) % len(having)], outcome)

    @precondition(lambda self: self.hibernates and self.processes)
    @rule(data=st.data(), hibernate=st.booleans())
    def hibernate_or_wake(self, data: Any, hibernate: bool) -> None:
        group = self.core.groups[self.pick(data, list(self.processes.values())).group]
        if not hibernate:
            self.feed(ev.WakeNow(group.id))
            return
        try:
            self.feed(ev.HibernateNow(group.id))
        except ValueError:
            assert group.preferences.keep or group.hibernation is None

    @precondition(lambda self: self.hibernates)
    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 30.0]))
    def configure_hibernation(self, seconds: float) -> None:
        self.feed(ev.Configure(hibernate_after=seconds))

    @precondition(lambda self: any(p.steps for p in self.processes.values()))
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def the_driver_ends_a_step(self, data: Any, outcome: str) -> None:
        """The driver finishes a step, fails, does not end, or finishes after its time limit."""
        having = [p for p in self.processes.values() if p.steps]
        self.driver_steps(self.pick(data, having), outcome)

    @precondition(lambda self: any(p.parked and not p.stopped for p in self.processes.values()))
    @rule(data=st.data(), cause=st.sampled_from(["call", "exit"]))
    def wake_for_a_call(self, data: Any, cause: Any) -> None:
        parked = [p for p in self.processes.values() if p.parked and not p.stopped]
        self.request_wake(self.pick(data, parked), cause)
