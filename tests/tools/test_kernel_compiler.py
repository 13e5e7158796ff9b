# SPDX-License-Identifier: BSD-3-Clause
"""The compiler of the tests' CUDA kernels compiles each source once, and keeps what is without fault."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

#: Stands in for g++: notes that it was called, complains about bad sources, and copies others.
COMPILER = """#!/bin/sh
echo called >>"$CALLS"
for source; do case $source in -o*) image=${source#-o} ;; esac; done
grep -q warning "$source" && echo "a warning"
grep -q error "$source" && { echo "an error"; exit 1; }
cp "$source" "$image"
"""


@pytest.mark.parametrize(
    ("source", "status", "log", "calls"),
    [("good", 0, "", 1), ("a warning", 0, "a warning\n", 2), ("an error", 1, "an error\n", 2)],
)
def test_a_source_is_compiled_once(
    root: Path, tmp_path: Path, source: str, status: int, log: str, calls: int
) -> None:
    (tmp_path / "g++").write_text(COMPILER)
    (tmp_path / "g++").chmod(0o755)
    compiler = tmp_path / "compiler"
    compiler.symlink_to(root / "tests" / "support" / "kernel-compiler")
    count = tmp_path / "calls"
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(count)}

    def compiled(call: int, text: str, *flags: str) -> str:
        folder = tmp_path / f"call-{call}"
        folder.mkdir()
        (folder / "source.cpp").write_text(text)
        image = folder / "module.so"
        done = subprocess.run(
            [compiler, *flags, f"-I{folder}/include", f"-o{image}", folder / "source.cpp"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (status, log, "")
        return image.read_text() if status == 0 else ""

    for call in range(2):
        assert compiled(call, source) == (source if status == 0 else "")
    assert len(count.read_text().split()) == calls
    compiled(2, source, "-O3")
    compiled(3, f"{source}, but another")
    assert len(count.read_text().split()) == calls + 2
