# SPDX-License-Identifier: BSD-3-Clause
"""The parts of ``gpushare bench --publish``: which benchmarks, with which options, and how long each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark that is run and published by itself.

    Attributes
    ----------
    name
        The part's name, unique in its list.
    arguments
        Arguments of ``gpushare bench``.
    seconds
        How long it may take at most. Then it is interrupted, and the figures that it printed are kept.
    gpus
        The number of GPUs that it needs.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    gpus: int = 1

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return " ".join(("gpushare", "bench", *self.arguments))


def _part(arguments: str, seconds: float, gpus: int = 1) -> Part:
    return Part(arguments, tuple(arguments.split()), seconds, gpus)


#: On a real GPU. The short ones come first, because a run may be stopped at any time. None of them uses managed memory.
ON_GPU = (
    _part("context", 60),
    _part("launch", 60),
    _part("slab", 60),
    _part("quantum-end", 60),
    _part("cell-end", 60),
    _part("fits", 60),
    _part("turned-to-cpu", 60),
    _part("swap --gib 24", 200),
    _part("switch --gib 45", 90),
    _part("switch", 90),
    _part("training --pairs 20", 240),
    _part("hibernate --time-limit 440", 500),
    _part("comeback --gib 24", 240),
    _part("idle-power", 150),
    _part("interrupt", 90),
    _part("holder-killed", 120),
    _part("restart", 60),
    _part("disk --gib 24", 420),
    _part("conformance", 420),
    _part("interference --policy burst --pairs 20", 600),
    _part("makespan --policy burst --part half", 600),
    _part("makespan --policy burst --part fitting", 300),
    _part("makespan --policy burst --part cells", 600),
    _part("two-gpus", 300, gpus=2),
)

#: On the simulated driver.
WITHOUT_GPU = (
    _part("launch", 60),
    _part("quantum-end", 60),
    _part("busy-server", 120),
    _part("cell-end", 60),
    _part("fits", 60),
    _part("holder-killed", 60),
    _part("restart", 60),
    _part("interrupt", 90),
    _part("turned-to-cpu", 60),
    _part("kernel-start", 120),
    _part("command-start", 60),
    _part("shares", 300),
    _part("scheduler", 120),
    _part("class", 180),
    _part("oversubscribe", 120),
    _part("estimates", 600),
    _part("lab", 300),
    _part("simulation", 600),
    _part("agents", 600),
    _part("foresight", 1200),
)
