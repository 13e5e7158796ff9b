# SPDX-License-Identifier: BSD-3-Clause
"""How fast the simulator is: a virtual day of 1000 kernels on 100 GPUs, on one processor.

Beside it, the same under no scheduler (``shared``): what the simulated machines cost without the core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...scheduler.simulation.generate import generate
from ...scheduler.simulation.run import simulate
from ..harness.figures import Figure

#: As examples/traces/day.jsonl.
DAY = {"researchers": 800.0, "jobs": 200.0, "hours": 24.0}
GPUS = 100
#: Seconds between two meters: at 0.1 s, as real clients say them, they would be nearly all of the events.
METER = 5.0
TARGET = 120.0


def run() -> Iterator[Figure]:
    """Yield how long a virtual day takes under our policy, and how many events the core handled a second."""
    trace = generate("research", 1, DAY, GPUS)
    took, events = {}, 0
    for policy in ("shared", "burst"):
        begun = time.perf_counter()
        [(_, outcome)] = simulate(trace, [policy], GPUS, meter=METER, starving=300.0)
        took[policy], events = time.perf_counter() - begun, outcome.events
    yield Figure(
        "simulation",
        "a day of 1000 kernels on 100 GPUs",
        took["burst"],
        "s",
        took["shared"],
        1,
        0.0,
        TARGET,
    )
    yield Figure(
        "simulation", "events of the core per second", events / took["burst"], "1/s", None, 1, 0.0
    )
