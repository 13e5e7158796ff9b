# SPDX-License-Identifier: BSD-3-Clause
"""Events reach the core, and time passes."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.model import Group
from tests.scheduler.world.constants import GPUS, PATIENCE, SPEED, TOTAL
from tests.scheduler.world.decisions import Before, CheckedDecisions


class Machine(CheckedDecisions):
    """A node whose scheduler takes in events; its decisions are checked and delivered."""

    def boot(self) -> None:
        self.settings_at_boot = {"bandwidth": SPEED, **PATIENCE, **self.settings}
        self.core = self.make_core(self.settings_at_boot)
        self.tape = []
        for gpu in GPUS:
            self.feed(self.reading(gpu))
        self.feed(ev.HostMemory(self.host))
        if self.hibernates:
            self.feed(ev.Hibernatable(True, moves=True))

    def reading(self, gpu: str) -> ev.Device:
        return ev.Device(gpu, TOTAL, self.used(gpu), "Test GPU", GPUS.index(gpu))

    def feed(self, event: ev.Event) -> None:
        """Give an event to the core; check and deliver what it decides."""
        before = {g.id: Before.of(g) for g in self.core.groups.values()}
        self.residency = {g.id: self.core.residency.residency(g) for g in self.core.groups.values()}
        ahead = [g for g in self.core.groups.values() if g.lease_ahead]
        if isinstance(event, ev.Device) and (gpu := self.core.gpus.get(event.gpu)) is not None:
            self.on_its_way[gpu.uuid] = gpu.coming + gpu.arriving + gpu.unsettled
        decisions = self.core.handle(event, self.now)
        for group in ahead:
            if group.lease is not None and not group.lease_ahead and not group.yielding:
                self.note_first_use(group)
        self.tape.append((event, self.now, decisions))
        readings = []
        for decision in decisions:
            if isinstance(decision, ev.ReadDevice):
                readings.append(decision.gpu)
            elif isinstance(decision, ev.PreparePool):
                assert 0 <= decision.bytes <= self.host
            elif not isinstance(decision, ev.Log):
                process = self.processes.get(decision.client)
                assert process is not None, f"{decision} is for no process"
                self.check(process, decision, before, event)
                if isinstance(decision, ev.Hibernate | ev.Wakeup):
                    process.steps.append(decision)
                else:
                    process.inbox.append(decision)
        for gpu in readings:
            self.feed(self.reading(gpu))

    def advance(self, until: float) -> None:
        for _ in range(3000):
            deadline = self.core.deadline()
            if deadline is None or deadline > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, deadline)
            self.feed(ev.Tick())
        raise AssertionError("too many ticks")

    def replay(self) -> None:
        core = self.make_core(self.settings_at_boot)
        for event, now, decisions in self.tape:
            assert core.handle(event, now) == decisions

    def teardown(self) -> None:
        if self.tape:
            self.replay()

    def adjust_group(self, group: str, preference: dict[str, Any]) -> None:
        if preference.get("frozen") is False and self.core.preferences_of(group).on_hold:
            with pytest.raises(ValueError, match="only an administrator"):
                self.core.handle(ev.Adjust(group, **preference, later=True), self.now)
            return
        self.preferences.setdefault(group, {}).update(preference)
        self.feed(ev.Adjust(group, **preference, later=True))

    def end_cell(self, group: Group, cell: str, from_kernel: bool) -> None:
        if group.turn and not group.busy and group.ended_at is None:
            self.over_since[group.id] = self.now
        self.feed(ev.Cell(group.id, "end", cell, self.now, from_kernel))
