# SPDX-License-Identifier: BSD-3-Clause
"""Notebooks without kernels that contend for a GPU."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support.client import PATIENCE, FakeClient
from tests.support.lab_page import SCREENSHOTS

#: Memory of a simulated GPU in MiB. It is small because the scheduler prepares host memory for the notebooks of each
#: test, at the cost of about 0.7 s of CPU time for each GiB. Pictures show GPUs of 8 GiB.
MEMORY = 256 if SCREENSHOTS is None else 8 * 1024


def size(share: float) -> str:
    """Return how a page shows a part of the GPU's memory."""
    mebibytes = share * MEMORY
    if mebibytes < 1024:
        return f"{mebibytes:g}\u00a0MiB"
    return f"{mebibytes / 1024:g}\u00a0GiB"


class Crowd:
    """Groups on one GPU, which end with the ``with`` block.

    Parameters
    ----------
    path
        The scheduler's socket.
    gpu
        The GPU, as the status has it.
    """

    def __init__(self, path: Path, gpu: dict[str, Any]) -> None:
        self._path = path
        self._gpu = gpu
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, name: str, share: float = 0.0, *, group: str = "") -> FakeClient:
        """Return a notebook that has asked for a share of the GPU's memory.

        Parameters
        ----------
        name
            Of the notebook.
        share
            Of the GPU's memory.
        group
            The kernel's id (default: one of its own).
        """
        client = FakeClient(self._path, group or uuid.uuid4().hex, self._gpu["uuid"], name=name)
        self._stack.enter_context(client)
        client.attach()
        with ControlClient(self._path, timeout=PATIENCE) as control:
            # Otherwise the scheduler would move it to the background after some seconds and preempt it.
            control.request("adjust", group=client.group, priority="interactive")
        client.grow(int(share * self._gpu["total"]))
        return client

    def running(self, name: str, share: float, *, group: str = "") -> FakeClient:
        """Return a notebook that is running on the GPU."""
        client = self.join(name, share, group=group)
        client.run()
        return client

    def idle(self, name: str, share: float, *, group: str = "") -> FakeClient:
        """Return a notebook that has run, and whose memory is still on the GPU."""
        client = self.running(name, share, group=group)
        client.end_burst()
        client.release("quiet")
        return client

    def waiting(self, name: str, share: float, *, group: str = "") -> FakeClient:
        """Return a notebook that has requested the GPU. It waits if its memory does not fit."""
        client = self.join(name, share, group=group)
        client.request()
        return client
