# SPDX-License-Identifier: BSD-3-Clause
"""The interposer with changes of its sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from jupyter_gpushare import LIBRARIES

#: File, old text (which is there once), new text.
Patch = tuple[str, str, str]


def patched(sources: Path, patches: tuple[Patch, ...]) -> dict[str, str]:
    """Return the changed files' text."""
    texts: dict[str, str] = {}
    for file, old, new in patches:
        text = texts[file] if file in texts else (sources / file).read_text()
        assert text.count(old) == 1, f"{file} has this {text.count(old)} times: {old}"
        texts[file] = text.replace(old, new)
    return texts


class Workshop:
    """A copy of the sources, built once; changes are made in copies of it, where only what they touch is built."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.build_count = 0
        self.whole = folder / "whole"
        shutil.copytree(root / "csrc", self.whole / "csrc")
        (self.whole / "jupyter_gpushare").mkdir()
        shutil.copy2(root / "jupyter_gpushare" / "_version.py", self.whole / "jupyter_gpushare")
        self.make(self.whole)

    def make(self, place: Path) -> Path:
        # Relative paths: what make noted in one copy is true in the others.
        subprocess.run(
            [
                *("make", "-s", "-j2", "-C", str(place / "csrc"), "interposer"),
                *(f"PYTHON={sys.executable}", "CFLAGS=-O1", "BUILD=../build", "OUT=../lib"),
            ],
            check=True,
        )
        return place / "lib"

    def build(self, patches: tuple[Patch, ...]) -> Path:
        """Build with these changes."""
        self.build_count += 1
        place = self.folder / f"bug-{self.build_count}"
        shutil.copytree(self.whole, place)
        for file, text in patched(place / "csrc", patches).items():
            (place / "csrc" / file).write_text(text)
        out = self.make(place)
        (out / "sim").symlink_to(LIBRARIES / "sim")
        return out
