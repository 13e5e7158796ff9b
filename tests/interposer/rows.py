# SPDX-License-Identifier: BSD-3-Clause
"""Programs that run twice: alone on the simulated driver, and sharing it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

from tests.support import fork_server
from tests.support.machine import PATIENCE, Machine
from tests.support.sim import LIBRARIES, MODULES, PRELUDE, TOOLS, sim_env

MakeMachine = Callable[..., Machine]

STEPS = """
import json, threading

def step(unevictable=None, busy=False):
    say(json.dumps({"unevictable": unevictable, "busy": busy}))
    hear()

def values(seed, size):
    # Ten times as fast as the generator's own bytes().
    words = np.random.default_rng(seed).bit_generator.random_raw(-(-size // 8))
    return words.view(np.uint8)[:size]

def filled(size, seed=1):
    pointer = ok(driver.cuMemAlloc(size))
    write(pointer, values(seed, size))
    return pointer

def holds(pointer, size, seed=1):
    return bool((read(pointer, size, np.uint8) == values(seed, size)).all())

def reserve(size):
    return ok(driver.cuMemAddressReserve(size, 0, 0, 0))

def mapped(size, seed=1, of=None):
    address = reserve(size)
    handle = ok(driver.cuMemCreate(size, of or properties(), 0))
    ok(driver.cuMemMap(address, size, 0, handle, 0))
    ok(driver.cuMemSetAccess(address, size, [access(0)], 1))
    write(address, values(seed, size))
    return address, handle

def attribute(name, pointer):
    which = getattr(driver.CUpointer_attribute, "CU_POINTER_ATTRIBUTE_" + name)
    return ok(driver.cuPointerGetAttribute(which, pointer))
"""


class Runner:
    """A row's program."""

    def __init__(self, environ: dict[str, str], code: str) -> None:
        # No pipe: what it writes is there, however much it is, when it has ended.
        self._standard_error = io.FileIO(os.memfd_create("standard error"))
        self.process = fork_server.popen(
            ["-c", PRELUDE + TOOLS + STEPS + code],
            environ=environ,
            modules=MODULES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._standard_error,
            text=True,
        )
        self.errors = ""

    def heard(self) -> str | None:
        """Return its next line, or None if it has ended well."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return line.strip()
        self.process.wait(PATIENCE)
        self._standard_error.seek(0)
        self.errors = self._standard_error.readall().decode()
        assert self.process.returncode == 0, self.errors
        return None

    def tell(self, line: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._standard_error.close()


def evict(machine: Machine, name: str, busy: bool) -> None:
    """Take all that can move off the GPU; of a program that is busy, at some moment of its own."""

    def gone() -> bool:
        group = machine.group(name)
        return all(gpu["resident"] == 0 for gpu in group["gpus"])

    machine.control("release", group=name)
    if busy:
        machine.control("evict", group=name)
        return
    machine.until(lambda: machine.group(name)["state"] == "idle")
    machine.control("evict", group=name)
    machine.until(gone)


def await_unevictable(machine: Machine, name: str, bytes: int) -> None:
    """Wait until ``bytes`` are counted as unevictable on the GPUs."""
    machine.until(lambda: sum(gpu["unevictable"] for gpu in machine.group(name)["gpus"]) == bytes)


def drive(
    machine: Machine, name: str, runner: Runner, before: Callable[[], None] = lambda: None
) -> int:
    """Evict at each step until the program ends; return the number of steps."""
    steps = 0
    while (line := runner.heard()) is not None:
        said: dict[str, Any] = json.loads(line)
        before()
        evict(machine, name, said["busy"])
        if (unevictable := said["unevictable"]) is not None:
            await_unevictable(machine, name, unevictable)
        steps += 1
        runner.tell()
    return steps


PEERS = """
ok(driver.cuInit(0))
contexts = [ok(driver.cuDevicePrimaryCtxRetain(device)) for device in (0, 1)]
ok(driver.cuCtxSetCurrent(contexts[1]))
data = np.random.default_rng(1).random(64, np.float32)
far = ok(driver.cuMemAlloc(256))
write(far, data)
ok(driver.cuCtxSetCurrent(contexts[0]))
near = ok(driver.cuMemAlloc(256))
stream = stream_of()
"""


def run_alone(code: str, **parameters: object) -> int:
    """Run a row's program without us; return the number of steps."""
    with sim_env(memory="64MiB", context="1MiB", **parameters) as environ:
        runner = Runner(environ, code)
        steps = 0
        try:
            while runner.heard() is not None:
                steps += 1
                runner.tell()
        finally:
            runner.close()
    return steps


def run_shared(machine: Machine, code: str) -> int:
    """Run a row's program under us, evicted at each step."""
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    runner = Runner(environ, code)
    try:
        return drive(machine, "a", runner)
    finally:
        runner.close()


#: A stream that is busy until it is let go.
HOLDS = """
use()
USED = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
TYPE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
code = compile('''extern "C" __global__ void hold(volatile unsigned *goes) { while (!*goes) {} }''')
holding = function_of(code, "hold")
flag = ok(driver.cuMemHostAlloc(4096, 0))
goes = np.frombuffer((ctypes.c_char * 4096).from_address(int(flag)), np.uint32)

def hold(stream):
    goes[:] = 0
    assert start(holding, stream, flag) == 0

def let_go():
    goes[:] = 1
"""


FAULT = """
use()
stream = stream_of()
code = compile('''extern "C" __global__ void fault(volatile unsigned *nowhere) { *nowhere = 1; }''')
function = function_of(code, "fault")

def fail_for_good():
    assert start(function, stream, 64) == 0
    assert error(driver.cuStreamSynchronize(stream)) == 700
"""

MAPPED_EMPTY = """
def mapped_empty(size):
    address = reserve(size)
    ok(driver.cuMemMap(address, size, 0, ok(driver.cuMemCreate(size, properties(), 0)), 0))
    ok(driver.cuMemSetAccess(address, size, [access(0)], 1))
    return address
"""


NODES = """
K = driver.CUgraphNodeType
D = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
M = driver.CUstreamCaptureMode

def copying(to, source, size):
    d = driver.CUDA_MEMCPY3D()
    d.srcMemoryType, d.srcDevice, d.dstMemoryType, d.dstDevice = D, source, D, to
    d.WidthInBytes, d.Height, d.Depth = size, 1, 1
    return d

def filling(pointer, value, count):
    p = driver.CUDA_MEMSET_NODE_PARAMS()
    p.dst, p.value, p.elementSize, p.width, p.height = pointer, value, 4, count, 1
    return p

def node_of(of):
    p = driver.CUgraphNodeParams()
    if isinstance(of, driver.CUDA_MEMCPY3D):
        p.type = K.CU_GRAPH_NODE_TYPE_MEMCPY
        p.memcpy.copyParams = of
    else:
        p.type = K.CU_GRAPH_NODE_TYPE_MEMSET
        p.memset.dst, p.memset.value, p.memset.elementSize = of.dst, of.value, of.elementSize
        p.memset.width, p.memset.height = of.width, of.height
    return p

def run(replay, stream):
    ok(driver.cuGraphLaunch(replay, stream))
    ok(driver.cuStreamSynchronize(stream))

use()
context = ok(driver.cuCtxGetCurrent())
stream = stream_of()
"""
