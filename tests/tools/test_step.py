# SPDX-License-Identifier: BSD-3-Clause
"""``tools/step``: the set-up's progress."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def step(root: Path, title: str, *command: str, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(root / "tools" / "step"), title, *command],
        env={**{k: v for k, v in os.environ.items() if k != "V"}, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_success_is_one_line(root: Path) -> None:
    status, out, err = step(root, "Making tea", "sh", "-c", "echo chatter; echo more >&2")
    assert status == 0
    assert re.fullmatch(r"Making tea \.\.\. \d+ s\n", out)
    assert err == ""


def test_failure_shows_the_output(root: Path) -> None:
    status, out, err = step(root, "Making tea", "sh", "-c", "echo no water; exit 3")
    assert status == 3
    assert re.fullmatch(r"Making tea \.\.\. failed after \d+ s:\n", out)
    assert err == "no water\n"


def test_the_option_v_shows_everything(root: Path) -> None:
    status, out, _ = step(root, "Making tea", "echo", "chatter", V="1")
    assert status == 0
    assert out == "Making tea: echo chatter\nchatter\n"


def test_the_title_comes_before_the_command_ends(root: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [str(root / "tools" / "step"), "Making tea", "cat", str(gate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(len("Making tea ...")) == b"Making tea ..."
        # The command ends when the gate has been opened and closed.
        gate.write_bytes(b"")
        assert process.wait(60) == 0
