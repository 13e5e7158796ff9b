# SPDX-License-Identifier: BSD-3-Clause
"""How much memory each of the demo's notebooks takes: as much as can be moved during the pauses for thought."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ...scheduler.gpu.drivers import Driver
from ...scheduler.views.words.amounts import size
from .plan import DemoError

#: Share of the GPU's memory that each notebook takes if nothing speaks against it.
FRACTION = 0.75
#: The two notebooks need at least this share more than there is, else they would not have to take turns.
LEAST_BEYOND = 0.02
#: Share of the host memory budget that the demo uses at most. During a switch, the host holds both what is evicted
#: and what is about to be restored.
HOST_SHARE = 0.8
#: Seconds that a switch between the notebooks may take: half of a pause between two cells.
SWITCH = 0.5
#: Seconds that the first eviction may take, which also page-locks host memory: two pauses.
FIRST_SWITCH = 2.0
#: Bytes that are moved to measure the speed, and the share of a small GPU that they may be.
MEASURED = 256 << 20
MEASURED_SHARE = 4
#: Seconds after which a driver that does not respond is given up.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Speed:
    """How long it takes to move one byte.

    Attributes
    ----------
    first
        Seconds to page-lock host memory and to copy the byte there.
    again
        Seconds to copy it to page-locked host memory and back.
    """

    first: float
    again: float

    def bytes_in_time(self) -> int:
        """Return how much can move without making a switch longer than it may be."""
        return int(min(SWITCH / self.again, FIRST_SWITCH / self.first))


def measure_speed(driver: Driver, environ: Mapping[str, str], total: int) -> Speed:
    """Move some memory of the first GPU.

    Raises
    ------
    DemoError
        If the driver does not work.
    """
    amount = min(MEASURED, total // MEASURED_SHARE)
    command = [sys.executable, "-m", f"{__package__}.probe", str(driver.cuda), str(amount)]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        found = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise DemoError(
            f"copying to and from the GPU failed: {error}; run `gpushare doctor`"
        ) from None
    if "error" in found:
        raise DemoError(
            f"copying to and from the GPU failed: {found['error']}; run `gpushare doctor`"
        )
    return Speed(found["first"] / amount, found["again"] / amount)


def choose_fraction(total: int, room: int, budget: int, speed: Speed) -> tuple[float, str]:
    """Choose how much of a GPU each of two notebooks takes, so that they do not fit together.

    Parameters
    ----------
    total
        Bytes of the GPU.
    room
        Those that notebooks can use.
    budget
        Bytes of host memory for evicted data.
    speed
        How fast memory moves.

    Returns
    -------
    tuple
        The fraction, and a sentence about what limits it.

    Raises
    ------
    DemoError
        If the host has too little memory.
    """
    least = room * (1 + LEAST_BEYOND)
    # Each notebook evicts what does not fit next to the other. For a moment, the host holds the data of both.
    by_host = room + HOST_SHARE * budget / 2
    if by_host < least:
        raise DemoError(
            f"two notebooks that do not fit on the GPU together ({size(max(0, room))} free of {size(total)}) need more "
            f"host memory than is available ({size(budget)}); choose a size with --fraction"
        )
    by_speed = max(least, room + speed.bytes_in_time())
    both = min(2 * FRACTION * total, 2 * 0.95 * room, by_host, by_speed)
    moved = both - room
    if both == by_host:
        return both / 2 / total, f"The host has room for {size(budget)} of evicted memory."
    seconds = max(moved * speed.again, 0.01)
    return (
        both / 2 / total,
        f"About {size(moved)} does not fit. Copying it to the host and back takes {seconds:.2f} s (measured), "
        "less than a pause.",
    )
