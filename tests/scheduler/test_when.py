# SPDX-License-Identifier: BSD-3-Clause
"""Forecasts of when a group would run: for groups that exist, and for groups that do not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.client import ControlError
from jupyter_gpushare.scheduler.views import when
from jupyter_gpushare.scheduler.views.estimates import Forecast
from jupyter_gpushare.scheduler.views.timeline import Ledger, take_snapshot
from jupyter_gpushare.scheduler.views.words import answers, prospects
from tests.scheduler.core_machine import GIB, GPU, TOTAL, Machine
from tests.scheduler.world.constants import MIB
from tests.scheduler.world.world import World
from tests.support.properties import examples
from tests.support.scheduler import GIB as SIMULATED_GIB
from tests.support.scheduler import Scheduler, state, until


def of(machine: Machine, group: str) -> dict[str, Any]:
    return said(when.of_group(machine.core, Forecast(), machine.now, group))


def of_new(machine: Machine, gib: float, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"user": "", "teams": (), "activity_class": "interactive", **more}
    found = when.of_new(machine.core, Forecast(), machine.now, size=int(gib * GIB), **given)
    return said(found)


def said(found: dict[str, Any]) -> dict[str, Any]:
    assert found["reason"]["code"] in prospects.PROSPECTS
    return answers.when(found)


def times(found: dict[str, Any]) -> tuple[Any, Any, Any]:
    return found["earliest"], found["likely"], found["latest"]


def test_a_group_with_a_lease_runs_now() -> None:
    m = Machine()
    m.runs("a", 75)
    found = of(m, "a")
    assert (times(found), found["reason"]["code"]) == ((0.0, 0.0, 0.0), "has_lease")
    assert found["text"] == "It can run now: it has the GPU"
    assert found["gpu"] == GPU


def test_a_group_whose_memory_has_room_runs_now() -> None:
    m = Machine()
    m.process("b", 60)
    found = of(m, "b")
    assert (times(found), found["reason"]["code"]) == ((0.0, 0.0, 0.0), "room")
    assert found["restore"] == pytest.approx(6.0)
    assert found["text"].endswith("restoring its memory then takes about 6.0 s")


def test_a_forecast_is_what_the_estimate_then_is() -> None:
    m = Machine()
    m.runs("a", 75)
    b = m.process("b", 60)
    found = of(m, "b")
    b.request()
    later = of(m, "b")
    assert times(found) == times(later)
    assert found["reason"] == later["reason"]
    assert found["reason"]["code"] == "needs_memory"
    assert 20 < found["likely"] <= 30
    assert found["text"].startswith("It can run in about ")
    assert "a.ipynb's turn ends within" in found["text"]


def test_a_holder_whose_turn_is_over_makes_way_in_a_moment() -> None:
    m = Machine()
    m.runs("a", 75)
    m.sleep(40.0)
    found = of_new(m, 60)
    assert (times(found), found["reason"]["code"]) == ((0.0, 0.0, 0.0), "needs_memory")
    assert found["text"].startswith("It can run in a moment: needs 35 GiB more")


def test_a_new_notebook_is_forecast_like_one_that_exists() -> None:
    m = Machine()
    m.runs("a", 75)
    found = of_new(m, 60)
    b = m.process("b", 60)
    b.request()
    assert times(found) == times(of(m, "b"))
    assert found["group"] is None
    # Of two notebooks that lack room, the one that would ask now comes later.
    assert of_new(m, 60)["likely"] > found["likely"] + 10
    assert of_new(m, 60)["reason"]["code"] == "behind"


def test_a_new_notebook_that_fits_runs_now() -> None:
    m = Machine()
    m.runs("a", 75)
    assert times(of_new(m, 20)) == (0.0, 0.0, 0.0)


def test_a_background_notebook_waits_for_interactive_ones() -> None:
    m = Machine()
    m.runs("a", 75)
    m.do(ev.Adjust("b", priority="background", later=True))
    m.process("b", 60).request()
    first, last = (of_new(m, 60, activity_class=c) for c in ("interactive", "background"))
    assert (first["reason"]["code"], last["reason"]["code"]) == ("needs_memory", "behind")
    assert last["likely"] > first["likely"] + 10


def test_a_notebook_that_is_too_large_never_runs() -> None:
    m = Machine()
    found = of_new(m, 101)
    assert times(found) == (None, None, None)
    assert found["reason"]["params"] == {"need": 101 * GIB, "most": 100 * GIB, "gpu": GPU}
    assert found["text"].startswith("It cannot run at present: it needs 101 GiB")


def test_a_frozen_group_has_no_forecast() -> None:
    m = Machine()
    m.process("b", 60)
    m.do(ev.Adjust("b", frozen=True))
    found = of(m, "b")
    assert (times(found), found["reason"]["code"]) == ((None, None, None), "frozen")


def test_a_drained_gpu_has_no_forecast() -> None:
    m = Machine()
    m.process("b", 60)
    m.do(ev.Drain(GPU, True))
    for found in (of(m, "b"), of_new(m, 10)):
        assert (times(found), found["reason"]["code"]) == ((None, None, None), "gpu_draining")


def test_a_cap_of_the_user_refuses_a_new_notebook() -> None:
    m = Machine()
    m.do(ev.Entitle("user:ada", ev.Entitlement(memory=10 * GIB)))
    found = of_new(m, 20, user="ada")
    assert found["reason"]["params"] == {"whose": "user:ada", "room": 10 * GIB}
    assert of_new(m, 20, user="ben")["reason"]["code"] == "room"


def test_a_quota_of_gpus_is_named() -> None:
    m = Machine()
    m.do(ev.Device("GPU-1", TOTAL, 0, "Test GPU", 1))
    m.do(ev.Entitle("user:ada", ev.Entitlement(gpus=1)))
    m.runs("a", 10, user="ada")
    found = of_new(m, 20, user="ada", gpu="GPU-1")
    assert (times(found), found["reason"]["code"]) == ((None, None, None), "quota_gpus")
    for more in ({"user": "ada", "gpu": GPU}, {"user": "ben", "gpu": "GPU-1"}):
        assert of_new(m, 20, **more)["reason"]["code"] == "room"


def test_a_time_limit_is_the_earliest_time() -> None:
    m = Machine()
    m.process("a", 60)
    m.do(ev.Adjust("a", limit=0.1))
    m.core.times.add(m.core.groups["a"], GPU, 3.0, m.now)
    found = of(m, "a")
    assert found["reason"]["code"] == "limited"
    assert found["likely"] == pytest.approx(found["reason"]["params"]["until_in"], abs=0.1)
    assert found["likely"] > 5


def test_a_new_user_is_not_remembered() -> None:
    m = Machine()
    m.runs("a", 75)
    m.process("b", 60).request()
    before = (dict(m.core.times._came), m.core.times.version, m.core.times.several_users)
    of_new(m, 60, user="stranger")
    assert (dict(m.core.times._came), m.core.times.version, m.core.times.several_users) == before
    assert "" not in m.core.times._chains


class Asked(World):
    """All that can happen to the core; after each event, forecasts are made."""

    def boot(self) -> None:
        self.forecast, self.ledger = Forecast(), Ledger()
        super().boot()

    def feed(self, event: ev.Event) -> None:
        super().feed(event)
        for group in self.core.groups:
            self.forecast.observe(self.ledger.observe(take_snapshot(self.core, group, self.now)))

    @invariant()
    def forecasts_make_sense_and_change_nothing(self) -> None:
        queue, places = list(self.core.queue), [copy.copy(wait.rank) for wait in self.core.queue]
        version, number = self.core.times.version, self.core.model.last_number
        found = [
            when.of_group(self.core, self.forecast, self.now, group) for group in self.core.groups
        ]
        for size in (10, 200, 10**6):
            found.append(
                when.of_new(
                    self.core, self.forecast, self.now,
                    user="eve", teams=("t",), size=size * MIB, activity_class="interactive",
                )
            )  # fmt: skip
        for one in found:
            said(one)
            if one["likely"] is None:
                assert (one["earliest"], one["latest"]) == (None, None)
            else:
                assert 0 <= one["earliest"] <= one["likely"] <= one["latest"]
        assert self.core.queue == queue
        assert [wait.rank for wait in queue] == places
        assert (self.core.times.version, self.core.model.last_number) == (version, number)


TestForecasts = Asked.TestCase
TestForecasts.settings = settings(
    max_examples=examples(20),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_control_programs_ask(scheduler: Scheduler) -> None:
    with (
        scheduler.client("a", name="a.ipynb") as a,
        scheduler.client("b", name="b.ipynb"),
        scheduler.control() as control,
    ):
        a.grow(SIMULATED_GIB)
        a.run()
        until(lambda: state(scheduler, "a")["state"] == "running")
        assert control.request("when", group="a.ipynb")["when"]["reason"]["code"] == "has_lease"
        assert control.request("when", group="b")["when"]["reason"]["code"] == "room"
        total = control.request("status")["status"]["gpus"][0]["total"]
        found = control.request("when", bytes=total - SIMULATED_GIB // 2)["when"]
        assert found["reason"]["code"] in ("needs_memory", "too_large")
        assert control.request("when", bytes=1, priority="background", gpu="0")["when"]["gpu"]
        for wrong, sentence in (
            ({}, "either which notebook"),
            ({"group": "a", "bytes": 1}, "either which notebook"),
            ({"group": "a", "gpu": "0"}, "apply only to a new notebook"),
            ({"bytes": -1}, "'bytes' must be a whole number"),
            ({"bytes": 1, "gpu": "9"}, "matches none"),
        ):
            with pytest.raises(ControlError, match=sentence):
                control.request("when", **wrong)
