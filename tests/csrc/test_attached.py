# SPDX-License-Identifier: BSD-3-Clause
"""What a process is told that shares its GPU: a scheduler, the interposer and the simulated driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.kernel_provisioner.launch import Settings, client_environment
from jupyter_gpushare.scheduler.gpu.drivers import find_driver
from tests.support.folders import socket_folder

MIB = 1 << 20
TOTAL = 512 * MIB
CONTEXT = 3 * MIB
NOT_SUPPORTED = 801
MULTICAST_SUPPORTED = 132

SESSION = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def allocate(size):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    assert cuda.cuMemsetD8_v2(pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size)) == 0
def nvml():
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {"memory": [memory.total, memory.reserved, memory.used, memory.free],
            "processes": [[p.pid == os.getpid(), p.usedGpuMemory] for p in processes]}
"""

Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def start(simulated: Path) -> Iterator[Start]:
    """Start a program under a scheduler; it runs until its standard input ends."""
    processes: list[subprocess.Popen[str]] = []
    with socket_folder() as folder:
        socket = Path(folder) / "scheduler.sock"
        name = f"test-{uuid.uuid4().hex[:12]}"
        env = {**os.environ, "GPUSHARE_SIM": "1", "GPUSHARE_SIM_NAME": name}
        env |= {"GPUSHARE_SIM_MEMORY": str(TOTAL), "GPUSHARE_SOCKET": str(socket)}
        env["GPUSHARE_SIM_CONTEXT"] = str(CONTEXT)
        command = [sys.executable, "-m", "jupyter_gpushare.scheduler", "--socket", str(socket)]
        scheduler = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert scheduler.stdout is not None
        assert "ready" in scheduler.stdout.readline()
        driver = find_driver(env)
        assert driver is not None

        def run(group: str, code: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{SESSION}\n{code}\nsys.stdin.read()"],
                env=client_environment(
                    env, group=group, name=group, driver=driver, socket=socket, settings=Settings()
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            return process

        yield run
        for process in [*processes, scheduler]:
            process.kill()
            process.communicate()
        for segment in Path("/dev/shm").glob(f"*{name}*"):
            segment.unlink()


def said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_nvml_shows_each_process_its_own_gpu(start: Start) -> None:
    def code(size: int) -> str:
        return f"allocate({size}); print(json.dumps(nvml()), flush=True)"

    first = said(start("first", code(64 * MIB)))
    second = said(start("second", code(128 * MIB)))
    used_by = [answer["memory"][2] for answer in (first, second)]
    # As without us, a process's memory is its context's as well.
    assert CONTEXT <= used_by[0] - 64 * MIB < 64 * MIB
    assert used_by[1] - used_by[0] == 64 * MIB
    for answer in (first, second):
        total, reserved, used, free = answer["memory"]
        assert total == TOTAL
        assert free == TOTAL - reserved - used
        assert answer["processes"] == [[True, used]]


def test_a_refused_allocation_is_not_promised(start: Start) -> None:
    code = f"cuda.cuDeviceGetAttribute(ctypes.byref(value), {MULTICAST_SUPPORTED}, 0)\n"
    code += "handle = ctypes.c_uint64()\n"
    code += "result = cuda.cuMulticastCreate(ctypes.byref(handle), ctypes.byref(handle))\n"
    code += "print(json.dumps([value.value, result]), flush=True)"
    assert said(start("only", code)) == [0, NOT_SUPPORTED]
