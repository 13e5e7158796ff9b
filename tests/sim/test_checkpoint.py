# SPDX-License-Identifier: BSD-3-Clause
"""The driver's checkpoints: one process locks, saves and restores another."""

from __future__ import annotations

import ast
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from tests.support.sim import LIBRARIES, PRELUDE
from tests.support.stopping import go_on, stop

Machine = Callable[..., dict[str, str]]

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


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process, which ends with the test."""
    with ExitStack() as stack:

        def one(environment: dict[str, str], prelude: str = "") -> Process:
            process = Process(environment, prelude)
            stack.callback(process.close)
            return process

        yield one


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

CHECKS = """
for address, data in contents.items():
    assert (read(address, data.size, np.uint8) == data).all(), hex(address)
assert reach() == {True}
assert [can_write(a) for a in contents] == [True, True, True, True, False]
assert read(answer, 1, np.int32)[0] == 43
assert (read(numbers, 256) == 1).all()
assert (read(scratch, 256) == 1).all(), "an allocation of a graph"
back = np.zeros(64, np.uint8)
ok(D.cuMemcpyAtoH(back.ctypes.data, array, 0, 64))
assert (back == line).all()
assert error(D.cuEventQuery(last)) == 0 and ok(D.cuEventElapsedTime(first, last)) == elapsed
ok(D.cuMemFree(scratch))
ok(D.cuGraphLaunch(executable, stream))
launch_add(stream)
ok(D.cuEventRecord(last, stream))
ok(D.cuEventSynchronize(last))
assert (read(numbers, 256) == 3).all()
# Registered and allocated host memory.
assert ctypes.string_at(page_locked, 4096) == bytes([9]) * 4096
ok(D.cuMemcpyDtoHAsync(host.ctypes.data, plain, host.nbytes, stream))
ok(D.cuStreamSynchronize(stream))
assert (host == contents[int(plain)][: host.size]).all()
assert error(D.cuMemHostRegister(host.ctypes.data, host.nbytes, 0)) == 712
# Access is what it was, and all can be mapped, unmapped and freed.
assert int(ok(D.cuMemGetAccess(prop.location, int(reserved) + 2 * GRAIN))) == 1
address = int(reserved) + GRAIN
ok(D.cuMemMap(address, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(address, GRAIN))
ok(D.cuMemMap(empty, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(empty, GRAIN))
ok(D.cuMemUnmap(reserved, GRAIN))
ok(D.cuMemMap(reserved, GRAIN, 0, handle, 0))
access.flags = WRITE
ok(D.cuMemSetAccess(reserved, GRAIN, [access], 1))
assert (read(reserved, GRAIN, np.uint8) == contents[int(reserved)]).all()
for one in (handle, second, spare):
    ok(D.cuMemRelease(one))
ok(D.cuMemFreeAsync(pooled, stream))
ok(D.cuStreamSynchronize(stream))
ok(D.cuMemFree(plain))
ok(D.cuArrayDestroy(array))
ok(D.cuStreamDestroy(stream))
ok(D.cuLibraryUnload(library))
"""


def test_a_process_is_restored_as_it_was(machine: Machine, start: Start) -> None:
    environment = machine(memory="64MiB", context_growth="3MiB")
    target, hibernator = start(environment, PRELUDE), start(environment)
    target(RICH)
    before, processes = hibernator("used()")
    assert before > 16 + 3 + 3 + 6
    assert processes == 1
    assert target("reach()") == {True}
    assert hibernator(f"lock({target.pid}), state({target.pid}), used()[0]") == (0, LOCKED, before)
    assert hibernator(f"checkpoint({target.pid}), state({target.pid})") == (0, CHECKPOINTED)
    assert hibernator("used()") == (4, 0), "4 MiB stay, and no process is listed"
    assert target("reach()") == {False}
    # What is in use by another process, the contents cannot come back to.
    assert hibernator("begin(); alloc(40 << 20) > 2")
    assert hibernator(f"restore({target.pid}), state({target.pid})") == (
        OUT_OF_MEMORY,
        CHECKPOINTED,
    )
    assert target("reach()") == {False}
    hibernator("lib.cuDevicePrimaryCtxReset_v2(0)")
    assert hibernator(f"restore({target.pid}), state({target.pid}), used()") == (
        0,
        LOCKED,
        (before, 1),
    )
    assert hibernator(f"unlock({target.pid}), state({target.pid})") == (0, RUNNING)
    target(CHECKS)


def exported() -> list[str]:
    """Return all calls that the library has."""
    with (LIBRARIES / "libcuda.so.1").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return sorted(
            symbol.name
            for symbol in symbols
            if symbol["st_shndx"] != "SHN_UNDEF" and re.match(r"cu[A-Z]", symbol.name)
        )


def test_every_call_of_a_locked_process_waits(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    assert hibernator(f"lock({target.pid})") == 0
    free = {
        *("cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"),
        *("cuGetProcAddress", "cuGetProcAddress_v2"),
        *(name for name in exported() if name.startswith("cuCheckpoint")),
    }
    names = [name for name in exported() if name not in free]
    assert len(free) == 12
    assert len(names) > 390
    # One whose end is seen, and the others, which would fall over what they were given.
    target(f"behind('holds({pointer}, 5, 4096)')")
    target(
        f"""
threading.stack_size(128 << 10)
returned = []

def call(name):
    getattr(lib, name)(*[ctypes.c_void_p()] * 12)
    returned.append(name)

for name in {names!r}:
    threading.Thread(target=call, args=(name,), daemon=True).start()
"""
    )
    end = time.monotonic() + 60
    while target("waiting()") != len(names) + 1:
        assert target("returned") == [], "these do not wait"
        assert time.monotonic() < end, "these return: " + str(target("returned"))
        time.sleep(0.01)
    assert target("results, returned") == ([], [])
    text = "ctypes.create_string_buffer(8)"
    assert target(f"lib.cuDriverGetVersion({text})") == 0
    assert target(f"lib.cuGetErrorName(1, {text}), lib.cuGetErrorString(1, {text})") == (0, 0)
    assert target(f"lib.cuGetProcAddress(b'cuInit', {text}, 13000, ctypes.c_uint64())") == 0
    target.kill()
    assert hibernator(f"state({target.pid})") == -OPERATING_SYSTEM


def test_waiting_calls_continue_after_the_restore(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    for between in ("", "checkpoint({0}), restore({0}), "):
        assert hibernator(f"lock({target.pid})") == 0
        target(f"behind('lib.cuCtxSynchronize() or holds({pointer}, 5, 4096)')")
        target.until("waiting()", 1)
        steps = hibernator((between + "unlock({0}),").format(target.pid))
        assert set(steps) == {0}
        target.until("results", [True])
        assert target("results.clear(), waiting()")[1] == 0
    # A child is not locked with its parent, nor can it use the driver.
    assert hibernator(f"lock({target.pid})") == 0
    child = "pid = os.fork()\nif pid == 0: os._exit(lib.cuCtxSynchronize())\n"
    assert target(child + "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == 3
    # A locked process can still exit.
    target.send("sys.exit(3)")
    assert target.process.wait(60) == 3


EVERY = "state({0}), lock({0}), checkpoint({0}), restore({0}), unlock({0})"
THREAD = """(lambda tid: (
    lib.cuCheckpointProcessGetRestoreThreadId({}, ctypes.byref(tid)), tid.value
))(ctypes.c_int())"""


def test_wrong_order_and_wrong_arguments_are_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    gone = start(environment)
    gone.kill()
    for pid, result in (
        *((target.pid, NOT_INITIALIZED), (os.getpid(), NOT_INITIALIZED)),
        *((gone.pid, OPERATING_SYSTEM), (2**22 + 1, OPERATING_SYSTEM), (0, 1), (-1, 1)),
    ):
        every = f"{EVERY.format(pid)}, {THREAD.format(pid)}[0]"
        assert hibernator(every) == (-result, *[result] * 5)
        # The first query comes before any use of the machine.
        hibernator("lib.cuInit(0)")
    target("begin(4096)")
    calls = {"lock": RUNNING, "checkpoint": LOCKED, "restore": CHECKPOINTED, "unlock": LOCKED}
    for step, now in (("", RUNNING), ("lock", LOCKED), ("checkpoint", CHECKPOINTED)):
        if step:
            assert hibernator(f"{step}({target.pid})") == 0
        for name, before in calls.items():
            if before != now:
                assert hibernator(f"{name}({target.pid})") == ILLEGAL_STATE, (name, now)
        assert other(f"state({target.pid})") == now, "whichever process asks"
    assert other(f"restore({target.pid}), unlock({target.pid})") == (0, 0)
    # Arguments: what is reserved is zero, and storage of the caller's is not there.
    nonzero = "(ctypes.c_ubyte * 64)(*[0] * 60, 1, 0, 0, 0)"
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        assert hibernator(f"lib.cuCheckpointProcess{name}({target.pid}, {nonzero})") == 1
    storage = "(ctypes.c_uint64 * 8)({})"
    for name, at in (("Checkpoint", "1"), ("Restore", "0, 0, 1")):
        code = f"lib.cuCheckpointProcess{name}({target.pid}, {storage.format(at)})"
        assert hibernator(code) == NOT_SUPPORTED
    assert hibernator("lib.cuCheckpointOperationComplete(None)") == NOT_SUPPORTED
    assert hibernator(f"lib.cuCheckpointProcessGetState({target.pid}, None)") == 1
    result, tid = hibernator(THREAD.format(target.pid))
    assert result == 0
    with open(f"/proc/{target.pid}/task/{tid}/comm") as file:
        assert file.read() == "sim-checkpoint\n"
    # A process may do it to itself, and is heard by another machine's not at all.
    me = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert target(me) == (0, 0, 0, 0)
    assert start(machine())(f"state({target.pid})") == -NOT_INITIALIZED


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_caller_without_access_to_a_process_is_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    hibernator("lib.cuInit(0); os.setuid(65534)")
    for code in ("", "begin(4096)"):
        target(code)
        assert hibernator(EVERY.format(target.pid)) == (-OPERATING_SYSTEM, *[OPERATING_SYSTEM] * 4)


#: Work that lasts until it is told, and a thread that calls the driver until then.
BUSY = """
go = threading.Event()
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait() and None)

def query():
    while not go.is_set():
        lib.cuStreamQuery(None)
    return lib.cuCtxGetCurrent(None)
"""


def test_a_lock_waits_for_work_up_to_its_timeout(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    target(BUSY)
    assert target("lib.cuLaunchHostFunc(None, wait, None)") == 0
    assert (
        target(f"lib.cuMemsetD8Async(ctypes.c_uint64({pointer}), 3, ctypes.c_size_t(64), None)")
        == 0
    )
    assert hibernator(f"lock({target.pid}, 100), state({target.pid})") == (NOT_READY, RUNNING)
    assert target("lib.cuStreamQuery(None)") == NOT_READY, "it runs, and its work too"
    # So it does if a thread waits for the work. The driver counts the call once the thread is inside.
    assert target("fail('cuCtxSynchronize/0ms')") == 0
    target("behind('lib.cuCtxSynchronize()')")
    target.until("injected()", 1)
    assert hibernator(f"lock({target.pid}, 100), state({target.pid})") == (NOT_READY, RUNNING)
    hibernator.send(f"lock({target.pid})")
    target("behind('query()')")
    target.until("waiting()", 1)
    target("go.set()")
    assert hibernator.answer() == 0
    target.until("results", [0])
    assert target("waiting()") == 1
    assert hibernator(f"unlock({target.pid})") == 0
    target.until("results", [0, 1])
    assert target(f"holds({pointer}, 3, 64)")


def test_a_stopped_process_answers_once_it_continues(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    stop(target.pid)
    hibernator.send(f"state({target.pid}), lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == (RUNNING, 0)
    stop(target.pid)
    hibernator.send(f"state({target.pid}), unlock({target.pid})")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == (LOCKED, 0)
    # The time that a lock is given is for the work alone.
    stop(target.pid)
    hibernator.send(f"lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == 0
    stop(target.pid)
    hibernator.send(f"checkpoint({target.pid})")
    assert hibernator.is_silent(0.3)
    # The caller is gone; its request is done once the process continues, and a new caller waits for that.
    hibernator.kill()
    other.send(f"state({target.pid})")
    assert other.is_silent(0.3)
    go_on(target.pid)
    assert other.answer() == CHECKPOINTED
    assert other(f"restore({target.pid}), unlock({target.pid})") == (0, 0)
    assert target(f"holds({pointer}, 5, 4096)")
    # A lock whose owner is gone has no effect.
    hibernator = start(environment)
    stop(target.pid)
    hibernator.send(f"lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    hibernator.kill()
    go_on(target.pid)
    target.send(f"holds({pointer}, 5, 4096)")
    assert not target.is_silent(60)
    assert target.answer()
    assert other(f"state({target.pid}), lock({target.pid}), unlock({target.pid})") == (
        RUNNING,
        0,
        0,
    )
    # A process that is killed while it is stopped has ended.
    stop(target.pid)
    other.send(EVERY.format(target.pid))
    assert other.is_silent(0.3)
    target.kill()
    assert other.answer() == (-OPERATING_SYSTEM, *[OPERATING_SYSTEM] * 4)


STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")


def test_the_caller_may_be_killed_in_each_step(machine: Machine, start: Start) -> None:
    environment = machine()
    target, other = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    # The lock is undone; all else goes on to its end.
    after = (RUNNING, CHECKPOINTED, LOCKED, RUNNING)
    for step, reached in zip(STEPS, after, strict=True):
        again = 0 if step == "Lock" else ILLEGAL_STATE
        for code, answers in (("state", reached), (step.lower(), again)):
            hibernator = start(environment)
            before = target("injected()")
            assert target(f"fail('cuCheckpointProcess{step}/hang')") == 0
            hibernator.send(f"{step.lower()}({target.pid})")
            target.until("injected()", before + 1)
            other.send(f"{code}({target.pid})")  # has to wait for what is under way
            assert other.is_silent(0.1)
            hibernator.kill()
            assert other.is_silent(0.1)
            target("fail('')")
            assert other.answer() == answers
            back = {"Checkpoint": "restore", "Restore": "checkpoint", "Unlock": "lock"}
            if code == "state" and step in back:
                assert other(f"{back[step]}({target.pid})") == 0
    assert target(f"holds({pointer}, 5, 4096)")


def test_a_lock_ends_when_its_owner_is_killed(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    target("begin(4096)")
    target(BUSY)
    assert target("lib.cuLaunchHostFunc(None, wait, None)") == 0
    hibernator.send(f"lock({target.pid})")
    target("behind('query()')")
    target.until("waiting()", 1)
    hibernator.kill()
    target("go.set()")
    # No other process has to ask for that.
    target.until("results", [1])
    assert other(f"state({target.pid})") == RUNNING


@pytest.mark.parametrize("how", ["hang", "die"])
def test_the_target_may_be_killed_in_each_step(machine: Machine, start: Start, how: str) -> None:
    environment = machine(memory="64MiB")
    hibernator = start(environment)
    for number, step in enumerate(STEPS):
        target = start(environment)
        target("begin(40 << 20)")
        done = hibernator(f"[f({target.pid}) for f in (lock, checkpoint, restore)[:{number}]]")
        assert done == [0] * number
        assert target(f"fail('cuCheckpointProcess{step}/{how}')") == 0
        hibernator.send(f"{step.lower()}({target.pid})")
        if how == "hang":
            target.until("injected()", 1)
            target.kill()
        assert hibernator.answer() == OPERATING_SYSTEM
        assert target.process.wait(60) == -signal.SIGKILL
        assert hibernator(f"state({target.pid}), used()") == (-OPERATING_SYSTEM, (0, 0))


def test_injected_failures_leave_the_state(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    for step, before in zip(STEPS, (RUNNING, LOCKED, CHECKPOINTED, LOCKED), strict=True):
        call = f"{step.lower()}({target.pid})"
        for side in (target, hibernator):
            assert side(f"fail('cuCheckpointProcess{step}:1=NOT_PERMITTED')") == 0
            assert hibernator(f"{call}, state({target.pid})") == (800, before)
            assert side(f"fail('cuCheckpointProcess{step}:1/30ms')") == 0
            assert hibernator(
                f"t = time.monotonic(); r = {call}; r, time.monotonic() - t >= 0.03"
            ) == (
                0,
                True,
            )
            if side is target:  # back
                back = {"Lock": "unlock", "Checkpoint": "restore", "Restore": "checkpoint"}
                assert hibernator(f"{back.get(step, 'lock')}({target.pid})") == 0
        assert side("injected()") > 0
    assert target(f"holds({pointer}, 5, 4096)")
    # In one process, the thread tells what is asked from what is done.
    assert target("fail('cuCheckpointProcessLock%sim-checkpoint=UNKNOWN')") == 0
    assert target(f"lock({target.pid}), injected()") == (UNKNOWN, 9)
    assert target("fail('cuCheckpointProcessLock%!sim-checkpoint=SYSTEM_NOT_READY')") == 0
    assert target(f"lock({target.pid}), injected()") == (802, 10)
    assert hibernator("fail('cuCheckpointProcessGetState=NOT_PERMITTED')") == 0
    assert hibernator(f"state({target.pid})") == -800
    # From the environment, without cuInit; and hanging in the process that asks.
    mine = start({**environment, "GPUSHARE_SIM_FAIL": "cuCheckpointProcessLock:1/hang"})
    mine(f"behind('lock({target.pid})')")
    mine.until("injected()", 1)
    assert mine(f"fail(''), state({target.pid})")[0] == 0
    mine.until(f"state({target.pid})", RUNNING if target("fail('')") else LOCKED)
    mine.until("results", [802 if target("fail('')") else 0])
    # For good: no caller waits for ever, and all data is lost.
    assert target("fail('cuCheckpointProcessCheckpoint=LAUNCH_FAILED/fatal')") == 0
    target("behind('lib.cuCtxSynchronize()')")
    target.until("waiting()", 1)
    assert mine(f"checkpoint({target.pid}), state({target.pid})") == (719, FAILED)
    target.until("results", [719])
    every = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert mine(every) == (ILLEGAL_STATE,) * 4


def test_malformed_effects_are_refused(machine: Machine, start: Start) -> None:
    target = start(machine())
    target("begin()")
    for rule in ("cuMemMap/forget", "cuMemMap/5s", "cuMemMap/ms", "cuMemMap/99999999ms"):
        assert target(f"fail({rule!r})") == -1
    assert target("fail('cuMemGetInfo/1ms,cuMemGetInfo_v2/200ms')") == 0


def test_reservations_may_be_lost(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment, PRELUDE), start(environment)
    target(RICH)
    target("fail('cuCheckpointProcessRestore:1/forget')")
    cycle = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert hibernator(cycle) == (0,) * 4
    target(
        """
assert (read(reserved, GRAIN, np.uint8) == contents[int(reserved)]).all(), "what was mapped is there"
ok(D.cuMemMap(int(reserved) + GRAIN, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(int(reserved) + GRAIN, GRAIN))
assert error(D.cuMemMap(empty, GRAIN, 0, spare, 0)) == 1
assert error(D.cuMemMap(empty, GRAIN, 0, spare, 0)) == 1
ok(D.cuMemAddressFree(empty, GRAIN))
again = ok(D.cuMemAddressReserve(GRAIN, 0, int(empty), 0))
assert int(again) == int(empty)
ok(D.cuMemMap(empty, GRAIN, 0, spare, 0))
"""
    )
    assert hibernator(cycle) == (0,) * 4


MANAGED = "p = ctypes.c_uint64(); lib.cuMemAllocManaged(ctypes.byref(p), ctypes.c_size_t(4096), 1)"
IPC = "h = (ctypes.c_char * 64)(); lib.cuIpcGetMemHandle(h, ctypes.c_uint64({}))"
EXPORT = """
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("id", ctypes.c_int),
                ("rest", ctypes.c_uint64 * 2)]

handle, fd = ctypes.c_uint64(), ctypes.c_int()
size = ctypes.c_size_t(2 << 20)
made = lib.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(Properties(1, 1, 1)), ctypes.c_uint64())
made or lib.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_uint64())
"""


def test_shared_or_managed_memory_is_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    hibernator = start(environment)
    for code in (MANAGED, IPC, EXPORT):
        target = start(environment)
        pointer = target("begin(4096)")
        assert target(f"fill({pointer}, 5, 4096)") == 0
        assert target(code.format(pointer) if code is IPC else code) == 0
        assert hibernator(f"lock({target.pid}), checkpoint({target.pid}), state({target.pid})") == (
            0,
            NOT_SUPPORTED,
            LOCKED,
        )
        assert hibernator(f"unlock({target.pid})") == 0
        assert target(f"holds({pointer}, 5, 4096)")


def test_a_process_moves_to_another_gpu(machine: Machine, start: Start) -> None:
    environment = machine(
        devices=4, memory="64MiB,64MiB,16MiB,64MiB", model="A,A,A,B", context="8MiB"
    )
    hibernator = start(environment)
    target = start(environment | {"CUDA_VISIBLE_DEVICES": "0,1"})
    pointer = target("begin(20 << 20)")
    assert target(f"fill({pointer}, 5, 20 << 20)") == 0
    hibernator("lib.cuInit(0)")
    uuids = hibernator("[uuid(i) for i in range(4)]")
    usage = "[used(i)[0] for i in range(3)]"
    assert hibernator(usage) == [28, 0, 0]
    assert hibernator(f"lock({target.pid}), checkpoint({target.pid})") == (0, 0)

    def moved(*pairs: tuple[int, int]) -> object:
        text = ", ".join(f"({uuids[old]!r}, {uuids[new]!r})" for old, new in pairs)
        return hibernator(f"restore({target.pid}, {text})")

    def swapped(one: int, other: int) -> object:
        places = {one: other, other: one}
        return moved(*((i, places.get(i, i)) for i in range(4)))

    stay = (2, 2), (3, 3)
    assert moved((0, 1)) == 1, "each GPU of the machine must be among them"
    assert moved((0, 1), (1, 0)) == moved((0, 1), (1, 0), (2, 2)) == 1
    assert moved((0, 1), (0, 0), *stay) == moved((0, 1), (1, 1), *stay) == 1
    assert hibernator(f"restore({target.pid}, ({uuids[0]!r}, bytes(16)))") == 1
    assert swapped(0, 3) == NOT_SUPPORTED
    assert swapped(0, 2) == OUT_OF_MEMORY
    assert hibernator(f"state({target.pid})") == CHECKPOINTED
    assert hibernator(usage) == [4, 0, 0]
    assert swapped(0, 1) == 0
    assert hibernator(usage) == [0, 28, 0]
    assert hibernator(f"unlock({target.pid})") == 0
    assert target(f"holds({pointer}, 5, 20 << 20)")
    assert target("uuid(0), uuid(1)") == (uuids[1], uuids[0]), "what it did not use takes the place"
    assert target("bus(0)") == "0000:01:00.0", "as it was"
    assert target("begin(4 << 20, 0) > 2 and alloc(1 << 20) > 2")
    assert hibernator(usage) == [0, 33, 0]
    # Now it has something on both, and both change places.
    assert target("begin(2 << 20, 1) > 2")
    assert hibernator(usage) == [10, 33, 0]
    assert hibernator(f"lock({target.pid}), checkpoint({target.pid})") == (0, 0)
    assert hibernator(usage) == [4, 4, 0]
    assert moved((1, 0), (0, 1)) == 1
    assert swapped(1, 0) == 0
    assert hibernator(usage) == [33, 10, 0]
    assert hibernator(f"unlock({target.pid})") == 0
    assert target("uuid(0), uuid(1)") == (uuids[0], uuids[1])
    assert target(f"begin(); lib.cuDevicePrimaryCtxReset_v2(1), holds({pointer}, 5, 20 << 20)") == (
        0,
        True,
    )
    assert hibernator(usage) == [33, 0, 0]


def test_checkpoints_take_time_and_leave_a_residue(machine: Machine, start: Start) -> None:
    environment = machine(
        bandwidth="100MiB", checkpoint_ms=40, restore_ms=20, checkpoint_left="1MiB"
    )
    target, hibernator = start(environment), start(environment)
    target("begin(5 << 20)")
    assert hibernator(f"lock({target.pid})") == 0
    for call, least in (("checkpoint", 0.09), ("restore", 0.07)):
        code = f"t = time.monotonic(); r = {call}({target.pid}); r, time.monotonic() - t >= {least}"
        assert hibernator(code) == (0, True)
        if call == "checkpoint":
            assert hibernator("used()[0]") == 1


VERSION = """
version, text, address = ctypes.c_int(), ctypes.create_string_buffer(80), ctypes.c_void_p()
lib.cuDriverGetVersion(ctypes.byref(version))
nvml.nvmlInit_v2()
nvml.nvmlSystemGetDriverVersion(text, 80)
other = ctypes.c_int()
nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(other))
lib.cuGetProcAddress(b"cuCheckpointProcessLock", ctypes.byref(address), 13000, ctypes.c_uint64())
version.value == other.value and version.value, text.value.decode(), address.value is not None
"""


def test_old_drivers_have_no_checkpoints(machine: Machine, start: Start) -> None:
    environment = machine(devices=2)
    assert start(environment)(VERSION) == (13000, "580.00.sim", True)
    new = start(environment)
    for version, text, cuda in (("565.57", "565.57", 12070), ("535", "535.00.sim", 12020)):
        old = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": version})
        assert old(VERSION) == (cuda, text, False)
        old("begin(4096)")
        assert old(EVERY.format(old.pid)) == (-NOT_SUPPORTED, *[NOT_SUPPORTED] * 4)
        assert new(f"state({old.pid})") == -NOT_INITIALIZED
    young = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": "570.86.10"})
    assert young(VERSION) == (12080, "570.86.10", True)
    young("begin(4096)")
    steps = (
        f"lock({young.pid}), checkpoint({young.pid}), restore({young.pid}, (bytes(16), bytes(16)))"
    )
    assert young(steps) == (0, 0, 1), "other GPUs came with 580"
    assert young(f"restore({young.pid}), unlock({young.pid})") == (0, 0)
    wrong = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": "12.4"})
    assert wrong("lib.cuInit(0), lock(1)") == (1, 1)
