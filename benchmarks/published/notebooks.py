# SPDX-License-Identifier: BSD-3-Clause
"""What people at a notebook notice: the start of a kernel, an interrupt, a busy Jupyter server."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, environment, machine
from .waits import QUANTUM, quantum_gaps

_TIMEOUT = 60.0
#: Seconds between looks at a kernel that its manager starts again.
_PAUSE = 0.2
#: jupyter_client chooses ports for a kernel that are free, and another program may have one before the kernel does. So
#: many sets of them are tried.
PORTS_TRIED = 3

#: Waits for the GPU in one call, on the main thread or on another for which the main thread waits in C, as
#: PyTorch's main thread does for autograd's; the call gives the GIL up (CDLL) or keeps it (PyDLL).
_SET_UP = """
import ctypes, threading
def library(gil):
    return (ctypes.PyDLL if gil else ctypes.CDLL)("libcuda.so.1")
cuda, context, pointer = library(False), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), {bytes}) == 0
def submit(gil):
    set_memory = library(gil).cuMemsetD8_v2
    set_memory.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    cuda.cuCtxSetCurrent(context)
    result = set_memory(pointer, 1, 4)
    if result:
        raise RuntimeError(f"CUDA error {{result}}")
def on_another_thread(gil):
    thread = threading.Thread(target=lambda: results.append(set_quietly(gil)))
    results = []
    thread.start()
    join = ctypes.CDLL(None).pthread_join
    join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
    while not results:
        join(thread.ident, None) if not gil else ctypes.CDLL(None).usleep(1000)
    if results[0]:
        raise RuntimeError(results[0])
def set_quietly(gil):
    try:
        submit(gil)
    except RuntimeError as error:
        return str(error)
"""


async def answering(manager: AsyncKernelManager, patience: float) -> AsyncKernelClient:
    """Connect to a kernel that was started just now, as soon as it answers.

    Parameters
    ----------
    manager
        Its manager; the kernel is started again if it dies first, unless the manager does that by itself. It gets other
        ports if it lost one and `GpuShareProvisioner` starts it.
    patience
        Seconds for it to answer.

    Raises
    ------
    RuntimeError
        If it dies again and again, or does not answer in time.
    """
    tried = 0
    until = time.monotonic() + patience
    restarts_itself = getattr(manager, "_restarter", None) is not None
    while True:
        client: AsyncKernelClient = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=patience)
            return client
        except RuntimeError:
            client.stop_channels()
            tried += 1
            if restarts_itself:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_PAUSE)
                continue
            if tried == PORTS_TRIED or await manager.is_alive():
                raise
        await manager.restart_kernel(now=True, newports=True)


class Kernel:
    """A kernel and its client."""

    def __init__(self, here: Machine, provisioner: str) -> None:
        self.here = here
        self.provisioner = provisioner

    async def start(self) -> Kernel:
        """Start the kernel and wait until it has answered."""
        factory = KernelProvisionerFactory.instance()
        factory.default_provisioner_name = self.provisioner
        self.manager = AsyncKernelManager(kernel_name="python3")
        await self.manager.start_kernel(env={**os.environ, **self.here.environ})
        self.client = await answering(self.manager, _TIMEOUT)
        return self

    async def run(self, code: str) -> dict[str, Any]:
        """Execute code and return the reply's content."""
        # After one that fails, ipykernel would abort what it is sent at once.
        message = self.client.execute(code, stop_on_error=False)
        while True:
            reply = await self.client.get_shell_msg(timeout=_TIMEOUT)
            if reply["parent_header"]["msg_id"] == message:
                content: dict[str, Any] = reply["content"]
                return content

    async def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)


def kernel_start(rounds: int = 25) -> Iterator[Figure]:
    """From the request to the first answer of a kernel, with the default provisioner and with ours."""

    async def measure(here: Machine) -> tuple[list[float], list[float]]:
        bare: list[float] = []
        ours: list[float] = []
        for index in range(rounds + 1):
            for provisioner, times in (("local-provisioner", bare), ("gpushare", ours)):
                began = time.monotonic()
                kernel = await Kernel(here, provisioner).start()
                await kernel.run("1")
                if index > 0:
                    times.append((time.monotonic() - began) * 1000)
                await kernel.close()
        return bare, ours

    with machine() as here, environment(here):
        bare, ours = asyncio.run(measure(here))
    added = [mine - its for mine, its in zip(ours, bare, strict=True)]
    yield Figure(
        "kernel-start",
        "added to a kernel's start",
        statistics.median(added),
        "ms",
        statistics.median(bare),
        rounds,
        quartile_distance(added),
        20,
    )


