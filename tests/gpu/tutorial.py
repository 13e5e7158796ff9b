# SPDX-License-Identifier: BSD-3-Clause
"""Runs the cells of the PyTorch tutorial in two real Jupyter kernels, and compares their output with what it promises.

It needs a GPU and PyTorch in this environment::

    python -m tests.gpu.tutorial

The cells and the expected outputs are those of ``docs/tutorials/two-pytorch-notebooks.md``. The exit status is 1 if an
output differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "two-pytorch-notebooks.md"
#: A cell with the notebook that it is for, and the output that follows.
CELL = re.compile(
    r"<!-- (\S+)\.ipynb(, in the background)? -->\n```python\n(.*?)```\n```text\n(.*?)```", re.S
)
#: Longest time in seconds that a cell may take. It may wait for the other notebook's loop.
PATIENCE = 180.0


@dataclass(frozen=True)
class Step:
    """A cell of the tutorial."""

    notebook: str
    background: bool
    code: str
    expected: str

    def matches(self, output: str) -> bool:
        """Return whether the cell printed what the page promises; ``…`` stands for anything."""
        words = re.escape(" ".join(self.expected.split())).replace("…", ".*")
        return re.fullmatch(words, " ".join(output.split())) is not None


def steps_of(text: str) -> list[Step]:
    """Return the cells of the page, in its order."""
    return [
        Step(name, bool(background), code, expected)
        for name, background, code, expected in CELL.findall(text)
    ]


class Notebook:
    """A kernel that shares the GPU."""

    def __init__(self) -> None:
        self._manager: KernelManager
        self._client: BlockingKernelClient
        self._manager, self._client = start_new_kernel(kernel_name="tutorial")
        self._pending: Step | None = None
        self._request = ""

    def start(self, step: Step) -> None:
        """Begin a cell."""
        self._pending, self._request = step, self._client.execute(step.code)

    def finish(self) -> Iterator[tuple[Step, str]]:
        """Wait for the cell that was begun, if one was, and return what it printed."""
        if self._pending is None:
            return
        said = []
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != self._request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said.append(content["text"])
            elif kind in ("display_data", "execute_result"):
                said.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                said.append("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                break
        step, self._pending = self._pending, None
        yield step, "".join(said)

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def run(steps: list[Step]) -> int:
    """Run the cells, and return the number of outputs that differ."""
    opened: dict[str, Notebook] = {}
    wrong = 0

    def compare(step: Step, output: str) -> int:
        right = step.matches(output)
        print(f"{'ok   ' if right else 'WRONG'} {step.notebook}: {step.code.splitlines()[-1]}")
        print("      " + output.strip().replace("\n", "\n      "))
        return not right

    try:
        for name in dict.fromkeys(step.notebook for step in steps):
            opened[name] = Notebook()
        for step in steps:
            notebook = opened[step.notebook]
            for done, output in notebook.finish():
                wrong += compare(done, output)
            notebook.start(step)
            if not step.background:
                for done, output in notebook.finish():
                    wrong += compare(done, output)
        for notebook in opened.values():
            for done, output in notebook.finish():
                wrong += compare(done, output)
    finally:
        for notebook in opened.values():
            notebook.close()
    return wrong


def main() -> int:
    """Run the tutorial; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "jupyter_gpushare.cli.main", "kernelspec", "add"),
                *("--prefix", folder, "tutorial"),
            ],
            check=True,
        )
        os.environ["JUPYTER_PATH"] = str(Path(folder) / "share" / "jupyter")
        return int(run(steps_of(PAGE.read_text(encoding="utf-8"))) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
