# SPDX-License-Identifier: BSD-3-Clause
"""How long a program waits for the GPU, with nothing to move."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from ..harness.figures import Figure, fraction_right, median_and_p99
from ..harness.machine import MIB, Machine, Probe, machine
from ..harness.pingpong import hops

_MS = 1000.0
#: Seconds, of the benchmarks whose programs compete for the whole time.
QUANTUM = 0.05
#: Messages before and after, for comparison.
HOPS = 50
#: How often the holder is killed on a real GPU, whose driver keeps the memory until the child has ended: some 20 s.
REAL_KILLS = 3


def _two(here: Machine, bytes: int) -> tuple[Probe, Probe]:
    pair = here.probe("a"), here.probe("b")
    for probe in pair:
        probe.call(f"alloc {bytes}")
        probe.call("touch")
        probe.call("cell")
    return pair


def cell_end(rounds: int = 100) -> Iterator[Figure]:
    """From the end of the holder's cell to the first submission of the waiting program."""
    waits = []
    with machine("--anti-thrash", "on", "--quantum", "600") as here:
        holder, waiter = _two(here, MIB)
        for _ in range(rounds):
            holder.send("loop 0.03 0")
            time.sleep(0.01)
            waiter.send("kernel")
            holder.waits()
            (ended,) = holder.times("cell")
            _, launched = waiter.times()
            waits.append((launched - ended) * _MS)
            holder, waiter = waiter, holder
    yield from median_and_p99(
        "cell-end", "cell end to the waiter's first submission", "ms", waits, 10, 50
    )


def hand_offs(
    first: list[tuple[float, float]], second: list[tuple[float, float]], quantum: float
) -> list[float]:
    """Return the gaps in seconds between one's last launch before it waits and the other's first after.

    A launch that took less than half a quantum did not wait for the other: the machine held it up.
    """
    first, second = (
        [(last, resumed) for last, resumed in waits if resumed - last > quantum / 2]
        for waits in (first, second)
    )
    gaps = []
    for mine, other in ((first, second), (second, first)):
        for _, resumed in mine:
            stopped = [last for last, _ in other if last < resumed]
            if stopped and resumed - max(stopped) < quantum:
                gaps.append(resumed - max(stopped))
    return gaps


def quantum_end(seconds: float = 6.0) -> Iterator[Figure]:
    """Two programs that launch instant kernels all the time: the gap at each end of a quantum."""
    with machine(
        "--anti-thrash", "on", "--quantum", str(QUANTUM), GPUSHARE_SIM_INSTANT="1"
    ) as here:
        yield from quantum_gaps(here, "quantum-end", "hand-off at quantum end", seconds, 0.15)


def quantum_gaps(
    here: Machine, bench: str, metric: str, seconds: float, target: float
) -> Iterator[Figure]:
    """Let two probes compete; summarise the gaps, and messages that take the same way without the scheduler."""
    bare = hops(here.bare_environ(), HOPS)
    pair = _two(here, MIB)
    for probe in pair:
        probe.send(f"loop {seconds} 0")
    gaps = [gap * _MS for gap in hand_offs(pair[0].waits(), pair[1].waits(), QUANTUM)]
    bare += hops(here.bare_environ(), HOPS)
    bare = [seconds * _MS for seconds in bare]
    yield from median_and_p99(bench, metric, "ms", gaps, target, bare=bare)


def fits(rounds: int = 50) -> Iterator[Figure]:
    """Two that fit together: how long the second waits for its first submission."""
    waits = []
    with machine() as here:
        busy, newcomer = _two(here, 64 * MIB)
        busy.send(f"loop {rounds * 0.03 + 1} 0")
        for _ in range(rounds):
            here.control("release", group="bench-b")
            here.until_state("b", "idle")
            started, launched = newcomer.times("kernel")
            waits.append((launched - started) * _MS)
        busy.waits()
    yield from median_and_p99("fits", "wait of a second program that fits", "ms", waits, 1)


def holder_killed(rounds: int = 10) -> Iterator[Figure]:
    """The holder dies by kill -9, its forked child lives: until the next one's first submission."""
    waits: list[float] = []
    while len(waits) < rounds:
        with machine("--quantum", "600", GPUSHARE_SIM_MEMORY=str(32 * MIB)) as here:
            if not here.driver.simulated:
                rounds = min(rounds, REAL_KILLS)
            holder, waiter = here.probe("a"), here.probe("b")
            holder.call(f"alloc {here.share}")
            holder.call("touch")
            child = int(holder.call("fork"))
            waiter.call(f"alloc {here.share}")
            holder.send("loop 10 0")
            waiter.send("kernel")
            here.until_state("b", "waiting")
            time.sleep(0.05)
            killed = time.monotonic()
            os.kill(holder.process.pid, signal.SIGKILL)
            _, launched = waiter.times()
            waits.append((launched - killed) * _MS)
            os.kill(child, signal.SIGKILL)
    yield from median_and_p99(
        "holder-killed", "kill -9 to the waiter's first submission", "ms", waits, 50
    )


def turned_to_cpu(rounds: int = 50) -> Iterator[Figure]:
    """From a holder that computes on the CPU in its cell to the first submission of the waiting program."""
    waits = []
    with machine("--anti-thrash", "on", "--quantum", "600") as here:
        holder, waiter = _two(here, MIB)
        for _ in range(rounds):
            holder.send("loop 0.05 0")
            time.sleep(0.02)
            waiter.send("kernel")
            holder.waits()
            _, launched = waiter.times()
            waits.append((launched - holder.last_launch) * _MS)
            waiter.call("cell")
            holder, waiter = waiter, holder
    yield from median_and_p99(
        "turned-to-cpu", "last submission to the waiter's first", "ms", waits, 50, 50
    )


def scheduler_restart(rounds: int = 5) -> Iterator[Figure]:
    """The scheduler is killed and started again mid-run: how many of the programs end with right results."""
    right = total = 0
    for _ in range(rounds):
        with machine() as here:
            pair = here.probe("a"), here.probe("b")
            for probe in pair:
                probe.call(f"alloc {here.share}")
                probe.call("touch")
                probe.send("loop 2 100")
            time.sleep(0.5)
            here.kill_scheduler()
            time.sleep(0.3)
            here.start_scheduler()
            for probe in pair:
                probe.waits()
                total += 1
                right += probe.call("check") == "equal"
    yield fraction_right("restart", "programs with right results, of all", right / total, total)
