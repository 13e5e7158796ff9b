# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of groups that wake on a GPU of several."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import OTHER, Kernel, Night


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
