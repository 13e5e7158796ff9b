# SPDX-License-Identifier: BSD-3-Clause
"""The runner itself, over the simulated driver: that it evicts, and that it sees what differs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.benchmarks.published import conformance
from jupyter_gpushare.benchmarks.published.conformance import Suite, Unfit
from tests.gpu.run import PROGRAMS, table

#: Beside the antagonist, each step is interrupted once at least: enough of them for what is claimed, twice over.
STEPS = 20


@pytest.fixture
def environ() -> dict[str, str]:
    simulated = {"GPUSHARE_SIM": "1", "GPUSHARE_SIM_MEMORY": "256MiB"}
    return {**os.environ, **simulated, "GPUSHARE_SIM_BANDWIDTH": "1000000000"}


def program(folder: Path, source: str, name: str = "made") -> Path:
    """Write a program; it finds its helpers where the others do."""
    path = folder / f"{name}.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(PROGRAMS.parent)!r})\n{source}")
    return path


@pytest.mark.slow
def test_the_driver_api_is_bit_identical_under_constant_eviction(
    environ: dict[str, str],
) -> None:
    (verdict,) = Suite(environ, steps=STEPS, jobs=1).run([PROGRAMS / "driver_api.py"])
    assert not verdict.problem, verdict.as_json()
    assert verdict.runs["evict"].moves.evictions >= STEPS
    assert verdict.runs["hibernate"].moves.hibernations >= STEPS
    assert verdict.runs["antagonist"].moves.restored > 0
    assert "elsewhere" not in verdict.runs, "there is one GPU"
    assert "driver_api" in "".join(table([verdict]))


def drivers_api(folder: Path, name: str, before: str = "") -> Path:
    """Write a program that is ``driver_api``, after what is to be done before."""
    run = f"runpy.run_path({str(PROGRAMS / 'driver_api.py')!r}, run_name='__main__')"
    return program(folder, f"import runpy, step\n{before}\n{run}", name)


@pytest.mark.slow
def test_results_are_bit_identical_on_another_gpu_after_each_step(
    environ: dict[str, str], tmp_path: Path
) -> None:
    said: list[str] = []
    environ["GPUSHARE_SIM_DEVICES"] = "2"
    suite = Suite(environ, steps=5, ways=["elsewhere"], progress=said.append)
    # One after the other, and none leaves a GPU drained behind.
    for verdict in suite.run([drivers_api(tmp_path, name) for name in ("one", "other")]):
        assert not verdict.problem, verdict.as_json()
        assert verdict.runs["elsewhere"].moves.elsewhere == 5
    assert ", 5 elsewhere" in said[-1]


def test_a_program_that_does_not_move_is_not_counted_as_moved(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ["GPUSHARE_SIM_DEVICES"] = "2"
    path = drivers_api(tmp_path, "staying", "step.leave = step.hibernate")
    (verdict,) = Suite(environ, steps=3, ways=["elsewhere"]).run([path])
    assert verdict.problem == "elsewhere: 0 times, fewer than 3"


def test_a_difference_is_reported_with_its_step(environ: dict[str, str], tmp_path: Path) -> None:
    path = program(
        tmp_path,
        """
import os, step
args = step.arguments()
under_us = b"under us" if "GPUSHARE_GROUP" in os.environ else b"without"
at = [0]
def work(index): at[0] = index
step.run(args.steps, work, lambda: [b"other", under_us if at[0] >= 3 else b"same"])
""",
    )
    (verdict,) = Suite(environ, steps=5, jobs=1).run([path])
    assert verdict.problem == "evict: differs from step 3 on, in 1 of 2 parts (1)"


def test_a_program_that_is_never_evicted_does_not_pass(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = program(
        tmp_path,
        "import step\nargs = step.arguments()\nstep.run(args.steps, print, lambda: [b''])\n",
    )
    (verdict,) = Suite(environ, steps=5, jobs=1).run([path])
    assert verdict.problem == "evict: 0 evictions, fewer than 5"


def test_a_skipped_program_passes_only_if_the_driver_lacks_support(
    environ: dict[str, str],
) -> None:
    def problem(**more: str) -> tuple[str, str]:
        suite = Suite({**environ, **more}, steps=3, jobs=1, ways=["hibernate"])
        (verdict,) = suite.run([PROGRAMS / "driver_api.py"])
        return verdict.problem, verdict.runs["hibernate"].left_alone

    assert problem(GPUSHARE_SIM_DRIVER_VERSION="560.35.03") == ("", "driver")
    failed = problem(GPUSHARE_SIM_FAIL="cuCheckpointProcessCheckpoint=UNKNOWN")
    assert failed == ("hibernate: failed", "failed")


@pytest.mark.slow
def test_a_program_that_does_not_run_is_reported_and_stops_nothing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    cases = {
        "lacking": ("import step\nstep.load('no_such_library')", "absent", "no_such_library"),
        "refused": ("import step\nstep.refused('this cannot be')", "refused", "this cannot be"),
        "falling": ("import sys\nsys.exit('it fell over')", "failed", "it fell over"),
        "crashing": ("import os\nos.abort()", "failed", "exit status -6"),
        "silent": ("print('nothing of note')", "failed", "0 digests instead of 3"),
    }
    made = [program(tmp_path, source, name) for name, (source, _, _) in cases.items()]
    verdicts = Suite(environ, steps=2).run([*made, PROGRAMS / "driver_api.py"])
    said = "\n".join(table(verdicts))
    for verdict, (_, end, text) in zip(verdicts, cases.values(), strict=False):
        assert verdict.runs["plain"].end == end
        assert text in said
        assert verdict.absent == (end == "absent")
        assert bool(verdict.problem) == (end != "absent")
    assert verdicts[-1].runs["antagonist"].end == "done"


def test_a_program_that_takes_too_long_reports_its_position(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(
        tmp_path,
        """
import os, step, time
args = step.arguments()
def work(index):
    if "GPUSHARE_GROUP" in os.environ:
        time.sleep(100)
step.run(args.steps, work, lambda: [b""])
""",
    )
    monkeypatch.setattr(conformance, "PATIENCE", 3.0)
    monkeypatch.setattr(conformance, "LAST_WORDS", 1.0)
    (verdict,) = conformance.Suite(environ, steps=2, jobs=1).run([path])
    assert verdict.problem == "evict: failed"
    text = verdict.runs["evict"].text
    assert "in work" in text
    assert text.endswith("not finished after 3 s")


def test_no_program_starts_after_the_time_limit(environ: dict[str, str]) -> None:
    (verdict,) = Suite(environ, time_limit=0.0).run([PROGRAMS / "driver_api.py"])
    assert verdict.problem == "plain: no time left"


def test_managed_memory_cannot_be_selected(environ: dict[str, str]) -> None:
    with pytest.raises(Unfit, match="GPUSHARE_BACKEND=swap"):
        Suite({**environ, "GPUSHARE_BACKEND": "managed"})
    with pytest.raises(Unfit, match="GPUSHARE_FORBID_MANAGED=1"):
        Suite({**environ, "GPUSHARE_FORBID_MANAGED": "0"})
