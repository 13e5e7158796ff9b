# SPDX-License-Identifier: BSD-3-Clause
"""What commands show on a terminal only: progress and colour."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.cli import bench, terminal
from jupyter_gpushare.cli.main import main
from tests.cli.conftest import Command
from tests.support.terminal import in_terminal

SIMULATE = ("simulate", "--generate", "students", "--with", "hours=0.1", "--policy", "burst,fcfs")


def test_a_simulation_shows_progress_on_a_terminal(environ: dict[str, str]) -> None:
    shown = in_terminal(environ, *SIMULATE, stream="stderr")
    assert "simulating" in shown.terminal
    assert "/2" in shown.terminal
    assert shown.pipe.startswith("students: ")
    assert "\x1b" not in shown.pipe


def test_progress_is_only_for_terminals(gpushare: Command) -> None:
    done = gpushare(*SIMULATE, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["policies"].keys() == {"burst", "fcfs"}


def test_benchmarks_show_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    @contextlib.contextmanager
    def progress() -> Iterator[Callable[[str, int, int], None]]:
        yield lambda name, done, total: steps.append((name, done, total))

    monkeypatch.setattr(terminal, "progress", progress)
    monkeypatch.setattr(bench, "_figures", lambda name, settings: iter(()))
    assert main(["bench", "launch", "slab"]) == 0
    assert steps == [("launch", 0, 2), ("slab", 1, 2)]


def test_doctor_uses_colour_on_a_terminal(environ: dict[str, str]) -> None:
    coloured = in_terminal(environ, "doctor", "--managed-check").terminal
    assert "\x1b[32mok" in coloured
    plain = in_terminal({**environ, "NO_COLOR": "1"}, "doctor", "--managed-check").terminal
    assert plain.startswith("ok  ")
    assert "\x1b" not in plain
