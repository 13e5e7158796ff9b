# SPDX-License-Identifier: BSD-3-Clause
"""Fails if modules of a package import each other in a circle, imports for type checking and in functions included.

    python tools/import_circles.py jupyter_gpushare

import-linter compares packages with their siblings, so it does not see a package's ``__init__`` and one of its own
modules import each other.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

#: For each module, the modules that it imports, with the line of the first such import.
Imports = dict[str, dict[str, int]]


def find_imports(package: Path) -> Imports:
    """Return what each module of a package imports of the same package."""
    files = dict(_find_modules(package))
    return {
        module: _imports_of(module, file, files.keys()) for module, file in sorted(files.items())
    }


def _find_modules(package: Path) -> Iterator[tuple[str, Path]]:
    # Folders of a package may be links.
    for folder, _, names in os.walk(package, followlinks=True):
        for name in names:
            file = Path(folder, name)
            if file.suffix == ".py":
                parts = [package.name, *file.relative_to(package).with_suffix("").parts]
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _imports_of(module: str, file: Path, known: Iterable[str]) -> dict[str, int]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node, package, known):
                if target != module:
                    found[target] = min(node.lineno, found.get(target, node.lineno))
    return found


def _targets(
    node: ast.Import | ast.ImportFrom, package: str, known: Iterable[str]
) -> Iterator[str]:
    """Return the known modules that a statement imports."""
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names if alias.name in known)
        case ast.ImportFrom():
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                # A name of the package itself, or one of its modules.
                submodule = f"{base}.{alias.name}"
                if submodule in known:
                    yield submodule
                elif base in known:
                    yield base


def find_circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of a circle, the first also at the end; empty: there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> int:
    """Print a circle, if there is one, and return the exit status."""
    parser = argparse.ArgumentParser(description="Fail if modules import each other in a circle.")
    parser.add_argument("package", type=Path, help="the package's folder")
    imports = find_imports(parser.parse_args().package)
    circle = find_circle(imports)
    if circle:
        print(f"{len(circle) - 1} modules import each other in a circle:")
    for module, target in pairwise(circle):
        print(f"  {module}, line {imports[module][target]}: imports {target}")
    return 1 if circle else 0


if __name__ == "__main__":
    sys.exit(main())
