# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of groups that hibernate: when they do, what that frees, and what happens when they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.model import LEFT
from jupyter_gpushare.scheduler.observability import checkpoint
from jupyter_gpushare.scheduler.observability.counters import Counters
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import CONTEXT, OTHER, Kernel, Night


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


def test_a_request_to_hibernate_overrides_an_earlier_refusal_as_soon_as_the_group_is_idle() -> None:
    night = Night()
    kernel = night.ran("a")
    kernel.parking = "ipc"
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "refused"
    kernel.parking = "done"
    night.do(ev.Cell("a", "begin", "1", night.now, from_kernel=True))
    night.do(ev.HibernateNow("a"))
    assert kernel.where == "ordered"
    assert kernel.hibernation["code"] is None
    night.do(ev.Cell("a", "end", "1", night.now, from_kernel=True))
    night.sleep(1)
    assert kernel.where == "hibernated"


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
