# SPDX-License-Identifier: BSD-3-Clause
"""Processes attach, allocate, submit work, die and stop."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import GPUS, GROUPS, MIB
from tests.scheduler.world.driver import CheckpointingDriver

sizes = st.integers(1, 900).map(lambda n: n * MIB)


class ProcessRules(CheckpointingDriver):
    """Rules by which processes act."""

    @rule(
        group=st.sampled_from(GROUPS),
        gpus=st.sampled_from([GPUS[:1], GPUS[:1], GPUS[1:], GPUS]),
        over=st.sampled_from([False, False, True]),
    )
    def attach(self, group: str, gpus: tuple[str, ...], over: bool) -> None:
        if len(self.processes) < 6:
            self.join(group, gpus, over)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def oversubscribe(self, data: Any) -> None:
        """A process oversubscribes from its next growth on."""
        process = self.pick(data, list(self.processes.values()))
        if process.growing is None and not process.stopped:
            process.over = True

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=sizes, extra=st.integers(0, 100), urgent=st.booleans())
    def grow(self, data: Any, size: int, extra: int, urgent: bool) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(
                process,
                gpu,
                memory.promised + size,
                memory.unevictable,
                extra * MIB,
                urgent=urgent,
            )

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=st.integers(1, 150).map(lambda n: n * MIB))
    def allocate_unevictable(self, data: Any, size: int) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(process, gpu, memory.promised, memory.unevictable + size, 0)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=(st.integers(1, 80) | st.integers(1, 400)).map(lambda n: n * MIB))
    def begin_context(self, data: Any, size: int) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(process, gpu, memory.promised, memory.unevictable, 0, memory.context + size)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), part=st.floats(0, 1))
    def free(self, data: Any, part: float) -> None:
        process = self.pick(data, list(self.processes.values()))
        if process.growing is None and not process.stopped and not process.parked:
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            memory.promised = int(memory.promised * part)
            memory.mapped = min(memory.mapped, memory.promised)
            memory.host = min(memory.host, memory.promised - memory.mapped)
            memory.unevictable = int(memory.unevictable * part)
            process.outbox.append(ev.UsageChanged(process.number, memory.usage(gpu)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def submit(self, data: Any) -> None:
        self.submit_from(self.pick(data, list(self.processes.values())))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), cause=st.sampled_from(["cell", "quiet", "idle"]))
    def finish(self, data: Any, cause: Any) -> None:
        busy = [p for p in self.processes.values() if p.busy and not p.stopped]
        if busy:
            process = self.pick(data, busy)
            process.busy = False
            process.outbox.append(ev.Burst(process.number, "end", cause, self.now))

    @precondition(lambda self: any(p.busy for p in self.processes.values()))
    @precondition(lambda self: any(p.waiting for p in self.processes.values()))
    @rule(well=st.booleans())
    def hand_over(self, well: bool) -> None:
        """Running processes end their bursts and others are granted; no memory has moved yet."""
        for process in self.processes.values():
            if process.busy and process.arriving is None and not process.stopped:
                process.busy = False
                process.outbox.append(ev.Burst(process.number, "end", "cell", self.now))
        for _ in range(2):
            for process in list(self.processes.values()) * 2:
                while self.may_send(process):
                    self.send_next(process)
                while process.inbox and self.may_receive(process):
                    self.receive_next(process, well)
            self.advance(self.now + 0.02)

    @precondition(lambda self: self.processes)
    @rule(
        data=st.data(),
        count=st.sampled_from([0, 1, 20]),
        pause=st.sampled_from([0.001, 0.004, 0.3, 1.5]),
        from_kernel=st.booleans(),
    )
    def run_next_cell(self, data: Any, count: int, pause: float, from_kernel: bool) -> None:
        """The open cell of a group ends, and the next one of a "Run All" begins after a pause."""
        process = self.pick(data, list(self.processes.values()))
        group = self.core.groups[process.group]
        self.feed(ev.Queued(group.id, count))
        if process.busy and not process.stopped:
            process.busy = False
            process.outbox.append(ev.Burst(process.number, "end", "cell", self.now))
            while self.may_send(process):
                self.send_next(process)
        for cell in list(group.cells):
            self.end_cell(group, cell, from_kernel)
        self.advance(self.now + pause)
        self.cells += 1
        self.feed(ev.Cell(group.id, "begin", str(self.cells), self.now, from_kernel))
        self.submit_from(process)

    @precondition(lambda self: any(p.leaving or p.arriving for p in self.processes.values()))
    @rule(which=st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def move(self, which: list[int]) -> None:
        """Some processes move one piece each, in any order."""
        for number in which:
            moving = [p for p in self.processes.values() if p.leaving or p.arriving]
            if moving:
                self.move_piece(moving[number % len(moving)])

    @precondition(lambda self: any(p.inbox or p.outbox for p in self.processes.values()))
    @rule(turns=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=1))
    def exchange_messages(self, turns: list[tuple[int, bool, bool]]) -> None:
        """Some processes receive or send one message each, in any order."""
        for which, hears, well in turns:
            able = [
                p
                for p in self.processes.values()
                if (p.inbox and self.may_receive(p) if hears else self.may_send(p))
            ]
            if able and hears:
                self.receive_next(able[which % len(able)], well)
            elif able:
                self.send_next(able[which % len(able)])

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def process_dies(self, data: Any) -> None:
        process = self.pick(data, list(self.processes.values()))
        del self.processes[process.number]
        self.dead += [(gpu, m.physical) for gpu, m in process.memory.items()]
        leased = self.core.clients[process.number].lease is not None
        if leased:
            self.over_since[process.group] = self.now - 1
        self.feed(ev.Detach(process.number))
        if process.group not in self.core.groups:
            self.in_since.pop(process.group, None)
            self.over_since.pop(process.group, None)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def stop(self, data: Any) -> None:
        self.pick(data, list(self.processes.values())).stopped = True

    @precondition(lambda self: any(p.stopped for p in self.processes.values()))
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        self.pick(data, [p for p in self.processes.values() if p.stopped]).stopped = False

    @precondition(lambda self: any(p.busy for p in self.processes.values()))
    @rule(seconds=st.sampled_from([0.001, 0.5, 4.0]))
    def meter(self, seconds: float) -> None:
        """All running processes report their GPU time."""
        for process in list(self.processes.values()):
            metered = process.pace is not None and process.pace.meter
            if process.busy and metered and not process.stopped:
                for gpu in process.memory:
                    process.had[gpu] += seconds
                    had = process.had[gpu]
                    self.feed(ev.Meter(process.number, gpu, had, int(had * 1000), self.now))

    @precondition(lambda self: any(p.lease is not None for p in self.processes.values()))
    @rule(data=st.data())
    def report_stuck_kernel(self, data: Any) -> None:
        process = self.pick(data, [p for p in self.processes.values() if p.lease is not None])
        assert process.lease is not None
        if process.stopped:
            return
        self.feed(ev.Stuck(process.number, process.lease, "gemm", self.now - 1.0))
