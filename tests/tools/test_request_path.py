# SPDX-License-Identifier: BSD-3-Clause
"""The path of a request: the tool that traces it, and the page that describes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def trace(root: Path) -> str:
    command = [sys.executable, str(root / "tools" / "request_path.py"), "--calls"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_page_states_the_numbers_of_the_trace(root: Path) -> None:
    page = (root / "docs" / "contributing" / "architecture.md").read_text()
    stated = re.findall(r"makes (\d+) calls in (\d+) files\s+and\s+changes file (\d+) times", page)
    traced = re.findall(r"(\d+) calls in (\d+) files, (\d+) changes of file", trace(root))
    assert len(traced) == 2
    # Python 3.12 makes no call for a comprehension, so only the other two numbers are the same for all versions.
    assert [numbers[1:] for numbers in stated] == [numbers[1:] for numbers in traced]


def test_the_trace_has_the_modules_that_the_page_names(root: Path) -> None:
    printed = trace(root)
    traced = {line.split()[0] for line in printed.splitlines() if line.startswith("  ")}
    page = (root / "docs" / "contributing" / "architecture.md").read_text()
    named = set(re.findall(r"`core/(\w+\.py)`", page))
    # Plans are made and carried out only if the request finds no room.
    assert named - traced == {"plan.py", "room_maker.py"}


def test_the_page_names_files_that_exist(root: Path) -> None:
    page = (root / "docs" / "contributing" / "architecture.md").read_text()
    folders = [root, root / "scheduler", root / "csrc" / "interposer"]
    named = set(re.findall(r"`([\w/]+\.(?:py|c|h))`", page))
    assert len(named) > 20
    missing = {name for name in named if not any((folder / name).exists() for folder in folders)}
    assert missing == set()
