# SPDX-License-Identifier: BSD-3-Clause
"""What freeing and allocating small blocks costs: with many of them live, and behind a busy stream."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator

from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, machine, probe_command

#: Blocks of 512 B to 64 KiB that are live, and microseconds that it may take to free one and allocate another.
LIVE, TARGET = 20_000, 2.0
#: How many times: a driver takes about a hundred times as long as we do.
COUNT_BARE, COUNT = 5_000, 200_000
#: Frees that a busy stream has yet to reach, pairs that are timed then, and microseconds that one may take over bare.
PENDING, PAIRS, MOST_OVER_BARE = 8_000, 2_000, 2.0


def _times(
    here: Machine, rounds: int, mode: str, before: int, count_bare: int, count: int
) -> tuple[list[float], list[float]]:
    """Return microseconds a pair, bare and through us, alternating."""
    bare: list[float] = []
    ours: list[float] = []
    runs = (
        (here.bare_environ(), count_bare, bare),
        (here.client_environ("slab"), count, ours),
    )
    for _ in range(rounds):
        for environ, number, times in runs:
            command = probe_command(mode, str(before), str(number))
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            times.append(float(done.stdout) / 1000)
    return bare, ours


def run(rounds: int = 7) -> Iterator[Figure]:
    """Time pairs of cuMemFree and cuMemAlloc bare and through us, alternating."""
    with machine(GPUSHARE_SIM_INSTANT="1", GPUSHARE_SIM_MEMORY="1024MiB") as here:
        bare, ours = _times(here, rounds, "slab", LIVE, COUNT_BARE, COUNT)
        yield Figure(
            "slab",
            f"free and allocation of 512 B to 64 KiB, {LIVE} live",
            statistics.median(ours),
            "us",
            statistics.median(bare),
            rounds,
            quartile_distance(ours),
            TARGET,
        )


def ordered(rounds: int = 7) -> Iterator[Figure]:
    """Time pairs of cuMemAllocAsync and cuMemFreeAsync behind a stream that is busy, bare and through us."""
    with machine(GPUSHARE_SIM_INSTANT="1", GPUSHARE_SIM_MEMORY="1024MiB") as here:
        bare, ours = _times(here, rounds, "ordered", PENDING, PAIRS, PAIRS)
        yield Figure(
            "ordered",
            f"allocation and free behind a busy stream, {PENDING} pending",
            statistics.median(ours),
            "us",
            statistics.median(bare),
            rounds,
            quartile_distance(ours),
            statistics.median(bare) + MOST_OVER_BARE,
        )
