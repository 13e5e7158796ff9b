# SPDX-License-Identifier: BSD-3-Clause
"""Groups that do not answer: a stopped process, a kernel that never ends, a false answer. Other groups are served."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU, Machine, Process


class Orders(Machine):
    """Collects all evictions; obedient clients release a lease that came before its memory had room."""

    def __init__(self, **settings: Any) -> None:
        self.orders: list[ev.Evict] = []
        self.obeys: list[Process] = []
        super().__init__(**settings)

    def do(self, event: ev.Event) -> list[ev.Decision]:
        found = super().do(event)
        known = {order.serial for order in self.orders}
        self.orders += [d for d in found if isinstance(d, ev.Evict) and d.serial not in known]
        revoked = {d.client for d in found if isinstance(d, ev.Revoke)}
        for process in self.obeys:
            if process.number in revoked and process.lease:
                process.release("failed")
                process.request()
        return found

    def waits(self, gib: float) -> Process:
        process = self.process("waits", gib)
        self.obeys.append(process)
        process.request()
        return process


def notices(machine: Machine) -> list[dict[str, Any]]:
    return [n.params for _, n in machine.core.model.notices if n.code == "stuck"]


def granted(process: Process) -> bool:
    return process.machine.core.clients[process.number].lease is not None


def stuck(**settings: Any) -> tuple[Orders, Process, Process]:
    """A lease holder that does not release the GPU, and a group that is waiting for it."""
    machine = Orders(**settings)
    holder = machine.runs("holder", 60)
    waits = machine.process("waits", 60)
    waits.request()
    machine.sleep(31)
    assert holder.state == "finishing"
    return machine, holder, waits


def test_a_late_holder_is_named_and_delays_only_groups_that_need_its_memory() -> None:
    machine, holder, waits = stuck()
    small = machine.process("small", 20)
    small.request()
    # In time: it keeps its place at the head, and the small one would make it wait for longer.
    assert waits.reason["code"] == "draining"
    machine.sleep(30)
    assert waits.reason["code"] == "stuck"
    assert waits.reason["params"]["holder"] == "holder"
    assert waits.reason["params"]["for"] >= 30
    assert waits.reason["params"]["lack"] == 20 * GIB
    assert holder.reason["code"] == "stuck"
    assert granted(small)
    (notice,) = notices(machine)
    assert (notice["name"], notice["kernel"]) == ("holder.ipynb", None)


def test_others_take_turns_beside_a_stuck_group() -> None:
    machine, holder, waits = stuck()
    machine.sleep(30)
    one, other = machine.process("one", 30), machine.process("other", 30)
    one.request()
    one.restore()
    other.request()
    machine.sleep(31)
    assert one.state == "finishing"
    machine.do(ev.Released(one.number, one.lease, "revoke"))
    assert [d.client for d in machine.orders] == [one.number]
    one.evict(machine.orders[0])
    assert granted(other)
    assert not granted(holder) or holder.state == "finishing"
    assert not granted(waits)


def test_the_cuda_kernel_of_a_stuck_group_is_named() -> None:
    machine, holder, waits = stuck()
    machine.do(ev.Stuck(holder.number, holder.lease, "gemm", machine.now - 5))
    machine.sleep(30)
    assert notices(machine)[0]["kernel"] == "gemm"
    assert waits.reason["params"]["kernel"] == "gemm"
    assert waits.reason["params"]["kernel_for"] >= 30


def test_the_answer_of_a_stuck_group_ends_the_state() -> None:
    machine, holder, waits = stuck()
    machine.sleep(100)
    assert waits.reason["code"] == "stuck"
    holder.release()
    (order,) = machine.orders
    assert order.client == holder.number
    holder.evict(order)
    assert granted(waits)
    waits.restore()
    holder.request()
    machine.sleep(31)
    waits.release()
    waits.evict(machine.orders[-1])
    assert granted(holder)
    assert len(notices(machine)) == 1


def test_the_death_of_a_stuck_group_ends_the_state() -> None:
    machine, holder, waits = stuck()
    machine.sleep(100)
    machine.do(ev.Detach(holder.number))
    del machine.processes[holder.number]
    machine.sleep(1)
    assert granted(waits)


def test_a_stuck_group_is_charged_without_meter_readings() -> None:
    machine, _, _ = stuck()
    machine.do(ev.Entitle("user:x", ev.Entitlement(request=0.1), ()))
    machine.sleep(60)
    group = machine.core.groups["holder"]
    assert machine.core.times.share("group:holder", GPU, machine.now) == pytest.approx(1, abs=0.2)
    assert group.busy


def test_memory_that_is_not_evicted_is_not_waited_for() -> None:
    machine = Orders()
    silent = machine.runs("silent", 60)
    silent.end()
    silent.release()
    waits = machine.waits(60)
    machine.sleep(1)
    assert [d.client for d in machine.orders] == [silent.number]
    small = machine.process("small", 30)
    small.request()
    assert not granted(small)
    machine.sleep(100)
    assert waits.reason["code"] == "stuck"
    assert granted(small)
    # It is asked for no more while it owes an answer; and granted nothing.
    asked = len(machine.orders)
    machine.sleep(100)
    assert len(machine.orders) == asked
    silent.request()
    assert not granted(silent)
    assert silent.reason["code"] == "stuck"
    assert len(notices(machine)) == 1
    for order in machine.orders[:asked]:
        silent.evict(order)
    assert granted(waits)


def test_a_group_that_always_refuses_is_asked_at_growing_intervals() -> None:
    machine = Orders()
    refuses = machine.runs("refuses", 60)
    refuses.end()
    refuses.release()
    waits = machine.waits(60)
    small = machine.process("small", 30)
    small.request()
    asked = 0
    for _ in range(2000):
        if asked < len(machine.orders):
            asked += 1
            refuses.evict(machine.orders[-1], "failed")
        machine.sleep(0.05)
        if granted(small) and waits.reason["code"] == "stuck":
            break
    assert granted(small)
    assert waits.reason["code"] == "stuck"
    before = asked
    for _ in range(2000):
        if asked < len(machine.orders):
            asked += 1
            refuses.evict(machine.orders[-1], "failed")
        machine.sleep(0.05)
    assert 1 <= asked - before <= 10
    # Once it lets go, all is as usual.
    while asked == len(machine.orders):
        machine.sleep(1)
    refuses.evict(machine.orders[-1])
    assert granted(waits)


def test_a_stopped_process_does_not_keep_its_siblings_off_the_gpu() -> None:
    machine = Orders()
    stopped = machine.runs("group", 20)
    sibling = machine.process("group", 20)
    stopped.release("release")
    machine.waits(90)
    machine.sleep(300)
    assert notices(machine)
    sibling.request()
    assert granted(sibling)
    stopped.request()
    assert not granted(stopped)
    sibling.end()


def test_a_stuck_group_does_not_keep_the_only_lease() -> None:
    machine = Orders(anti_thrash="on")
    holder = machine.runs("holder", 10)
    waits = machine.process("waits", 10)
    waits.request()
    machine.sleep(200)
    assert holder.state == "finishing"
    assert granted(waits)


def test_a_slow_move_is_not_late() -> None:
    machine = Orders()
    slow = machine.runs("slow", 60)
    slow.end()
    slow.release()
    machine.waits(90)
    # Thirty seconds, and ten times what it takes to move 50 GiB.
    machine.sleep(75)
    assert [order.bytes for order in machine.orders] == [50 * GIB]
    assert not notices(machine)
    machine.sleep(10)
    assert notices(machine)


def test_an_oversubscribing_group_takes_the_remaining_room() -> None:
    machine = Orders()
    machine.runs("holder", 60)
    over = machine.process("over", 80, oversubscribe=True)
    over.request()
    machine.sleep(31)
    assert not granted(over)
    machine.sleep(31)
    assert granted(over)
