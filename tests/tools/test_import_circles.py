# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(root: Path, package: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "import_circles.py"), str(package)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write(package: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    "source",
    [
        "from .b import x",
        "from . import b",
        "import package.a.b",
        "from package.a import b",
        "from ..a.b import x",
        "def late():\n    from .b import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x",
    ],
)
def test_a_circle_is_found_however_it_is_imported(root: Path, tmp_path: Path, source: str) -> None:
    package = tmp_path / "package"
    write(
        package,
        {
            "__init__.py": "",
            "a/__init__.py": "",
            "a/c.py": source,
            "a/b.py": "from ..d import y",
            "d.py": "from .a import c",
            "alone.py": "from .a import b, c",
        },
    )
    done = run(root, package)
    assert done.returncode == 1
    assert "3 modules import each other in a circle" in done.stdout
    assert "package.a.c, line" in done.stdout
    assert "alone" not in done.stdout


def test_a_package_and_its_own_module_are_a_circle(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    write(package, {"__init__.py": "from .a import x", "a.py": "\nfrom . import y"})
    done = run(root, package)
    assert done.returncode == 1
    assert "package.a, line 2: imports package\n" in done.stdout


def test_folders_may_be_links(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    write(package, {"__init__.py": ""})
    write(tmp_path / "room", {"a.py": "from .b import x", "b.py": "from .a import y"})
    (package / "room").symlink_to(tmp_path / "room")
    assert run(root, package).returncode == 1


# `make lint`, and so `make test`, does this.
@pytest.mark.slow
def test_our_code_has_no_import_circle(root: Path) -> None:
    done = run(root, root / "jupyter_gpushare")
    assert (done.returncode, done.stdout) == (0, "")
