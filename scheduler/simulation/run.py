# SPDX-License-Identifier: BSD-3-Clause
"""Runs a trace under policies: places kernels, and simulates node by node, in processes of their own if that pays."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from .calibration import H200
from .machine import Exclusive, Machine, Shared
from .node import Node
from .outcome import Outcome
from .tiers import PLAIN, Tiers
from .trace import Kernel, Trace

#: GPUs under one core, as on real nodes.
NODE = 8
#: Modes without the scheduler, for comparison.
BASELINES = ("exclusive", "shared")
#: With fewer steps, starting processes takes longer than the simulation.
_FEW_STEPS = 20_000

Arrivals = list[tuple[Kernel, int]]
#: A policy; the number of GPUs and the memory sizes; the times of meters and starvation; what memory contains, and the
#: disk; and the kernels of one node.
_Task = tuple[str, int, int, int, float, float, Tiers, Arrivals]


def place(trace: Trace, gpus: int) -> Arrivals:
    """Choose a GPU for each kernel, once for all policies.

    The GPU with the fewest kernels of the same class, then the one with the fewest bytes promised, then the first. A
    kernel counts for as long as it would be there if it were alone.
    """
    counts: list[dict[str, int]] = [{} for _ in range(gpus)]
    promised = [0] * gpus
    leaving: list[tuple[float, int, int, str, int]] = []
    found: Arrivals = []
    for number, kernel in enumerate(trace.kernels):
        while leaving and leaving[0][0] <= kernel.at:
            _, _, index, label, size = heappop(leaving)
            counts[index][label] -= 1
            promised[index] -= size
        label, size = kernel.label, kernel.footprint()
        index = min(range(gpus), key=lambda i: (counts[i].get(label, 0), promised[i], i))
        counts[index][label] = counts[index].get(label, 0) + 1
        promised[index] += size
        heappush(leaving, (kernel.at + kernel.alone(), number, index, label, size))
        found.append((kernel, index))
    return found


def simulate(
    trace: Trace,
    policies: list[str],
    gpus: int,
    *,
    meter: float,
    starving: float,
    tiers: Tiers = PLAIN,
    processes: int = 1,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[str, Outcome]]:
    """Yield each policy with its results.

    Parameters
    ----------
    gpus
        The number of GPUs; a node has up to 8.
    meter
        Seconds between two readings of a meter.
    starving
        Seconds without any GPU time after which a kernel counts as starved.
    tiers
        What memory contains, and the disk of each node.
    processes
        The largest number of processes to use.
    on_step
        Called with the numbers of finished and of all simulations: one for each policy and node.
    """
    arrivals = place(trace, gpus)
    header = trace.header
    tasks: list[_Task] = []
    for policy in policies:
        whole = policy == "exclusive"
        for first in range(0, gpus, gpus if whole else NODE):
            count = gpus if whole else min(NODE, gpus - first)
            own = [(k, i - first) for k, i in arrivals if first <= i < first + count]
            tasks.append(
                (policy, count, header.gpu_memory, header.host_memory, meter, starving, tiers, own)
            )
    outcomes = {policy: Outcome() for policy in policies}
    # Results keep their order, however many processes there are.
    on_step(0, len(tasks))
    for number, outcome in enumerate(_outcomes(tasks, processes)):
        outcomes[tasks[number][0]].add(outcome)
        on_step(number + 1, len(tasks))
    yield from outcomes.items()


def _outcomes(tasks: list[_Task], processes: int) -> Iterator[Outcome]:
    steps = sum(kernel.count() for task in tasks for kernel, _ in task[-1])
    processes = min(processes, len(tasks))
    if processes < 2 or steps < _FEW_STEPS:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_run, tasks)


def _run(task: _Task) -> Outcome:
    policy, gpus, memory, host, meter, starving, tiers, arrivals = task
    machine: Machine
    if policy == "exclusive":
        machine = Exclusive(H200, memory, gpus, starving)
    elif policy == "shared":
        machine = Shared(H200, memory, gpus, starving)
    else:
        machine = Node(H200, memory, gpus, starving, policy, host, meter, tiers=tiers)
    return machine.run(arrivals)
