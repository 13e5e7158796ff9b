# SPDX-License-Identifier: BSD-3-Clause
"""Builds of our C libraries with other flags. They are kept: the next run of the tests builds what has changed."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path


def build(root: Path, name: str, *arguments: str) -> Path:
    """Run make with these targets and variables, and return the folder of the libraries.

    Parameters
    ----------
    root
        The repository's top folder.
    name
        Tells this build from others, in ``build/tests``.
    *arguments
        Targets and variables of ``csrc/Makefile``.
    """
    folder = root / "build" / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    places = [f"BUILD={folder / 'build'}", f"OUT={folder / 'lib'}"]
    command = ["make", "-s", "-j2", "-C", str(root / "csrc"), *arguments, *places]
    # Parallel workers of pytest may want the same build.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([*command, f"PYTHON={sys.executable}"], check=True)
    return folder / "lib"
