# SPDX-License-Identifier: BSD-3-Clause
"""The figures of a status fit together, also where clients state what cannot be at the same time."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import GPU, TOTAL, Machine
from tests.support.consistency import check, check_status

GIB = 1 << 30
part = st.integers(0, 100)


@given(
    st.lists(st.tuples(st.sampled_from(["managed", "swap", "plain"]), part, part, part, part)),
    st.integers(0, 100),
)
def test_parts_of_a_gpu_never_exceed_its_memory(
    stated: list[tuple[Any, int, int, int, int]], used: int
) -> None:
    """Managed memory may be over-committed; and processes may understate, or hold what is not counted."""
    core = Core(REGISTRY, Rules(anti_thrash="off"))
    core.handle(ev.Device(GPU, TOTAL, 0), 1.0)
    core.handle(ev.HostMemory(1000 * GIB), 1.0)
    for number, (backend, promised, resident, unevictable, context) in enumerate(stated):
        unit = TOTAL // 100
        promised = 0 if backend == "plain" else promised
        usage = ev.Usage(
            GPU,
            promised * unit,
            min(resident, promised) * unit,
            unevictable * unit // 2,
            context * unit // 2,
        )
        core.handle(ev.Attach(number, number, f"g{number}", "x", backend, usages=(usage,)), 1.0)
    core.handle(ev.Device(GPU, TOTAL, used * TOTAL // 100), 2.0)
    check_status(core, 3.0)


def test_managed_memory_that_does_not_fit_counts_as_paged_out() -> None:
    m = Machine(anti_thrash="off")
    for name in ("a", "b"):
        m.runs(name, 80, backend="managed")
    said = snapshot.status(m.core, m.now)
    check(said)
    assert said["gpus"][0]["resident"] == TOTAL
    shares = [group["gpus"][0] for group in said["groups"]]
    assert [share["resident"] for share in shares] == [TOTAL // 2] * 2
    assert said["host"]["swapped"] == 2 * 80 * GIB - TOTAL


def test_host_memory_of_a_process_with_several_gpus_counts_once() -> None:
    """Each of its usages states the host memory of the whole process."""
    core = Core(REGISTRY)
    for gpu in ("G0", "G1"):
        core.handle(ev.Device(gpu, TOTAL, 0), 1.0)
    usages = tuple(ev.Usage(gpu, 4 * GIB, 1 * GIB, host=5 * GIB) for gpu in ("G0", "G1"))
    core.handle(ev.Attach(1, 1, "g", "g", "swap", usages=usages), 1.0)
    said = snapshot.status(core, 1.0)
    check(said)
    assert said["host"]["swapped"] == 5 * GIB
    assert sum(share["swapped"] for share in said["groups"][0]["gpus"]) == 5 * GIB


def test_unwritten_memory_does_not_count_as_swapped() -> None:
    """Allocated before the first lease, it needs no host memory: then none of it is said to be there."""
    core = Core(REGISTRY)
    core.handle(ev.Device(GPU, TOTAL, 0), 1.0)
    core.handle(ev.Attach(1, 1, "g", "g", "swap", usages=(ev.Usage(GPU, 4 * GIB, host=GIB),)), 1.0)
    said = snapshot.status(core, 1.0)
    check(said)
    assert said["groups"][0]["gpus"][0]["swapped"] == said["host"]["swapped"] == GIB
