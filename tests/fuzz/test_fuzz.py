# SPDX-License-Identifier: BSD-3-Clause
"""Random programs for some seconds, every byte compared; and the fuzzer itself, which can be run for hours."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz.evictions import UNIT, places
from tests.fuzz.random_programs import EVICTIONS, RECIPES, Recipe, fuzz, generate, report, shrink
from tests.support.ground import MIB, Figures, Ground, Mismatch


@pytest.mark.parametrize(
    ("backend", "seconds"),
    [
        ("swap", 2.0),
        ("managed", 2.0),
        pytest.param("swap", 30.0, marks=pytest.mark.slow),
        pytest.param("managed", 30.0, marks=pytest.mark.slow),
    ],
)
def test_every_byte_is_right_whatever_happens(backend: str, seconds: float) -> None:
    figures = Figures()
    with contextlib.closing(Ground(GPUSHARE_BACKEND=backend)) as ground:
        ground.start_scheduler()
        # A busy machine may run too few programs in this time.
        for number in range(8):
            found = fuzz(
                ground,
                figures,
                seed=f"test-{backend}-{number}",
                recipes=RECIPES,
                processes=3,
                seconds=seconds,
            )
            assert found is None, report(found)
            if figures.programs >= 3 and min(figures.compared, figures.evicted) > 10 * MIB:
                break
    # Else something of it did not happen.
    assert figures.programs >= 3
    assert figures.compared > 10 * MIB
    assert figures.evicted > 10 * MIB


def test_every_failure_alone_is_harmless() -> None:
    figures = Figures()
    recipes = [Recipe(operations=500, failures=0.04, threads=threads) for threads in (1, 2)]
    with contextlib.closing(Ground(48 * MIB)) as ground:
        ground.start_scheduler()
        # On a busy machine, few programs are run in so many seconds, and perhaps none fails.
        for number in range(8):
            seed = f"failures-{number}"
            found = fuzz(ground, figures, seed=seed, recipes=recipes, processes=2, seconds=5)
            assert found is None, report(found)
            if figures.injected:
                break
    assert figures.injected > 0


def test_data_that_hardly_changes_is_evicted_without_copies() -> None:
    figures = Figures()
    recipe = replace(EVICTIONS, operations=120)
    with contextlib.closing(Ground(48 * MIB)) as ground:
        ground.start_scheduler()
        for number in range(8):
            found = fuzz(
                ground,
                figures,
                seed=f"hardly-{number}",
                recipes=[recipe],
                processes=2,
                seconds=0.5,
                trouble=False,
            )
            assert found is None, report(found)
            occurred = (figures.clean, figures.zero, figures.shared, figures.touched)
            if all(occurred) and figures.hashed >= 10:
                break
    assert min(occurred) > 0
    assert figures.hashed >= 10


def test_a_seed_s_places_are_changed_most() -> None:
    favoured = places("a")
    assert favoured == places("a") != places("b")
    assert all(0 <= place < UNIT for place in favoured)
    program = generate("a/0/0", replace(EVICTIONS, operations=2000))
    changes = [line.split() for line in program if " touch " in line]
    at = [int(words[6]) for words in changes]
    assert sum(place in favoured for place in at) > len(at) / 2
    # And others, and more than one byte.
    assert set(favoured) < set(at)
    assert {int(words[7]) for words in changes} > {1}


def test_a_seed_is_a_program() -> None:
    recipe = Recipe(failures=0.01)
    assert generate("a", recipe) == generate("a", recipe) != generate("b", recipe)


def test_a_program_is_shrunk_as_far_as_possible() -> None:
    program = [f"0 pause {number}" for number in range(100)]
    needed = {program[7], program[50], program[51]}

    def fails(lines: list[str]) -> Mismatch | None:
        return Mismatch(lines, "s", len(lines), "wrong", "") if needed <= set(lines) else None

    found = fails(program)
    assert found is not None
    assert set(shrink(found, fails, 60).program) == needed


def run(*arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.random_programs", *arguments],
        capture_output=True,
        text=True,
        cwd=root,
    )


def test_the_command_prints_its_seed_and_figures(root: Path, tmp_path: Path) -> None:
    done = run("--minutes", "0.03", "--seed", "7", "--processes", "2", root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 7\n")
    assert '"operations"' in done.stdout
    # A printed program can be run again.
    (tmp_path / "p").write_text("seed s: line 1: text\n0 alloc 1 0 5000 1 0\n0 read 1 0 0 0 50\nend\n")  # fmt: skip
    done = run("--minutes", "0.01", "--program", str(tmp_path / "p"), root=root)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--minutes", "0"), ("--program", "/nowhere/p")])
def test_the_command_refuses_invalid_options(root: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, root=root)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
