# SPDX-License-Identifier: BSD-3-Clause
"""Reads and checks the table of driver functions, ``driver_api.csv``.

The headers define which functions there are and how they are declared. The table has the class of each
function and its hook. A function that is only in one of the two is an error, so that a new driver
function cannot bypass the gate.

Classes: ``a`` submits work or touches device memory, ``b`` allocates or frees, ``c`` reports
memory, ``d`` synchronises or orders, ``e`` contexts and modules, ``f`` exports or shares, ``g`` host
only.

Hooks: ``gate`` (generated: enter the gate, call, leave), ``loads`` (generated: the driver may load code to the
GPU, and the call waits only if there is no room for the code), ``custom`` (a C function of the
interposer), ``pass`` (calls the driver), ``refuse`` (CUDA_ERROR_NOT_SUPPORTED while the interposer manages
memory).

While the process is parked (interposer/gate/awake.h), a call ``waits`` or ``enters``. A call enters if the driver
can answer it then, or if programs may make it before all other calls.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from .declarations import TableError

COLUMNS = ["function", "base", "stream_variant", "class", "hook", "parked", "note"]
CLASSES = frozenset("abcdefg")
HOOKS = frozenset({"gate", "loads", "custom", "pass", "refuse"})
PARKED = frozenset({"waits", "enters"})
# Destructors and garbage collections call these functions, so they must never wait in the queue.
NEVER_GATED = re.compile(
    r"^cu\w*?(Free|Unload|Destroy|Release|Synchronize|Query|Unmap)(?=$|_|Host|Async)"
)
# Unmapping a graphics resource returns it to the other API in stream order. That is work, not a release.
GATED_NEVERTHELESS = re.compile(r"^cu(Graphics|GL)Unmap")


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of the table by function."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise TableError(f"{path.name}: the columns must be {', '.join(COLUMNS)}")
        rows: dict[str, dict[str, str]] = {}
        for row in reader:
            if row["function"] in rows:
                raise TableError(f"{path.name}:{reader.line_num}: {row['function']} is there twice")
            rows[row["function"]] = row
    return rows


def check(rows: dict[str, dict[str, str]], declared: dict[str, tuple[str, ...]]) -> list[str]:
    """Return one sentence for each fault of the table."""
    faults = [
        f"{name}: declared by the headers, but not in the table"
        for name in declared
        if name not in rows
    ]
    for name, row in rows.items():
        kind, hook, parked = row["class"], row["hook"], row["parked"]
        if name not in declared:
            faults.append(f"{name}: in the table, but not declared by the headers")
        if kind not in CLASSES:
            faults.append(f"{name}: class {kind!r} is none of {', '.join(sorted(CLASSES))}")
        if hook not in HOOKS:
            faults.append(f"{name}: hook {hook!r} is none of {', '.join(sorted(HOOKS))}")
        elif parked not in PARKED:
            faults.append(f"{name}: parked {parked!r} is none of {', '.join(sorted(PARKED))}")
        elif parked == "enters" and hook in ("gate", "refuse"):
            faults.append(f"{name}: hook {hook!r} must not enter the driver while parked")
        elif kind == "a" and hook == "pass":
            faults.append(
                f"{name}: submits work or touches device memory (class a), so hook must not be 'pass'"
            )
        elif hook == "gate" and NEVER_GATED.match(name) and not GATED_NEVERTHELESS.match(name):
            faults.append(f"{name}: frees, destroys or waits, so hook must not be 'gate'")
    return sorted(faults)
