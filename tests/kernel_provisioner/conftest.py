# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory

from jupyter_gpushare.benchmarks.published.notebooks import answering
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support import fork_server
from tests.support.folders import socket_folder
from tests.support.kernels import forked_kernels, real_kernels
from tests.support.scheduler import SCHEDULER

__all__ = ["forked_kernels", "real_kernels"]

#: Bound of every wait: long, because it is only reached where something is wrong.
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The simulated driver, a socket, kernelspecs and a default provisioner of this test's own."""
    with socket_folder() as folder:
        monkeypatch.setenv("GPUSHARE_SIM", "1")
        monkeypatch.setenv("GPUSHARE_SIM_NAME", Path(folder).name)
        monkeypatch.setenv("GPUSHARE_SOCKET", f"{folder}/s")
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpushare")
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        KernelProvisionerFactory.clear_instance()
        yield
        KernelProvisionerFactory.clear_instance()


@pytest.fixture
def scheduler() -> Iterator[Callable[..., dict[str, Any]]]:
    """Run a scheduler; the value asks it."""
    process = fork_server.popen(
        ["-m", "jupyter_gpushare.scheduler", "--parent-pipe"],
        modules=SCHEDULER,
        stdin=subprocess.PIPE,
    )

    def ask(op: str, **params: Any) -> dict[str, Any]:
        with ControlClient(timeout=PATIENCE) as client:
            return client.request(op, **params)

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            ask("status")
            break
        except ControlError:
            assert process.poll() is None, "the scheduler ended"
            assert time.monotonic() < deadline, "the scheduler does not answer"
            time.sleep(0.02)
    yield ask
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


@pytest.fixture
def add_kernelspec(tmp_path: Path) -> Callable[..., str]:
    """Write a kernelspec; the value makes one of a name."""

    def add(name: str, **fields: Any) -> str:
        folder = tmp_path / "data" / "kernels" / name
        folder.mkdir(parents=True)
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": name,
            "language": "python",
            **fields,
        }
        (folder / "kernel.json").write_text(json.dumps(spec))
        return name

    return add


class Launched:
    """The process of a kernel, and its manager."""

    def __init__(self, manager: AsyncKernelManager) -> None:
        self.manager = manager

    @property
    def pid(self) -> int:
        assert self.manager.provisioner is not None
        pid = self.manager.provisioner.pid  # type: ignore[attr-defined]
        assert isinstance(pid, int)
        return pid

    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self._told("environ") if "=" in entry)

    def command(self) -> list[str]:
        return self._told("cmdline")

    def _told(self, name: str) -> list[str]:
        """Read what Linux tells of the process; nothing, for a moment after the program has begun."""
        process = self.manager.provisioner.process  # type: ignore[union-attr]
        assert isinstance(process, subprocess.Popen), "mark the test with real_kernels"
        deadline = time.monotonic() + PATIENCE
        while not (told := Path(f"/proc/{self.pid}/{name}").read_text()):
            assert time.monotonic() < deadline, f"{name} stays empty"
            time.sleep(0.001)
        return told.split("\0")[:-1]


class Kernel(Launched):
    """A started kernel, its manager and a client."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        super().__init__(manager)
        self.client = client

    async def execute(self, code: str, said: asyncio.Event | None = None) -> Result:
        """Run a cell. ``said`` is set when it first prints: an interrupt before a cell runs is lost in ipykernel."""
        outputs: list[dict[str, Any]] = []

        def note(message: dict[str, Any]) -> None:
            outputs.append(message)
            if said is not None and message["msg_type"] == "stream":
                said.set()

        # After one that fails, ipykernel would abort what it is sent at once.
        reply = await self.client.execute_interactive(
            code, output_hook=note, timeout=PATIENCE, stop_on_error=False
        )
        return Result(reply, outputs)


class Result:
    """What came of a cell."""

    def __init__(self, reply: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        self.reply: dict[str, Any] = reply["content"]
        self.msg_id: str = reply["parent_header"]["msg_id"]
        self.outputs = outputs

    def stream(self, name: str) -> str:
        return "".join(
            output["content"]["text"]
            for output in self.outputs
            if output["msg_type"] == "stream" and output["content"]["name"] == name
        )

    def data(self) -> dict[str, str]:
        found = [o["content"]["data"] for o in self.outputs if o["msg_type"] == "execute_result"]
        assert len(found) == 1
        data: dict[str, str] = found[0]
        return data

    def errors(self) -> list[str]:
        return [o["content"]["ename"] for o in self.outputs if o["msg_type"] == "error"]


@contextlib.asynccontextmanager
async def started(
    name: str = "python3", manager: AsyncKernelManager | None = None, **options: Any
) -> AsyncIterator[Kernel]:
    """Start a kernel, wait until it is there, and end it."""
    manager = manager or AsyncKernelManager(kernel_name=name)
    await manager.start_kernel(**options)
    try:
        client = await answering(manager, PATIENCE)
        try:
            yield Kernel(manager, client)
        finally:
            client.stop_channels()
    finally:
        await manager.shutdown_kernel(now=True)


@contextlib.asynccontextmanager
async def launched(
    name: str = "python3", manager: AsyncKernelManager | None = None, **options: Any
) -> AsyncIterator[Launched]:
    """Start a kernel and end it: for tests that look only at how it is started, and run nothing in it."""
    manager = manager or AsyncKernelManager(kernel_name=name)
    await manager.start_kernel(**options)
    try:
        yield Launched(manager)
    finally:
        await manager.shutdown_kernel(now=True)


async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)
    return value
