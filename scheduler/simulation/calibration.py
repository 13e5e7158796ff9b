# SPDX-License-Identifier: BSD-3-Clause
"""The costs of the simulated machine, each with its source.

Sources: "H200" is docs/explanation/benchmarks.md. "Assumed" figures were not measured; simulate.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs of one kind of machine; bytes, seconds, bytes per second."""

    #: H200: 139.8 GiB for programs.
    gpu_memory: int = 150_111_000_000
    #: Assumed: host memory for swapped data on a node with 8 GPUs. (The measured machine had 126 GiB for one GPU.)
    host_memory: int = 1024 * GIB
    #: H200, section 7 of the design: an idle torch process keeps about 700 MiB of context.
    context: int = 700 << 20
    #: H200, "Moving memory": 54.7 GB/s in each direction.
    one_way: float = 54.7e9
    #: H200: a switch of two, both directions at once: 84 GB/s in total, so half of it in each direction.
    both_ways: float = 42.0e9
    #: H200: mapping 16 GiB in handles of 128 MiB takes 26 ms. New memory costs only this.
    mapping: float = 0.026 / 16 / GIB
    #: Assumed: bytes that are hashed in a second, about half of the GPU's memory bandwidth.
    hashing: float = 2.0e12
    #: Bytes that leave or arrive in one piece of a simulated move. (128 MiB on the real machine: fewer events here.)
    piece: int = 1 * GIB
    smallest_piece: int = 128 << 20
    pieces: int = 16
    #: H200, "Waits": a second program that fits waits 0.15 ms: request, grant, wake-up.
    grant: float = 0.00015
    #: H200, "Waits": a hand-off at the end of a quantum takes 0.57 ms (median): the work in flight is drained.
    drain: float = 0.00057
    #: The client's quiet gap while other groups wait, and the longest gap (csrc/interposer/client/quiet.c).
    quiet: float = 0.008
    longest_quiet: float = 0.030
    #: The client checks after each quarter of the gap, so on average it is late by half of that.
    quiet_lag: float = 0.125
    #: Bytes that a client requests beyond its need (server.py).
    headroom: int = 64 << 20
    #: Seconds between a working client's METER messages (docs/explanation/scheduling.md).
    meter: float = 0.1
    #: Assumed: the work in flight when a group is paused that was not bounded. Training loops read their loss once in
    #: each iteration, so at most one iteration is in flight: half of 20 ms on average.
    unbounded: float = 0.010
    #: Assumed: the length of one submission of background work, which may run after each ``stall``.
    submission: float = 0.001
    #: The fraction of their speed that bounded groups keep. H200: gated training keeps 87% next to bursts that
    #: take about 10%.
    bounded: float = 0.97
    #: The fraction of the GPU that a burst of 5 ms (inference, small batch) needs. It makes such a burst 43% slower
    #: next to an unbounded training loop. H200: p99 +37 to +50%.
    small_burst: float = 0.43


H200 = Calibration()
