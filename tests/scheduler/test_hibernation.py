# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of groups that hibernate: when they do, what that frees, and how they wake up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.checks import ProtocolViolation
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.model import LEFT
from jupyter_gpushare.scheduler.observability import checkpoint
from jupyter_gpushare.scheduler.observability.counters import Counters
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import CONTEXT, MIB, OTHER, Kernel, Night


def test_an_idle_group_frees_its_context() -> None:
    night = Night()
    kernel = night.ran("a")
    night.sleep(590)
    assert kernel.resident
    assert kernel.where == "idle_lease"
    night.sleep(20)
    assert (kernel.where, kernel.state) == ("hibernated", "hibernated")
    assert (kernel.resident, kernel.away, kernel.parked) == (0, True, True)
    assert night.gpu["contexts"] == 0
    assert night.gpu["available"] == 100 * GIB
    (line,) = night.logged("hibernate")
    # A reading has shown since that it has left nothing.
    assert line.fields["bytes"] == CONTEXT - LEFT
    assert kernel.hibernation["frees"] == CONTEXT
    assert kernel.hibernation["estimate"] == pytest.approx(0.5 + 1.0)


def test_a_driver_call_wakes_the_group() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.call()
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1)]
    assert kernel.hibernation is None
    assert night.gpu["contexts"] == CONTEXT
    kernel.request()
    assert kernel.lease
    (line,) = night.logged("wake")
    assert line.fields == {"seconds": 0.5}


def test_the_start_of_a_cell_wakes_the_group() -> None:
    night = Night()
    kernel = night.asleep("a")
    night.do(ev.Cell("a", "begin", "1", night.now, from_kernel=False))
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 0)]


def test_a_user_wakes_the_group() -> None:
    night = Night()
    kernel = night.asleep("a")
    night.do(ev.WakeNow("a"))
    assert kernel.hibernation is None


@pytest.mark.parametrize("off", [{"hibernate_after": None}, {"hibernate_after": 0}])
def test_nothing_hibernates_when_hibernation_is_off(off: dict[str, Any]) -> None:
    night = Night(**off)
    kernel = night.ran("a")
    night.sleep(10_000)
    assert kernel.where == "idle_lease"
    with pytest.raises(ValueError, match="switched off"):
        night.do(ev.HibernateNow("a"))
    night.do(ev.Configure(hibernate_after=60))
    night.sleep(1)
    assert kernel.where == "hibernated"


def test_nothing_hibernates_when_the_driver_cannot_checkpoint() -> None:
    night = Night(able=False)
    kernel = night.ran("a")
    night.do(ev.Hibernatable(False, code="driver", text="the driver is too old"))
    night.sleep(10_000)
    assert kernel.where == "idle_lease"
    with pytest.raises(ValueError, match="too old"):
        night.do(ev.HibernateNow("a"))
    assert snapshot.status(night.core, night.now)["hibernation"]["code"] == "driver"


def test_a_request_to_hibernate_waits_until_the_driver_was_checked() -> None:
    night = Night(able=False)
    kernel = night.ran("a")
    night.do(ev.HibernateNow("a"))
    night.sleep(10)
    assert kernel.where == "ordered"
    night.do(ev.Hibernatable(True))
    night.sleep(1)
    assert kernel.where == "hibernated"


def test_a_request_to_hibernate_is_refused_once_the_driver_is_known_to_be_unable() -> None:
    night = Night(able=False)
    kernel, other = night.ran("a"), night.ran("b")
    night.do(ev.HibernateNow("b"))
    night.do(ev.Hibernatable(False, code="driver", text="the driver is too old"))
    night.sleep(10)
    assert kernel.hibernation is None
    assert other.where == "refused"
    (failed,) = (entry for entry in night.history if entry.kind == "hibernate_failed")
    assert failed.group == "b"
    assert failed.fields == {"code": "driver", "text": "the driver is too old"}


def test_a_kept_group_does_not_hibernate() -> None:
    night = Night()
    kernel = night.ran("a")
    night.do(ev.Adjust("a", keep=True))
    night.sleep(10_000)
    assert kernel.where == "idle_lease"