async def _interrupted(kernel: Kernel, code: str, waits: Callable[[], bool]) -> float:
    """Interrupt a cell that waits; return the seconds until the kernel has reported its KeyboardInterrupt."""
    running = asyncio.ensure_future(kernel.run(code))
    deadline = time.monotonic() + _TIMEOUT
    # An interrupt before that would not end the wait.
    while not waits():
        if running.done() or time.monotonic() > deadline:
            raise RuntimeError("the cell did not wait")
        await asyncio.sleep(0.01)
    # The interrupt is to find it asleep.
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await kernel.manager.interrupt_kernel()
    reply = await asyncio.wait_for(running, _TIMEOUT)
    taken = time.monotonic() - began
    if reply.get("ename") != "KeyboardInterrupt":
        raise RuntimeError(f"the cell ended with {reply.get('ename')}, not with KeyboardInterrupt")
    assert (await kernel.run("1 + 1"))["status"] == "ok"
    return taken


def interrupt(rounds: int = 5) -> Iterator[Figure]:
    """From the interrupt of a cell that waits for the GPU to its KeyboardInterrupt; the kernel must live on.

    For comparison, the same for a cell that waits for something else: most of the time is IPython's, for its traceback.
    """

    async def measure(here: Machine, function: str, gil: bool) -> tuple[list[float], list[float]]:
        kernel = await Kernel(here, "gpushare").start()
        assert (await kernel.run(_SET_UP.format(bytes=here.share)))["status"] == "ok"
        # No other program holds the GPU: it might become idle on a busy machine, and the cell would run.
        here.control("drain", gpu="0")
        bare, ours = [], []
        for number in range(rounds):
            waits = await _interrupted(
                kernel,
                f"{function}({gil})",
                lambda: any(group["state"] == "waiting" for group in here.groups()),
            )
            ours.append(waits)
            begun = here.folder / f"begun-{number}"
            asleep = f"open({str(begun)!r}, 'w').close(); threading.Event().wait({_TIMEOUT})"
            bare.append(await _interrupted(kernel, asleep, begun.exists))
        await kernel.close()
        return bare, ours

    for function, where in (("submit", "main thread"), ("on_another_thread", "another thread")):
        for gil in (False, True):
            with machine() as here, environment(here):
                bare, ours = asyncio.run(measure(here, function, gil))
            metric = f"interrupt, {where}, GIL {'held' if gil else 'free'}, worst"
            yield Figure(
                "interrupt", metric, max(ours), "s", max(bare), rounds, quartile_distance(ours), 0.5
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _save(url: str, body: bytes, stop: threading.Event) -> None:
    headers = {"Authorization": "token bench", "Content-Type": "application/json"}
    while not stop.is_set():
        request = urllib.request.Request(url, data=body, headers=headers, method="PUT")
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            answer.read()


def busy_server(seconds: float = 8.0) -> Iterator[Figure]:
    """Hand-off at a quantum's end while the Jupyter server that hosts the scheduler saves 50 MB again and again."""
    with machine(scheduler=False, GPUSHARE_SIM_INSTANT="1") as here:
        port, folder = _free_port(), here.folder / "notebooks"
        folder.mkdir()
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        command += [
            f"--ServerApp.port={port}",
            "--IdentityProvider.token=bench",
            f"--ServerApp.root_dir={folder}",
        ]
        environ = {
            **here.environ,
            "JUPYTER_RUNTIME_DIR": str(here.folder / "runtime"),
            "JUPYTER_CONFIG_DIR": str(here.folder / "config"),
        }
        with Path(here.folder / "server.log").open("wb") as log:
            server = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        stop, saver = threading.Event(), None
        try:
            deadline = time.monotonic() + _TIMEOUT
            while not here.socket.exists():
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError((here.folder / "server.log").read_text())
                time.sleep(0.05)
            time.sleep(0.5)
            here.control("set", quantum=QUANTUM, anti_thrash="on")
            output = {"output_type": "stream", "name": "stdout", "text": "x" * (50 * 1000 * 1000)}
            cell = {
                "cell_type": "code",
                "id": "a",
                "execution_count": 1,
                "metadata": {},
                "outputs": [output],
                "source": "",
            }
            notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
            body = json.dumps({"type": "notebook", "format": "json", "content": notebook}).encode()
            url = f"http://127.0.0.1:{port}/api/contents/big.ipynb"
            saver = threading.Thread(target=_save, args=(url, body, stop))
            saver.start()
            yield from quantum_gaps(
                here, "busy-server", "hand-off while the server saves 50 MB", seconds, 2
            )
        finally:
            stop.set()
            if saver is not None:
                saver.join()
            server.terminate()
            server.wait()
