# SPDX-License-Identifier: BSD-3-Clause
"""What the checks of the property tests' world allow, in runs that they once reported."""

from __future__ import annotations

from tests.scheduler.script import Chosen, Script, begin
from tests.scheduler.world.constants import GPUS, MIB


def test_a_residue_that_no_reading_could_show_is_no_violation() -> None:
    """It is larger than expected, and memory was leaving; a restore that finds no room is tried again."""
    script = begin([284, 740, 342], policy="fcfs", residue=102)
    script.report_stuck_kernel(data=Chosen(1))
    script.cancel(data=Chosen(3))
    script.begin_context(data=Chosen(1), size=312 * MIB)
    outcomes = ["", "late", "failed", "failed", "helper", ""]
    script.all_processes_go_idle(told=True, outcomes=outcomes, calling=[True, False])
    script.pass_time(step=40.0)
    script.hibernate_or_wake(data=Chosen(3), hibernate=True)
    outcomes = ["failed", "", "failed", "helper"]
    script.all_processes_go_idle(told=True, outcomes=outcomes, calling=[False])
    script.all_processes_are_served()
    script.teardown()


def test_a_residue_that_shows_after_a_grant_is_no_violation() -> None:
    """The memory that arrives could have been in the reading, too."""
    script = begin([435, 0, 246], policy="gemini", host=1000, context=216, residue=126, dearer=True)
    script.choose_policy(policy="priority")
    script.pass_time(step=40.0)
    script.all_processes_are_served()
    script.teardown()


def test_a_residue_that_is_left_behind_on_another_gpu_is_no_violation() -> None:
    """Its process is being restored elsewhere, and memory was on its way at the last reading."""
    script = begin(
        [449, 292, 194, 0], quantum=5.0, policy="gemini", context=68, residue=123, dearer=True
    )
    script.free(data=Chosen(4), part=0.0)
    script.all_processes_go_idle(told=True, outcomes=["stuck"], calling=[False, True])
    script.adjust(group="c", preference={"keep": True})
    script.a_connection_breaks(data=Chosen(2))
    script.free(data=Chosen(3), part=0.825644642871508)
    script.allocate_unevictable(data=Chosen(3), size=107 * MIB)
    script.attach(group="a", gpus=("GPU-0",), over=False)
    script.allocate_unevictable(data=Chosen(6), size=141 * MIB)
    script.pass_time(step=40.0)
    outcomes = ["late", "helper", "", "late", ""]
    script.all_processes_go_idle(told=True, outcomes=outcomes, calling=[True, False])
    outcomes = ["stuck", "helper", "failed", "stuck"]
    script.all_processes_go_idle(told=False, outcomes=outcomes, calling=[False, False, True, True])
    script.all_processes_are_served()
    script.teardown()


def test_contexts_that_take_more_than_admitted_do_not_count_as_promised_twice() -> None:
    script = begin([0, 0, 535], host=400, context=384, dearer=True)
    script.all_processes_are_served()
    script.teardown()


def frozen_in_the_queue() -> Script:
    """Return a world in which the third process was hibernated while it waited, and is frozen."""
    script = begin(
        [228, 512, 0, 0],
        context=100, foreign=90, host=400, anti_thrash="on",
        preferences=[{"priority": "background"}, {}, {"frozen": True}],
    )  # fmt: skip
    script.contexts_are_measured(GPUS[0])
    script.others_are_served_beside_a_stopped_process(Chosen(1), for_ever=True)
    assert script.processes[3].parked
    assert script.processes[3].waiting
    return script


def test_a_frozen_group_that_hibernates_in_the_queue_is_not_woken() -> None:
    """It made room for others while it waited. It is woken in the turn of its lease, and gets none."""
    script = frozen_in_the_queue()
    script.all_processes_are_served()
    assert script.processes[3].asks, "woken, though it is frozen"
    script.adjust_group("c", {"frozen": False})
    script.all_processes_are_served()
    assert not script.processes[3].asks
    script.teardown()


def test_a_failed_wake_ends_the_wait_for_the_lease() -> None:
    script = frozen_in_the_queue()
    process = script.processes[3]
    script.adjust_group("c", {"frozen": False})
    while not process.steps:
        script.settle()
        script.advance(script.now + 1.0)
    script.driver_steps(process, "failed")
    script.no_request_is_lost()
    script.settle()
    assert not process.waiting
    script.teardown()
