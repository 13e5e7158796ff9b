# SPDX-License-Identifier: BSD-3-Clause
"""How sources are laid out: how long files are, and that tests share helpers in ``tests/support`` only."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

#: Programs with a command line of their own, whose functions other tests call.
PROGRAMS = {"tests.fuzz.random_programs", "tests.gpu.answers"}


def imported(source: str, package: Sequence[str]) -> Iterator[str]:
    """Yield the names of modules that a module of a package may import: of ``from a import b``, both a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*parents, *filter(None, [node.module])))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def complaint(root: Path, importer: Path, module: str) -> str | None:
    """Return why a module of the tests may not import another one."""
    parts = module.split(".")
    file = root.joinpath(*parts).with_suffix(".py")
    if parts[0] != "tests" or not file.exists() or parts[1] == "support" or module in PROGRAMS:
        return None
    if parts[-1].startswith("test_"):
        return "is a module of tests"
    folder = root / "tests" / parts[1] if len(parts) > 2 else root / "tests"
    if parts[-1] == "conftest" and file.parent not in importer.parents:
        return "is another folder's conftest"
    if folder not in importer.parents:
        return "is a helper of another folder"
    return None


def complaints(root: Path) -> list[str]:
    found = []
    for importer in sorted((root / "tests").rglob("*.py")):
        if "node_modules" in importer.parts:
            continue
        for module in imported(importer.read_text("utf-8"), importer.relative_to(root).parts[:-1]):
            if why := complaint(root, importer, module):
                found.append(f"{importer.relative_to(root)} imports {module}, which {why}")
    return found


def test_no_test_imports_another_folders_helpers(root: Path) -> None:
    assert complaints(root) == []


@pytest.mark.parametrize(
    ("importer", "module", "allowed"),
    [
        ("tests/a/test_one.py", "tests.support.shared", True),
        ("tests/a/test_one.py", "tests.a.helper", True),
        ("tests/a/deep/test_two.py", "tests.a.conftest", True),
        ("tests/a/test_one.py", "tests.b.helper", False),
        ("tests/a/test_one.py", "tests.b.conftest", False),
        ("tests/a/test_one.py", "tests.a.test_other", False),
    ],
)
def test_tests_import_only_what_they_may(
    tmp_path: Path, importer: str, module: str, allowed: bool
) -> None:
    for file in (importer, module.replace(".", "/") + ".py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / importer).write_text(f"from {module} import x\n")
    assert len(complaints(tmp_path)) == (not allowed)


def test_relative_imports_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests" / "a" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "a" / "test_other.py").touch()
    (tmp_path / "tests" / "a" / "test_one.py").write_text("from .test_other import x\n")
    (tmp_path / "tests" / "a" / "deep" / "test_two.py").write_text("from .. import test_other\n")
    assert len(complaints(tmp_path)) == 2


def test_the_longest_files_are_there(root: Path) -> None:
    """Renamed, a file would begin late."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((root / "tests" / "conftest.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONGEST"
    )
    assert [name for name in names if not (root / "tests" / name).exists()] == []


#: The most lines of a source file that a person still takes in, by the ends of the names.
MOST_LINES = {
    **dict.fromkeys((".c", ".h"), 800),
    **dict.fromkeys((".py", ".ts", ".tsx"), 600),
}


def too_long(root: Path, names: Iterable[str]) -> list[str]:
    """Return which of these files have too many lines, except generated ones."""
    found = []
    for name in names:
        most = MOST_LINES.get(Path(name).suffix)
        if most is None or name.endswith("_pb2.py"):
            continue
        lines = len((root / name).read_bytes().splitlines())
        if lines > most:
            found.append(f"{name} has {lines} lines; the most is {most}")
    return found


def test_no_file_is_too_long(root: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    names = listed.stdout.rstrip("\0").split("\0")
    assert "tests/conftest.py" in names
    # Git still lists a file that was moved or removed until that is staged.
    assert too_long(root, (name for name in names if (root / name).is_file())) == []


@pytest.mark.parametrize(
    ("name", "most"),
    [("a.py", 600), ("a.c", 800), ("a.h", 800), ("a.ts", 600), ("a.tsx", 600), ("a.md", None)],
)
def test_a_file_has_at_most_so_many_lines(tmp_path: Path, name: str, most: int | None) -> None:
    file = tmp_path / name
    file.write_text("x\n" * (most or 10_000))
    assert too_long(tmp_path, [name]) == []
    file.write_text("x\n" * ((most or 10_000) + 1))
    assert len(too_long(tmp_path, [name])) == (most is not None)
