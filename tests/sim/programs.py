# SPDX-License-Identifier: BSD-3-Clause
"""Programs that several tests run."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.sim import TOOLS, run


def check(environment: dict[str, str], code: str) -> None:
    """Run a program that has the tools."""
    run(environment, TOOLS + code)


GRAPHS = """
device = use()
stream = stream_of()
add = function_of(compile(ADD), "add")
host = np.zeros(1024, np.float32)
ATTRIBUTE = driver.CUgraphMem_attribute

def graph_memory(which):
    name = getattr(ATTRIBUTE, "CU_GRAPH_MEM_ATTR_" + which)
    return int(ok(driver.cuDeviceGetGraphMemAttribute(0, name)))

def begin():
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))

def end():
    return ok(driver.cuStreamEndCapture(stream))

def add_to(pointer, value):
    assert start(add, stream, pointer, ctypes.c_float(value), ctypes.c_int(1024), threads=1024) == 0

def types(graph):
    count = ok(driver.cuGraphGetNodes(graph))[1]
    return [int(ok(driver.cuGraphNodeGetType(node))) for node in ok(driver.cuGraphGetNodes(graph, count))[0]]

def go(replay):
    ok(driver.cuGraphLaunch(replay, stream))
    ok(driver.cuStreamSynchronize(stream))
"""


VIRTUAL = """
device = use()
stream = device.create_stream()
kernel = compile(ADD).get_kernel("add")
SIZE = 4 << 20
COUNT = SIZE // 4
properties = driver.CUmemAllocationProp()
properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = 0
access = driver.CUmemAccessDesc()
access.location = properties.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
address = ok(driver.cuMemAddressReserve(SIZE, 0, 0, 0))

def map(give_access=True):
    handle = ok(driver.cuMemCreate(SIZE, properties, 0))
    ok(driver.cuMemMap(address, SIZE, 0, handle, 0))
    ok(driver.cuMemRelease(handle))
    if give_access:
        ok(driver.cuMemSetAccess(address, SIZE, [access], 1))

def unmap():
    ok(driver.cuMemUnmap(address, SIZE))

def free():
    return ok(driver.cuMemGetInfo())[0]

empty = free()
map()
data = np.random.default_rng(2).standard_normal(COUNT, np.float32)
write(address, data)
"""


def used(environment: dict[str, str]) -> int:
    """Return what NVML calls used, from a process without a context."""
    code = (
        "import pynvml; pynvml.nvmlInit(); "
        "print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)"
    )
    return int(
        subprocess.check_output(
            [sys.executable, "-c", code], env=environment, text=True, timeout=60
        )
    )


def wait_for_use(environment: dict[str, str], bytes: int) -> None:
    """Wait until so many bytes are used."""
    deadline = time.monotonic() + 60
    while used(environment) != bytes:
        assert time.monotonic() < deadline


NODES = (
    GRAPHS
    + """
F = driver.CUevent_flags.CU_EVENT_DEFAULT
IN_CAPTURE = 1
block = ok(driver.cuMemAlloc(4096))
words = ok(driver.cuMemHostAlloc(4096, 0))

def word(index):
    return ctypes.c_uint32.from_address(int(words) + 4 * index)

def at_word(index):
    return driver.CUdeviceptr(int(words) + 4 * index)

def event():
    return ok(driver.cuEventCreate(F))

def hold(index, on=None):
    # The stream goes on when the word is 1.
    ok(driver.cuStreamWaitValue32(on or stream, at_word(index), 1, 1))

def fill(value, on=None):
    ok(driver.cuMemsetD32Async(block, value, 1024, on or stream))

def content():
    return int(read(block, 1, np.uint32)[0])

def executable(graph):
    return ok(driver.cuGraphInstantiate(graph, 0))

def launch_it(one, on=None):
    return error(driver.cuGraphLaunch(one, on or stream))

def idle(on=None):
    return error(driver.cuStreamQuery(on or stream))

class of:
    def __init__(self, kind):
        self.kind = getattr(driver.CUgraphNodeType, "CU_GRAPH_NODE_TYPE_" + kind)
    def __call__(self):
        p = driver.CUgraphNodeParams()
        p.type = self.kind
        return p

for i in range(1024):
    word(i).value = 0
"""
)
