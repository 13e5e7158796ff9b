# SPDX-License-Identifier: BSD-3-Clause
"""What hibernated processes leave on the GPU, and how the core allows for it."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.model import LEFT
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import MIB, OTHER, Kernel, Night

#: Much, so that few of them matter.
RESIDUE = 3 * GIB


def crowded(**settings: Any) -> Night:
    """Return a machine with a notebook of 75 GiB and two small ones, of which one has hibernated before."""
    night = Night(**settings)
    night.residue = RESIDUE
    night.kernel("large", 75, context=4 * GIB)
    for number in range(2):
        night.kernel(f"small{number}", 4, context=4 * GIB)
    for kernel in night.processes.values():
        night.do(ev.Measured(kernel.number, GPU, 4 * GIB))
    night.do(ev.HibernateNow("small0"))
    assert night.group("small0")["hibernation"]["state"] == "hibernated"
    return night


def test_the_residue_of_a_process_is_learned_and_charged_to_it() -> None:
    night = crowded()
    assert night.core.gpus[GPU].context_sizes.residue == RESIDUE
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, 2 * 4 * GIB + RESIDUE)
    assert night.group("small0")["hibernation"]["frees"] == GIB
    night.do(ev.WakeNow("small0"))
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, 3 * 4 * GIB)


def test_a_process_wakes_into_room_that_its_residue_has_already() -> None:
    """The GPU needs no more than that, and to wait for more fails if it is full."""
    night = crowded()
    night.do(ev.WakeNow("small0"))
    [wakeup] = night.orders(ev.Wakeup)
    assert wakeup.needs == 4 * GIB - RESIDUE


def test_the_residue_is_learned_for_all_gpus_of_the_same_name() -> None:
    night = crowded(gpus=2)
    assert night.core.gpus[OTHER].context_sizes.residue == RESIDUE


def test_the_median_of_the_residues_counts() -> None:
    """Another program that grows or ends meanwhile is in one of them."""
    night = crowded()
    for grown in (GIB, 0, 0):
        night.do(ev.WakeNow("small0"))
        night.do(ev.Measured(2, GPU, 4 * GIB))
        night.do(ev.HibernateNow("small0"))
        night.foreign += grown
    assert night.core.gpus[GPU].context_sizes.residue == RESIDUE


def test_a_residue_that_was_measured_too_large_is_corrected_by_the_next_reading() -> None:
    """The context was measured too large before, so hibernating seemed to free too little."""
    night = crowded()
    night.do(ev.WakeNow("small0"))
    night.do(ev.Measured(2, GPU, 6 * GIB))
    night.do(ev.HibernateNow("small0"))
    assert night.core.gpus[GPU].context_sizes.residue == 5 * GIB
    night.do(night.reading())
    assert night.core.gpus[GPU].context_sizes.residue == RESIDUE
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, 2 * 4 * GIB + RESIDUE)


def test_memory_in_use_at_start_counts_as_residue_of_hibernated_processes() -> None:
    night = Night()
    night.residue = 4 * MIB
    kernel = night.asleep("a")
    night.core = Core(REGISTRY, Rules(bandwidth=1e9))
    night.do(night.reading())
    night.do(ev.Hibernatable(True))
    usage = ev.Usage(GPU, kernel.promised, 0, 0, kernel.context, kernel.promised)
    night.do(
        ev.Attach(
            kernel.number, 1, "a", "a", "swap", usages=(usage,), reattach=True, hibernated=True
        )
    )
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, 4 * MIB)


def newcomers(night: Night, count: int, context: int) -> list[str]:
    """Have processes ask for their contexts, one after the other; return the errors that they get, in that order."""
    for number in range(10, 10 + count):
        kernel = Kernel(night, number, f"newcomer{number}")
        kernel.attach()
        night.do(ev.Grow(number, 3, ev.Usage(GPU, 0, 0, 0, context), 0))
    night.sleep(120)
    return [d.text for d in night.said if isinstance(d, ev.Grown) and d.client >= 10]


def test_newcomers_whose_residue_would_keep_others_out_are_refused() -> None:
    """Of 100 GiB, one notebook needs 79, and each other leaves 3."""
    *admitted, refused = newcomers(crowded(), 6, 4 * GIB)
    assert admitted == [""] * 5
    assert "3.00 GiB more of unevictable memory would take" in refused
    assert "of the 79.0 GiB that another notebook already uses" in refused


def test_a_notebook_that_fills_a_gpu_lets_others_begin() -> None:
    """Half of the reserve of 1 GiB is there for what they leave when they hibernate."""
    night = Night(reserve=GIB)
    night.residue = 4 * MIB
    kernel = night.kernel("large", 98, context=GIB)
    assert not any(newcomers(night, 20, GIB // 2))
    kernel.request()
    night.sleep(600)
    assert kernel.lease is not None


def test_residues_beyond_half_of_the_reserve_reduce_the_room() -> None:
    night = Night(reserve=GIB)
    night.residue = GIB // 8
    night.kernel("large", 98, context=GIB)
    small = night.kernel("small", 1, context=GIB // 4)
    for number, context in ((1, GIB), (small.number, GIB // 4)):
        night.do(ev.Measured(number, GPU, context))
    night.do(ev.HibernateNow("small"))
    assert night.core.gpus[GPU].context_sizes.residue == GIB // 8
    answers = newcomers(night, 5, GIB // 4)
    assert answers[:3] == [""] * 3
    assert "would take 128 MiB of the 99.0 GiB that another notebook already uses" in answers[3]


def test_newcomers_that_wait_together_are_not_all_admitted() -> None:
    """Each of them could be admitted by itself."""
    night = Night(able=False)
    large = night.kernel("large", 83, context=2 * GIB)
    other = night.kernel("other", 11, context=2 * GIB)
    for kernel in (large, other):
        kernel.request()
        kernel.restore()
    answers = newcomers(night, 6, 3 * GIB)
    assert answers[:4] == [""] * 4
    assert all("of the 85.0 GiB that another" in text for text in answers[4:])
    assert len(answers) == 6


def test_a_process_whose_residue_passes_for_other_programs_use_is_woken() -> None:
    """Memory moved while it hibernated, so no reading shows for certain what it left."""
    night = Night()
    night.residue = RESIDUE
    large = night.kernel("large", 95, context=4 * GIB)
    small = night.kernel("small", 10, context=GIB)
    for kernel, context in ((large, 4 * GIB), (small, GIB)):
        night.do(ev.Measured(kernel.number, GPU, context))
    large.checkpoint = None
    night.do(ev.HibernateNow("large"))
    assert large.where == "hibernating"
    small.request()
    small.restore()
    small.end()
    night.checkpointed(large, "")
    night.sleep(1)
    assert large.where == "hibernated"
    assert night.gpu["foreign"] == RESIDUE - LEFT
    large.request()
    night.sleep(600)
    assert large.where == "restoring"
    assert night.gpu["foreign"] == 0


def test_a_residue_is_supposed_although_another_process_left() -> None:
    night = Night()
    night.residue = RESIDUE
    large = night.kernel("large", 95, context=4 * GIB)
    helper = night.kernel("helper", context=0)
    night.do(ev.Measured(large.number, GPU, 4 * GIB))
    large.checkpoint = None
    night.do(ev.HibernateNow("large"))
    night.do(ev.Detach(helper.number))
    night.checkpointed(large, "")
    night.sleep(1)
    assert night.gpu["foreign"] == RESIDUE - LEFT
    large.request()
    night.sleep(600)
    assert large.where == "restoring"
    assert night.gpu["foreign"] == 0
