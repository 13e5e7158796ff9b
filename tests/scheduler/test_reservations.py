# SPDX-License-Identifier: BSD-3-Clause
"""Reservations: places in the queue that no thread waits for."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.client import ControlError
from jupyter_gpushare.scheduler.views.words.groups import remark
from tests.scheduler.core_machine import GPU, Machine, Process, of
from tests.scheduler.night import Night
from tests.scheduler.world.constants import GROUPS
from tests.scheduler.world.world import World
from tests.support.properties import examples
from tests.support.scheduler import GIB, Scheduler, until


def results(machine: Machine, group: str) -> list[str]:
    return [
        log.fields["result"]
        for log in machine.history
        if (log.kind, log.group) == ("reservation", group)
    ]


def notices(machine: Machine) -> list[tuple[str, Any]]:
    return [
        (n.group, n.params["why"])
        for _, n in machine.core.model.notices
        if n.code == "reservation_lapsed"
    ]


def reserve(machine: Machine, group: str, on: bool = True) -> list[ev.Decision]:
    return machine.do(ev.Reserve(group, on))


def hand_over(holder: Process, waiter: Process) -> None:
    """The holder ends its burst, and its memory leaves."""
    for order in [*holder.end(), *holder.machine.sleep(0.02)]:
        if isinstance(order, ev.Revoke):
            for eviction in of(ev.Evict, holder.release()):
                holder.evict(eviction)
    assert waiter.lease


def test_with_room_the_memory_is_restored_and_kept() -> None:
    m = Machine()
    b = m.process("b", 60)
    assert ev.Grant(b.number, 1) in reserve(m, "b")
    assert m.group("b")["state"] == "restoring"
    b.restore()
    b.end("quiet")
    found = m.group("b")
    assert found["state"] == "idle_lease"
    assert found["gpus"][0]["resident"] == 60 << 30
    assert found["reservation"] == {"state": "ready", "since": 100.0, "until_in": 60.0}
    assert results(m, "b") == ["waiting", "ready"]
    assert found["totals"]["bursts"] == 0
    assert remark(found) == "the GPU is reserved for it for another 1 min"


def test_it_waits_at_its_rank_like_any_other() -> None:
    m = Machine()
    a = m.runs("a", 75)
    b = m.process("b", 60)
    assert not of(ev.Grant, reserve(m, "b"))
    m.sleep(1.0)
    c = m.process("c", 60)
    c.request()
    assert (m.group("b")["state"], m.group("b")["position"]) == ("waiting", 1)
    assert m.group("b")["reservation"]["state"] == "waiting"
    assert (m.group("c")["position"], m.group("b")["reason"]["code"]) == (2, "needs_memory")
    hand_over(a, b)
    b.restore()
    assert m.group("b")["reservation"]["state"] == "ready"
    # The lease is kept although another group waits.
    assert not of(ev.Revoke, m.sleep(59.0))
    assert m.group("c")["state"] == "waiting"
    # No longer than for the time that is set.
    revoked = of(ev.Revoke, m.sleep(2.0))
    assert [one.client for one in revoked] == [b.number]
    assert results(m, "b") == ["waiting", "ready", "lapsed"]
    assert notices(m) == [("b", "lapsed")]
    for order in of(ev.Evict, b.release()):
        b.evict(order)
    assert c.lease


@pytest.mark.parametrize("first", ["request", "begin"])
def test_its_first_use_begins_a_time_slice(first: str) -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    b.restore()
    m.sleep(50.0)
    getattr(b, first)()
    assert m.group("b")["reservation"] is None
    assert results(m, "b")[-1] == "used"
    assert m.group("b")["state"] == "running"
    assert m.core.groups["b"].turn_at == m.now
    # It is a holder like any other.
    m.sleep(20.0)
    m.process("c", 60).request()
    assert of(ev.Revoke, m.sleep(40.0))
    assert not notices(m)


def test_a_thread_that_comes_while_it_waits_takes_the_place() -> None:
    m = Machine()
    a = m.runs("a", 75)
    b = m.process("b", 60)
    reserve(m, "b")
    m.sleep(1.0)
    m.process("c", 60).request()
    b.request()
    hand_over(a, b)
    b.restore()
    assert m.group("b")["state"] == "running"
    b.begin()
    assert results(m, "b") == ["waiting", "used"]


def test_a_thread_that_comes_during_the_restore_joins_it() -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    # The grant is on its way, and is not sent again.
    assert not of(ev.Grant, b.request())
    b.restore()
    assert m.group("b")["state"] == "running"
    assert results(m, "b") == ["waiting", "used"]


def test_it_can_be_cancelled() -> None:
    m = Machine()
    m.runs("a", 75)
    m.process("b", 60)
    reserve(m, "b")
    reserve(m, "b", on=False)
    assert (m.group("b")["state"], m.group("b")["reservation"]) == ("idle", None)
    reserve(m, "b")
    m.do(ev.Cancel("b"))
    m.sleep(1.0)
    assert (m.group("b")["state"], m.group("b")["reservation"]) == ("idle", None)
    assert results(m, "b") == ["waiting", "cancelled"] * 2
    assert not notices(m)


def test_when_it_is_cancelled_others_have_its_memory_at_once() -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    b.restore()
    m.process("c", 60).request()
    assert not of(ev.Revoke, m.sleep(1.0))
    assert of(ev.Revoke, [*reserve(m, "b", on=False), *m.sleep(0.02)])


def test_a_lease_that_ends_early_is_a_notice() -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    b.restore()
    m.do(ev.Adjust("b", frozen=True))
    b.release()
    assert notices(m) == [("b", "lost")]


def test_a_person_does_not_wait_for_the_reservation_of_an_agent() -> None:
    m = Machine()
    agent = m.process("b", 60)
    m.do(ev.Adjust("b", priority="agent"))
    reserve(m, "b")
    agent.restore()
    agent.end("quiet")
    m.process("c", 60).request()
    assert of(ev.Revoke, m.sleep(m.core.rules.background_quantum + 0.1))
    agent.release("revoke")
    assert results(m, "b") == ["waiting", "ready", "lost"]


def test_a_user_who_releases_the_gpu_cancels_it() -> None:
    m = Machine()
    m.runs("a", 75)
    m.process("b", 60)
    reserve(m, "b")
    m.do(ev.Release("b"))
    assert (m.group("b")["state"], results(m, "b")) == ("idle", ["waiting", "cancelled"])


def test_an_idle_lease_is_kept() -> None:
    m = Machine()
    b = m.runs("b", 60)
    b.end()
    reserve(m, "b")
    assert results(m, "b") == ["waiting", "ready"]
    m.process("c", 60).request()
    assert not of(ev.Revoke, m.sleep(59.0))


def test_reserving_after_each_burst_keeps_no_group_waiting() -> None:
    m = Machine()
    a = m.runs("a", 75)
    c = m.process("c", 60)
    c.request()
    orders: list[ev.Decision] = []
    for _ in range(60):
        a.end("quiet")
        orders += reserve(m, "a")
        orders += m.sleep(1.0)
        if of(ev.Revoke, orders):
            break
        orders += a.begin()
    assert [one.client for one in of(ev.Revoke, orders)] == [a.number]
    for eviction in of(ev.Evict, a.release()):
        a.evict(eviction)
    assert c.lease
    # The reservation is for the turn after that.
    assert (m.group("a")["state"], m.group("a")["reservation"]["state"]) == ("waiting", "waiting")
    assert not notices(m)


def test_an_earlier_lease_is_kept_once_no_other_group_waits() -> None:
    m = Machine()
    a = m.runs("a", 75)
    c = m.process("c", 60)
    c.request()
    a.end("quiet")
    reserve(m, "a")
    assert m.group("a")["reservation"]["state"] == "waiting"
    m.do(ev.Detach(c.number))
    assert m.group("a")["reservation"]["state"] == "ready"


def test_a_group_that_runs_has_nothing_to_reserve() -> None:
    m = Machine()
    m.runs("b", 60)
    reserve(m, "b")
    assert (m.group("b")["reservation"], results(m, "b")) == (None, [])


def test_a_group_without_memory_is_refused_with_a_sentence() -> None:
    m = Machine()
    m.process("b")
    with pytest.raises(ValueError, match="has not used the GPU yet"):
        reserve(m, "b")


def lets_lapse(m: Machine, process: Process) -> None:
    """A process reserves the GPU, and does not use it in time."""
    reserve(m, process.group)
    process.restore()
    process.end("quiet")
    m.sleep(m.core.rules.reservation_hold + 0.1)
    assert results(m, process.group)[-1] == "lapsed"


def gpu_time(m: Machine, group: str) -> float:
    return m.core.times.busy_total(m.core.groups[group], GPU, m.now)


def test_the_time_for_which_the_gpu_was_kept_is_charged() -> None:
    m = Machine()
    b = m.process("b", 60)
    lets_lapse(m, b)
    assert gpu_time(m, "b") == pytest.approx(60.0, abs=0.01)
    # The rest of the time, the GPU was free for all.
    m.sleep(100.0)
    assert gpu_time(m, "b") == pytest.approx(60.0, abs=0.01)


def test_the_time_before_the_first_use_is_charged_too() -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    b.restore()
    b.end("quiet")
    m.sleep(50.0)
    before = gpu_time(m, "b")
    b.begin()
    m.sleep(5.0)
    assert before == pytest.approx(0.0, abs=0.01)
    assert gpu_time(m, "b") == pytest.approx(55.0, abs=0.01)


def test_waiting_for_a_reservation_is_not_charged() -> None:
    m = Machine()
    m.runs("a", 75)
    m.process("b", 60)
    reserve(m, "b")
    m.sleep(50.0)
    reserve(m, "b", on=False)
    assert gpu_time(m, "b") == 0.0


def test_a_user_who_lets_reservations_lapse_comes_after_others() -> None:
    m = Machine()
    idler = m.process("b", 60, user="ben")
    lets_lapse(m, idler)
    m.do(ev.Release("b", True))
    for eviction in of(ev.Evict, idler.release()):
        idler.evict(eviction)
    m.runs("a", 75, user="ada")
    idler.request()
    m.sleep(0.1)
    m.process("c", 60, user="cy").request()
    assert (m.group("c")["position"], m.group("b")["position"]) == (1, 2)


def test_the_time_is_a_setting() -> None:
    m = Machine(reservation_hold=5.0)
    b = m.process("b", 60)
    reserve(m, "b")
    b.restore()
    m.sleep(5.1)
    assert results(m, "b") == ["waiting", "ready", "lapsed"]
    # Nobody needs the room, so the memory stays.
    assert m.group("b")["state"] == "idle_lease"


def test_a_burst_under_a_lease_that_ends_does_not_use_it() -> None:
    m = Machine()
    a = m.runs("a", 75)
    a.end("quiet")
    m.process("b", 60).request()
    m.sleep(10.0)
    assert m.group("a")["state"] == "finishing"
    reserve(m, "a")
    # It began before the revocation arrived.
    a.begin()
    assert m.group("a")["reservation"]["state"] == "waiting"
    # Its memory is still there, so that it goes on.
    assert of(ev.Grant, a.release())
    a.restore()
    assert m.group("a")["reservation"]["state"] == "ready"


def test_the_lease_of_a_reservation_is_not_revoked_as_an_idle_one() -> None:
    """Otherwise, the group would get it again at once, and so on without end."""
    m = Machine(anti_thrash="on")
    a = m.runs("a", 40)
    b = m.process("b", 40)
    a.end("quiet")
    assert of(ev.Revoke, [*b.request(), *m.sleep(0.02)])
    reserve(m, "a")
    orders = a.release()
    assert of(ev.Grant, orders)
    assert not of(ev.Revoke, orders)
    a.restore()
    a.end("quiet")
    assert m.group("a")["reservation"]["state"] == "ready"
    assert of(ev.Revoke, m.sleep(m.core.rules.reservation_hold + 0.1))
    a.release()
    assert b.lease


def test_a_group_that_leaves_takes_its_reservation_along() -> None:
    m = Machine()
    m.runs("a", 75)
    b = m.process("b", 60)
    reserve(m, "b")
    m.do(ev.Detach(b.number))
    m.sleep(100.0)
    assert not m.core.model.reserving


def test_a_process_that_leaves_takes_no_place_along() -> None:
    m = Machine()
    m.runs("a", 75)
    m.process("b", 60)
    helper = m.process("b")
    reserve(m, "b")
    m.process("c", 60).request()
    m.do(ev.Detach(helper.number))
    assert (m.group("b")["position"], m.group("c")["position"]) == (1, 2)


def test_it_is_lost_with_the_processes_that_used_the_gpu() -> None:
    m = Machine()
    m.runs("a", 75)
    b = m.process("b", 60)
    helper = m.process("b")
    reserve(m, "b")
    m.do(ev.Detach(b.number))
    assert m.group("b")["state"] == "idle"
    assert (results(m, "b"), notices(m)) == (["waiting", "lost"], [("b", "lost")])
    # A lease without clients would never be released.
    m.do(ev.Release("b"))
    assert of(ev.Grant, helper.request())


@pytest.mark.parametrize("report", ["release", "restore"])
def test_a_restore_that_fails_is_no_use(report: str) -> None:
    m = Machine()
    b = m.process("b", 60)
    reserve(m, "b")
    getattr(b, report)("failed")
    assert (m.group("b")["state"], m.group("b")["reservation"]["state"]) == ("waiting", "waiting")
    m.sleep(1.0)
    b.restore()
    assert results(m, "b") == ["waiting", "ready"]
    assert m.group("b")["totals"]["bursts"] == 0


def test_a_group_does_not_hibernate_while_the_gpu_is_reserved_for_it() -> None:
    night = Night()
    a = night.ran("a")
    night.sleep(590.0)
    reserve(night, "a")
    night.sleep(59.0)
    assert a.where == "idle_lease"
    night.sleep(601.0)
    assert results(night, "a") == ["waiting", "ready", "lapsed"]
    assert a.where == "hibernated"


def test_a_user_who_hibernates_the_group_cancels_it() -> None:
    night = Night()
    a = night.ran("a")
    night.sleep(10.0)
    reserve(night, "a")
    night.do(ev.HibernateNow("a"))
    night.sleep(1.0)
    assert a.where == "hibernated"
    assert results(night, "a") == ["waiting", "ready", "cancelled"]
    assert not notices(night)


def test_a_user_who_hibernates_the_group_on_its_way_back_cancels_it() -> None:
    night = Night()
    b = night.ran("b", 75)
    night.sleep(10.0)
    night.do(ev.HibernateNow("b"))
    night.sleep(1.0)
    assert b.where == "hibernated"
    a = night.ran("a", 75)
    a.begin()
    reserve(night, "b")
    assert night.group("b")["position"] == 1
    night.do(ev.HibernateNow("b"))
    assert (b.where, night.group("b")["position"]) == ("hibernated", None)
    assert results(night, "b") == ["waiting", "cancelled"]


def test_a_hibernated_group_is_woken_for_it() -> None:
    night = Night()
    a = night.asleep("a")
    reserve(night, "a")
    a.end("quiet")
    a.restore()
    assert night.group("a")["reservation"]["state"] == "ready"


def test_a_cancelled_reservation_does_not_wake_its_group() -> None:
    night = Night()
    a = night.asleep("a", 40)
    b = night.ran("b", 90)
    b.request()
    reserve(night, "a")
    assert a.where == "waking"
    reserve(night, "a", on=False)
    assert a.where == "hibernated"
    assert all(wait.group.id != "a" for wait in night.core.queue)
    night.said.clear()
    night.do(ev.Detach(b.number))
    assert not of(ev.Wakeup, night.said)
    assert a.where == "hibernated"


def test_a_thread_that_waits_to_wake_goes_on_when_it_is_cancelled() -> None:
    night = Night()
    a = night.asleep("a", 40)
    b = night.ran("b", 90)
    b.request()
    reserve(night, "a")
    a.call()
    night.said.clear()
    reserve(night, "a", on=False)
    night.do(ev.Detach(b.number))
    assert of(ev.Awake, night.said) == [ev.Awake(a.number, a.serial)]


def test_a_group_that_cannot_be_woken_loses_it() -> None:
    night = Night()
    a = night.asleep("a")
    a.restores = "failed"
    reserve(night, "a")
    assert night.group("a")["reservation"] is None
    assert notices(night) == [("a", "lost")]
    assert (a.where, night.core.queue) == ("hibernated", [])


def test_it_outlasts_a_hibernation_that_fails() -> None:
    night = Night()
    a = night.ran("a")
    a.checkpoint = None
    night.sleep(10)
    night.do(ev.HibernateNow("a"))
    night.sleep(1)
    assert a.where == "hibernating"
    reserve(night, "a")
    a.restores = None
    night.do(ev.Checkpointed(a.number, False, "helper"))
    assert a.where == "waking"
    assert night.group("a")["reservation"]["state"] == "waiting"
    night.woken(a, "", of(ev.Wakeup, night.said)[-1])
    a.end("quiet")
    a.restore()
    assert night.group("a")["reservation"]["state"] == "ready"


class Reserving(World):
    """All that can happen to the core, and reservations."""

    @rule(group=st.sampled_from(GROUPS), on=st.booleans())
    def reserve(self, group: str, on: bool) -> None:
        found = self.core.groups.get(group)
        if found is not None and found.shares:
            self.feed(ev.Reserve(group, on))

    @invariant()
    def reservations_are_known(self) -> None:
        model = self.core.model
        known = {name: g for name, g in self.core.groups.items() if g.reservation is not None}
        assert model.reserving == known
        for group in self.core.groups.values():
            # A lease without clients would never be released.
            assert group.lease is None or group.granted
        for group in known.values():
            if group.reserved:
                assert group.lease is not None
                assert not group.yielding
                assert not group.busy
                assert group.reservation is not None
                assert group.reservation.until is not None
                assert group.reservation.until <= self.now + model.rules.reservation_hold
            else:
                assert group.wait is not None or group.lease is not None


TestReservations = Reserving.TestCase
TestReservations.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_control_programs_reserve(scheduler: Scheduler) -> None:
    with (
        scheduler.client("a", name="a.ipynb") as a,
        scheduler.control() as control,
    ):
        a.grow(GIB)
        found = control.request("reserve", group="a.ipynb")
        assert (found["group"], found["reservation"]["state"]) == ("a", "waiting")
        a.take()
        a.end_burst()
        until(lambda: control.request("reservation", group="a")["reservation"]["state"] == "ready")
        assert control.request("status")["status"]["groups"][0]["reservation"]["until_in"] <= 60
        assert control.request("reserve", group="a", on=False)["reservation"] is None
        kinds = [e["result"] for e in control.request("history")["events"] if "result" in e]
        assert kinds == ["waiting", "ready", "cancelled"]
        with pytest.raises(ControlError, match="no group"):
            control.request("reserve", group="nobody")
