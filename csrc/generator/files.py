# SPDX-License-Identifier: BSD-3-Clause
"""The generated files that the shims of the driver and of NVML have in common, and writing files."""

from __future__ import annotations

from pathlib import Path

from .declarations import Function

GENERATED = (
    "/* SPDX-License-Identifier: BSD-3-Clause */\n/* Made by generate.py; changes are lost. */\n"
)


def index_header(functions: list[Function], prefix: str, guard: str) -> str:
    """Return the enum of all functions."""
    lines = [
        GENERATED,
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        f"enum {prefix.lower()}index {{",
    ]
    lines += [f"    {prefix}{function.name}," for function in functions]
    lines += [f"    {prefix}COUNT", "};", "", "#endif", ""]
    return "\n".join(lines)


def names_source(functions: list[Function], table: str) -> str:
    """Return the table of names."""
    lines = [
        GENERATED,
        f"extern const char *const {table}[];",
        "",
        f"const char *const {table}[] = {{",
    ]
    lines += [f'    "{function.name}",' for function in functions]
    lines += ["};", ""]
    return "\n".join(lines)


def export_map(functions: list[Function], more: list[str]) -> str:
    """Return the linker's version script."""
    names = "".join(f"        {name};\n" for name in [*(f.name for f in functions), *more])
    return f"{{\n    global:\n{names}    local:\n        *;\n}};\n"


def write(path: Path, text: str) -> None:
    """Write `text`, unless the file has it already, so that make does not rebuild what depends on it."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
