# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of checkpoints: refused, late or failed ones, and what the driver keeps in memory."""

from __future__ import annotations

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.model import LEFT
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import CONTEXT, MIB, Kernel, Night


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
