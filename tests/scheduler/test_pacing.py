# SPDX-License-Identifier: BSD-3-Clause
"""Classes of groups, pacing, entitlements and policies, as the core applies them."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.checks import ProtocolViolation
from jupyter_gpushare.scheduler.policies import Speed
from jupyter_gpushare.scheduler.policies.fcfs import FirstComeFirstServed
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.core_machine import GIB, GPU, Machine, Process, of


def cell(m: Machine, group: str, phase: Any, number: int) -> list[ev.Decision]:
    return m.do(ev.Cell(group, phase, str(number), m.now, from_kernel=True))


def beside(m: Machine) -> tuple[Process, Process]:
    """A running background group, and an interactive group whose burst has ended."""
    m.do(ev.Adjust("train", priority="background", later=True))
    train = m.runs("train", 20)
    notebook = m.runs("notebook", 20)
    notebook.end()
    return train, notebook


def test_a_long_burst_counts_as_background_until_the_next_cell() -> None:
    m = Machine(interactive_burst=2.0)
    m.runs("a", 20)
    cell(m, "a", "begin", 1)
    m.sleep(1.9)
    assert m.group("a")["class"] == "interactive"
    m.sleep(0.2)
    assert m.group("a")["class"] == "background"
    cell(m, "a", "end", 1)
    cell(m, "a", "begin", 2)
    assert m.group("a")["class"] == "interactive"


def test_a_waiting_group_moves_back_when_it_becomes_background() -> None:
    m = Machine(quantum=1000.0)
    m.runs("a", 90)
    b, c = m.process("b", 50), m.process("c", 50)
    b.request()
    m.sleep(1)
    c.request()
    assert [w.group.id for w in m.core.queue] == ["b", "c"]
    m.do(ev.Adjust("b", priority="background"))
    assert [w.group.id for w in m.core.queue] == ["c", "b"]
    assert m.core.gpus[GPU].queue == m.core.queue


def test_background_work_pauses_for_an_interactive_burst_and_is_unlimited_alone() -> None:
    m = Machine()
    train, notebook = beside(m)
    (pace,) = of(ev.Pace, notebook.begin())
    assert (pace.client, pace.inflight) == (train.number, 0.0)
    (pace,) = of(ev.Pace, notebook.end())
    assert pace.inflight is not None
    assert pace.inflight > 0
    m.do(ev.Release("notebook"))
    (pace,) = of(ev.Pace, notebook.release())
    assert pace == ev.Pace(train.number)


def test_a_pace_holds_until_the_next_is_sent() -> None:
    m = Machine()
    train, notebook = beside(m)
    notebook.begin()
    m.do(ev.Release("train"))
    assert of(ev.Pace, train.release()) == []
    m.do(ev.Release("notebook"))
    notebook.release()
    # It was paused when it released its lease, and now it is alone.
    (pace,) = of(ev.Pace, train.request())
    assert pace == ev.Pace(train.number)


def test_a_metered_group_is_charged_by_its_meter() -> None:
    m = Machine(interactive_burst=2.0)
    a = m.process("a", 20, user="ada")
    b = m.process("b", 20, user="ben")
    a.request()
    a.restore()
    b.request()
    b.restore()
    assert m.core.clients[a.number].pace.meter
    m.sleep(5)
    # Most of that time it did nothing on the GPU.
    m.do(ev.Meter(a.number, GPU, 0.5, 100, m.now))
    assert m.group("a")["class"] == "interactive"
    assert m.core.times.used("user:ada", GPU, m.now) == pytest.approx(0.5)
    m.do(ev.Meter(a.number, GPU, 2.5, 200, m.now))
    assert m.group("a")["class"] == "background"


def test_without_meters_the_duration_of_bursts_is_charged() -> None:
    m = Machine()
    a = m.process("a", 20, user="ada")
    a.request()
    a.restore()
    m.sleep(3)
    a.end()
    m.sleep(1)
    assert m.core.times.used("user:ada", GPU, m.now) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "event", [ev.Meter(1, "GPU-none", 1.0, 1, 1.0), ev.Meter(1, GPU, float("nan"), 1, 1.0)]
)
def test_an_impossible_meter_reading_is_a_violation(event: ev.Meter) -> None:
    m = Machine()
    m.runs("a", 20)
    with pytest.raises(ProtocolViolation):
        m.do(event)


def test_a_group_at_its_limit_waits_for_the_window_and_delays_no_other() -> None:
    m = Machine()
    a = m.runs("a", 75)
    m.do(ev.Adjust("a", limit=0.2))
    m.sleep(3)
    m.do(ev.Meter(a.number, GPU, 3.0, 10, m.now))
    a.end()
    m.do(ev.Release("a"))
    a.release()
    assert of(ev.Grant, a.request()) == []
    assert a.reason["code"] == "limited"
    assert a.reason["params"]["whose"] == "group:a"
    until = a.reason["params"]["until_in"]
    assert 0 < until < 10
    b = m.process("b", 20)
    assert of(ev.Grant, b.request())
    assert of(ev.Grant, m.sleep(until - 0.1)) == []
    assert of(ev.Grant, m.sleep(0.2)) == [ev.Grant(a.number, a.lease)]


def test_a_users_memory_is_capped_for_all_its_kernels_together() -> None:
    m = Machine()
    m.do(ev.Entitle("user:ada", ev.Entitlement(memory=30 * GIB)))
    m.process("a", 20, user="ada")
    b = m.process("b", user="ada")
    answer = b.grow(20)
    assert answer is not None
    assert answer.status == "cap"
    assert (
        answer.text
        == "20.0 GiB more would exceed the memory limit of user ada on each GPU by 10.0 GiB"
    )
    other = m.process("c", user="ben").grow(20)
    assert other is not None
    assert other.status == "swapped"


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (ev.Entitle("ada", ev.Entitlement()), "user:NAME or team:NAME"),
        (ev.Entitle("user:ada", ev.Entitlement(), ("ben",)), "only a team has members"),
        (ev.Entitle("team:all", ev.Entitlement(request=2.0), ("ben",)), "request must be"),
    ],
)
def test_impossible_entitlements_are_refused(event: ev.Entitle, sentence: str) -> None:
    m = Machine()
    with pytest.raises(ValueError, match=sentence):
        m.do(event)
    assert not m.core.times.active


def test_the_cuda_kernel_that_delays_a_revocation_is_named() -> None:
    m = Machine(quantum=1.0)
    a, b = m.runs("a", 75), m.process("b", 60)
    m.do(ev.Stuck(a.number, a.lease - 1, "of an earlier lease", m.now))
    b.request()
    m.sleep(2)
    assert b.reason["params"]["kernel"] is None
    m.do(ev.Stuck(a.number, a.lease, "gemm", m.now - 3.0))
    assert b.reason["params"]["kernel"] == "gemm"
    assert b.reason["params"]["kernel_for"] == pytest.approx(3.0)
    assert m.kinds("a")[-1] == "stuck"
    a.release()
    assert m.core.groups["a"].stuck is None


def test_the_focused_notebook_comes_first_among_those_of_its_user() -> None:
    m = Machine(quantum=1000.0)
    m.runs("a", 90)
    b, c = m.process("b", 50, user="ada"), m.process("c", 50, user="ada")
    b.request()
    m.sleep(1)
    c.request()
    m.do(ev.Focus("ada", "c"))
    assert [w.group.id for w in m.core.queue] == ["c", "b"]
    m.do(ev.Focus("ada", ""))
    assert [w.group.id for w in m.core.queue] == ["b", "c"]


# --- Policies -------------------------------------------------------------------------------------


def test_a_serialising_policy_runs_one_group_at_a_time() -> None:
    m = Machine(policy="fcfs")
    a, b = m.runs("a", 20), m.process("b", 20)
    assert of(ev.Grant, b.request()) == []
    assert b.reason["code"] == "serialised"
    assert b.reason["params"]["yields_in"] == pytest.approx(30)
    # Chosen while they run, another lets both.
    assert of(ev.Grant, m.do(ev.Configure(policy="burst"))) == [ev.Grant(b.number, b.lease)]
    assert snapshot.status(m.core, m.now)["settings"]["policy"] == "burst"
    assert (a.state, b.state) == ("running", "restoring")


def test_an_unknown_policy_is_refused() -> None:
    m = Machine()
    with pytest.raises(ValueError, match=r"policy must be one of burst, fcfs, .*, not 'lottery'"):
        m.do(ev.Configure(policy="lottery"))
    assert m.core.policy.name == "burst"


class Broken(FirstComeFirstServed):
    """Fails where a test says."""

    name = "broken"
    serialises = False
    fails = ""

    def __getattribute__(self, name: str) -> Any:
        if name == Broken.fails:
            raise RuntimeError("no luck")
        return super().__getattribute__(name)


@pytest.mark.parametrize("method", ["queue_parts", "victim_rank", "quantum", "paces"])
def test_a_policy_that_raises_is_replaced_and_the_event_is_handled(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policies.OURS, "broken", Broken)
    monkeypatch.setattr(Broken, "fails", "")
    m = Machine(policy="broken")
    for name in ("a", "c"):
        m.runs(name, 40).end("quiet")
    m.sleep(60)
    monkeypatch.setattr(Broken, "fails", method)
    b = m.process("b", 60)
    assert of(ev.Revoke, b.request())
    assert m.core.policy.name == "burst"
    notices = snapshot.status(m.core, m.now)["notices"]
    assert [n["code"] for n in notices] == ["policy_failed"]
    assert notices[0]["params"]["policy"] == "broken"
    assert "no luck" in notices[0]["params"]["error"]


def test_the_strictest_of_several_gpus_holds() -> None:
    from jupyter_gpushare.scheduler.core.pacing import strictest

    assert strictest([Speed(), Speed()]) == Speed()
    assert strictest([Speed(0.001, 0.01), Speed(share=0.5, meter=True)]) == Speed(
        0.001, 0.01, 0.5, True
    )
    assert strictest([Speed(0.001, 0.01), Speed(0.0, 0.05)]) == Speed(0.0, 0.05)
