# SPDX-License-Identifier: BSD-3-Clause
"""The driver versions on which ``gpushare doctor --hibernate-check`` passed on this machine.

They are in a text file, one version a line, so that an administrator can also give it to many machines of one kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The path of another file instead of the two below.
VARIABLE = "GPUSHARE_HIBERNATION_DRIVERS"
#: The file that the check writes when root runs it, and that all users read.
MACHINES = Path("/etc/gpushare/hibernation-drivers")
#: The file that the check writes for other users, below ``XDG_STATE_HOME`` (XDG Base Directory Specification).
OWN = "jupyter-gpushare/hibernation-drivers"


def allowed(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the versions that have passed the check, as NVML names them."""
    return frozenset(version for file in _files(environ) for version in _read(file))


def allow(version: str, environ: Mapping[str, str]) -> Path:
    """Record that a version has passed the check.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    files = _files(environ)
    file = files[0] if os.getuid() == 0 else files[-1]
    if version not in _read(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{version}  # checked on {time.strftime('%Y-%m-%d')}\n")
    return file


def _files(environ: Mapping[str, str]) -> list[Path]:
    if chosen := environ.get(VARIABLE):
        return [Path(chosen)]
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return [MACHINES, Path(state) / OWN]


def _read(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # No version has been checked.
        return
    for line in text.splitlines():
        version, _, _ = line.partition("#")
        if version.strip():
            yield version.strip()
