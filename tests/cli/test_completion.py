# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare completion``: what shells offer when the user presses Tab."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.scheduler import GIB, Scheduler


def offered(environ: dict[str, str], line: str) -> set[str]:
    """Return what bash offers at the end of a line."""
    words = line.split(" ")
    code = (
        'eval "$(gpushare completion bash)"\n'
        'COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 _python_argcomplete gpushare "$2" "$3"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code, "bash", line, words[-1], words[-2]],
        env={**environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpushare sta", {"status"}),
        ("gpushare status --", {"--help", "--json", "--watch"}),
        ("gpushare set --anti-thrash ", {"auto", "on", "off"}),
        ("gpushare kernelspec ", {"add", "list", "remove"}),
        ("gpushare bench cell", {"cell-end"}),
        # Without a scheduler there are no notebooks, and no errors.
        ("gpushare release x", set()),
    ],
)
def test_commands_options_and_values_are_offered(
    environ: dict[str, str], tmp_path: Path, line: str, words: set[str]
) -> None:
    found = offered({**environ, "GPUSHARE_SOCKET": str(tmp_path / "none")}, line)
    assert words <= found
    assert words or not found


def test_notebooks_are_offered_by_name(scheduler: Scheduler, environ: dict[str, str]) -> None:
    with (
        scheduler.client("aaaa", name="train.ipynb") as a,
        scheduler.client("bbbb", name="plot.ipynb") as b,
    ):
        a.grow(GIB)
        b.grow(GIB)
        assert offered(environ, "gpushare release ") >= {"train.ipynb", "plot.ipynb"}
        assert offered(environ, "gpushare hold tr") == {"train.ipynb"}
        assert "plot.ipynb" in offered(environ, "gpushare explain p")


@pytest.mark.parametrize(
    ("shell", "registration"),
    [
        ("bash", "complete -o nospace"),
        ("zsh", "compdef _python_argcomplete gpushare"),
        ("fish", "complete --command gpushare"),
    ],
)
def test_there_is_a_script_for_each_shell(gpushare: Command, shell: str, registration: str) -> None:
    done = gpushare("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert registration in done.stdout
    assert f"gpushare completion {shell}" in gpushare("completion", "--help").stdout
