# SPDX-License-Identifier: BSD-3-Clause
"""Attacks of a hostile user, as another test runs them beside the work of others."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from tests.support.hub.kernel import Kernel
from tests.support.lab import PATIENCE


class Attack:
    """The process of ``tests.acceptance.hostile``, which attacks until it is told to end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> None:
        """End it, and check that it tried everything and that nothing succeeded."""
        report, _ = self._process.communicate(timeout=PATIENCE)
        found = json.loads(report)
        assert found["faults"] == []
        assert {*found["tried"]} >= {"steal", "steer", "flood", "spy"}


@contextlib.contextmanager
def attacking(
    command: Sequence[str],
    socket: str,
    kernels: Mapping[str, Kernel],
    names: Sequence[str],
    environ: Mapping[str, str] | None = None,
) -> Iterator[Attack]:
    """Attack a scheduler for as long as the ``with`` block lasts.

    Parameters
    ----------
    command
        Runs Python as the hostile user.
    socket
        The scheduler's, as that user sees it.
    kernels, names
        Other users' kernels, and what their notebooks are called.
    environ
        The process's environment, if it is not this one's.
    """
    targets = [*names, "--", *(kernel.id for kernel in kernels.values())]
    with subprocess.Popen(
        [*command, "-m", "tests.acceptance.hostile", socket, *targets],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Attack(process)
        finally:
            process.kill()