def test_no_group_hibernates_within_a_cell() -> None:
    night = Night()
    kernel = night.ran("a")
    night.do(ev.Cell("a", "begin", "1", night.now, from_kernel=True))
    night.sleep(5_000)
    night.do(ev.HibernateNow("a"))
    night.sleep(10)
    assert kernel.where == "ordered"
    night.do(ev.Cell("a", "end", "1", night.now, from_kernel=True))
    night.sleep(1)
    assert kernel.where == "hibernated"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_group_that_ran_outside_cells_is_asked_whether_it_is_done(ordered: bool) -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.begin()
    if ordered:
        night.do(ev.HibernateNow("a"))
    night.sleep(5_000)
    assert kernel.where == ("ordered" if ordered else "running")
    kernel.rests = True
    night.sleep(2 if ordered else 1_300)
    assert kernel.where == "hibernated"


def test_a_busy_group_is_asked_rarely_and_not_stopped() -> None:
    night = Night(hibernate_after=1e-12)
    kernel = night.kernel("a", 10)
    kernel.request()
    kernel.restore()
    night.sleep(2)
    assert kernel.lease
    assert not night.orders(ev.Revoke)
    assert 1 <= len(night.orders(ev.EndBurst)) <= 5


@pytest.mark.parametrize("change", [ev.Adjust("a", keep=True), ev.Configure(hibernate_after=0)])
def test_a_request_to_hibernate_ends_when_the_user_changes_it(change: ev.Event) -> None:
    night = Night()
    kernel = night.kernel("a", 10)
    kernel.request()
    kernel.restore()
    night.do(ev.HibernateNow("a"))
    night.do(change)
    night.sleep(1)
    kernel.end()
    night.sleep(5)
    assert kernel.where == "idle_lease"
    assert not night.orders(ev.Park)


def test_a_group_that_is_kept_during_its_eviction_does_not_hibernate() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.late = True
    night.do(ev.HibernateNow("a"))
    (order,) = night.orders(ev.Evict)
    assert kernel.where == "parking"
    night.do(ev.Adjust("a", keep=True))
    assert kernel.hibernation is None
    kernel.evict(order)
    night.sleep(5)
    assert not night.orders(ev.Park)


def test_a_group_hibernates_for_one_that_lacks_room() -> None:
    night = Night()
    idle = night.kernel("idle", 1, context=30 * GIB)
    night.sleep(1)
    less = night.kernel("less", 1, context=20 * GIB)
    big = night.kernel("big", 60)
    big.request()
    assert not big.lease
    assert big.reason["code"] == "crowded"
    night.sleep(0.5)
    assert idle.hibernation is None
    night.sleep(0.5)
    assert big.lease
    assert idle.where == "hibernated"  # the longest without work, and enough
    assert less.hibernation is None


def test_a_context_without_room_waits() -> None:
    night = Night()
    idle = [night.kernel(f"idle{n}", context=30 * GIB) for n in range(3)]
    newcomer = night.kernel("newcomer", context=30 * GIB)
    assert not newcomer.context
    assert newcomer.reason["code"] == "crowded"
    night.sleep(3)
    assert [k.where for k in idle].count("hibernated") == 1
    assert newcomer.context
    # No group hibernates for more than the GPU has.
    least = ev.Usage(GPU, 0, 0, 80 * GIB, 30 * GIB)
    (answer,) = night.do(ev.Grow(newcomer.number, 4, least, 0))
    assert answer.status == "device"


def test_more_groups_take_turns_than_contexts_fit() -> None:
    night = Night()
    kernels = []
    for number in range(20):
        kernel = night.kernel(f"k{number}", context=14 * GIB)
        night.sleep(5)
        assert kernel.context, "its first call fails, or waits for ever"
        kernels.append(kernel)
        kernel.grow(20)
        kernel.request()
        night.sleep(5)
        assert kernel.lease
        kernel.restore()
        kernel.end()
    assert sum(k.context for k in kernels) == 280 * GIB
    for kernel in (*kernels, *kernels[::-3], *kernels[1::2]):
        night.do(ev.Cell(kernel.group, "begin", str(night.now), night.now, from_kernel=False))
        if kernel.parked:
            kernel.call()
        night.sleep(5)
        assert not kernel.parked
        if not kernel.lease:
            kernel.request()
            night.sleep(5)
            assert kernel.lease
            kernel.restore()
        kernel.end()
        (cell,) = night.core.groups[kernel.group].cells
        night.do(ev.Cell(kernel.group, "end", cell, night.now, from_kernel=False))


