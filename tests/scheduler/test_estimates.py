# SPDX-License-Identifier: BSD-3-Clause
"""Estimates of waits: what they learn, what they never say, and how many waits they are right about."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from jupyter_gpushare.benchmarks.published import estimates as bench
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.views.cell_times import CellTimes
from jupyter_gpushare.scheduler.views.estimates import Estimate, Forecast
from jupyter_gpushare.scheduler.views.timeline import Ledger, Timeline, take_snapshot
from tests.scheduler.core_machine import Machine, Process
from tests.scheduler.timelines import told
from tests.scheduler.world import world
from tests.support.properties import examples


class Watched(Machine):
    """A machine whose groups are watched, as the server does."""

    def __init__(self, **settings: Any) -> None:
        self.ledger, self.forecast = Ledger(), Forecast()
        super().__init__(**settings)

    def do(self, event: ev.Event) -> list[ev.Decision]:
        found = super().do(event)
        for group in list(self.core.groups):
            self.forecast.observe(self.ledger.observe(take_snapshot(self.core, group, self.now)))
        if self.forecast.due:
            self.estimates()
        return found

    def estimates(self) -> dict[str, Estimate]:
        return self.forecast.estimates(self.core, self.now)

    def hand_over(self, holder: Process, waiter: Process) -> None:
        """The holder gives its lease back, and the waiter is served."""
        for order in [*holder.release(), *self.sleep(0.02)]:
            if isinstance(order, ev.Evict):
                holder.evict(order)
        assert waiter.state == "restoring"
        waiter.restore()


def two(**settings: Any) -> tuple[Watched, Process, Process]:
    machine = Watched(**settings)
    return machine, machine.runs("a", 75), machine.process("b", 60)


def test_the_first_estimate_uses_the_quantum() -> None:
    m, _, b = two()
    b.request()
    found = m.estimates()["b"]
    assert 20 < found.seconds <= 30
    assert found.low < 15
    assert found.high > 30


def test_estimates_learn_how_long_a_holder_uses_the_gpu() -> None:
    m, a, b = two()
    for _ in range(12):
        for holder, waiter in ((a, b), (b, a)):
            m.sleep(1.0)
            waiter.request()
            m.sleep(1.0)
            assert any(isinstance(d, ev.Revoke) for d in holder.end())
            m.hand_over(holder, waiter)
    m.sleep(1.0)
    b.request()
    found = m.estimates()["b"]
    # All its cells took 2 s, of which one has passed.
    assert 0.5 < found.seconds < 2
    assert found.low < 1.0 < found.high < 20
    m.sleep(20.0)
    # Longer than ever: it may take its whole quantum.
    assert m.estimates()["b"].high > 5


def test_estimates_also_learn_while_no_group_waits() -> None:
    m, a, b = two(quantum=600.0)
    for _ in range(12):
        m.sleep(2.0)
        a.end()
        m.sleep(5.0)
        a.begin()
    m.sleep(1.0)
    b.request()
    assert m.estimates()["b"].seconds < 100


def test_a_later_place_in_the_queue_waits_longer() -> None:
    m, _, b = two()
    b.request()
    for name in ("c", "d", "e"):
        m.process(name, 60).request()
    found = m.estimates()
    order = [found[name] for name in ("b", "c", "d", "e")]
    assert [one.seconds for one in order] == sorted(one.seconds for one in order)
    assert order[3].seconds > order[0].seconds + 30


def test_a_group_that_fits_beside_the_one_ahead_waits_no_longer() -> None:
    m, _, b = two()
    b.request()
    m.process("c", 30).request()
    found = m.estimates()
    assert found["c"].seconds == found["b"].seconds


@pytest.mark.parametrize("change", [{"frozen": True}, None])
def test_without_a_basis_there_is_no_estimate(change: dict[str, Any] | None) -> None:
    m, _, b = two()
    b.request()
    assert "b" in m.estimates()
    if change:
        m.do(ev.Adjust("b", **change))
    else:
        m.foreign = 50 << 30
        m.do(m.reading())
    assert m.group("b")["reason"]["code"] in ("frozen", "foreign_use")
    assert "b" not in m.estimates()


def test_a_wait_that_was_cancelled_teaches_nothing() -> None:
    m, _, b = two()
    b.request()
    before = m.estimates()["b"]
    for _ in range(50):
        m.do(ev.Cancel("b"))
        b.request()
    assert m.estimates()["b"] == before


def test_a_wait_that_was_frozen_teaches_what_it_took_since() -> None:
    m, a, b = two(quantum=10.0)
    b.request()
    m.sleep(5.0)
    before = m.estimates()["b"].high
    m.do(ev.Adjust("b", frozen=True))
    m.sleep(600.0)
    assert any(isinstance(d, ev.Revoke) for d in m.do(ev.Adjust("b", frozen=False)))
    m.hand_over(a, b)
    assert m.ledger.totals("b", m.now)["waited"] == pytest.approx(5.0, abs=0.1)
    a.request()
    assert m.estimates()["a"].high < 2 * before


def test_being_right_makes_the_interval_narrower() -> None:
    m, a, b = two(quantum=10.0)
    widths = []
    for _ in range(40):
        b.request()
        found = m.estimates()[b.group]
        widths.append(found.high - found.low)
        # Always the whole quantum.
        assert any(isinstance(d, ev.Revoke) for d in m.sleep(10.0))
        m.hand_over(a, b)
        a, b = b, a
    assert widths[-1] < widths[0] / 2


@pytest.mark.parametrize("mix", bench.MIXES)
def test_nine_of_ten_waits_are_within(mix: str) -> None:
    found = bench.waits(mix, seconds=1500.0, seed=7)
    assert len(found) > 30
    assert sum(one.inside for one in found) >= 0.8 * len(found)
    # And not because the interval says nothing.
    assert sum(one.shown.high < 600 for one in found) >= 0.98 * len(found)


class World(world.World):
    """All that can happen to the core, watched as the server watches it."""

    def boot(self) -> None:
        self.ledger, self.forecast, self.timeline = Ledger(), Forecast(), Timeline(self.now)
        self.known: set[str] = set()
        super().boot()

    def feed(self, event: ev.Event) -> None:
        super().feed(event)
        for group in self.known | self.core.groups.keys():
            seen = self.ledger.observe(take_snapshot(self.core, group, self.now))
            self.timeline.observe(seen)
            self.forecast.observe(seen)
        self.known = set(self.core.groups)

    @invariant()
    def estimates_make_sense(self) -> None:
        waiting = {wait.group.id for wait in self.core.queue if not wait.frozen}
        for group, found in self.forecast.estimates(self.core, self.now).items():
            assert group in waiting
            assert 0 <= found.low <= found.seconds <= found.high < math.inf

    @invariant()
    def the_timeline_shows_what_is(self) -> None:
        spans = told(self.timeline, 0, self.now)["spans"]
        assert all(s["end"] is None or s["start"] <= s["end"] <= self.now for s in spans)
        busy = {g.id for g in self.core.groups.values() if g.busy}
        waiting = {w.group.id for w in self.core.queue if w.logged and not w.frozen}
        # A cell or a call waits for the wake of its process.
        waiting |= {
            g.id
            for g in self.core.groups.values()
            if g.waking and (g.cells or any(c.asked for c in g.clients.values()))
        }
        for kind, groups in (("burst", busy), ("wait", waiting)):
            opened = [s["group"] for s in spans if s["kind"] == kind and s["end"] is None]
            assert sorted(opened) == sorted(groups)


World.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWorld = World.TestCase


class RunsAll(Watched):
    """A machine on which a notebook runs cells of one second, which end or are queued."""

    def cell(self, process: Process, number: int, seconds: float) -> None:
        name = f"cell-{number}"
        self.do(ev.Cell(process.group, "begin", name, self.now, True))
        if process.lease:
            process.begin()
        else:
            process.request()
            process.restore()
        self.sleep(seconds)
        process.end()
        self.do(ev.Cell(process.group, "end", name, self.now, True))


def test_estimates_count_the_queued_cells_of_a_holder() -> None:
    m = RunsAll(quantum=30.0)
    a, b = m.process("a", 75), m.process("b", 60)
    for number in range(8):
        m.cell(a, number, 1.0)
        m.sleep(0.004)
    m.do(ev.Cell("a", "begin", "last", m.now, True))
    a.begin()
    m.sleep(0.25)
    b.request()
    before = m.estimates()["b"]
    m.do(ev.Queued("a", 6))
    after = m.estimates()["b"]
    # Three quarters of this cell, and six more.
    assert 5.5 < after.seconds < 9
    assert after.low < 6.75 < after.high
    m.do(ev.Queued("a", 20))
    # The time slice, of which 8.3 s have passed, bounds it.
    assert m.estimates()["b"].seconds <= 21.8
    m.do(ev.Queued("a", 0))
    assert m.estimates()["b"] == before
    # Between two cells, the next ones count; where nothing runs, the number is wrong.
    m.do(ev.Queued("a", 6))
    m.sleep(0.75)
    a.end()
    m.do(ev.Cell("a", "end", "last", m.now, True))
    assert 5 < m.estimates()["b"].seconds < 8


def test_estimates_count_the_queued_cells_of_a_group_that_waits_before() -> None:
    m = RunsAll(quantum=30.0)
    a, b, c = (m.process(name, 60) for name in "abc")
    for number in range(8):
        m.cell(a, number, 1.0)
        m.sleep(0.004)
    for order in [*a.release("cell"), *b.request(), *m.sleep(0.02)]:
        if isinstance(order, ev.Evict):
            a.evict(order)
    b.restore()
    m.do(ev.Cell("a", "begin", "waits", m.now, True))
    a.request()
    c.request()
    before = m.estimates()["c"].seconds
    m.do(ev.Queued("a", 20))
    assert m.estimates()["c"].seconds > before + 3


def test_cells_that_use_no_gpu_shorten_the_usual_length() -> None:
    times = CellTimes()
    m = Machine()
    a = m.runs("a", 10)
    a.end()

    def look() -> None:
        times.observe(take_snapshot(m.core, "a", m.now))

    assert times.usual("a") is None
    for number, busy in enumerate([True, False]):
        m.do(ev.Cell("a", "begin", str(number), m.now, True))
        look()
        m.sleep(1.0)
        if busy:
            a.begin()
            look()
        m.sleep(2.0)
        assert times.so_far("a", m.now) == pytest.approx(2.0 if busy else 0.0)
        a.end()
        m.do(ev.Cell("a", "end", str(number), m.now, True))
        look()
    usual = times.usual("a")
    assert usual is not None
    assert usual[0] == pytest.approx(1.0)
    m.do(ev.Detach(a.number))
    look()
    assert times.usual("a") is None
