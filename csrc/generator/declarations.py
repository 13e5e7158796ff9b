# SPDX-License-Identifier: BSD-3-Clause
"""The functions that the headers of the driver and of NVML declare."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
NVML_DECLARATION = re.compile(
    r"\b(?:nvmlReturn_t|const\s+char\s*\*)\s+(nvml[A-Z]\w*)\s*\(([^;{}]*)\)\s*;"
)

# libnvidia-ml exports these, but nvml.h does not declare them. nvidia-smi does not start without the first.
NVML_UNDECLARED = (
    "nvmlInternalGetExportTable",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
)


class TableError(Exception):
    """The table does not match the headers, or a header cannot be read."""


@dataclass(frozen=True)
class Function:
    """One exported function."""

    name: str
    parameters: tuple[str, ...]
    hook: str = "pass"
    kind: str = "g"
    waits: bool = False

    @property
    def jumps(self) -> bool:
        """Whether its symbol only jumps to the driver's function."""
        return self.hook == "pass" and not self.waits


def preprocess(cc: str, header: Path, flags: list[str]) -> str:
    """Return `header` as the compiler sees it."""
    command = [*shlex.split(cc), "-E", "-P", *flags, "-x", "c", str(header)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise TableError(f"{header.name} cannot be read:\n{error.stderr.strip()}") from None
    except OSError as error:
        raise TableError(f"the compiler {cc} cannot be run: {error.strerror}") from None
    return done.stdout


def declarations(text: str, pattern: re.Pattern[str]) -> dict[str, tuple[str, ...]]:
    """Return the functions that `text` declares, with their parameters."""
    found: dict[str, tuple[str, ...]] = {}
    for match in pattern.finditer(text):
        inside = " ".join(match[2].split())
        parameters = () if inside in ("", "void") else tuple(p.strip() for p in inside.split(","))
        found[match[1]] = parameters
    return found


def parameter_name(function: Function, parameter: str) -> str:
    """Return the name of a parameter."""
    match = re.fullmatch(r"[\w\s*]*?[\s*](\w+)", parameter)
    if match is None:
        raise TableError(f"{function.name}: no wrapper can be made for the parameter {parameter!r}")
    return match[1]
