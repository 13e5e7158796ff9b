# SPDX-License-Identifier: BSD-3-Clause
"""Lets the hosts of schedulers, such as the extension, and the benchmarks start them by the fork server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.benchmarks.harness import machine
from tests.support import fork_server
from tests.support.scheduler import SCHEDULER


class Child:
    """What ``asyncio.create_subprocess_exec`` returns, as far as a host uses it."""

    def __init__(self, process: fork_server.Process, stdout: asyncio.StreamReader) -> None:
        self.stdin = process.stdin
        self.stdout = stdout
        self.pid = process.pid
        self.send_signal = process.send_signal
        self.kill = process.kill
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (status := self._process.poll()) is None:
            await asyncio.sleep(0.01)
        return status


start_any = asyncio.create_subprocess_exec


async def start(python: str, *arguments: str, **options: Any) -> Any:
    """Start a scheduler, or anything else."""
    if arguments[:2] != ("-m", "jupyter_gpushare.scheduler"):
        return await start_any(python, *arguments, **options)
    environ = options.pop("env")
    process = fork_server.popen(arguments, environ=environ, modules=SCHEDULER, **options)
    reader = asyncio.StreamReader()
    try:
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
    except BaseException:
        # The host stops meanwhile, and nothing else refers to the process.
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        raise
    return Child(process, reader)


@pytest.fixture(autouse=True)
def forked_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)


def start_scheduler(socket: Path, environ: Mapping[str, str], *flags: str) -> fork_server.Process:
    """Start a scheduler as ``benchmarks.harness.machine`` does, and return when it is ready."""
    process = fork_server.popen(
        ["-m", "jupyter_gpushare.scheduler", "--socket", str(socket), *flags],
        environ=environ,
        modules=SCHEDULER,
        stdout=subprocess.PIPE,
        text=True,
    )
    machine.await_scheduler(process)
    return process
