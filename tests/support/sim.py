# SPDX-License-Identifier: BSD-3-Clause
"""Programs on a simulated machine of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import fork_server
from tests.support.environment import inherited

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "jupyter_gpushare" / "lib" / "sim"
MIB = 1 << 20

PRELUDE = """
import ctypes, os, signal, sys, time
import numpy as np
from cuda.bindings import driver

def core(name):
    # Few programs need it, and it takes as long to import as all the rest.
    def call(*arguments, **options):
        import cuda.core
        return getattr(cuda.core, name)(*arguments, **options)
    return call

Device, LaunchConfig, Program, ProgramOptions, launch = map(
    core, ("Device", "LaunchConfig", "Program", "ProgramOptions", "launch")
)

def ok(result):
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values

def error(result):
    return int(result[0])

class Current:
    def __getattr__(self, name):
        device = Device()
        device.set_current()
        return getattr(device, name)

def use():
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    return Current()

def read(pointer, count, kind=np.float32):
    out = np.empty(count, kind)
    ok(driver.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out

def write(pointer, data):
    ok(driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes))

def compile(source, *names):
    options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")
    return Program(source, "c++", options).compile("cubin", name_expressions=names)

class Counters(ctypes.Structure):
    names = (
        "faulted prefetched stolen copied_in copied_out kernels injected page_locked page_lock_ns remote written_back "
        "fault_ns in_ns out_ns kernel_ns waiting hashed kept_locked"
    ).split()
    _fields_ = [(name, ctypes.c_uint64) for name in names]

def counters():
    out = Counters()
    ctypes.CDLL("libcuda.so.1").gpushare_sim_counters(ctypes.byref(out), ctypes.sizeof(out))
    return out

def fail(rules):
    return ctypes.CDLL("libcuda.so.1").gpushare_sim_fail(rules.encode())

ADD = '''
extern "C" __global__ void add(float *x, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += value;
}
'''

def run_add(stream, kernel, pointer, count, value=1):
    config = LaunchConfig(grid=(count + 255) // 256, block=256)
    launch(stream, config, kernel, np.uint64(int(pointer)), np.float32(value), np.int32(count))

def say(text="ready"):
    print(text, flush=True)

def hear():
    assert sys.stdin.readline(), "the test is gone"
"""


@contextmanager
def sim_env(name: str | None = None, **parameters: object) -> Iterator[dict[str, str]]:
    """
    Give the environment of programs on one simulated machine, and remove the machine afterwards.

    Parameters
    ----------
    name
        The machine's name; a unique one by default.
    **parameters
        Its parameters: ``memory="64MiB"`` is ``GPUSHARE_SIM_MEMORY``.
    """
    name = name or f"test-{uuid.uuid4().hex[:12]}"
    environment = inherited()
    for library in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so.13"):
        assert (LIBRARIES / library).exists(), "build the simulated driver first: make -C csrc sim"
    environment["LD_PRELOAD"] = ":".join(
        str(LIBRARIES / library)
        for library in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so.13")
    )
    environment["GPUSHARE_SIM_NAME"] = name
    environment.update(
        {f"GPUSHARE_SIM_{key.upper()}": str(value) for key, value in parameters.items()}
    )
    try:
        yield environment
    finally:
        Path(f"/dev/shm/gpushare-sim-{name}").unlink(missing_ok=True)


#: What the prelude and most programs import.
MODULES = ("cuda.bindings.driver", "cuda.core", "numpy", "numpy.random")


def command(code: str) -> list[str]:
    """Return the command that runs the prelude and the code."""
    return [sys.executable, *arguments(code)]


def arguments(code: str) -> list[str]:
    """Return the same for any Python."""
    return ["-c", PRELUDE + textwrap.dedent(code)]


def run(
    environment: dict[str, str], code: str, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run code on the machine to its end."""
    done = fork_server.run(arguments(code), environ=environment, modules=MODULES, timeout=60)
    if check:
        assert done.returncode == 0, done.stderr + done.stdout
    return done


class Talker:
    """A program on the machine that says and hears lines."""

    def __init__(self, environment: dict[str, str], code: str) -> None:
        self.process = fork_server.popen(
            arguments(code),
            environ=environment,
            modules=MODULES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with status {self.process.wait(60)}"
        return line.strip()

    def tell(self, text: str = "go") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it as ``kill -9`` does; its zombie stays until it is waited for."""
        self.process.kill()

    def close(self) -> int:
        """Let it end, and return its status."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


TOOLS = """
T = driver.CUmemLocationType
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
BOTH = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NEITHER = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
MIB = 1 << 20

def at(device):
    location = driver.CUmemLocation()
    location.type, location.id = T.CU_MEM_LOCATION_TYPE_DEVICE, device
    return location

def access(device, flags=BOTH):
    description = driver.CUmemAccessDesc()
    description.location, description.flags = at(device), flags
    return description

def properties(device=0):
    out = driver.CUmemAllocationProp()
    out.type, out.location = PINNED, at(device)
    return out

def pool(location=None, kind=PINNED, handles=None, most=0):
    p = driver.CUmemPoolProps()
    p.allocType, p.location, p.maxSize = kind, location or at(0), most
    if handles is not None:
        p.handleTypes = handles
    return ok(driver.cuMemPoolCreate(p))

def stream_of(flags=1):
    return ok(driver.cuStreamCreate(flags))

def free():
    return ok(driver.cuMemGetInfo())[0]

def function_of(code, name):
    return ok(driver.cuKernelGetFunction(driver.CUkernel(int(code.get_kernel(name).handle))))

def pack(*values):
    held = [ctypes.c_uint64(int(v)) if not isinstance(v, ctypes._SimpleCData) else v for v in values]
    pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(v) for v in held])
    return held, pointers

def start(function, stream, *values, threads=1):
    held, pointers = pack(*values)
    return error(driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0))

def reserved(one, which="RESERVED_MEM_CURRENT"):
    name = getattr(driver.CUmemPool_attribute, "CU_MEMPOOL_ATTR_" + which)
    return int(ok(driver.cuMemPoolGetAttribute(one, name)))

def threshold(one, size):
    name = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(driver.cuMemPoolSetAttribute(one, name, driver.cuuint64_t(size)))

def raw(handle):
    return ctypes.string_at(handle.getPtr(), 64)

def made(kind, text):
    handle = kind()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    return handle

NONE = driver.CUstream(0)
"""