def test_a_wake_waits_until_others_are_evicted() -> None:
    night = Night()
    kernel = night.asleep("a")
    other = night.ran("b", 99)
    night.foreign = GIB // 4
    night.do(night.reading())
    kernel.call()
    night.sleep(40)
    assert kernel.hibernation is None
    assert other.resident < 99 * GIB


def test_a_wait_for_a_wake_can_be_cancelled_and_repeated() -> None:
    night = Night()
    kernel = night.asleep("a")
    night.foreign = 99 * GIB + 3 * GIB // 4
    night.do(night.reading())
    kernel.call()
    assert kernel.state == "waking"
    assert kernel.reason["code"] == "foreign_use"
    assert night.group("a")["position"] == 1
    night.do(ev.Cancel("a"))
    assert kernel.where == "hibernated"
    kernel.call()
    night.foreign = 0
    night.do(night.reading())
    night.sleep(5)
    assert kernel.hibernation is None


def test_during_a_restore_the_reason_is_the_wake() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.call()
    night.sleep(0.1)
    assert kernel.reason["code"] == "waking"
    assert kernel.reason["params"]["estimate"] == pytest.approx(1.4)


@pytest.mark.parametrize("status", ["busy", "nccl", "ipc", "capture", "unevictable"])
def test_a_process_that_refuses_is_asked_again_only_if_the_cause_passes(status: str) -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.parking = status
    night.do(ev.HibernateNow("a"))
    passes = status in ("busy", "capture")
    assert kernel.where == ("ordered" if passes else "refused")
    assert kernel.hibernation["code"] == status
    assert kernel.hibernation["text"]
    assert not night.orders(ev.Hibernate)
    assert not night.orders(ev.Hibernated)
    night.sleep(590)
    # What passes by itself is tried again, ever more rarely.
    assert len(night.orders(ev.Park)) == (7 if passes else 1)
    kernel.request()
    assert kernel.lease


def test_a_request_to_hibernate_stands_until_it_is_carried_out() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.request()
    assert kernel.where == "waking"
    night.do(ev.HibernateNow("a"))
    kernel.restores = ""
    night.woken(kernel, "", night.orders(ev.Wakeup)[0])
    kernel.restore()
    kernel.late = True
    kernel.end()
    night.sleep(1)
    assert kernel.where == "parking"
    kernel.request()  # a cell in between delays it
    assert kernel.lease
    assert kernel.where == "ordered"
    assert kernel.hibernation["code"] is None
    kernel.evict(night.orders(ev.Evict)[-1])
    kernel.late, kernel.parking = False, "busy"
    kernel.end()
    night.sleep(1)
    assert kernel.where == "ordered"
    assert kernel.hibernation["code"] == "busy"
    kernel.parking = "done"
    night.sleep(6)
    assert kernel.where == "hibernated"
    kernel.request()
    kernel.restore()
    kernel.end()
    night.sleep(500)
    assert kernel.where == "idle_lease"


def test_a_request_to_hibernate_can_be_withdrawn() -> None:
    night = Night()
    kernel = night.ran("a")
    night.do(ev.Cell("a", "begin", "1", night.now, from_kernel=True))
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "ordered"
    night.do(ev.WakeNow("a"))
    assert kernel.hibernation is None
    night.do(ev.Cell("a", "end", "1", night.now, from_kernel=True))
    night.sleep(500)
    assert kernel.where == "idle_lease"


def test_a_process_that_does_not_answer_is_named_and_told_to_continue() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.parking = None
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "parking"
    kernel.parked = True  # it hears it later
    night.sleep(6)
    (park,) = night.orders(ev.Park)
    assert night.orders(ev.Hibernated) == [ev.Hibernated(kernel.number, park.serial, False)]
    assert kernel.hibernation["code"] == "stuck"
    codes = [notice["code"] for notice in snapshot.status(night.core, night.now)["notices"]]
    assert codes == ["hibernation_stuck"]
    kernel.parked = False
    night.do(ev.HibernateNow("a"))
    kernel.parked = True
    night.sleep(6)
    # It is named once, so that other notices stay.
    assert len(night.orders(ev.Park)) == 2
    assert [notice.code for _, notice in night.core.model.notices] == codes
    kernel.parking = "done"
    night.do(ev.Parked(kernel.number, park.serial, "done", kernel.usage()))
    assert not night.orders(ev.Hibernate)


