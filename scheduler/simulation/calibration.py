# SPDX-License-Identifier: BSD-3-Clause
"""What the simulated machine costs: every figure with its source, all in this file.

Sources: "H200" is docs/explanation/benchmarks.md; "assumed" was not measured, and is said to be so in simulate.md.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs of one kind of machine; bytes, seconds, bytes per second."""

    #: H200: 139.8 GiB to programs.
    gpu_memory: int = 150_111_000_000
    #: Assumed: of a node of 8 GPUs, what swapped data may take. (The measured machine had 126 GiB for one.)
    host_memory: int = 1024 * GIB
    #: H200, section 7 of the design: an idle torch process keeps about 700 MiB of context.
    context: int = 700 << 20
    #: H200, "Moving memory": 54.7 GB/s out and back.
    one_way: float = 54.7e9
    #: H200: a switch of two, both directions at once: 84 GB/s in all, so half of it each way.
    both_ways: float = 42.0e9
    #: H200: mapping 16 GiB in handles of 128 MiB takes 26 ms; what is new on the GPU costs only this.
    mapping: float = 0.026 / 16 / GIB
    #: Bytes that leave or arrive in one piece of a simulated move. (128 MiB on the real machine: fewer events here.)
    piece: int = 1 * GIB
    smallest_piece: int = 128 << 20
    pieces: int = 16
    #: H200, "Waits": a second program that fits waits 0.15 ms: request, grant, wake-up.
    grant: float = 0.00015
    #: H200, "Waits": hand-off at a quantum's end takes 0.57 ms in the median: what runs is drained.
    drain: float = 0.00057
    #: The client's quiet gap while others wait, and the longest that it learns (csrc/interposer/client/quiet.c).
    quiet: float = 0.008
    longest_quiet: float = 0.030
    #: The client looks every quarter of the gap, so finds it half of that late.
    quiet_lag: float = 0.125
    #: Bytes that a client asks for beyond its need (server.py).
    headroom: int = 64 << 20
    #: Seconds between a working client's METER messages (docs/explanation/scheduling.md).
    meter: float = 0.1
    #: Assumed: what the GPU still has of somebody's work when it is paused, if it was not bounded. Training loops read
    #: their loss once an iteration, so an iteration at most; half of 20 ms.
    unbounded: float = 0.010
    #: Assumed: the length of one submission of background work, which is let through each ``stall``.
    submission: float = 0.001
    #: A bound on the work in flight costs those who are bounded so much of their speed. H200: gated training keeps
    #: 87 % beside bursts that take some 10 % themselves.
    bounded: float = 0.97
    #: Share of the GPU that a burst of 5 ms (inference, small batch) asks for: what makes it 43 % slower beside a
    #: training loop, shared freely. H200: p99 +37 to +50 %.
    small_burst: float = 0.43


H200 = Calibration()
