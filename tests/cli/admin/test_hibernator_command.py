# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare hibernator``: the folder of its socket, and what it cannot start with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.cli.admin import hibernator
from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.scheduler.gpu.drivers import DriverError


def start(path: Path) -> int:
    arguments = ["hibernator", "--socket", str(path)]
    return hibernator.run(build_parser("hibernator").parse_args(arguments))


def test_it_makes_a_folder_that_its_scheduler_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    path = tmp_path / "run" / "h.sock"
    before = os.umask(0o077)
    try:
        start(path)
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert started[0][-2:] == ["--listen", str(path)]
    # It is the administrator's folder now.
    path.parent.chmod(0o700)
    start(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("missing", ["find_driver", "libraries"])
def test_what_is_missing_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    def fail() -> None:
        raise DriverError("it is missing")

    monkeypatch.setenv("GPUSHARE_SIM", "1")
    monkeypatch.setattr(hibernator, missing, fail)
    assert start(tmp_path / "h.sock") == 2
    assert capsys.readouterr().err == "gpushare: it is missing\n"
