# SPDX-License-Identifier: BSD-3-Clause
"""Builds of other commits of this repository: a scheduler and the libraries as they were then."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.protocol import build as protocol_build


class NoHistory(Exception):
    """The commit is not in this copy of the repository; the message says why."""


@dataclass(frozen=True)
class Release:
    """One version of jupyter-gpushare.

    ``folder`` is where ``python -m jupyter_gpushare.scheduler`` finds it. ``libraries`` is its ``jupyter_gpushare/lib``
    with the simulated driver of the present version, because the driver belongs to the machine.
    """

    name: str
    folder: Path
    libraries: Path


def present(root: Path) -> Release:
    """Return the version in the working tree."""
    return Release("present", root, LIBRARIES)


def earlier(root: Path, commit: str) -> Release:
    """Return the version of a commit; build it first if ``build/releases`` lacks it.

    Raises
    ------
    NoHistory
        If this is no Git checkout, or a shallow one without that commit.
    """
    place = root / "build" / "releases" / commit
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _extract(root, commit, unfinished)
            _build_libraries(unfinished)
            protocol_build.build("cc", unfinished / "jupyter_gpushare", unfinished / "csrc")
            unfinished.rename(place)
    return Release(commit, place, place / "jupyter_gpushare" / "lib")


def renumbered(root: Path, folder: Path, version: int, *, build: bool) -> Release:
    """Return the version in the working tree with another number of the protocol.

    With ``build``, its libraries have that number, too; else they are the present ones.
    """
    for room in ("csrc", "kernel_provisioner"):
        shutil.copytree(root / room, folder / room)
    package = folder / "jupyter_gpushare"
    package.mkdir()
    for entry in (root / "jupyter_gpushare").iterdir():
        if entry.is_symlink():
            place = folder / entry.name
            if not place.exists():
                place.symlink_to(entry.resolve())
            (package / entry.name).symlink_to(Path("..") / entry.name)
    for name in ("__init__.py", "_version.py"):
        shutil.copy2(root / "jupyter_gpushare" / name, package)
    header = folder / "csrc" / "protocol.h"
    text = header.read_text()
    for name in ("VERSION", "OLDEST"):
        text, count = re.subn(
            rf"^(#define GPUSHARE_PROTOCOL_{name}) \d+$", rf"\1 {version}", text, flags=re.M
        )
        assert count == 1, name
    header.write_text(text)
    if build:
        _build_libraries(folder)
    else:
        (package / "lib").symlink_to(LIBRARIES)
    protocol_build.build("cc", package, folder / "csrc")
    return Release(f"protocol {version}", folder, package / "lib")


def _extract(root: Path, commit: str, folder: Path) -> None:
    archive = folder / "archive.tar"
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "archive", f"--output={archive}", commit],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise NoHistory("git is not installed") from None
    if done.returncode != 0:
        raise NoHistory(f"commit {commit} is not in this checkout: {done.stderr.strip()}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    archive.unlink()


def _build_libraries(folder: Path) -> None:
    # Relative paths, because the folder is renamed when it is complete.
    subprocess.run(
        [
            *("make", "-s", "-j2", "-C", str(folder / "csrc"), "interposer"),
            *(f"PYTHON={sys.executable}", "CFLAGS=-O1"),
            *("BUILD=../build/csrc", "OUT=../jupyter_gpushare/lib"),
        ],
        check=True,
    )
    (folder / "jupyter_gpushare" / "lib" / "sim").symlink_to(LIBRARIES / "sim")
