# SPDX-License-Identifier: BSD-3-Clause
"""The overhead of the interposer for a kernel launch, while no other program wants the GPU."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator

from ..harness.figures import Figure, quartile_distance
from ..harness.machine import machine, probe_command

#: Nanoseconds between launches, how many, and nanoseconds that we may add. A real driver's launch takes some 5 us, so
#: there are fewer of them.
CADENCES = (
    (0, 2_000_000, 10.0),
    (5_000, 40_000, 50.0),
    (50_000, 4_000, 50.0),
    (500_000, 500, 50.0),
)
REAL_MOST = 200_000


def run(rounds: int = 9) -> Iterator[Figure]:
    """Time launches bare and through us, alternating."""
    with machine(GPUSHARE_SIM_INSTANT="1") as here:
        environs = (here.bare_environ(), here.client_environ("launch"))
        for gap, count, target in CADENCES:
            if not here.driver.simulated:
                count = min(count, REAL_MOST)
            command = probe_command("launch", str(count), str(gap))
            bare: list[float] = []
            ours: list[float] = []
            for _ in range(rounds):
                for environ, times in zip(environs, (bare, ours), strict=True):
                    done = subprocess.run(
                        command, env=environ, capture_output=True, text=True, check=True
                    )
                    times.append(float(done.stdout))
            added = [mine - its for mine, its in zip(ours, bare, strict=True)]
            cadence = "tight loop" if gap == 0 else f"every {gap // 1000} us"
            yield Figure(
                "launch",
                f"{cadence}, over bare",
                statistics.median(added),
                "ns",
                statistics.median(bare),
                rounds,
                quartile_distance(added),
                target,
            )
