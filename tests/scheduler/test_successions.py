# SPDX-License-Identifier: BSD-3-Clause
"""One scheduler takes over from another, and processes return to it one by one.

No order of ends of schedulers and returns of processes may grant leases that do not fit together. A scheduler may end
before all processes are back, with or without having left the list of its clients.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import GPUS, TOTAL
from tests.scheduler.world.processes import Process
from tests.scheduler.world.world import World
from tests.support.properties import examples


class Successions(World):
    """The world, with processes that return one by one."""

    def leave_to_another(self, absent: list[Process], listed: bool, recalled: bool) -> None:
        """End the scheduler, and let another one begin while no process is connected.

        Parameters
        ----------
        absent
            Gets the processes that are to return.
        listed
            Whether the previous scheduler left the list of its clients.
        recalled
            Whether it left what it had learnt.
        """
        self.replay()
        learnt = msgspec.json.decode(msgspec.json.encode(self.core.learnt()), type=ev.Learnt)
        clients = []
        for process in list(self.processes.values()):
            process.stopped = False
            self.cut_off(process)
            usages = tuple(m.usage(gpu) for gpu, m in process.memory.items())
            pid = 100 + process.number
            clients.append(ev.Awaited(pid, "", process.group, usages))
            # Meanwhile its memory is there, and no scheduler knows the process.
            self.dead += self.held_by(process)
            del self.processes[process.number]
            absent.append(process)
        self.boot()
        self.in_since.clear()
        self.over_since.clear()
        if recalled:
            self.feed(ev.Recall(learnt))
            self.check_recalled(learnt)
        for group, preference in self.preferences.items():
            self.feed(ev.Adjust(group, **{**preference, "exclusive": None}, later=True))
        if listed and clients:
            self.feed(ev.Await(tuple(clients)))

    def check_recalled(self, learnt: ev.Learnt) -> None:
        """The next scheduler would hand over all that it has received."""
        assert replace(self.core.learnt(), at=learnt.at) == learnt

    def held_by(self, process: Process) -> list[tuple[str, int]]:
        return [(gpu, memory.physical) for gpu, memory in process.memory.items()]

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), listed=st.booleans(), recalled=st.booleans())
    def processes_return_one_by_one(self, data: Any, listed: bool, recalled: bool) -> None:
        """The scheduler is replaced. Processes that are back go on before the others return, and it may end again."""
        absent: list[Process] = []
        self.leave_to_another(absent, listed, recalled)
        ends = 0
        while absent:
            match data.draw(st.sampled_from(["return", "return", "work", "time", "end"])):
                case "return":
                    process = self.pick(data, absent)
                    absent.remove(process)
                    for item in self.held_by(process):
                        self.dead.remove(item)
                    self.processes[process.number] = process
                    self.feed(self.hello_again(process))
                    self.ask_again(process)
                case "work" if self.processes:
                    self.submit_from(self.pick(data, list(self.processes.values())))
                    self.settle()
                case "time":
                    self.advance(self.now + data.draw(st.sampled_from([0.0005, 0.02, 0.3, 2.0])))
                case "end" if ends < 2:
                    ends += 1
                    self.leave_to_another(
                        absent, data.draw(st.booleans()), data.draw(st.booleans())
                    )
            for gpu in GPUS:
                assert self.used(gpu) <= TOTAL


Successions.TestCase.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSuccessions = Successions.TestCase
