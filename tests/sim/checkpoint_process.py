# SPDX-License-Identifier: BSD-3-Clause
"""A process that the simulated driver's checkpoints lock, save and restore, and that can call them."""

from __future__ import annotations

import ast
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY, NOT_INITIALIZED, OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY = 2, 3, 304, 401, 600
NOT_SUPPORTED, UNKNOWN = 801, 999
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)

#: A program that answers one piece of code after the other: with the value of its last line, if that has one.
LOOP = """
import ast, builtins

def do(code, mode):
    return builtins.eval(builtins.compile(code, "<told>", mode), globals())

def obey(told):
    tree = ast.parse(ast.literal_eval(told))
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return do(tree, "exec")
    value = ast.Expression(tree.body.pop().value)
    do(tree, "exec")
    return do(value, "eval")

while told := sys.stdin.readline():
    print(repr(obey(told)), flush=True)
"""

#: What most need, which takes no time to load.
PLAIN = """
import ctypes, os, sys, threading, time
lib = ctypes.CDLL("libcuda.so.1")
nvml = ctypes.CDLL("libnvidia-ml.so.1")

class Lock(ctypes.Structure):
    _fields_ = [("timeout", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 15)]

class Restore(ctypes.Structure):
    _fields_ = [("pairs", ctypes.c_void_p), ("count", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 13)]

def lock(pid, timeout=0):
    return lib.cuCheckpointProcessLock(pid, ctypes.byref(Lock(timeout)))

def checkpoint(pid):
    return lib.cuCheckpointProcessCheckpoint(pid, None)

def restore(pid, *pairs):
    uuids = b"".join(old + new for old, new in pairs)
    buffer = ctypes.create_string_buffer(uuids, len(uuids) or 1)
    arguments = Restore(ctypes.addressof(buffer), len(pairs))
    return lib.cuCheckpointProcessRestore(pid, ctypes.byref(arguments))

def unlock(pid):
    return lib.cuCheckpointProcessUnlock(pid, None)

def state(pid):
    out = ctypes.c_int(-1)
    result = lib.cuCheckpointProcessGetState(pid, ctypes.byref(out))
    return out.value if result == 0 else -result

context = ctypes.c_void_p()

def begin(size=0, device=0):
    pointer = ctypes.c_uint64()
    assert lib.cuInit(0) == 0
    assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert lib.cuCtxSetCurrent(context) == 0
    if size:
        assert lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer.value

def alloc(size):
    pointer = ctypes.c_uint64()
    return lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) or pointer.value

def free(pointer):
    return lib.cuMemFree_v2(ctypes.c_uint64(pointer))

def fill(pointer, byte, size):
    return lib.cuMemsetD8_v2(ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

def holds(pointer, byte, size):
    out = ctypes.create_string_buffer(size)
    return lib.cuMemcpyDtoH_v2(out, ctypes.c_uint64(pointer), ctypes.c_size_t(size)) or out.raw == bytes([byte]) * size

def uuid(device):
    out = ctypes.create_string_buffer(16)
    assert lib.cuDeviceGetUuid_v2(out, device) == 0
    return out.raw

def bus(device):
    out = ctypes.create_string_buffer(32)
    assert lib.cuDeviceGetPCIBusId(out, 32, device) == 0
    return out.value.decode()

def used(device=0):
    handle, memory, count = ctypes.c_void_p(), (ctypes.c_uint64 * 3)(), ctypes.c_uint(0)
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    return memory[2] / (1 << 20), count.value

def fail(rules):
    return lib.gpushare_sim_fail(rules.encode())

def counter(index):
    out = (ctypes.c_uint64 * 16)()
    lib.gpushare_sim_counters(out, ctypes.sizeof(out))
    return out[index]

def injected():
    return counter(6)

def waiting():
    return counter(15)

def behind(code):
    def work():
        lib.cuCtxSetCurrent(context)
        results.append(eval(code))
    threading.Thread(target=work, daemon=True).start()

results = []
"""


class Process:
    """A process of the machine that does what it is told."""

    def __init__(self, environment: dict[str, str], prelude: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + PLAIN + LOOP],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def send(self, code: str) -> None:
        """Tell it something, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(repr(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return what it says to the oldest code that it has not answered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with status {self.process.wait(60)}"
        return ast.literal_eval(line)

    def is_silent(self, seconds: float) -> bool:
        """Whether it answers nothing for so long."""
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def __call__(self, code: str) -> Any:
        """Tell it something, and return the answer."""
        self.send(code)
        return self.answer()

    def until(self, code: str, wanted: object) -> None:
        """Ask until the answer is the wanted one."""
        end = time.monotonic() + 60
        while (got := self(code)) != wanted:
            assert time.monotonic() < end, f"{code} is {got}"
            time.sleep(0.005)

    def kill(self) -> None:
        """End it at once, and wait for that."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.kill()


