# SPDX-License-Identifier: BSD-3-Clause
"""The core imports the standard library, msgspec and itself; import-linter cannot list all that it does not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ALLOWED = {*sys.stdlib_module_names, "msgspec"}


def imported(file: Path) -> Iterator[str]:
    """Return what a file imports, relative imports with their dots."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_the_core_imports_the_standard_library_and_itself(root: Path) -> None:
    outside = {
        (file.name, name)
        for file in (root / "scheduler" / "core").glob("*.py")
        for name in imported(file)
        if name.startswith("..") or (name[0] != "." and name.partition(".")[0] not in ALLOWED)
    }
    assert outside == set()


def test_policies_import_the_standard_library_and_the_policy_api(root: Path) -> None:
    outside = {
        (file.name, name)
        for file in (root / "scheduler" / "policies").glob("*.py")
        for name in imported(file)
        if name != "..core.policy_api"
        and (name.startswith("..") or (name[0] != "." and name.partition(".")[0] not in ALLOWED))
    }
    assert outside == set()


def test_importing_the_core_loads_no_other_module_of_ours() -> None:
    code = (
        "import sys\n"
        "import jupyter_gpushare.scheduler.core.core, jupyter_gpushare.scheduler.core.placement\n"
        "print(*(name for name in sys.modules if name.startswith('jupyter_gpushare.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    core = "jupyter_gpushare.scheduler.core"
    others = [name for name in done.stdout.split() if not f"{name}.".startswith(f"{core}.")]
    assert set(others) == {"jupyter_gpushare._version", "jupyter_gpushare.scheduler"}
