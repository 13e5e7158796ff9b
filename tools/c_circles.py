# SPDX-License-Identifier: BSD-3-Clause
"""Fails if C modules include or call each other in a circle, or if their folders do.

    python tools/c_circles.py csrc/interposer build/csrc/interposer

A module is a source file with its header. What it includes is read from its ``#include "..."`` lines, what it calls
(or whose variables it uses) from ``nm`` of its object file. Objects without a source, which are generated tables, do
not count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"(.+)\.h"', re.MULTILINE)

#: For each module, the modules that it uses, with an example of how.
Uses = dict[str, dict[str, str]]


def _modules(folder: Path, *suffixes: str) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if file.suffix in suffixes:
            yield file.relative_to(folder).with_suffix("").as_posix(), file


def find_includes(sources: Path) -> Uses:
    """Return what each module includes of the others."""
    known = {module for module, _ in _modules(sources, ".c", ".h")}
    uses: Uses = {module: {} for module in known}
    for module, file in _modules(sources, ".c", ".h"):
        for target in INCLUDE.findall(file.read_text()):
            if target in known and target != module:
                uses[module].setdefault(target, f"{file.name} includes {target}.h")
    return uses


def find_calls(sources: Path, objects: Path) -> Uses:
    """Return what each module needs of the others when it is linked."""
    defined: dict[str, str] = {}
    needed: list[tuple[str, str]] = []
    uses: Uses = {}
    for module, _ in _modules(sources, ".c"):
        file = objects / f"{module}.o"
        # What only some builds have is not there.
        if not file.exists():
            continue
        uses[module] = {}
        for line in _names(file):
            *_, kind, name = line.split()
            if kind == "U":
                needed.append((module, name))
            elif kind.isupper():
                defined[name] = module
    for module, name in needed:
        target = defined.get(name, module)
        if target != module:
            uses[module].setdefault(target, f"{module}.c uses {name}")
    return uses


def _names(file: Path) -> list[str]:
    done = subprocess.run(["nm", str(file)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def together(*graphs: Uses) -> Uses:
    """Return what is used in any of these ways."""
    uses: Uses = {}
    for graph in graphs:
        for module, targets in graph.items():
            own = uses.setdefault(module, {})
            for target, how in targets.items():
                own.setdefault(target, how)
    return uses


def of_folders(uses: Uses) -> Uses:
    """Return what each folder uses of the others."""
    folders: Uses = {}
    for module, targets in uses.items():
        folder = module.rpartition("/")[0]
        own = folders.setdefault(folder, {})
        for target, how in targets.items():
            other = target.rpartition("/")[0]
            if other != folder:
                own.setdefault(other, how)
    return folders


def find_circle(uses: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the names of a circle, the first also at the end; empty: there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> int:
    """Print a circle of modules or of folders, if there is one, and return the exit status."""
    parser = argparse.ArgumentParser(description="Fail if C modules use each other in a circle.")
    parser.add_argument("sources", type=Path, help="the folder of the sources")
    parser.add_argument("objects", type=Path, help="the folder of their object files")
    options = parser.parse_args()
    calls = find_calls(options.sources, options.objects)
    if not calls:
        parser.error(f"{options.objects} has no object files: build the sources first")
    uses = together(find_includes(options.sources), calls)
    status = 0
    for what, graph in (("modules", uses), ("folders", of_folders(uses))):
        circle = find_circle(graph)
        if circle:
            print(f"{len(circle) - 1} {what} use each other in a circle:")
            status = 1
        for name, target in pairwise(circle):
            print(f"  {name} -> {target}: {graph[name][target]}")
    return status


if __name__ == "__main__":
    sys.exit(main())
