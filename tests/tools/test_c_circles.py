# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INDEPENDENT = {
    "low/a.h": "int a(void);",
    "low/a.c": '#include "low/a.h"\nint a(void) { return 1; }',
    "high/b.h": '#include "low/a.h"\nint b(void);',
    "high/b.c": '#include "high/b.h"\nint b(void) { return a(); }',
}


def run(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = root / "tools" / "c_circles.py"
    command = [sys.executable, str(script), str(folder / "sources"), str(folder / "objects")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / "sources" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    for name in files:
        source, made = folder / "sources" / name, (folder / "objects" / name).with_suffix(".o")
        made.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".c":
            command = ["cc", "-c", f"-I{folder / 'sources'}", "-o", str(made), str(source)]
            subprocess.run(command, check=True)


def test_layered_modules_pass(root: Path, tmp_path: Path) -> None:
    build(tmp_path, INDEPENDENT)
    done = run(root, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("file", "text", "how"),
    [
        ("low/a.h", '#include "high/b.h"\nint a(void);', "a.h includes high/b.h"),
        ("low/a.c", "int b(void);\nint a(void) { return b(); }", "low/a.c uses b"),
        ("low/a.c", "extern char b;\nchar *a(void) { return &b; }", "low/a.c uses b"),
    ],
)
def test_a_circle_is_found(root: Path, tmp_path: Path, file: str, text: str, how: str) -> None:
    guarded = {name: f"#pragma once\n{body}" for name, body in INDEPENDENT.items()}
    build(tmp_path, guarded | {file: f"#pragma once\n{text}"})
    done = run(root, tmp_path)
    assert done.returncode == 1
    assert "2 modules use each other in a circle" in done.stdout
    assert how in done.stdout


def test_folders_may_form_a_circle_when_their_modules_do_not(root: Path, tmp_path: Path) -> None:
    more = {"low/c.c": "int b(void);\nint c(void) { return b(); }"}
    build(tmp_path, INDEPENDENT | more)
    done = run(root, tmp_path)
    assert done.returncode == 1
    assert "modules use" not in done.stdout
    assert "2 folders use each other in a circle" in done.stdout


def test_missing_objects_are_reported(root: Path, tmp_path: Path) -> None:
    build(tmp_path, {"low/a.h": ""})
    assert run(root, tmp_path).returncode == 2


# `make lint`, and so `make test`, does this.
@pytest.mark.slow
@pytest.mark.parametrize("part", ["interposer", "sim", "hibernator", "fuzz"])
def test_our_c_code_has_no_circle(root: Path, part: str) -> None:
    """The libraries are built where their objects are."""
    script = root / "tools" / "c_circles.py"
    command = [sys.executable, str(script), f"csrc/{part}", f"build/csrc/{part}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
