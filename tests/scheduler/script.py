# SPDX-License-Identifier: BSD-3-Clause
"""The world of the property tests, step by step and without hypothesis: each rule is called as a method."""

from __future__ import annotations

from typing import Any

from tests.scheduler.world.constants import GPUS
from tests.scheduler.world.processes import Process
from tests.scheduler.world.world import World


class AbsentError(Exception):
    """A step is about a process or a GPU that is not there."""


class Chosen:
    """Stands for what hypothesis draws: one process, and one of its GPUs."""

    def __init__(self, number: int, gpu: str = GPUS[0]) -> None:
        self.number = number
        self.gpu = gpu

    def process(self, among: list[Process]) -> Process:
        for process in among:
            if process.number == self.number:
                return process
        raise AbsentError(f"there is no process {self.number} to choose")

    def gpu_of(self, process: Process) -> str:
        if self.gpu not in process.memory:
            raise AbsentError(f"process {process.number} is not on {self.gpu}")
        return self.gpu

    def __repr__(self) -> str:
        gpu = "" if self.gpu == GPUS[0] else f', "{self.gpu}"'
        return f"Chosen({self.number}{gpu})"


class Script(World):
    """The world, with ``Chosen`` for what hypothesis draws."""

    def pick(self, data: Any, among: list[Process]) -> Process:
        process: Process = data.process(among)
        return process

    def pick_gpu(self, data: Any, process: Process) -> str:
        gpu: str = data.gpu_of(process)
        return gpu


#: How a world starts unless a test says otherwise.
DEFAULTS: dict[str, Any] = {
    "quantum": 0.5, "anti_thrash": "auto", "policy": "burst", "steady": True, "foreign": 0,
    "host": 4000, "context": 20, "hibernates": True, "residue": 0, "dearer": False, "prefetch": False,
    "preferences": [],
}  # fmt: skip


def begin(footprints: list[int], **changes: Any) -> Script:
    """Start a world with groups of so many MiB, of which each has work at once."""
    script = Script()
    script.start(footprints=footprints, **{**DEFAULTS, **changes})
    return script
