# SPDX-License-Identifier: BSD-3-Clause
"""Evict and restore under running work, again and again, and compare every byte::

    python -m tests.gpu.soak --cycles 1000 --state soak.json

Each round holds a few blocks of sizes that are log-uniform from 1 byte to ``--most``, lets kernels run over them all
the time, takes all of their memory some times, and then compares every byte with what it should be. The state file
makes it go on where it was stopped. Exit status 1 if a byte differs. On a real GPU: backend ``swap`` only.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.benchmarks.harness.machine import Machine, machine
from jupyter_gpushare.benchmarks.programs.holder import Holder, torch_can

GIB = 1 << 30
BLOCKS, CYCLES_A_ROUND = 4, 10


@dataclass
class State:
    """How far it has come."""

    cycles: int = 0
    rounds: int = 0
    moved: int = 0
    passes: int = 0
    seconds: float = 0.0
    largest: int = 0
    different: int = 0


def sizes(round_number: int, most: int) -> list[int]:
    """Return the sizes of a round's blocks: log-uniform, the same for the same round."""
    rng = random.Random(round_number)
    found = [int(math.exp(rng.uniform(0.0, math.log(most)))) for _ in range(BLOCKS)]
    # Every tenth round has one of the greatest.
    return [*found[1:], most] if round_number % 10 == 9 else found


def _moved(here: Machine) -> tuple[int, int]:
    group: dict[str, Any] = here.group("soak")
    return int(group["totals"]["evicted"]), int(group["gpus"][0]["resident"])


def _round(here: Machine, holder: Holder, state: State, most: int) -> None:
    holder.call("drop")
    for index, size in enumerate(sizes(state.rounds, most)):
        holder.call("hold", size, size, 1000 * state.rounds + index)
        state.largest = max(state.largest, size)
    holder.call("work")
    for _ in range(CYCLES_A_ROUND):
        before, _ = _moved(here)
        here.control("evict", group="bench-soak")
        # It comes back by itself: the kernels go on.
        while (evicted := _moved(here)[0]) == before:
            time.sleep(0.0005)
        state.moved += 2 * (evicted - before)
        state.cycles += 1
    state.passes += holder.call("rest")
    if not holder.call("equal"):
        state.different += 1
    state.rounds += 1


def main() -> int:
    """Run until the number of cycles is reached."""
    parser = argparse.ArgumentParser(description="Evicts and restores under running work.")
    parser.add_argument("--cycles", type=int, default=1000, help="evictions in all (default: 1000)")
    parser.add_argument(
        "--most", type=float, default=None, help="largest block, GiB (default: 29 %% of the GPU)"
    )
    parser.add_argument(
        "--minutes", type=float, default=None, help="stop after so long; the state says how far"
    )
    parser.add_argument("--state", type=Path, default=None, help="file to go on from")
    args = parser.parse_args()
    state = State()
    if args.state is not None and args.state.exists():
        state = State(**json.loads(args.state.read_text()))
    started = time.monotonic()
    before = state.seconds
    with machine(whole=True) as here:
        status = here.control("status")["status"]
        assert isinstance(status, dict)
        most = int(args.most * GIB if args.most else status["gpus"][0]["total"] * 40 / 139.8)
        holder = Holder(here.client_environ("soak"), torch=torch_can(here.driver.simulated))
        try:
            while state.cycles < args.cycles:
                _round(here, holder, state, most)
                state.seconds = before + time.monotonic() - started
                if args.state is not None:
                    args.state.write_text(json.dumps(asdict(state)))
                if args.minutes and time.monotonic() - started > 60 * args.minutes:
                    break
        finally:
            holder.close()
    print(
        f"{state.cycles} of {args.cycles} evictions in {state.rounds} rounds, {state.seconds:.0f} s: "
        f"{state.moved / 1e9:.1f} GB moved under {state.passes} passes of kernels, blocks from 1 B to "
        f"{state.largest / GIB:.2f} GiB; rounds with a byte that differed: {state.different}"
    )
    return 1 if state.different else 0


if __name__ == "__main__":
    sys.exit(main())