def test_a_call_before_the_checkpoint_cancels_it() -> None:
    night = Night()
    kernel, other = night.ran("a"), Kernel(night, 2, "a")
    other.attach()
    night.begin_context(other)
    other.parking = None
    night.do(ev.HibernateNow("a"))
    assert kernel.parked
    kernel.call()
    assert not night.orders(ev.Hibernate)
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1)]
    assert not kernel.parked


def test_a_call_during_the_checkpoint_wakes_the_group_at_once() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = None
    night.do(ev.HibernateNow("a"))
    kernel.call()
    assert kernel.where == "hibernating"
    night.checkpointed(kernel, "")
    assert kernel.hibernation is None
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1)]


def test_a_failed_checkpoint_leaves_the_process_as_it_was() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = "failed"
    night.do(ev.HibernateNow("a"))
    assert night.gpu["contexts"] == CONTEXT
    assert kernel.where == "refused"
    assert [d.done for d in night.orders(ev.Hibernated)] == [False]
    assert not night.orders(ev.Wakeup)
    (line,) = night.logged("hibernate_failed")
    assert line.fields == {"code": "failed", "text": "it says failed"}


def test_a_checkpoint_that_ends_late_is_undone() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = kernel.restores = "stuck"
    night.do(ev.HibernateNow("a"))
    assert night.gpu["contexts"] == CONTEXT
    assert kernel.parked
    night.sleep(10)
    assert len(night.orders(ev.Wakeup)) > 2
    kernel.call()
    kernel.restores = ""
    night.sleep(60)
    assert kernel.hibernation is None or kernel.where in ("refused", "ordered")
    assert not kernel.parked
    assert [d.status for d in night.orders(ev.Awake)] in ([0], [46, 0])


def test_without_a_helper_no_process_stays_parked_for_ever() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = kernel.restores = "helper"
    night.do(ev.HibernateNow("a"))
    assert kernel.parked
    night.sleep(60)
    assert not kernel.parked
    assert kernel.where == "refused"


def test_a_failed_restore_is_reported_and_retried_with_the_next_call() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = "failed"
    kernel.call()
    (answer,) = night.orders(ev.Awake)
    assert (answer.serial, answer.status) == (1, 46)
    assert "safe in host memory" in answer.text
    assert kernel.where == "hibernated"
    assert night.gpu["contexts"] < CONTEXT
    kernel.restores = ""
    kernel.call()
    assert night.orders(ev.Awake)[1:] == [ev.Awake(kernel.number, 2)]
    assert len(night.logged("wake_failed")) == 1


def test_memory_of_a_checkpointed_process_is_granted_only_after_a_reading() -> None:
    night = Night()
    idle = [night.kernel(f"idle{n}", context=30 * GIB) for n in range(3)]
    newcomer = night.kernel("newcomer", context=30 * GIB)
    night.slow = True
    night.do(ev.HibernateNow("idle0"))
    assert idle[0].where == "hibernated"
    assert night.gpu["contexts"] == 60 * GIB + LEFT
    assert not newcomer.context
    night.do(night.reading())
    assert newcomer.context


def test_memory_beyond_the_residue_that_a_checkpoint_does_not_free_is_foreign_use() -> None:
    night = Night()
    kernel = night.ran("a")
    night.sleep(1)
    night.pending_reclaim = CONTEXT
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "hibernated"
    assert night.gpu["pending_reclaim"] == 0
    assert (night.gpu["contexts"], night.gpu["foreign"]) == (LEFT, CONTEXT - LEFT)
    night.pending_reclaim = 0
    night.do(night.reading())
    assert night.gpu["foreign"] == 0


