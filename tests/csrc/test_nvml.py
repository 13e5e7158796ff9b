# SPDX-License-Identifier: BSD-3-Clause
"""NVML's figures, as a process sees them that has the whole GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Compile = Callable[..., Path]
Ask = Callable[..., Any]

GIB = 1 << 30
TRUTH = {"v1": [80 * GIB, 61 * GIB, 19 * GIB], "v2": [80 * GIB, 1 * GIB, 60 * GIB, 19 * GIB]}

PROGRAM = """
import ctypes, json, os, pynvml
pynvml._LoadNvmlLibrary()
device = pynvml.c_nvmlDevice_t()
class Old(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
def memory():
    v1 = pynvml.nvmlDeviceGetMemoryInfo(device)
    v2 = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    return {"v1": [v1.total, v1.used, v1.free], "v2": [v2.total, v2.reserved, v2.used, v2.free]}
def processes(function="nvmlDeviceGetComputeRunningProcesses_v3", size=200, kind=pynvml.c_nvmlProcessInfo_v2_t):
    count = ctypes.c_uint(size)
    infos = (kind * max(size, 1))()
    result = pynvml._nvmlGetFunctionPointer(function)(device, ctypes.byref(count), infos)
    listed = infos[:count.value] if result == 0 else []
    own = os.getpid()
    return [result, count.value,
            [["me" if p.pid == own else "other", p.usedGpuMemory, getattr(p, "gpuInstanceId", None)]
             for p in listed]]
"""


@pytest.fixture(scope="module")
def nvml(compile_c: Compile, headers: Path) -> Path:
    """Return an NVML with one device."""
    flags = ("-shared", "-fPIC", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-isystem", str(headers))
    return compile_c("small_nvml.c", "libnvidia-ml.so.1", *flags, "-Wl,-soname,libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def figures(compile_c: Compile) -> Path:
    """Return what answers in libgpushare's place."""
    return compile_c("figures.c", "figures.so", "-shared", "-fPIC")


@pytest.fixture
def ask(libraries: Path, nvml: Path, figures: Path) -> Ask:
    """Run an expression in a process with this footprint; None: it never called cuInit."""

    def run(expression: str, footprint: int | None = None, room: int = 0, **env: str) -> Any:
        environment = {**os.environ, "LD_PRELOAD": f"{figures}:{libraries / 'libgpushare-nvml.so'}"}
        environment |= {"GPUSHARE_NVML": str(nvml), "ROOM": str(room), **env}
        if footprint is not None:
            environment["FOOTPRINT"] = str(footprint)
        done = subprocess.run(
            [sys.executable, "-c", f"{PROGRAM}\nprint(json.dumps({expression}))"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def test_true_figures_pass_when_sharing_is_disabled(ask: Ask) -> None:
    assert ask("memory()") == TRUTH
    result, count, listed = ask("processes()")
    assert (result, count) == (0, 101)
    assert listed.count(["other", 5, 1]) == 100
    assert listed.count(["me", 6, 7]) == 1


def test_true_figures_pass_without_libgpushare(ask: Ask, libraries: Path) -> None:
    assert ask("memory()", LD_PRELOAD=str(libraries / "libgpushare-nvml.so")) == TRUTH


def test_only_our_memory_is_used(ask: Ask) -> None:
    assert ask("memory()", footprint=10 * GIB) == {
        "v1": [80 * GIB, 11 * GIB, 69 * GIB],
        "v2": [80 * GIB, 1 * GIB, 10 * GIB, 69 * GIB],
    }


def test_a_memory_limit_leaves_less_free(ask: Ask) -> None:
    assert ask("memory()", footprint=10 * GIB, room=30 * GIB) == {
        "v1": [80 * GIB, 11 * GIB, 20 * GIB],
        "v2": [80 * GIB, 1 * GIB, 10 * GIB, 20 * GIB],
    }


def test_use_beyond_the_gpu_is_limited_to_its_memory(ask: Ask) -> None:
    """Managed memory can be more than there is; what people divide by must stay sane."""
    assert ask("memory()", footprint=200 * GIB) == {
        "v1": [80 * GIB, 80 * GIB, 0],
        "v2": [80 * GIB, 1 * GIB, 79 * GIB, 0],
    }


def test_only_the_calling_process_is_listed(ask: Ask) -> None:
    assert ask("processes()", footprint=10 * GIB) == [0, 1, [["me", 10 * GIB, 7]]]
    old = "processes('nvmlDeviceGetComputeRunningProcesses', kind=Old)"
    assert ask(old, footprint=10 * GIB) == [0, 1, [["me", 10 * GIB, None]]]


def test_lists_of_processes_of_other_kinds_are_empty(ask: Ask) -> None:
    got = ask("processes('nvmlDeviceGetGraphicsRunningProcesses_v3')", footprint=10 * GIB)
    assert got == [0, 0, []]


def test_the_size_of_a_list_can_be_queried_first(ask: Ask) -> None:
    """pynvml's way: with no room, NVML says how much is needed."""
    insufficient = 7
    assert ask("processes(size=0)", footprint=10 * GIB) == [insufficient, 1, []]
    assert ask("processes(size=1)", footprint=10 * GIB) == [0, 1, [["me", 10 * GIB, 7]]]


def test_other_functions_are_passed_on(ask: Ask) -> None:
    assert ask("pynvml.nvmlDeviceGetCount()", footprint=GIB) == 1
    assert ask("pynvml.nvmlErrorString(0)", footprint=GIB) == "Small Success"


def test_functions_that_an_old_nvml_lacks_are_not_supported(ask: Ask) -> None:
    function_not_found = 13
    code = "pynvml._nvmlGetFunctionPointer('nvmlDeviceGetFanSpeed')(device, None)"
    assert ask(code) == function_not_found


def test_a_process_that_never_calls_the_driver_gets_true_figures(ask: Ask, simulated: Path) -> None:
    """With the real interposer beside it, a process that never called cuInit is told the truth."""
    code = "import pynvml; pynvml.nvmlInit(); d = pynvml.nvmlDeviceGetHandleByIndex(0); "
    code += "m = pynvml.nvmlDeviceGetMemoryInfo(d); print(m.total, m.used + m.free == m.total)"
    env = {**os.environ, "GPUSHARE_NVML": str(simulated / "libnvidia-ml.so.1")}
    libraries = simulated.parent
    names = ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")
    env["LD_PRELOAD"] = ":".join(str(libraries / name) for name in names)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    total, adds_up = done.stdout.split()
    assert int(total) > 0
    assert adds_up == "True"
