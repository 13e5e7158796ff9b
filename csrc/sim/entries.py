# SPDX-License-Identifier: BSD-3-Clause
"""Make the simulated driver's exported functions. Each passes the gate (gate.h) and calls the function of a module.

``symbols.def`` lists the functions, and the driver's header declares them. Because all functions are generated from
these, none can be forgotten. Arguments: the file to write, the compiler, the header's folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from generator.declarations import (  # noqa: E402
    DECLARATION,
    Function,
    declarations,
    parameter_name,
    preprocess,
)
from generator.files import GENERATED, write  # noqa: E402

# A locked process may still call these.
FREE = re.compile(
    r"cuDriverGetVersion|cuGetErrorName|cuGetErrorString|cuGetProcAddress(_v2)?|cuCheckpoint\w+"
)


def entry(function: Function) -> list[str]:
    """Return the definition of an exported function."""
    inside = ", ".join(function.parameters) or "void"
    names = ", ".join(parameter_name(function, p) for p in function.parameters)
    call = f"sim_{function.name}({names})"
    lines = ["", f"CUresult sim_{function.name}({inside});"]
    if FREE.fullmatch(function.name):
        return [*lines, f"CUresult {function.name}({inside})", "{", f"    return {call};", "}"]
    return [
        *lines,
        f"CUresult {function.name}({inside})",
        "{",
        "    struct sim_visitor *sim_visitor_ = sim_gate_enter();",
        "    if (sim_visitor_ == NULL)",
        "        return CUDA_ERROR_OUT_OF_MEMORY;",
        f"    CUresult sim_result_ = {call};",
        "    if (__builtin_expect(sim_lingers, 0))",
        "        sim_linger();",
        "    sim_gate_leave(sim_visitor_);",
        "    return sim_result_;",
        "}",
    ]


def main(out: str, cc: str, include: str) -> None:
    """Write the file."""
    flags = ["-D__CUDA_API_VERSION_INTERNAL"]
    declared = declarations(preprocess(cc, Path(include) / "cuda.h", flags), DECLARATION)
    text = (HERE / "symbols.def").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"^SYMBOL\(.*, (\w+)\)$", text, re.MULTILINE)))
    lines = [
        GENERATED,
        "#define __CUDA_API_VERSION_INTERNAL",
        "#pragma GCC visibility push(default)",
        "#include <cuda.h>",
        "#pragma GCC visibility pop",
        "",
        '#include "gate.h"',
        '#include "linger.h"',
    ]
    for name in names:
        lines += entry(Function(name, declared[name]))
    write(Path(out), "\n".join([*lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
