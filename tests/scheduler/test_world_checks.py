# SPDX-License-Identifier: BSD-3-Clause
"""What the checks of the property tests' world allow, in runs that they once reported."""

from __future__ import annotations

from tests.scheduler.script import Chosen, begin
from tests.scheduler.world.constants import MIB


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


def test_contexts_that_take_more_than_admitted_do_not_count_as_promised_twice() -> None:
    script = begin([0, 0, 535], host=400, context=384, dearer=True)
    script.all_processes_are_served()
    script.teardown()
