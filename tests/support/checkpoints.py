# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for a driver that checkpoints others: what it does is said by files (csrc/checkpoint_driver.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nvidia

SOURCE = Path(__file__).resolve().parents[1] / "csrc" / "checkpoint_driver.c"
STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")


def build_stand_in(folder: Path, *flags: str) -> Path:
    """Compile it."""
    headers = [h for p in nvidia.__path__ for h in Path(p).glob("*/include/cuda.h")]
    library = folder / "libcuda.so.1"
    command = [
        "cc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
    ]
    command += [*flags, f"-isystem{max(headers).parent}", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


class StandIn:
    """What it is told, and what it was asked.

    Parameters
    ----------
    folder
        Its files.
    library
        The driver.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library

    def tell(self, name: str, text: str) -> None:
        """Say what becomes of a step, and other facts."""
        (self.folder / name).write_text(text)

    def let_go(self, step: str) -> None:
        """End what hangs in a step."""
        (self.folder / step).unlink()

    def state(self, pid: int) -> str:
        """Return a process's state."""
        try:
            return STATES[int((self.folder / f"state-{pid}").read_text() or 0)]
        except FileNotFoundError:
            return "running"

    def put(self, pid: int, state: str) -> None:
        """Have a process in a state."""
        self.tell(f"state-{pid}", str(STATES.index(state)))

    def lines(self, name: str) -> list[str]:
        """Return what it wrote."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def calls(self, pid: int) -> list[str]:
        """Return the steps that were asked for of a process."""
        found = (line.split() for line in self.lines("calls"))
        return [step for step, whose in found if int(whose) == pid]
