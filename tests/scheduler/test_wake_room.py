# SPDX-License-Identifier: BSD-3-Clause
"""Wakes that find less room on the GPU than the scheduler expected: they wait for it, and no call fails."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.model import LEFT
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import CONTEXT, OTHER, Kernel, Night
from tests.scheduler.script import Chosen, begin

#: Seconds that the hibernator waits for room.
PATIENCE = 5.0


def lacks_room(night: Night, kernel: Kernel) -> ev.Wakeup:
    """Let the hibernator find no room for the restore that was ordered last; return that order."""
    order = [order for order in night.orders(ev.Wakeup) if order.client == kernel.number][-1]
    night.sleep(PATIENCE)
    night.woken(kernel, "room", order)
    return order


def test_a_call_goes_on_waiting_until_there_is_room() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.call()
    lacks_room(night, kernel)
    assert not night.orders(ev.Awake)
    assert kernel.state == "waking"
    assert night.gpu["contexts"] < CONTEXT
    kernel.restores = ""
    night.sleep(1)
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1)]
    assert kernel.hibernation is None


def test_the_reason_is_the_lack_of_room() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.call()
    for attempts in (1, 2):
        lacks_room(night, kernel)
        reason = {
            "code": "no_room",
            "params": {"need": CONTEXT, "gpu": GPU, "attempts": attempts},
        }
        assert kernel.reason == reason
        night.sleep(2)
        assert len(night.orders(ev.Wakeup)) == attempts + 1
        assert kernel.reason == reason, "also during the next attempt"
    (line,) = night.logged("wake_failed")
    assert line.fields["code"] == "room"


def test_a_group_that_waits_for_a_lease_gets_it_after_the_wake() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.request()
    lacks_room(night, kernel)
    assert kernel.reason["code"] == "no_room"
    kernel.restores = ""
    night.sleep(1)
    assert kernel.lease
    assert not [answer for answer in night.orders(ev.Awake) if answer.status]


def test_attempts_become_rarer() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = "room"
    kernel.call()
    night.sleep(8)
    assert len(night.orders(ev.Wakeup)) == 5  # after 0, 0.5, 1.5, 3.5 and 7.5 s
    night.sleep(80)
    assert len(night.orders(ev.Wakeup)) == 15
    kernel.restores = ""
    night.sleep(8)
    assert kernel.hibernation is None


def test_a_new_wake_is_tried_without_delay() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = "room"
    kernel.call()
    night.sleep(60)
    kernel.restores = ""
    night.sleep(8)
    night.do(ev.HibernateNow("a"))
    kernel.restores = None
    kernel.call()
    assert kernel.reason["code"] == "waking"


def test_others_get_the_room_between_two_attempts() -> None:
    """The sums have room for one of two contexts. The first group in the queue does not find it."""
    night = Night()
    kernel = night.asleep("a", 0)
    other = night.asleep("b", 0)
    night.foreign = 100 * GIB - CONTEXT - GIB // 8
    night.do(night.reading())
    kernel.restores = other.restores = None
    kernel.call()
    other.call()
    assert [order.client for order in night.orders(ev.Wakeup)] == [kernel.number]
    lacks_room(night, kernel)
    assert [order.client for order in night.orders(ev.Wakeup)] == [kernel.number, other.number]


def test_a_wake_that_is_tried_again_keeps_its_place() -> None:
    night = Night()
    kernel = night.asleep("a", 0)
    other = night.asleep("b", 0)
    kernel.restores = None
    kernel.call()
    night.foreign = 100 * GIB - GIB // 8
    night.do(night.reading())
    other.call()
    lacks_room(night, kernel)
    assert [wait.group.id for wait in night.core.queue] == ["a", "b"]


def test_a_wake_for_which_no_process_waits_is_not_tried_again() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.request()
    night.do(ev.Cancel("a"))
    lacks_room(night, kernel)
    assert kernel.where == "hibernated"
    assert not night.core.queue
    night.sleep(60)
    assert len(night.orders(ev.Wakeup)) == 1
    kernel.restores = ""
    kernel.call()
    assert kernel.hibernation is None


@pytest.mark.parametrize("again", [False, True])
def test_a_cancelled_wake_is_tried_again_only_if_it_is_needed_again(again: bool) -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.call()
    night.do(ev.Cancel("a"))
    if again:
        kernel.call()
    lacks_room(night, kernel)
    kernel.restores = ""
    night.sleep(60)
    assert (kernel.hibernation is None) is again


def test_without_room_on_another_gpu_a_process_wakes_on_its_own() -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a")
    night.do(ev.Drain(GPU, True))
    kernel.restores = None
    kernel.call()
    assert lacks_room(night, kernel).gpu_to == OTHER
    night.do(ev.Drain(GPU, False))
    kernel.restores = ""
    night.sleep(1)
    assert kernel.hibernation is None
    assert night.orders(ev.Wakeup)[-1].gpu == GPU
    assert not night.core.groups["a"].settled, "it may move again"


def nearly_full(*groups: str) -> tuple[Night, list[Kernel]]:
    """Return a machine with hibernated processes that call the driver, and with room for them with their residues.

    No reading has shown for certain what they left, because their contexts were not measured.
    """
    night = Night()
    night.residue = LEFT
    kernels = [night.asleep(group, 0) for group in groups]
    assert not night.core.gpus[GPU].context_sizes.residues
    night.foreign = 100 * GIB - len(kernels) * CONTEXT
    night.do(night.reading())
    for kernel in kernels:
        kernel.restores = None
        kernel.call()
    return night, kernels


def free(night: Night) -> int:
    """Return the free memory of the GPU, as the hibernator finds it."""
    return 100 * GIB - night.reading().used


def test_two_processes_are_not_woken_into_room_for_one() -> None:
    """Until residues are measured, the hibernator waits for room for all of a context."""
    night, [one, other] = nearly_full("a", "b")
    assert free(night) == 2 * (CONTEXT - LEFT)
    [order] = night.orders(ev.Wakeup)
    assert (order.client, order.needs) == (one.number, CONTEXT)
    assert night.gpu["available"] <= free(night) - CONTEXT
    assert other.reason["code"] == "foreign_use"


def test_a_process_wakes_with_an_expected_residue_if_there_is_no_other_room() -> None:
    night, [kernel] = nearly_full("a")
    assert free(night) == CONTEXT - LEFT
    night.sleep(5)
    assert not night.orders(ev.Wakeup)
    assert kernel.reason["code"] == "foreign_use"
    night.sleep(10)
    [order] = night.orders(ev.Wakeup)
    assert order.needs == CONTEXT - LEFT
    night.woken(kernel, "", order)
    assert kernel.hibernation is None
    assert free(night) == 0


def test_a_group_gives_its_turn_up_to_wake_another_of_its_processes() -> None:
    """The room for the data of the turn kept it hibernated, and its own host memory kept others' data on the GPU."""
    # Found by tests.scheduler.explore.
    script = begin(
        [501, 730, 672, 331],
        policy="fcfs", foreign=48, host=1000, context=100, dearer=True, prefetch=True,
    )  # fmt: skip
    script.allocate_unevictable(data=Chosen(1), size=75 << 20)
    script.process_dies(data=Chosen(2))
    script.report_stuck_kernel(data=Chosen(1))
    calling = [False, False, True, True, False, True]
    script.all_processes_go_idle(told=False, outcomes=["helper", "", "stuck"], calling=calling)
    script.submit(data=Chosen(1))
    script.attach(group="a", gpus=("GPU-0",), over=False)
    script.move(which=[3, 3, 3, 0, 4, 1, 3, 0, 4, 4])
    script.all_processes_are_served()
    script.teardown()
