# SPDX-License-Identifier: BSD-3-Clause
"""Cells that wait in a Jupyter kernel: the GPU does not change hands between two cells of a "Run All"."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.views import explain
from jupyter_gpushare.scheduler.views.words import answers
from tests.scheduler.core_machine import BY_AGE, Lab, Machine, Process, of
from tests.support.scheduler import Scheduler, until


class Notebook:
    """A notebook that runs many cells, and knows how many are left."""

    def __init__(self, machine: Machine, gib: float = 60) -> None:
        self.machine = machine
        self.number = 0
        machine.do(ev.Adjust("run-all", priority="interactive", later=True))
        self.process: Process = machine.process("run-all", gib)

    def queues(self, count: int) -> list[ev.Decision]:
        return self.machine.do(ev.Queued("run-all", count))

    def begins(self) -> list[ev.Decision]:
        """The next cell begins, and submits work."""
        self.number += 1
        found = self.machine.do(
            ev.Cell("run-all", "begin", str(self.number), self.machine.now, True)
        )
        if self.process.lease:
            return found + self.process.begin()
        found += self.process.request()
        if self.process.lease:
            self.process.restore()
        return found

    def ends(self) -> list[ev.Decision]:
        """The open cell ends; the GPU is idle."""
        cell = ev.Cell("run-all", "end", str(self.number), self.machine.now, True)
        return self.process.end() + self.machine.do(cell)


def revoked(decisions: list[ev.Decision]) -> bool:
    return bool(of(ev.Revoke, decisions))


def contend(
    settings: dict[str, Any], gib: float, queued: int, quantum: float = 20.0
) -> tuple[Machine, Notebook, Process]:
    """Return a notebook whose cell runs and whose next ones are queued, and background work that waits for the GPU."""
    machine = Machine(quantum=quantum, **settings)
    notebook = Notebook(machine, gib)
    notebook.queues(queued)
    notebook.begins()
    machine.do(ev.Adjust("training", priority="background", later=True))
    other = machine.process("training", gib)
    other.request()
    assert not other.lease
    return machine, notebook, other


#: Both do not fit; or both fit, and one runs at a time.
CASES: list[Any] = [
    pytest.param({"policy": BY_AGE}, 60, id="memory"),
    pytest.param({}, 60, id="burst"),
    pytest.param({"policy": "fcfs"}, 10, id="fcfs"),
    pytest.param({"policy": "gemini"}, 10, id="gemini"),
    pytest.param({"anti_thrash": "on"}, 10, id="anti-thrash"),
]


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_a_queued_cell_keeps_the_lease_in_the_gap(settings: dict[str, Any], gib: float) -> None:
    machine, notebook, other = contend(settings, gib, queued=3)
    for left in (2, 1, 0):
        machine.sleep(0.5)
        assert not revoked(notebook.ends())
        assert not revoked(machine.sleep(0.3))
        assert not other.lease
        notebook.begins()
        notebook.queues(left)
    machine.sleep(0.5)
    assert revoked(notebook.ends())
    notebook.process.release("cell")


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_without_a_queued_cell_the_lease_passes_on(settings: dict[str, Any], gib: float) -> None:
    machine, notebook, _ = contend(settings, gib, queued=0)
    machine.sleep(0.5)
    assert revoked(notebook.ends())


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_a_wrong_number_delays_others_by_a_second(settings: dict[str, Any], gib: float) -> None:
    machine, notebook, _ = contend(settings, gib, queued=100)
    machine.sleep(0.5)
    assert not revoked(notebook.ends())
    assert not revoked(machine.sleep(0.95))
    assert revoked(machine.sleep(0.1))


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_the_gap_is_part_of_the_time_slice(settings: dict[str, Any], gib: float) -> None:
    machine, notebook, _ = contend(settings, gib, queued=100, quantum=5.0)
    machine.sleep(4.6)
    assert not revoked(notebook.ends())
    assert not revoked(machine.sleep(0.3))
    assert revoked(machine.sleep(0.2))


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_an_empty_queue_ends_the_gap(settings: dict[str, Any], gib: float) -> None:
    machine, notebook, _ = contend(settings, gib, queued=2)
    machine.sleep(0.5)
    assert not revoked(notebook.ends())
    machine.sleep(0.2)
    # The cells were aborted, or the kernel was restarted.
    assert revoked(notebook.queues(0))


def test_a_cell_that_is_queued_later_begins_no_new_gap() -> None:
    machine = Machine(quantum=20.0)
    notebook = Notebook(machine)
    notebook.begins()
    machine.sleep(0.5)
    notebook.ends()
    machine.sleep(5.0)
    notebook.queues(1)
    other = machine.process("training", 60)
    assert revoked(other.request())


def test_a_command_to_release_comes_before_queued_cells() -> None:
    machine = Machine(quantum=20.0)
    notebook = Notebook(machine)
    notebook.queues(3)
    notebook.begins()
    machine.sleep(0.5)
    notebook.ends()
    assert revoked(machine.do(ev.Release("run-all")))


@pytest.mark.parametrize("settings", [{"policy": "fcfs"}, {}], ids=["fcfs", "burst"])
def test_the_reason_states_when_the_time_slice_ends(settings: dict[str, Any]) -> None:
    machine, notebook, other = contend(settings, 60, queued=3)
    machine.sleep(0.5)
    notebook.ends()
    machine.sleep(0.4)
    assert other.reason["params"]["holder"] == "run-all"
    # The next cell may run until the end of the time slice.
    assert other.reason["params"]["yields_in"] == pytest.approx(19.1)


def test_another_lease_holder_that_yields_sooner_makes_way() -> None:
    machine = Machine(quantum=2.0, policy=BY_AGE)
    idle = machine.runs("idle", 40)
    idle.end("quiet")
    notebook = Notebook(machine, 40)
    notebook.queues(3)
    notebook.begins()
    machine.sleep(2.1)
    notebook.ends()
    decisions = machine.process("training", 40).request()
    assert [d.client for d in of(ev.Revoke, decisions)] == [idle.number]


def test_queued_cells_of_an_unknown_group_are_ignored() -> None:
    machine = Machine()
    assert machine.do(ev.Queued("absent", 3)) == []


def test_the_status_has_the_number() -> None:
    machine = Machine()
    notebook = Notebook(machine)
    assert machine.group("run-all")["queued"] == 0
    notebook.queues(20)
    assert machine.group("run-all")["queued"] == 20
    machine.do(ev.Detach(notebook.process.number))
    machine.process("run-all", 10)
    assert machine.group("run-all")["queued"] == 0


def test_the_explanation_has_the_number() -> None:
    machine = Machine()
    Notebook(machine).queues(20)
    found = answers.explanation(explain.explain(machine.core, machine.now, "run-all"))
    assert found["groups"][0]["queued"] == 20
    assert "  20 more cells are queued" in found["lines"]


def test_background_work_pauses_in_the_gap() -> None:
    lab = Lab()
    lab.asks("run-all", priority="interactive")
    lab.asks("training", priority="background")
    notebook, training = lab.runs("run-all", 10), lab.runs("training", 10)
    lab.do(ev.Queued("run-all", 3))
    lab.begin("run-all")
    lab.sleep(0.1)
    lab.end(notebook)
    assert lab.pace(training).inflight == 0
    lab.sleep(0.02)
    assert lab.pace(training).inflight != 0
    # A cell that used no GPU time is followed by such a cell, as far as is known.
    lab.begin("run-all")
    lab.sleep(0.1)
    lab.end(notebook)
    assert lab.pace(training).inflight != 0


@pytest.mark.parametrize(("settings", "gib"), CASES)
def test_a_cell_that_submits_nothing_yields_after_a_moment(
    settings: dict[str, Any], gib: float
) -> None:
    machine, notebook, _ = contend(settings, gib, queued=1)
    machine.sleep(8.0)
    notebook.ends()
    machine.sleep(0.3)
    machine.do(ev.Cell("run-all", "begin", "cpu", machine.now, True))
    assert not revoked(notebook.queues(0))
    assert not revoked(machine.sleep(0.04))
    # By then, its memory may stay for its residency, as in any other cell.
    if gib == 10:
        assert revoked(machine.sleep(0.02))


def test_queued_cells_are_gone_with_the_jupyter_server_that_reported_them(
    scheduler: Scheduler,
) -> None:
    with scheduler.client("a", name="a.ipynb"), scheduler.control() as watching:

        def queued() -> int:
            return int(watching.request("status")["status"]["groups"][0]["queued"])

        with scheduler.control() as dying:
            dying.request("queued", group="a", count=3)
            assert queued() == 3
        until(lambda: queued() == 0)


def test_queued_cells_that_a_new_connection_reports_outlast_the_old_one(
    scheduler: Scheduler,
) -> None:
    with (
        scheduler.client("a", name="a.ipynb"),
        scheduler.client("b", name="b.ipynb"),
        scheduler.control() as new,
    ):

        def queued() -> dict[str, int]:
            groups = new.request("status")["status"]["groups"]
            return {group["id"]: group["queued"] for group in groups}

        with scheduler.control() as old:
            for group in ("a", "b"):
                old.request("queued", group=group, count=3)
            # A Jupyter server that reconnects reports its cells again.
            new.request("queued", group="a", count=2)
        until(lambda: queued()["b"] == 0)
        assert queued() == {"a": 2, "b": 0}