Start = Callable[..., Process]

RICH = """
device = use()
D = driver
prop = D.CUmemAllocationProp()
prop.type = D.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = D.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
access = D.CUmemAccessDesc()
access.location = prop.location
access.flags = D.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
GRAIN = 2 << 20
random = np.random.default_rng(7)

def bytes_of(size):
    return random.integers(0, 256, size, dtype=np.uint8)

def mapped(address, flags):
    handle = ok(D.cuMemCreate(GRAIN, prop, 0))
    ok(D.cuMemMap(address, GRAIN, 0, handle, 0))
    access.flags = flags
    ok(D.cuMemSetAccess(address, GRAIN, [access], 1))
    return handle

READ = D.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
WRITE = D.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
stream = ok(D.cuStreamCreate(1))
plain, small = ok(D.cuMemAlloc(3 << 20)), ok(D.cuMemAlloc(5000))
pooled = ok(D.cuMemAllocAsync(1 << 20, stream))
reserved = ok(D.cuMemAddressReserve(4 * GRAIN, 0, 0, 0))
empty = ok(D.cuMemAddressReserve(GRAIN, 0, 0, 0))
handle = mapped(int(reserved), WRITE)
second = mapped(int(reserved) + 2 * GRAIN, WRITE)
spare = ok(D.cuMemCreate(GRAIN, prop, 0))
contents = {int(p): bytes_of(n) for p, n in (
    (plain, 3 << 20), (small, 5000), (pooled, 1 << 20), (reserved, GRAIN), (int(reserved) + 2 * GRAIN, GRAIN),
)}
for address, data in contents.items():
    ok(D.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, stream))
ok(D.cuStreamSynchronize(stream))
access.flags = READ
ok(D.cuMemSetAccess(int(reserved) + 2 * GRAIN, GRAIN, [access], 1))

host = np.zeros(1 << 20, np.uint8)
ok(D.cuMemHostRegister(host.ctypes.data, host.nbytes, 0))
page_locked = ok(D.cuMemHostAlloc(4096, 0))
ctypes.memset(page_locked, 9, 4096)

array_of = D.CUDA_ARRAY_DESCRIPTOR()
array_of.Width, array_of.Height = 64, 0
array_of.Format, array_of.NumChannels = D.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8, 1
array = ok(D.cuArrayCreate(array_of))
line = bytes_of(64)
ok(D.cuMemcpyHtoA(array, 0, line.ctypes.data, 64))

code = compile(ADD + "__device__ int answer = 42;")
library = ok(D.cuLibraryLoadData(bytes(code.code), None, None, 0, None, None, 0))
kernel = ok(D.cuKernelGetFunction(ok(D.cuLibraryGetKernel(library, b"add"))))
name = next(n for n in (b"answer", b"_ZL6answer") if error(D.cuLibraryGetGlobal(library, n)) == 0)
answer = ok(D.cuLibraryGetGlobal(library, name))[0]
write(answer, np.array([43], np.int32))

numbers = ok(D.cuMemAlloc(1024))
write(numbers, np.zeros(256, np.float32))
held = [ctypes.c_uint64(int(numbers)), ctypes.c_float(1), ctypes.c_int(256)]
arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in held])

def launch_add(on):
    ok(D.cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, on, ctypes.addressof(arguments), 0))

ok(D.cuStreamBeginCapture(stream, D.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
launch_add(stream)
scratch = ok(D.cuMemAllocAsync(1 << 16, stream))
ok(D.cuMemcpyDtoDAsync(scratch, numbers, 1024, stream))
graph = ok(D.cuStreamEndCapture(stream))
executable = ok(D.cuGraphInstantiate(graph, 0))
ok(D.cuGraphLaunch(executable, stream))
first, last = ok(D.cuEventCreate(0)), ok(D.cuEventCreate(0))
ok(D.cuEventRecord(first, stream))
ok(D.cuEventRecord(last, stream))
ok(D.cuStreamSynchronize(stream))
elapsed = ok(D.cuEventElapsedTime(first, last))
libc = ctypes.CDLL(None, use_errno=True)

def in_reach(address):
    reader, writer = os.pipe()
    done = libc.write(writer, ctypes.c_void_p(int(address)), ctypes.c_size_t(8))
    os.close(reader), os.close(writer)
    return done == 8

def can_write(address):
    # The system writes there what is there.
    reader, writer = os.pipe()
    os.write(writer, read(address, 8, np.uint8).tobytes())
    done = libc.read(reader, ctypes.c_void_p(int(address)), ctypes.c_size_t(8))
    os.close(reader), os.close(writer)
    return done == 8

def reach():
    return {in_reach(a) for a in (*contents, numbers, scratch)}
"""
EVERY = "state({0}), lock({0}), checkpoint({0}), restore({0}), unlock({0})"
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")