def test_others_hibernate_although_dead_processes_seem_to_hold_enough_memory() -> None:
    night = Night()
    idle = [night.kernel(f"idle{n}", context=30 * GIB) for n in range(2)]
    dead = night.kernel("dead", context=30 * GIB)
    night.sleep(10)
    # It is gone, but unexplained use has grown by as much meanwhile.
    night.foreign = 30 * GIB
    del night.processes[dead.number]
    night.do(ev.Detach(dead.number))
    newcomer = night.kernel("newcomer", context=30 * GIB)
    assert night.gpu["pending_reclaim"] == 30 * GIB
    assert newcomer.reason["code"] == "dying"
    night.sleep(10)
    for kernel in (*idle, newcomer):
        night.do(ev.Measured(kernel.number, GPU, 30 * GIB))
    # A small part of that may be the residue of the hibernated process.
    assert (night.gpu["pending_reclaim"], night.gpu["foreign"]) == (0, 30 * GIB - LEFT)
    assert [kernel.where for kernel in idle].count("hibernated") == 1
    assert newcomer.context


def test_a_wake_has_room_for_the_measured_context() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = None
    night.do(ev.HibernateNow("a"))
    kernel.away = True
    night.do(ev.Checkpointed(kernel.number, True, seconds=0.6, held=2 * CONTEXT))
    assert kernel.where == "hibernated"
    # It is told, for the next scheduler.
    assert [told.context for told in night.orders(ev.Hibernated)] == [2 * CONTEXT]
    kernel.restores = None
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert (order.gpu, order.needs) == (GPU, 2 * CONTEXT)
    assert night.gpu["contexts"] == 2 * CONTEXT


def test_memory_that_the_driver_keeps_beyond_the_residue_is_foreign_use() -> None:
    night = Night()
    night.asleep("a")
    night.pending_reclaim = 64 * MIB
    night.do(night.reading())
    assert night.gpu["pending_reclaim"] == 0
    night.ran("b", 0)
    night.do(ev.HibernateNow("b"))
    assert night.gpu["pending_reclaim"] == 0
    # Two of them hibernate.
    assert night.gpu["foreign"] == 64 * MIB - 2 * LEFT


def test_a_group_of_several_hibernates_as_a_whole_or_not_at_all() -> None:
    night = Night()
    one, other = night.ran("a"), Kernel(night, 2, "a")
    other.attach()
    night.begin_context(other)
    other.checkpoint = "failed"
    night.do(ev.HibernateNow("a"))
    assert not one.parked
    assert not other.parked
    assert night.gpu["contexts"] == 2 * CONTEXT
    other.checkpoint = ""
    night.do(ev.HibernateNow("a"))
    assert one.where == "hibernated"
    assert night.gpu["contexts"] == 0
    other.call()
    assert one.hibernation is None
    assert not one.parked


def test_an_awake_process_of_a_group_is_granted_before_the_others_wake() -> None:
    night = Night()
    one, other = night.ran("a"), Kernel(night, 2, "a")
    other.attach()
    night.begin_context(other)
    night.do(ev.HibernateNow("a"))
    one.restores = other.restores = None
    one.request()
    assert one.reason["code"] == "waking"
    order = night.orders(ev.Wakeup)[0]
    assert order.client == one.number
    night.woken(one, "", order)
    assert one.lease


def test_a_request_during_the_checkpoint_is_explained_by_the_wake() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.checkpoint = None
    night.do(ev.HibernateNow("a"))
    kernel.request()
    assert kernel.where == "hibernating"
    assert kernel.reason["code"] == "waking"


def test_a_group_on_several_gpus_does_not_hibernate() -> None:
    night = Night(gpus=2)
    night.place_of[2] = OTHER
    one, other = night.ran("a"), Kernel(night, 2, "a")
    other.attach()
    night.begin_context(other)
    with pytest.raises(ValueError, match="NCCL"):
        night.do(ev.HibernateNow("a"))
    night.sleep(700)
    assert one.where == "refused"
    assert one.hibernation["code"] == "nccl"
    assert not night.orders(ev.Park)


