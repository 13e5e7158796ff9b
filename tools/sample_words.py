#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws texts of the user interface and sentences of the documentation, for a reader to judge.

The same seed draws the same texts from the same sources::

    python tools/sample_words.py --seed 18 --number 100

A text is drawn at most once. A value in a text is shown as ``{…}`` (Python), ``%1`` (TypeScript) or ``%s`` (C).
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Python sources with texts that users read.
PYTHON = (
    "cli/**/*.py",
    "hub/**/*.py",
    "kernel_provisioner/**/*.py",
    "scheduler/core/limits.py",
    "scheduler/node/*.py",
    "scheduler/protocol/*.py",
    "scheduler/server/*.py",
    "scheduler/views/words/*.py",
    "server_extension/*.py",
)
#: Fewer words are names, not texts.
FEWEST = 3


def main() -> None:
    """Print the samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=18, help="seed of the draw (default: 18)")
    parser.add_argument("--number", type=int, default=100, help="texts of each kind (default: 100)")
    arguments = parser.parse_args()
    for title, found in (("Interface", interface()), ("Documentation", documentation())):
        texts = sorted(set(found))
        drawn = random.Random(arguments.seed).sample(texts, min(arguments.number, len(texts)))
        print(f"## {title}: {len(drawn)} of {len(texts)}\n")
        for number, (place, text) in enumerate(drawn, 1):
            print(f"{number}. {place}: {text}")
        print()


def interface() -> Iterator[tuple[str, str]]:
    """Yield the texts of panel, Hub page, commands, magics and messages, each with its file."""
    for glob in PYTHON:
        for path in ROOT.glob(glob):
            yield from long_enough(path, python_texts(ast.parse(path.read_text())))
    for path in (*ROOT.glob("labextension/src/**/*.ts*"), *ROOT.glob("hub/page/**/*.ts*")):
        if "__tests__" not in path.parts:
            found = re.findall(r"\b_{1,2}n?\(\s*('(?:[^'\\]|\\.)*')", path.read_text())
            yield from long_enough(path, map(ast.literal_eval, found))
    for path in ROOT.glob("csrc/interposer/**/*.c"):
        said = re.findall(r'gs_print\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', path.read_text())
        yield from long_enough(path, ("".join(re.findall(r'"(.*?)"', text)) for text in said))
    schema = ROOT / "labextension" / "schema" / "plugin.json"
    for entry in json.loads(schema.read_text())["properties"].values():
        yield from long_enough(schema, (entry["title"], entry["description"]))


def python_texts(module: ast.Module) -> Iterator[str]:
    """Yield the texts of a module, without its docstrings."""
    inside = {
        part
        for node in ast.walk(module)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    statements = {node.value for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if node in inside or node in statements:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values
            )


def documentation() -> Iterator[tuple[str, str]]:
    """Yield the sentences of the documentation, each with its file."""
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"))
    for path in pages:
        text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.M | re.S)
        for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)", text):
            cells = block.strip().strip("|").split("|") if block.startswith("|") else [block]
            for cell in cells:
                yield from long_enough(path, re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[])", cell))


def long_enough(path: Path, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what are texts, on one line each, with the name of their file."""
    for text in texts:
        line = re.sub(r"\s+", " ", text).strip()
        if "<" not in line[:1] and len(re.findall(r"[^\W\d_]{2,}", line)) >= FEWEST and " " in line:
            yield str(path.relative_to(ROOT)), line


if __name__ == "__main__":
    main()
