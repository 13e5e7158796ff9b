# SPDX-License-Identifier: BSD-3-Clause
"""The benchmarks that compare policies, small and on the simulated driver: that they measure what they say."""

from __future__ import annotations

import json
import time

import pytest

from jupyter_gpushare.benchmarks.harness.machine import Machine, machine
from jupyter_gpushare.benchmarks.programs.jobs import KERNEL_NS
from jupyter_gpushare.benchmarks.published import interference, makespan
from jupyter_gpushare.benchmarks.published.interference import ALONE, FREELY, Part, Person
from jupyter_gpushare.cli.main import main


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    monkeypatch.setenv("GPUSHARE_SIM_MEMORY", "64MiB")


def test_memory_that_moves_both_ways_at_once_is_counted_once() -> None:
    moves = [
        {"kind": "evict", "time": 3.0, "duration": 2.0, "bytes": 5},
        {"kind": "restore", "time": 4.0, "duration": 2.0, "bytes": 5},
        {"kind": "restore", "time": 9.0, "duration": 1.0, "bytes": 5},
        {"kind": "restore", "time": 20.0, "duration": 5.0, "bytes": 0},
        {"kind": "wait", "time": 30.0},
    ]
    assert makespan.moving(moves, 0.0, 100.0) == 4.0
    assert makespan.moving(moves, 2.0, 8.5) == 2.5
    assert makespan.moving([], 0.0, 100.0) == 0.0


def test_shared_jobs_are_compared_with_sequential_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(makespan, "TURNS", 3)
    monkeypatch.setattr(makespan, "CELLS", 4)
    command = ["bench", "makespan", "--policy", "fcfs", "--seconds", "0.02", "--json"]
    assert main(command) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(figure["metric"].startswith("fcfs: ") for figure in figures)
    sooner = [figure["value"] for figure in figures if figure["unit"] == "x"]
    assert len(sooner) == 2
    assert all(value > 0 for value in sooner)
    (moving,) = (figure["value"] for figure in figures if figure["metric"].endswith("moving"))
    assert 0 < moving <= 100


@pytest.mark.slow
def test_bursts_run_under_every_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "WARM_UP", 0.1)
    pairs = interference.measure(["burst", "fcfs"], pairs=2, bursts=2)
    for pair in pairs:
        assert set(pair) == {ALONE, FREELY, "burst", "fcfs"}
        assert all(len(part.bursts) == 2 and part.rate > 0 for part in pair.values())
        # Five kernels of a millisecond each.
        assert all(taken >= 0.005 for part in pair.values() for taken in part.bursts)
        # A cell is its burst, the kernel's own work, and the way to it and back.
        for part in pair.values():
            assert all(cell > burst for burst, cell in zip(part.bursts, part.cells, strict=True))


def phases(here: Machine) -> list[str]:
    events = here.control("history")["events"]
    assert isinstance(events, list)
    return [event["phase"] for event in events if event["kind"] == "cell"]


@pytest.mark.parametrize("shares", [False, True])
def test_shared_programs_are_kernels_that_report_their_cells(shares: bool) -> None:
    # It joins during its first cell, and reports that cell then.
    expected = ["begin", "end"] * 3 if shares else []
    with machine(whole=True, GPUSHARE_SIM_KERNEL_NS=KERNEL_NS) as here:
        person = Person(here, shares=shares, torch=False, portion=1)
        try:
            person.bursts(2, seed=0)
            deadline = time.monotonic() + 30
            while (told := phases(here)) != expected and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            person.close()
    assert told == expected


def test_a_cell_that_fails_ends_the_benchmark() -> None:
    with machine(whole=True, GPUSHARE_SIM_KERNEL_NS=KERNEL_NS) as here:
        person = Person(here, shares=False, torch=False, portion=1)
        try:
            person._client.execute("del jobs", reply=True, timeout=60)
            with pytest.raises(RuntimeError, match="the kernel's cell failed: name 'jobs'"):
                person.bursts(1, seed=0)
        finally:
            person.close()


def test_an_interrupt_ends_the_benchmark_with_the_pairs_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interference, "WARM_UP", 0.1)
    bursts, calls = interference.Person.bursts, 0

    def interrupted(self: interference.Person, *arguments: int) -> tuple[list[float], list[float]]:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return bursts(self, *arguments)

    monkeypatch.setattr(interference.Person, "bursts", interrupted)
    (pair,) = interference.measure(["burst"], pairs=20, bursts=2)
    assert set(pair) == {ALONE, FREELY, "burst"}


def test_figures_are_relative_to_running_alone() -> None:
    pair = {
        ALONE: Part([0.01] * 10, [0.02] * 10, 100.0),
        FREELY: Part([0.02] * 10, [0.03] * 10, 50.0),
        "burst": Part([0.011] * 10, [0.021] * 10, 81.0),
    }
    later, lost, *times = interference._figures("burst", [pair] * 3)
    assert later.value == pytest.approx(10.0)
    assert later.bare == pytest.approx(100.0)
    # A tenth of the GPU is the bursts': 90 steps a second were to be had.
    assert lost.value == pytest.approx(10.0)
    assert [(round(t.value), round(t.bare or 0)) for t in times] == [(11, 10)] * 2 + [(21, 20)] * 2


@pytest.mark.slow
def test_first_bursts_after_a_pause_are_measured_with_the_loop_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interference, "WARM_UP", 0.1)
    firsts = interference.measure_firsts(["burst"], pairs=2, pause=0.1)
    assert len(firsts["burst"]) == 2
    # Five kernels of a millisecond each.
    assert all(taken >= 0.005 for pair in firsts["burst"] for taken in pair)


def test_first_bursts_are_relative_to_first_bursts_alone() -> None:
    firsts = {"burst": [(0.011, 0.010), (0.012, 0.010), (0.020, 0.010)]}
    later, median, longest = interference._first_figures("burst", firsts, 60.0)
    assert later.value == pytest.approx(20.0)
    assert "after a pause of 60 s" in later.metric
    assert (median.value, median.bare) == pytest.approx((12.0, 10.0))
    assert (longest.value, longest.bare) == pytest.approx((20.0, 10.0))


def test_an_unknown_policy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "makespan", "--policy", "magic", "--seconds", "0.01"]) == 1
    assert "magic" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--pairs", "--seconds", "--gib"])
def test_numbers_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "makespan", option, "0"]) == 2
    assert capsys.readouterr().err == f"gpushare: {option} must be greater than 0\n"
