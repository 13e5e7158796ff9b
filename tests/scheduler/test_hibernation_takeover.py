# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of hibernated groups that a new scheduler takes over."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.checks import ProtocolViolation
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import CONTEXT, Kernel, Night


def test_a_new_scheduler_takes_over_a_hibernated_group() -> None:
    night = Night()
    kernel = Kernel(night, 1, "a")
    kernel.promised, kernel.context, kernel.away, kernel.parked = 10 * GIB, CONTEXT, True, True
    kernel.attach(reattach=True, hibernated=True)
    assert kernel.where == "hibernated"
    assert night.gpu["contexts"] == 0
    assert kernel.hibernation["frees"] == CONTEXT
    kernel.needs = ev.Usage(GPU, 0, 0, 0, CONTEXT)
    kernel.call()
    assert kernel.hibernation is None
    assert night.gpu["contexts"] == CONTEXT


def parked_for_the_scheduler_before(night: Night, checkpoint: str | None) -> Kernel:
    """Attach a kernel that is parked, and that the scheduler before had not checkpointed."""
    kernel = Kernel(night, 1, "a")
    kernel.checkpoint = checkpoint
    kernel.promised, kernel.context, kernel.parked = 10 * GIB, CONTEXT, True
    kernel.needs = ev.Usage(GPU, 0, 0, 0, CONTEXT)
    kernel.attach(reattach=True, hibernated=True)
    return kernel


def test_a_process_parked_for_the_previous_scheduler_is_checkpointed() -> None:
    night = Night()
    kernel = parked_for_the_scheduler_before(night, checkpoint="")
    assert kernel.away
    assert kernel.where == "hibernated"
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, 0)
    kernel.call()
    assert (kernel.parked, kernel.hibernation) == (False, None)


def test_a_call_waits_until_its_processs_state_is_known() -> None:
    night = Night()
    kernel = parked_for_the_scheduler_before(night, checkpoint=None)
    kernel.call()
    assert kernel.parked
    assert kernel.where == "hibernating"
    night.checkpointed(kernel, "")
    assert (kernel.parked, kernel.hibernation) == (False, None)


@pytest.mark.parametrize("code", ["failed", "busy", "stuck"])
def test_a_process_parked_for_the_previous_scheduler_continues_if_it_cannot_be_checkpointed(
    code: str,
) -> None:
    night = Night()
    kernel = parked_for_the_scheduler_before(night, checkpoint=code)
    assert (kernel.parked, kernel.where) == (False, "refused")
    assert kernel.hibernation["code"] == code
    assert (night.gpu["foreign"], night.gpu["contexts"]) == (0, CONTEXT)


def test_a_process_without_room_counts_as_hibernated_while_its_state_is_unknown() -> None:
    night = Night()
    kernel = Kernel(night, 1, "a")
    kernel.checkpoint, kernel.restores = "stuck", "failed"
    kernel.promised, kernel.context, kernel.away, kernel.parked = 10 * GIB, CONTEXT, True, True
    kernel.needs = ev.Usage(GPU, 0, 0, 0, CONTEXT)
    kernel.attach(reattach=True, hibernated=True)
    assert kernel.where == "hibernated"
    assert night.gpu["contexts"] < CONTEXT
    kernel.restores = ""
    kernel.call()
    assert (kernel.parked, kernel.where) == (False, "refused")


@pytest.mark.parametrize("code", ["helper", "permission"])
def test_a_process_of_unknown_state_counts_as_hibernated(code: str) -> None:
    night = Night()
    kernel = parked_for_the_scheduler_before(night, checkpoint=code)
    assert kernel.where == "hibernated"
    assert night.orders(ev.Wakeup) == []
    kernel.call()
    assert not kernel.parked


@pytest.mark.parametrize("first", ["awake", "hibernated"])
def test_a_new_scheduler_wakes_a_group_that_is_hibernated_in_part(first: str) -> None:
    night = Night()
    awake, asleep = Kernel(night, 1, "a"), Kernel(night, 2, "a")
    awake.context = asleep.context = CONTEXT
    asleep.away = asleep.parked = True
    if first == "awake":
        awake.attach(reattach=True)
    asleep.attach(reattach=True, hibernated=True)
    if first == "hibernated":
        assert asleep.where == "hibernated"
        awake.attach(reattach=True)
    assert awake.hibernation is None
    assert not asleep.parked
    assert night.gpu["contexts"] == 2 * CONTEXT
    night.sleep(700)
    assert awake.where == "hibernated"
    assert night.gpu["contexts"] == 0


def test_impossible_messages_of_a_hibernated_process_are_refused() -> None:
    night = Night()
    kernel = night.asleep("a")
    with pytest.raises(ProtocolViolation):
        kernel.grow(1)
    bad = Kernel(night, 9, "b")
    bad.promised = bad.resident = GIB
    with pytest.raises(ProtocolViolation):
        night.core.handle(
            ev.Attach(9, 9, "b", "b", "swap", usages=(bad.usage(),), hibernated=True), night.now
        )
