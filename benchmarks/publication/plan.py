# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare bench --publish`` runs: the benchmarks with their options, and how long each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark that is run and published by itself.

    Attributes
    ----------
    arguments
        The arguments of ``gpushare bench``, separated by spaces.
    seconds
        How long it may take at most. Then it is interrupted, and the figures that it has printed are kept.
    gpus
        The number of GPUs that it needs.
    """

    arguments: str
    seconds: float
    gpus: int = 1

    @property
    def bench(self) -> str:
        """The name of the benchmark."""
        return self.arguments.split()[0]

    @property
    def command(self) -> str:
        """The command that runs it alone."""
        return f"gpushare bench {self.arguments}"


#: On a real GPU. The short ones come first, because a run may be stopped at any time. None of them uses managed memory.
ON_GPU = (
    Part("context", 60),
    Part("launch", 180),
    Part("slab", 60),
    Part("quantum-end", 60),
    Part("cell-end", 60),
    Part("fits", 60),
    Part("turned-to-cpu", 60),
    Part("swap --gib 24", 200),
    Part("switch --gib 45", 90),
    Part("switch", 90),
    Part("training --pairs 20", 240),
    Part("hibernate --part memory out wake", 300),
    Part("hibernate --part crowd --kernels 40", 400),
    # In parts, so that an interrupted run loses few of the 1,000 cycles.
    *(Part(f"hibernate --part cycles --cycles 250 --seed {seed}", 400) for seed in range(1, 5)),
    Part("comeback --gib 24", 240),
    Part("idle-power", 150),
    Part("interrupt", 90),
    Part("holder-killed", 120),
    Part("restart", 120),
    Part("disk --gib 24", 540),
    Part("conformance", 420),
    Part("interference --policy burst --pairs 20", 400),
    Part("interference --policy burst --pairs 20 --batch 32", 400),
    Part("interference --policy burst --pairs 4 --batch 32 --pause 60", 420),
    Part("makespan --policy burst --part half", 420),
    Part("makespan --policy burst --part fitting --seconds 2 --pairs 3", 360),
    Part("makespan --policy burst --part cells", 240),
    Part("two-gpus --seconds 60", 300, gpus=2),
)

#: On the simulated driver.
WITHOUT_GPU = (
    Part("launch", 60),
    Part("quantum-end", 60),
    Part("busy-server", 120),
    Part("cell-end", 60),
    Part("fits", 60),
    Part("holder-killed", 60),
    Part("restart", 60),
    Part("takeover", 60),
    Part("interrupt", 90),
    Part("turned-to-cpu", 60),
    Part("kernel-start", 120),
    Part("command-start", 60),
    Part("shares", 300),
    Part("scheduler", 120),
    Part("class", 180),
    Part("oversubscribe", 120),
    Part("estimates", 600),
    Part("lab", 300),
    Part("simulation", 600),
    Part("agents", 600),
    Part("foresight", 1200),
)
