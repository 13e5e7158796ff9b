# SPDX-License-Identifier: BSD-3-Clause
"""A user's home and GPU, and the software that the user installed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import nbformat

#: Seconds that a program may take. Only what hangs takes so long.
LIMIT = 150.0


class Place:
    """A user's home and GPU, and the software that the user installed."""

    def __init__(self, folder: Path, runtime: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        modules = folder / "modules"
        modules.mkdir()
        shutil.copy2(Path(__file__).with_name("work.py"), modules)
        self.machine = f"test-{uuid.uuid4().hex[:12]}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not re.match(r"JUPYTER|IPYTHON|PYTEST|PYTHON|VIRTUAL_ENV|DASK|COV", name)
        }
        self.environ = {
            **inherited,
            "HOME": str(folder),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(modules),
            "XDG_RUNTIME_DIR": str(runtime),
            "GPUSHARE_SIM": "1",
            "GPUSHARE_SIM_NAME": self.machine,
            "GPUSHARE_SIM_MEMORY": "128MiB",
            "GPUSHARE_SIM_CONTEXT": "2MiB",
        }

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start one of the programs in the folder of the notebooks."""
        return subprocess.Popen(
            [str(self.programs / command[0]), *command[1:]],
            env=self.environ,
            cwd=self.notebooks,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options},
            stderr=subprocess.STDOUT,
        )

    def run(self, *command: str, typed: str | None = None, message: str = "") -> str:
        """Run one of the programs, and return what it printed: of ours, this message alone, once."""
        options = {} if typed is None else {"stdin": subprocess.PIPE}
        with self.start(*command, **options) as process:
            try:
                printed, _ = process.communicate(typed, LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, printed
        assert re.findall("gpushare:.*", printed) == ([message] if message else []), printed
        return printed

    def write(self, name: str, *cells: str, kernel: str = "shared") -> Path:
        """Write a notebook."""
        content = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
        content.metadata.kernelspec = {
            "name": kernel,
            "display_name": kernel,
            "language": "python",
        }
        path = self.notebooks / name
        nbformat.write(content, path)
        return path

    def execute(self, *cells: str, message: str = "") -> list[Any]:
        """Run a notebook, and return the outputs of its last cell."""
        path = self.write("workers.ipynb", *cells)
        self.run("jupyter", "execute", "--inplace", path.name, message=message)
        return outputs(path)

    def processes(self) -> dict[int, str]:
        """Return the processes that use this GPU, and what they run."""
        mark, found = f"\0GPUSHARE_SIM_NAME={self.machine}\0".encode(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in b"\0" + (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    if command:
                        found[int(entry.name)] = command.decode()
        return found

    def until_only(self, expected: dict[int, str]) -> None:
        """Wait until no other processes than these use the GPU."""
        deadline = time.monotonic() + LIMIT
        while others := self.processes().keys() - expected.keys():
            assert time.monotonic() < deadline, [self.processes().get(pid) for pid in others]
            time.sleep(0.05)

    def clean(self) -> None:
        """End what is left, and remove the simulated GPU."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for segment in Path("/dev/shm").glob(f"*{self.machine}*"):
            segment.unlink()


def outputs(path: Path) -> list[Any]:
    """Return the outputs of a notebook's last cell."""
    found: list[Any] = nbformat.read(path, 4).cells[-1].outputs
    return found
