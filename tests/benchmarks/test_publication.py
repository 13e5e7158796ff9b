# SPDX-License-Identifier: BSD-3-Clause
"""`gpushare bench --publish` measures what is missing, keeps what it has, and writes tables of it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.benchmarks.harness.figures import Figure
from jupyter_gpushare.benchmarks.publication import plan, results
from jupyter_gpushare.benchmarks.publication.plan import Part
from jupyter_gpushare.benchmarks.publication.results import Contents, Host, Publication, Result
from jupyter_gpushare.benchmarks.publication.tables import tables
from jupyter_gpushare.cli.bench import BENCHES
from jupyter_gpushare.cli.main import main

HOST = Host(("NVIDIA H200", "NVIDIA H200"), "580.1", 16, 126, "Linux 6.1, Python 3.12.1")
CONTEXT = Part("context", 60)


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_SIM", "1")


def publish(monkeypatch: pytest.MonkeyPatch, folder: Path, *parts: Part, options: str = "") -> int:
    monkeypatch.setattr(plan, "WITHOUT_GPU", parts)
    return main(["bench", "--publish", str(folder), *options.split()])


def read(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["results"]
    return found


def test_a_part_is_measured_once_with_machine_commit_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(monkeypatch, tmp_path / "new" / "folder", CONTEXT) == 0
    assert "1 new, 0 done before" in capsys.readouterr().out
    (result,) = read(tmp_path / "new" / "folder")
    assert result["end"] == "done"
    assert result["figures"][0]["metric"].startswith("a context")
    assert result["host"]["gpus"] == []
    assert result["commit"] == results.this_commit()
    text = (tmp_path / "new" / "folder" / "results.md").read_text()
    assert "simulated driver" in text
    assert "`gpushare bench context`" in text

    assert publish(monkeypatch, tmp_path / "new" / "folder", CONTEXT) == 0
    assert "0 new, 1 done before" in capsys.readouterr().out
    assert read(tmp_path / "new" / "folder") == [result]


def test_a_part_of_another_commit_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "this_commit", lambda: "old")
    publication = Publication(tmp_path / "results.json")
    publication.add(Result(CONTEXT.command, publication.host, "old", "", "done"))
    assert publication.is_done(CONTEXT)
    monkeypatch.setattr(results, "this_commit", lambda: "new")
    assert publish(monkeypatch, tmp_path, CONTEXT) == 0
    assert "1 new, 0 done before" in capsys.readouterr().out
    assert [one["commit"] for one in read(tmp_path)] == ["new"]


def test_a_changed_commit_has_a_plus_but_not_for_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("benchmarks/publication/results.py", "docs/figures.md"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in ("init -q", "add .", "commit -q -m first"):
        subprocess.run([*git, *arguments.split()], check=True)
    shown = [*git, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(shown, capture_output=True, check=True, text=True).stdout.strip()
    monkeypatch.setattr(results, "__file__", str(tmp_path / "benchmarks/publication/results.py"))
    assert results.this_commit() == commit
    (tmp_path / "docs/figures.md").write_text("new")
    assert results.this_commit() == commit
    (tmp_path / "benchmarks/publication/results.py").write_text("new")
    assert results.this_commit() == f"{commit}+"


def test_a_part_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Part("context --gib 0", 60)
    assert publish(monkeypatch, tmp_path, broken, CONTEXT) == 1
    said = capsys.readouterr()
    assert "1 new, 0 done before, 1 failed" in said.out
    assert "--gib must be greater than 0" in said.err
    assert [(one["command"], one["end"]) for one in read(tmp_path)] == [
        ("gpushare bench context --gib 0", "failed"),
        ("gpushare bench context", "done"),
    ]
    assert "It failed: " in (tmp_path / "results.md").read_text()


def test_a_part_is_interrupted_at_its_limit_and_does_not_replace_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = Publication(tmp_path / "results.json")
    endless = Part("simulation", 0.01)
    assert publication.run(endless).end == "stopped"
    assert [one["end"] for one in read(tmp_path)] == ["stopped"]
    publication.add(Result(endless.command, publication.host, "old", "", "done"))
    assert publication.run(endless).end == "stopped"
    assert [one["commit"] for one in read(tmp_path)] == ["old"]


def test_results_of_other_gpus_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Result(CONTEXT.command, HOST, "old", "2026-11-26", "done")
    Publication(tmp_path / "results.json").add(elsewhere)
    assert publish(monkeypatch, tmp_path, CONTEXT) == 0
    assert [one["host"]["gpus"] for one in read(tmp_path)] == [list(HOST.gpus), []]
    text = (tmp_path / "results.md").read_text()
    assert text.count("### `gpushare bench context`") == 2


def test_what_was_never_measured_comes_first_and_then_what_is_oldest(tmp_path: Path) -> None:
    publication = Publication(tmp_path / "results.json")
    here = publication.host
    parts = [Part(name, 60) for name in ("context", "fits", "launch", "restart", "slab", "swap")]
    for name, host, commit, date, end in (
        ("context", here, publication.commit, "2026-11-20", "done"),
        ("fits", here, "old", "2026-11-27", "done"),
        ("launch", here, "older", "2026-11-21", "done"),
        ("restart", here, "old", "2026-11-27", "stopped"),
        ("slab", HOST, publication.commit, "2026-11-27", "done"),
    ):
        publication.add(Result(Part(name, 60).command, host, commit, date, end))
    again = Publication(tmp_path / "results.json")
    assert [part.bench for part in again.missing(parts)] == [
        "restart",
        "slab",
        "swap",
        "launch",
        "fits",
    ]


def test_a_machine_that_got_more_memory_is_the_same(tmp_path: Path) -> None:
    publication = Publication(tmp_path / "results.json")
    before = dataclasses.replace(publication.host, memory=publication.host.memory + 1)
    publication.add(Result(CONTEXT.command, before, publication.commit, "", "done"))
    assert publication.is_done(CONTEXT)
    other = dataclasses.replace(publication.host, driver="older")
    publication.add(Result(CONTEXT.command, other, publication.commit, "", "done"))
    assert not publication.is_done(CONTEXT)


def test_no_part_is_started_that_may_take_longer_than_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = Part("simulation", 1000)
    assert publish(monkeypatch, tmp_path, long, options="--time-limit 999") == 1
    assert "1 left out for lack of time" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--json", "leave out --json"),
        ("--gib 3", "leave out --gib"),
        ("idle-power", "cannot run idle-power on this machine"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    message: str,
) -> None:
    assert publish(monkeypatch, tmp_path, CONTEXT, options=options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"{", "cannot be read"),
        (b'{"version": 1, "results": [{}]}', "cannot be read"),
        (b'{"version": 99}', "of another release"),
    ],
)
def test_a_file_that_cannot_be_read_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    contents: bytes,
    message: str,
) -> None:
    (tmp_path / "results.json").write_bytes(contents)
    assert publish(monkeypatch, tmp_path, CONTEXT) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "results.json").read_bytes() == contents


def test_a_table_has_the_spread_the_limit_and_the_goal_and_marks_what_misses_it() -> None:
    result = Result("gpushare bench swap", HOST, "abc", "2026-11-26T10:00:00", "done")
    result.seconds = 12.3
    result.figures = [
        Figure("swap", "evict", 54.0512, "GB/s", 55.06, 5, 0.19, 50.0, at_least=True),
        Figure("swap", "switch", 1.024, "s", 0.894, 6, 0.0, 0.85),
        Figure("swap", "events", 32123.0, "", None, 1, 0.0),
        Figure("swap", "first kernel", 0.00036, "s", None, 2, 0.00001),
        Figure("swap", "slower", -2.5, "%", None, 20, 1.2, 0.1),
    ]
    lines = list(tables([result]))
    assert lines[2] == (
        "2026-11-26, commit abc, 2 of NVIDIA H200, driver 580.1; 16 processors, 126 GiB of memory, "
        "Linux 6.1, Python 3.12.1, 12 s."
    )
    assert lines[6:11] == [
        "| evict | 54.1 GB/s (± 0.190, n = 5) | 55.1 GB/s | ≥ 50.0 GB/s |",
        "| switch | **1.02 s** (n = 6) | 0.894 s | ≤ 0.850 s |",
        "| events | 32,123 (n = 1) |  |  |",
        "| first kernel | 0.360 ms (± 0.0100, n = 2) |  |  |",
        "| slower | \N{MINUS SIGN}2.50% (± 1.20, n = 20) |  | ≤ 0.100% |",
    ]


@pytest.mark.parametrize(
    ("end", "figures", "sentence"),
    [
        ("stopped", [], "It reached its time limit. There are no figures."),
        (
            "stopped",
            [Figure("swap", "events", 1.0, "", None, 1, 0.0)],
            "It reached its time limit. These are the figures until then.",
        ),
        ("failed", [], "It failed: no room. There are no figures."),
    ],
)
def test_a_table_says_why_figures_are_missing(
    end: str, figures: list[Figure], sentence: str
) -> None:
    result = Result("gpushare bench swap", HOST, "abc", "2026-11-26T10:00:00", end, "a\nno room")
    result.figures = figures
    assert list(tables([result]))[3] == sentence


def test_every_part_is_a_benchmark_and_has_a_command_of_its_own() -> None:
    for parts in (plan.ON_GPU, plan.WITHOUT_GPU):
        assert {part.bench for part in parts} <= BENCHES.keys()
        assert len({part.command for part in parts}) == len(parts)


@pytest.mark.parametrize("part", ["", "without-gpu"])
def test_the_documentation_has_the_tables_of_its_figures(root: Path, part: str) -> None:
    folder = root / "docs/_includes/benchmarks" / part
    contents = msgspec.json.decode((folder / "results.json").read_bytes(), type=Contents)
    assert (folder / "results.md").read_text() == "\n".join(tables(contents.results)) + "\n"
