# SPDX-License-Identifier: BSD-3-Clause
"""The tester's mode for a GPU, tried on the simulated driver: what it runs, what it leaves out, and how it counts."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_gpushare.benchmarks.published.conformance import Unfit
from tests.differential.differing import Kind, differences
from tests.differential.gpu import GpuPlace, LeftOut, Survey, fit, left_out, paced
from tests.differential.programs import GROUPS, RARE, Recipe
from tests.differential.running import HERE, Difference, Run, build_player

BYTES = {"u64": 8, "u32": 4}


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the player."""
    return build_player(tmp_path_factory.mktemp("player"))


@pytest.fixture
def place(player: Path) -> Iterator[GpuPlace]:
    """Return a place on the simulated driver."""
    made = GpuPlace(player, 2, "test", {"GPUSHARE_SIM": "1"})
    yield made
    made.close()


def test_kernels_for_a_gpu_take_the_same_arguments() -> None:
    text = (HERE / "player/kernels.ptx").read_text()
    entries = {
        name: [BYTES[size] for size in re.findall(r"\.param \.(u\d+)", parameters)]
        for name, parameters in re.findall(r"\.visible \.entry (\w+)\(([^)]*)\)", text)
    }
    source = (HERE / "player/kernels.c").read_text()
    sizes = [int(size) for size in re.search(r"sizes\[\] = \{([^}]*)\}", source)[1].split(",")]
    counts = dict(re.findall(r"launch_(\w+),\s+\.argument_count = (\d+)", source))
    del counts["decide"]  # of the simulated driver only
    assert entries == {name: sizes[: int(count)] for name, count in counts.items()}


def test_managed_memory_is_refused(player: Path) -> None:
    for name, value in (("GPUSHARE_BACKEND", "managed"), ("GPUSHARE_FORBID_MANAGED", "0")):
        with pytest.raises(Unfit):
            GpuPlace(player, 1, "test", {"GPUSHARE_SIM": "1", name: value})


def test_omitted_operations_depend_on_the_other_program() -> None:
    lines = ["0 lock 1", "1 mailbox 3 98 5 0 3", "1 mailbox 3 98 5 1 3", "* peers 1", "0 mix 1 2"]
    one = fit(["! lockstep", "! threads 2", *lines], left_out())
    assert one == ["! lockstep", "! threads 2", "0 lock 1", "1 mailbox 3 98 5 1 3", "0 mix 1 2"]
    assert fit(["! threads 2", *lines], left_out()) == ["! threads 2", "0 mix 1 2"]


def test_every_row_of_the_table_is_about_an_operation() -> None:
    known = {op.name for groups in (GROUPS, RARE) for ops in groups.values() for op in ops}
    assert {row.line.split()[0] for row in left_out()} <= known
    assert {row.where for row in left_out()} <= {"", "threads"}


def test_pauses_change_nothing_else() -> None:
    lines = ["! threads 2", *(f"0 alloc 1 {number}" for number in range(100))]
    with_pauses = paced(lines, random.Random(1))
    assert [line for line in with_pauses if " pause " not in line] == lines
    assert 5 < len(with_pauses) - len(lines) < 50


def test_values_are_counted_one_by_one_and_results_end_the_comparison() -> None:
    bare = Run(0, 9, ("1 info cuMemGetInfo=0 free=1 total=2\n2 free cuMemFree=0\n3 x a=1\n", ""))
    same = Run(0, 9, ("1 info cuMemGetInfo=0 free=3 total=4\n2 free cuMemFree=1\n3 x a=2\n", ""))
    kinds = [found.kind for found in differences(bare, same, ())]
    assert kinds == [
        Kind("info", "free"),
        Kind("info", "total"),
        Kind("free", "cuMemFree", "0 bare, 1 not"),
    ]
    row = Difference("info", "free", "*", "*", "a reason")
    assert Kind("info", "free") not in [found.kind for found in differences(bare, same, (row,))]
    crashed = Run(-11, 9, ("1 info cuMemGetInfo=0 free=1 total=2\n", ""))
    assert [found.kind.name for found in differences(bare, crashed, ())] == ["ended with -11"]
    hung = Run(None, 9, ("1 info cuMemGetInfo=0\n2 free\n", "3 set\n"))
    assert [found.kind for found in differences(bare, hung, ())] == [
        Kind("the process", "hung", "in free, set")
    ]


def test_a_survey_compares_and_evicts(place: GpuPlace) -> None:
    # A quick machine may be through before memory leaves for the first time.
    for attempt in itertools.count():
        survey = Survey(
            place, f"test {attempt}", Recipe(only=("kernels", "copies")), 90.0, calls=300
        )
        survey.run()
        assert not survey.cases, survey.report()
        assert survey.compared >= 300
        # Several devices, or a module that was not loaded, would have left nothing to see.
        assert not survey.failed_bare
        if place.evictions.count > 0:
            break


class Told:
    """A place that says what it is told: of the bare runs in turn, and of the one under the interposer."""

    def __init__(self, bare: list[Run], other: Run) -> None:
        self.bare = bare
        self.other = other
        self.players = [(self, self)]

    def said(self) -> str:
        return ""

    def run(self, pair: int, program: Sequence[str], patience: float) -> tuple[Run, Run]:
        return self.bare.pop(0), self.other

    def run_bare(self, pair: int, program: Sequence[str], patience: float) -> Run:
        return self.bare.pop(0)


def told(bare: list[str], other: str) -> Survey:
    """Return what a survey of one program finds if these are the traces."""
    place = Told([Run(0, 7, (text,)) for text in bare], Run(0, 7, (other,)))
    survey = Survey(place, "test", Recipe(), 60.0, calls=1, program=["0 x"])  # type: ignore[arg-type]
    survey._look_at(0, "test/0", ["0 x"])
    assert survey.compared == 7
    return survey


def test_unstable_answers_of_the_bare_driver_do_not_count_as_differences() -> None:
    steady, moving, result = "1 x a=1\n", "1 x a=3\n", "1 x cuCall=1\n"
    assert not told([steady], steady).cases
    assert [str(kind) for kind in told([steady] * 3, "1 x a=2\n").cases] == ["x a"]
    found = told([steady, steady, moving], "1 x a=2\n")
    assert (found.cases, found.unsteady) == ({}, {"x a": 1})
    # What follows a result that is not always the same cannot be compared.
    found = told([f"{result}2 x b=1\n", "1 x cuCall=0\n2 x b=2\n"] * 2, f"{result}2 x b=3\n")
    assert (found.cases, found.unsteady) == ({}, {"x b": 1})


def test_a_bare_run_that_hangs_is_not_compared(place: GpuPlace) -> None:
    survey = Survey(place, "test", Recipe(), 60.0)
    survey._patience = lambda: 2.0  # type: ignore[method-assign]
    survey._look_at(0, "test/forever", ["0 forever"])
    assert list(survey.failed_bare.values()) == [1]
    assert not survey.cases
    assert not survey.compared


def test_operations_that_crash_the_bare_driver_are_left_out(place: GpuPlace) -> None:
    survey = Survey(place, "test", Recipe(), 0.0)
    survey.run()
    assert survey.without == left_out()
    assert LeftOut("wrong 3", "", "It crashes.").covers("wrong 3", False)