def test_a_process_that_exits_wakes_alone() -> None:
    night = Night()
    one, other = night.ran("a"), Kernel(night, 2, "a")
    other.attach()
    night.begin_context(other)
    night.do(ev.HibernateNow("a"))
    other.call("exit")
    assert not other.parked
    assert one.parked
    assert one.where == "hibernated"
    night.do(ev.Detach(other.number))
    del night.processes[other.number]
    assert one.where == "hibernated"
    one.call()
    assert one.hibernation is None


@pytest.mark.parametrize("stage", ["park", "checkpoint", "hibernated", "restore"])
def test_a_process_may_die_at_any_step(stage: str) -> None:
    night = Night()
    kernel = night.ran("a")
    if stage == "park":
        kernel.parking = None
    elif stage == "checkpoint":
        kernel.checkpoint = None
    elif stage == "restore":
        kernel.restores = None
    night.do(ev.HibernateNow("a"))
    if stage == "restore":
        kernel.call()
    night.do(ev.Detach(kernel.number))
    del night.processes[kernel.number]
    night.do(ev.Checkpointed(kernel.number, True))
    night.do(ev.Woken(kernel.number, True))
    night.sleep(700)
    assert night.gpu["available"] == 100 * GIB
    assert not night.core.model.hibernating


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


def test_a_group_wakes_on_a_gpu_with_room() -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a")
    other = night.kernel("b", 99)
    other.request()
    other.restore()
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert (order.gpu_from, order.gpu_to) == (GPU, OTHER)
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1, 0, GPU, OTHER)]
    (there,) = night.group("a")["gpus"]
    assert there["uuid"] == OTHER
    assert there["swapped"] == 10 * GIB
    assert night.core.gpus[GPU].promised == 99 * GIB
    assert night.logged("wake")[0].fields["gpu"] == OTHER
    kernel.request()
    assert kernel.lease
    assert night.core.gpus[OTHER].holders.keys() == {"a"}


@pytest.mark.parametrize("sees", [(GPU,), (GPU, "GPU-that-is-none")])
def test_a_group_does_not_wake_on_a_gpu_outside_its_set(sees: tuple[str, ...]) -> None:
    night = Night(gpus=2)
    kernel = night.ran("a")
    kernel.sees = sees
    night.sleep(700)
    assert kernel.where == "hibernated"
    night.do(ev.Drain(GPU, True))
    kernel.call()
    assert not night.orders(ev.Wakeup)
    assert kernel.reason["code"] == "gpu_draining"
    night.do(ev.Drain(GPU, False))
    assert kernel.hibernation is None


def test_a_group_wakes_on_an_unused_gpu_if_its_own_is_in_use() -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a")
    other = night.kernel("b", 5)
    other.request()
    other.restore()
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert (order.gpu_from, order.gpu_to) == (GPU, OTHER)
    kernel.request()
    assert kernel.lease
    assert other.lease


@pytest.mark.parametrize("there", ["work", "no room", "a quota"])
def test_a_group_stays_on_its_gpu_when_it_would_wait_elsewhere(
    there: str,
) -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a", user="ada")
    here = night.kernel("b", 5)
    here.request()
    night.place_of[len(night.processes) + 1] = OTHER
    if there == "work":
        night.kernel("c", 5).request()
    elif there == "no room":
        night.ran("c", 95)
    else:
        night.do(ev.Entitle("user:ada", ev.Entitlement(gpus=1)))
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert order.gpu_to == ""


def test_a_group_wakes_where_it_was_if_the_driver_cannot_move_it() -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a")
    night.do(ev.Drain(GPU, True))
    kernel.restores = "failed"
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert order.gpu_to == OTHER
    (there,) = night.group("a")["gpus"]
    assert there["uuid"] == GPU
    kernel.restores = ""
    night.do(ev.Drain(GPU, False))
    assert kernel.hibernation is None
    assert night.orders(ev.Awake) == [ev.Awake(kernel.number, 1)]


