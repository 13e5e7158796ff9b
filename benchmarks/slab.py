# SPDX-License-Identifier: BSD-3-Clause
"""What freeing a small block and allocating another costs, with many of them live."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator

from .figures import Figure, quartile_distance
from .machine import machine, probe_command

#: Blocks of 512 B to 64 KiB that are live, and microseconds that it may take to free one and allocate another.
LIVE, TARGET = 20_000, 2.0
#: How many times: a driver takes about a hundred times as long as we do.
COUNT_BARE, COUNT = 5_000, 200_000


def run(rounds: int = 7) -> Iterator[Figure]:
    """Time pairs of cuMemFree and cuMemAlloc bare and through us, alternating."""
    with machine(GPUSHARE_SIM_INSTANT="1", GPUSHARE_SIM_MEMORY="1024MiB") as here:
        bare: list[float] = []
        ours: list[float] = []
        runs = (
            (here.bare_environ(), COUNT_BARE, bare),
            (here.client_environ("slab"), COUNT, ours),
        )
        for _ in range(rounds):
            for environ, count, times in runs:
                command = probe_command("slab", str(LIVE), str(count))
                done = subprocess.run(
                    command, env=environ, capture_output=True, text=True, check=True
                )
                times.append(float(done.stdout) / 1000)
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
