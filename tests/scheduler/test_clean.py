# SPDX-License-Identifier: BSD-3-Clause
"""Clean memory, which leaves a GPU without a copy: which notebooks lose their memory, and how long they keep it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.checks import LARGEST, ProtocolViolation
from jupyter_gpushare.scheduler.views.words.reasons import reason_text
from tests.scheduler.core_machine import GIB, GPU, SPEED, Lab, Machine, Process, of
from tests.scheduler.turns import Turns


def idle(machine: Machine, group: str, gib: float, unchanged: float, seconds: float = 0) -> Process:
    """Return a process that has computed, and has been idle for so long."""
    process = machine.runs(group, gib)
    process.unchanged = unchanged
    process.end()
    machine.do(ev.UsageChanged(process.number, process.usage()))
    machine.do(ev.Release(group))
    process.release()
    machine.sleep(seconds)
    return process


def evicted(machine: Machine, gib: float) -> list[str]:
    """Return the groups from which the core takes memory for a new notebook, in order."""
    new = machine.process("new", gib)
    orders = of(ev.Evict, new.request() + machine.sleep(1))
    return [machine.processes[order.client].group for order in orders]


@pytest.mark.parametrize("clean", ["a", "b"])
def test_of_two_equal_idle_notebooks_the_clean_one_is_evicted(clean: str) -> None:
    lab = Lab()
    for group in ("a", "b"):
        idle(lab, group, 40, unchanged=1.0 if group == clean else 0.0)
    lab.sleep(10)
    assert evicted(lab, 40) == [clean]


def test_of_two_notebooks_with_clean_memory_the_one_with_less_to_copy_is_evicted() -> None:
    lab = Lab()
    idle(lab, "a", 40, unchanged=0.25)
    idle(lab, "b", 40, unchanged=0.75)
    lab.sleep(10)
    assert evicted(lab, 40) == ["b"]


def test_a_notebook_that_has_been_away_for_much_longer_is_evicted_although_it_must_be_copied() -> (
    None
):
    lab = Lab()
    idle(lab, "away", 40, unchanged=0.0, seconds=1000)
    idle(lab, "clean", 40, unchanged=1.0, seconds=100)
    assert evicted(lab, 40) == ["away"]


def test_clean_memory_that_has_left_counts_no_longer() -> None:
    lab = Lab()
    process = idle(lab, "a", 80, unchanged=1.0)
    group = lab.core.groups["a"]
    assert lab.core.costs.clean(group) == 80 * GIB
    new = lab.process("b", 50)
    [order] = of(ev.Evict, new.request() + lab.sleep(1))
    process.evict(order)
    assert lab.core.costs.clean(group) == process.resident == 50 * GIB


def test_a_notebook_with_clean_memory_makes_way_in_half_the_time() -> None:
    lab = Lab()
    process = lab.runs("a", 20)
    group = lab.core.groups["a"]
    whole = lab.core.costs.cost_quantum(group)
    assert lab.core.costs.eviction_cost(group) == group.footprint_cost == 20 * GIB / SPEED
    process.unchanged = 1.0
    lab.do(ev.UsageChanged(process.number, process.usage()))
    assert lab.core.costs.eviction_cost(group) == 0
    assert group.footprint_cost == 20 * GIB / SPEED, "the way back is as long as before"
    assert lab.core.costs.cost_quantum(group) == whole / 2


@pytest.mark.parametrize("unchanged", [0.0, 0.5, 1.0])
def test_the_cheapest_victim_does_not_starve(unchanged: float) -> None:
    """Three notebooks that compute all the time; one of them is always the cheapest to evict."""
    turns = Turns()
    processes = [turns.plays(group, 1.0, 45) for group in ("cheap", "b", "c")]
    processes[0].unchanged = unchanged
    turns.play(300)
    had = [turns.had(process) for process in processes]
    assert min(had) > 50
    # It runs at least half as much as the others: its time slices are shorter because it is quicker to evict.
    assert had[0] > max(had) / 2.5
    longest = turns.core.rules.longest_quantum
    assert all(turns.longest[process.number] < 2 * longest + 30 for process in processes)


def test_an_idle_notebook_that_is_evicted_each_time_gets_its_memory_back_as_soon_as_it_asks() -> (
    None
):
    lab = Lab()
    clean = idle(lab, "clean", 45, unchanged=1.0)
    idle(lab, "other", 45, unchanged=0.0)
    lab.sleep(20)
    visitor = lab.process("visitor", 45)
    for _ in range(5):
        for order in of(ev.Evict, visitor.request() + lab.sleep(1)):
            lab.processes[order.client].evict(order)
        assert visitor.lease
        visitor.restore()
        visitor.end()
        for order in of(ev.Evict, clean.request() + lab.sleep(30)):
            lab.processes[order.client].evict(order)
        assert clean.lease
        clean.restore()
        clean.end()
        lab.do(ev.UsageChanged(clean.number, clean.usage()))


def test_an_eviction_without_copies_is_no_measurement_of_the_bandwidth() -> None:
    lab = Lab()
    process = idle(lab, "a", 80, unchanged=1.0)
    before = lab.core.gpus[GPU].bandwidth
    lab.process("b", 80).request()
    lab.sleep(1)
    [(serial, (_, size))] = lab.core.model.evictions.items()
    process.resident -= size
    moved = ev.Evicted(
        process.number, serial, process.usage(), size, 2 << 20, 0.001, "done", hashed=size
    )
    lab.do(moved)
    assert lab.core.gpus[GPU].bandwidth == before


@pytest.mark.parametrize(
    "change",
    [
        {"clean": 41 * GIB},
        {"clean": -1},
        {"shared": 11 * GIB},
        {"shared": -1},
        {"disk": -1},
        {"disk": LARGEST + 1},
    ],
)
def test_impossible_statements_are_refused(change: dict[str, Any]) -> None:
    lab = Lab()
    process = lab.runs("a", 40)
    usage = replace(process.usage(), host=10 * GIB)
    lab.do(ev.UsageChanged(process.number, replace(usage, clean=40 * GIB, shared=10 * GIB)))
    with pytest.raises(ProtocolViolation):
        lab.do(ev.UsageChanged(process.number, replace(usage, **change)))


def test_host_memory_that_is_stored_once_leaves_room_for_more() -> None:
    lab = Lab()
    lab.do(ev.HostMemory(100 * GIB))
    for group in ("a", "b"):
        process = idle(lab, group, 40, unchanged=0.0)
        usage = replace(process.usage(), resident=0, host=40 * GIB, shared=30 * GIB)
        lab.do(ev.UsageChanged(process.number, usage))
    assert lab.core.model.host_room() == 20 * GIB
    lab.do(ev.HostMemory(100 * GIB, shared=30 * GIB))
    assert lab.core.model.host_room() == 50 * GIB
    lab.do(ev.HostMemory(100 * GIB, shared=200 * GIB))
    assert lab.core.model.host_room() == 50 * GIB, "more than the clients say that they share"


def test_a_wait_says_how_much_room_is_made_without_a_copy() -> None:
    lab = Lab()
    idle(lab, "a", 80, unchanged=0.75)
    lab.sleep(10)
    new = lab.process("new", 60)
    lab.slow = True
    new.request()
    params = new.reason["params"]
    assert new.reason["code"] == "making_room"
    assert (params["lack"], params["clean"]) == (40 * GIB, 30 * GIB)
    text = reason_text(new.reason)
    assert text.endswith("of a.ipynb, 30 GiB of it without a copy because it has not changed")