@pytest.mark.parametrize("meanwhile", ["asks", "joins"])
def test_a_context_begun_on_the_other_gpu_is_restored_too(meanwhile: str) -> None:
    night = Night(gpus=2)
    kernel = night.asleep("a")
    night.do(ev.Drain(GPU, True))
    kernel.restores = None
    kernel.call()
    (order,) = night.orders(ev.Wakeup)
    assert order.gpu_to == OTHER
    there = night.core.gpus[OTHER]
    if meanwhile == "asks":
        kernel.request()
        assert [wait.group.id for wait in there.queue] == ["a"]
    else:
        second = Kernel(night, 7, "a")
        second.attach()
        second.request()
        assert there.holders.keys() == {"a"}
    kernel.restores = ""
    night.woken(kernel, "failed", order)
    assert (there.queue, there.holders, there.shares) == ([], {}, {})
    night.do(ev.Drain(GPU, False))
    assert kernel.hibernation is None
    assert night.core.gpus[GPU].holders.keys() == {"a"}
    assert not night.core.queue


def test_a_late_answer_to_an_eviction_charges_no_group() -> None:
    night = Night(gpus=2)
    kernel = night.ran("a")
    kernel.late = True
    night.do(ev.HibernateNow("a"))
    (order,) = night.orders(ev.Evict)
    # It says that nothing is on the GPU any more, and owes the answer still.
    kernel.resident = 0
    night.do(ev.UsageChanged(kernel.number, kernel.usage()))
    assert kernel.where == "hibernated"
    night.do(ev.Drain(GPU, True))
    kernel.call()
    assert night.place_of[kernel.number] == OTHER
    home = night.core.gpus[GPU]
    assert (home.promised, home.leaving) == (0, 0)
    kernel.evict(order, "partial")
    assert (home.promised, home.leaving, home.shares) == (0, 0, {})
    assert night.core.gpus[OTHER].promised == 10 * GIB


def test_a_group_on_a_drained_gpu_hibernates() -> None:
    night = Night()
    kernel = night.ran("a")
    night.do(ev.Drain(GPU, True))
    night.sleep(5)
    assert kernel.where == "hibernated"
    kernel.call()
    assert kernel.reason["code"] == "gpu_draining"
    # One that ends is no lease.
    kernel.call("exit")
    assert kernel.hibernation is None


def test_a_group_without_a_context_does_not_hibernate() -> None:
    night = Night()
    night.process("a")
    night.sleep(5000)
    assert night.group("a")["hibernation"] is None
    assert not night.orders(ev.Park)


def test_a_group_with_memory_that_cannot_move_is_not_asked() -> None:
    night = Night()
    other = night.process("a", backend="managed", gib=1)
    night.do(ev.UsageChanged(other.number, ev.Usage(GPU, GIB, 0, 0, CONTEXT)))
    night.sleep(700)
    assert night.group("a")["hibernation"]["code"] == "managed"
    assert not night.orders(ev.Park)


def test_a_group_is_asked_again_once_its_memory_changes() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.parking = "unevictable"
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "refused"
    kernel.parking = "done"
    night.do(ev.UsageChanged(kernel.number, kernel.usage()))
    assert kernel.hibernation is None
    night.sleep(1300)
    assert kernel.where == "hibernated"


def test_the_state_can_be_written_and_read() -> None:
    night = Night()
    kernel = night.asleep("a")
    kernel.restores = None
    kernel.call()
    table = json.loads(json.dumps(checkpoint.encode(night.core, Core)))
    copy = checkpoint.decode(table)
    for event in (ev.Woken(kernel.number, True, "", "", 0.5), ev.Request(kernel.number, 9)):
        assert copy.handle(event, night.now) == night.core.handle(event, night.now)
    assert snapshot.status(copy, night.now) == snapshot.status(night.core, night.now)


def test_hibernations_are_counted() -> None:
    night, counters = Night(), Counters()
    kernel = night.asleep("a")
    kernel.call()
    kernel.parking = "ipc"
    night.do(ev.HibernateNow("a"))
    for line in night.history:
        counters.observe(line, night.core)
    found = counters.hibernations
    assert found == {"hibernate": 1, "wake": 1, "hibernate_failed": 1}


def test_the_duration_of_wakes_is_learned() -> None:
    night = Night()
    kernel = night.asleep("a", 0)
    assert kernel.hibernation["estimate"] == 0.5
    kernel.restores = None
    kernel.call()
    kernel.away = False
    night.do(ev.Woken(kernel.number, True, "", "", 2.0))
    night.do(ev.HibernateNow("a"))
    assert kernel.hibernation["estimate"] == 2.0
