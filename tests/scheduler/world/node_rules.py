# SPDX-License-Identifier: BSD-3-Clause
"""The node starts, time passes, connections break and the scheduler is replaced."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import GPUS, GROUPS, MIB
from tests.scheduler.world.driver import CheckpointingDriver


class NodeRules(CheckpointingDriver):
    """Rules by which the node changes."""

    @initialize(
        quantum=st.sampled_from(["auto", 0.5, 5.0]),
        anti_thrash=st.sampled_from(["auto", "auto", "on", "off"]),
        policy=st.sampled_from(["burst", "burst", *sorted(policies.OURS)]),
        steady=st.booleans(),
        foreign=st.integers(0, 100),
        host=st.sampled_from([400, 1000, 4000]),
        footprints=st.lists(st.integers(100, 850), min_size=2, max_size=4),
        context=st.sampled_from([20, 20, 100, 200]) | st.integers(1, 450),
        hibernates=st.booleans(),
        residue=st.sampled_from([0, 4, 4, 20]) | st.integers(0, 150),
        dearer=st.booleans(),
        prefetch=st.booleans(),
        preferences=st.lists(
            st.sampled_from(
                [
                    {},
                    {"keep": True},
                    {"priority": "background"},
                    {"priority": "agent"},
                    {"exclusive": True},
                ]
            ),
            max_size=len(GROUPS),
        ),
    )
    def start(
        self,
        quantum: Any,
        anti_thrash: Any,
        policy: str,
        steady: bool,
        foreign: int,
        host: int,
        footprints: list[int],
        context: int,
        hibernates: bool,
        residue: int,
        dearer: bool,
        prefetch: bool,
        preferences: list[dict[str, Any]],
    ) -> None:
        self.hibernates, self.dearer = hibernates, dearer
        self.residue = residue * MIB
        self.host = host * MIB
        self.settings = {"quantum": quantum, "anti_thrash": anti_thrash, "policy": policy}
        self.settings["prefetch"] = prefetch
        self.steady = steady
        self.floated = anti_thrash == "off"
        self.foreign = dict.fromkeys(GPUS, foreign * MIB)
        self.boot()
        for group, preference in zip(GROUPS, preferences, strict=False):
            if "exclusive" not in preference:
                self.adjust_group(group, preference)
        for group, size in zip(GROUPS, footprints, strict=False):
            process = self.join(group, GPUS[:1])
            if hibernates:
                self.ask(process, GPUS[0], 0, 0, 0, context * MIB)
                self.settle()
            self.ask(process, GPUS[0], size * MIB, 0, 0)
            self.settle()
            self.submit_from(process)
        for group, preference in zip(GROUPS[: len(footprints)], preferences, strict=False):
            if "exclusive" in preference:
                self.adjust_group(group, preference)
                self.feed(ev.Cell(group, "begin", group, self.now, from_kernel=True))

    @rule(step=st.sampled_from([0.0005, 0.004, 0.012, 0.3, 2.0, 40.0]))
    def pass_time(self, step: float) -> None:
        self.advance(self.now + step)

    @precondition(lambda self: self.dead)
    @rule()
    def memory_of_a_dead_process_is_freed(self) -> None:
        self.dead.pop(0)

    @rule(gpu=st.sampled_from(GPUS))
    def contexts_are_measured(self, gpu: str) -> None:
        """Report the memory of each process as the driver measures it, where the process states the same memory."""
        for process in self.processes.values():
            memory, client = process.memory.get(gpu), self.core.clients[process.number]
            holding = client.holdings.get(gpu)
            if memory is None or holding is None or client.gone:
                continue
            stated = (holding.resident, holding.unevictable, holding.stated)
            if (
                stated == (memory.mapped, memory.unevictable, memory.context)
                and not holding.unsettled
            ):
                taken = 0 if memory.away else memory.context + memory.surplus
                self.feed(ev.Measured(process.number, gpu, taken))

    @precondition(lambda self: not self.steady)
    @rule(gpu=st.sampled_from(GPUS), wanted=st.integers(0, 400))
    def other_programs_use_the_gpu(self, gpu: str, wanted: int) -> None:
        self.foreign[gpu] = min(wanted * MIB, self.room(gpu) + self.foreign[gpu])

    @rule()
    def the_scheduler_is_replaced(self) -> None:
        self.replay()
        self.boot()
        self.in_since.clear()
        self.over_since.clear()
        for group, preference in self.preferences.items():
            self.feed(ev.Adjust(group, **{**preference, "exclusive": None}, later=True))
        for process in self.processes.values():
            process.stopped = False
            self.cut_off(process)
        for process in self.processes.values():
            self.feed(self.hello_again(process))
        for process in self.processes.values():
            self.ask_again(process)

    @precondition(lambda self: any(not p.stopped for p in self.processes.values()))
    @rule(data=st.data())
    def a_connection_breaks(self, data: Any) -> None:
        """A process reconnects at once, with its memory, and with the lease that it believes to have."""
        process = self.pick(data, [p for p in self.processes.values() if not p.stopped])
        self.in_since.pop(process.group, None)
        if self.core.clients[process.number].lease is not None:
            self.over_since[process.group] = self.now - 1
        del self.processes[process.number]
        held = [(gpu, memory.physical) for gpu, memory in process.memory.items()]
        self.dead += held
        self.feed(ev.Detach(process.number))
        if process.group not in self.core.groups and process.lease is None:
            # The process comes back in a new group, which has not run yet.
            self.over_since.pop(process.group, None)
        for item in held:
            self.dead.remove(item)
        self.last += 1
        process.number = self.last
        self.processes[process.number] = process
        self.cut_off(process)
        if process.growing is not None:
            process.growing = replace(process.growing, client=process.number)
        self.feed(self.hello_again(process))
        self.ask_again(process)
