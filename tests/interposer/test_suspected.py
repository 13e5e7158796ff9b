# SPDX-License-Identifier: BSD-3-Clause
"""What was suspected to go wrong; ``conformance.md`` says what became of it. Rows run as in ``test_kinds.py``."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.interposer.rows import HOLDS, PEERS, MakeMachine, Runner, run_alone, run_shared
from tests.support.machine import UNIT, Machine
from tests.support.sim import LIBRARIES

#: A context that the program attaches to ends with the last attachment.
ATTACHED = """
cuda = ctypes.CDLL("libcuda.so.1")
use()
kept = filled(8 * MIB, 9)
def attach(context):
    found = ctypes.c_void_p(int(context))
    assert cuda.cuCtxAttach(ctypes.byref(found), 0) == 0
    return found
context = ok(driver.cuCtxCreate(None, 0, 0))
inside, (address, handle) = filled(20 * MIB, 2), mapped(4 * MIB, 3)
step()
found = attach(context)
assert found.value == int(context)
assert cuda.cuCtxDetach(found) == 0
step()
assert holds(inside, 20 * MIB, 2)
assert cuda.cuCtxDetach(found) == 0
assert error(driver.cuCtxSetCurrent(context)) != 0
use()
assert error(driver.cuMemFree(inside)) == 1
step()
assert holds(kept, 8 * MIB, 9) and holds(address, 4 * MIB, 3)
# What the context had is free.
more = filled(48 * MIB, 4)
step()
assert holds(more, 48 * MIB, 4)
"""

#: While a context ends, the helper moves memory that outlives it.
ENDING = """
use()
going = ok(driver.cuCtxCreate(None, 0, 0))
inside, (address, handle) = filled(20 * MIB, 2), mapped(4 * MIB, 3)
step()
sim = ctypes.CDLL(os.environ.get("GPUSHARE_DRIVER", "libcuda.so.1"))
def counted(name):
    counters = Counters()
    sim.gpushare_sim_counters(ctypes.byref(counters), ctypes.sizeof(counters))
    return getattr(counters, name)
def await_counted(name, number):
    end = time.monotonic() + 60
    while "GPUSHARE_DRIVER" in os.environ and counted(name) < number:
        assert time.monotonic() < end, (name, counted(name), number)
        time.sleep(0.01)
await_counted("page_locked", 1)
use()
found = []
def look():
    use()
    found.append(holds(address, 4 * MIB, 3))
threads = [threading.Thread(target=lambda: ok(driver.cuCtxDestroy(going))), threading.Thread(target=look)]
# The interposer has given back what it page-locked there. Its helper makes a stream where it works next.
before = counted("injected")
sim.gpushare_sim_fail(b"cuCtxDestroy%!gpushare/hang,cuStreamCreate%gpushare/0ms")
threads[0].start()
await_counted("injected", before + 1)
threads[1].start()
await_counted("injected", before + 2)
# What it made there goes with the context: its name may be another stream's by now.
sim.gpushare_sim_fail(b"cuStreamDestroy%gpushare/0ms")
done = counted("injected")
for thread in threads:
    thread.join()
for number in range(3):
    assert holds(address, 4 * MIB, 3)
    step()
assert found == [True] and counted("injected") == done
sim.gpushare_sim_fail(b"")
"""

GREEN = """
ok(driver.cuInit(0))
def green_of():
    resource = ok(driver.cuDeviceGetDevResource(0, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    description = ok(driver.cuDevResourceGenerateDesc([resource], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = ok(driver.cuGreenCtxCreate(description, 0, flags))
    return green, ok(driver.cuCtxFromGreenCtx(green))
"""

ROWS = {
    "memory of a green context that has ended": GREEN
    + """
use()
primary = ok(driver.cuCtxGetCurrent())
green, context = green_of()
ok(driver.cuCtxSetCurrent(context))
stream = ok(driver.cuGreenCtxStreamCreate(green, 1, 0))
small, large, (address, handle) = filled(4096, 1), filled(20 * MIB, 2), mapped(4 * MIB, 3)
ordered = ok(driver.cuMemAllocAsync(8 * MIB, stream))
ok(driver.cuMemsetD8Async(ordered, 5, 8 * MIB, stream))
freed = ok(driver.cuMemAllocAsync(2 * MIB, stream))
ok(driver.cuMemFreeAsync(freed, stream))
step()
assert holds(small, 4096, 1) and holds(large, 20 * MIB, 2)
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuStreamDestroy(stream))
ok(driver.cuCtxSetCurrent(primary))
ok(driver.cuGreenCtxDestroy(green))
for number in range(2):
    step()
    assert holds(small, 4096, 1) and holds(large, 20 * MIB, 2) and holds(address, 4 * MIB, 3)
    assert (read(ordered, 8 * MIB, np.uint8) == 5).all()
for block in (small, large, ordered):
    ok(driver.cuMemFree(block))
more = filled(48 * MIB, 4)
step()
assert holds(more, 48 * MIB, 4)
""",
    "an array of a green context that has ended": GREEN
    + """
use()
primary = ok(driver.cuCtxGetCurrent())
green, context = green_of()
ok(driver.cuCtxSetCurrent(context))
d = driver.CUDA_ARRAY_DESCRIPTOR()
d.Width, d.Height, d.NumChannels = 1024, 1024, 1
d.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
ok(driver.cuArrayCreate(d))
step(unevictable=4 * MIB)
ok(driver.cuCtxSetCurrent(primary))
ok(driver.cuGreenCtxDestroy(green))
step(unevictable=4 * MIB)
ok(driver.cuDevicePrimaryCtxReset(0))
use()
filled(4096)
step(unevictable=0)
""",
    "a primary context that only a green one keeps alive": GREEN
    + """
use()
kept, (address, handle) = filled(20 * MIB, 1), mapped(4 * MIB, 2)
green, context = green_of()
ok(driver.cuDevicePrimaryCtxRelease(0))
assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1
step()
assert holds(kept, 20 * MIB, 1)
ok(driver.cuCtxSetCurrent(context))
inside = filled(2 * MIB, 3)
step()
assert holds(kept, 20 * MIB, 1) and holds(inside, 2 * MIB, 3) and holds(address, 4 * MIB, 2)
ok(driver.cuGreenCtxDestroy(green))
assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 0
use()
assert error(driver.cuMemFree(kept)) == 1
step()
more = filled(48 * MIB, 4)
step()
assert holds(more, 48 * MIB, 4)
""",
    "values that streams wait for and write": HOLDS
    + """
T = driver.CUstreamBatchMemOpType
first, second = stream_of(), stream_of()
block, cell = filled(8 * MIB, 1), ok(driver.cuMemAlloc(4096))
ok(driver.cuMemsetD8(cell, 0, 4096))
step()
# What the host writes.
goes[:] = 0
ok(driver.cuStreamWaitValue32(first, flag, 3, 0))
ok(driver.cuMemsetD8Async(block, 2, MIB, first))
assert error(driver.cuStreamQuery(first)) == 600
goes[0] = 3
ok(driver.cuStreamSynchronize(first))
step()
# What another stream writes, in memory that moves.
for number, (wait, write) in enumerate((
    (driver.cuStreamWaitValue32, driver.cuStreamWriteValue32),
    (driver.cuStreamWaitValue64, driver.cuStreamWriteValue64),
)):
    at = int(cell) + 8 * number
    ok(wait(first, at, 7, 1))
    ok(driver.cuMemsetD8Async(int(block) + MIB, 3 + number, MIB, first))
    ok(write(second, at, 7, 0))
    ok(driver.cuStreamSynchronize(first))
    step()
    assert (read(int(block) + MIB, MIB, np.uint8) == 3 + number).all() and read(at, 1, np.uint32)[0] == 7
assert (read(block, MIB, np.uint8) == 2).all() and (read(int(block) + 2 * MIB, MIB, np.uint8)
    == values(1, 8 * MIB)[2 * MIB:3 * MIB]).all()
assert error(driver.cuStreamWaitValue32(first, int(cell) + 2, 7, 0)) == 1
assert error(driver.cuStreamWriteValue32(first, 8, 7, 0)) == 1
""",
    "work in a green context": GREEN
    + HOLDS
    + """
green, context = green_of()
stream = ok(driver.cuGreenCtxStreamCreate(green, 1, 0))
block = filled(8 * MIB, 1)
hold(stream)
ok(driver.cuMemsetD8Async(block, 7, 8 * MIB, stream))
let_go()
step()
# The stream does not block: a copy outside it does not wait for its work.
ok(driver.cuStreamSynchronize(stream))
assert (read(block, 8 * MIB, np.uint8) == 7).all()
ok(driver.cuStreamDestroy(stream))
ok(driver.cuGreenCtxDestroy(green))
""",
    "a context that the program detaches from": ATTACHED,
    "memory that is moved while a context ends": ENDING,
}

TWO_DEVICES = {
    "memory that is freed while another GPU uses it": PEERS
    + HOLDS.replace("use()\n", "")
    + """
fetch = function_of(compile('''extern "C" __global__ void fetch(volatile unsigned *goes, int *to, int *from) {
    while (!*goes) {}
    goes[1] = *from;
    goes[2] = 1;
}'''), "fetch")
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
ok(driver.cuCtxSetCurrent(contexts[1]))
blocks = [filled(size, 5) for size in (4096, 8 * MIB)]
ok(driver.cuCtxSynchronize())
ok(driver.cuCtxSetCurrent(contexts[0]))

wrong = []
def free(block):
    ok(driver.cuCtxSetCurrent(contexts[1]))
    result = error(driver.cuMemFree(block))
    if result or not goes[2]:
        wrong.append((result, "it did not wait"))
for block in blocks:
    goes[:] = 0
    assert start(fetch, stream, flag, near, block) == 0
    thread = threading.Thread(target=free, args=(block,))
    thread.start()
    thread.join(0.3)  # one that does not wait ends in that time
    goes[0] = 1
    thread.join()
    ok(driver.cuStreamSynchronize(stream))
    assert not wrong and goes[1] == values(5, 4096)[:4].view(np.uint32)[0], (wrong, goes[1])
    step()
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    assert run_alone(ROWS[row]) == run_shared(machine, ROWS[row]) > 0


@pytest.mark.parametrize("row", TWO_DEVICES)
def test_programs_behave_as_with_the_bare_driver_on_two_gpus(
    make_machine: MakeMachine, row: str
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    code = TWO_DEVICES[row]
    assert run_alone(code, devices=2) == run_shared(machine, code) > 0


#: Calls that need a kernel's code on the GPU.
LOADS = """
use()
names = ["k" + str(number) for number in range(7)]
source = "".join('extern "C" __global__ void ' + name + '() {}' + chr(10) for name in names)
code = compile(source, *names)
functions = [function_of(code, name) for name in names]
A = driver.CUfunction_attribute
graph = ok(driver.cuGraphCreate(0))
def node(function):
    p = driver.CUDA_KERNEL_NODE_PARAMS()
    p.func = function
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
    return p
calls = [
    lambda f: driver.cuFuncGetAttribute(A.CU_FUNC_ATTRIBUTE_NUM_REGS, f),
    lambda f: driver.cuFuncSetAttribute(f, A.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49152),
    lambda f: driver.cuKernelGetAttribute(A.CU_FUNC_ATTRIBUTE_NUM_REGS, driver.CUkernel(int(f)), 0),
    lambda f: driver.cuKernelSetAttribute(
        A.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49152, driver.CUkernel(int(f)), 0),
    lambda f: driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 128, 0),
    lambda f: driver.cuOccupancyAvailableDynamicSMemPerBlock(f, 1, 128),
    lambda f: driver.cuGraphAddKernelNode(graph, [], 0, node(f)),
]
for number, call in enumerate(calls):
    say()
    hear()
    assert error(call(functions[number])) == 0, number
"""


def test_code_is_loaded_although_another_program_has_the_whole_gpu(
    make_machine: MakeMachine,
) -> None:
    code = 30 * UNIT
    machine = make_machine(GPUSHARE_SIM_CODE=str(code), GPUSHARE_SIM_MEMORY=str(1024 * UNIT))
    b = machine.program("b")
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    runner = Runner(environ, LOADS)
    room, loaded = 1000 * UNIT, 0

    def has_loaded(bytes: int) -> bool:
        return bool(machine.group("a")["gpus"][0]["context"] >= bytes)

    try:
        heard = runner.heard()
        while heard is not None:
            # The scheduler has measured what the code takes.
            machine.until(partial(has_loaded, loaded))
            while (allocated := b.call("alloc", bytes=room))["result"] != 0:
                room -= 8 * UNIT
            pointer = allocated["pointer"]
            assert b.call("fill", pointer=pointer, bytes=room, value=1)["result"] == 0
            gpu = machine.control("status")["status"]["gpus"][0]
            assert gpu["total"] - gpu["used"] < code
            runner.tell()
            heard = runner.heard()
            loaded += code
            assert b.call("free", pointer=pointer)["result"] == 0
    finally:
        runner.close()


@pytest.fixture
def old_machine(make_machine: MakeMachine, tmp_path: Path) -> Machine:
    """Return a machine whose driver does not know cuCtxRecordEvent, as those before CUDA 12.5."""
    folder = tmp_path / "lib"
    (folder / "sim").mkdir(parents=True)
    for library in LIBRARIES.parent.glob("*.so"):
        shutil.copy(library, folder)
    for library in LIBRARIES.glob("*.so*"):
        shutil.copy(library, folder / "sim")
    cuda = folder / "sim" / "libcuda.so.1"
    known = cuda.read_bytes()
    assert b"cuCtxRecordEvent\0" in known
    cuda.write_bytes(known.replace(b"cuCtxRecordEvent\0", b"cuCtxRecordEvenX\0"))
    machine = make_machine()
    machine.libraries = folder
    return machine


def test_without_markers_in_contexts_no_other_thread_waits_for_a_drain(
    old_machine: Machine,
) -> None:
    """While the helper waits for work in flight, the program allocates and makes contexts."""
    machine = old_machine
    a, b = machine.program("a"), machine.program("b")
    in_a, in_b = a.filled(150 * UNIT, 1), b.filled(150 * UNIT, 2)
    stream = a.call("stream")["stream"]
    assert a.call("hold", stream=stream)["result"] == 0
    filling = b.start("fill", pointer=in_b, bytes=150 * UNIT, value=3)
    machine.until(lambda: machine.group("a")["state"] == "finishing")
    allocated = a.call("alloc", bytes=20 * UNIT)
    assert allocated["result"] == 0
    assert a.call("behind")["result"] == 0
    assert a.call("raw", function="cuCtxCreate_v2", arguments=["out", 0, 0])["result"] == 0
    assert b.waits(filling)
    assert a.call("let_go")["result"] == 0
    assert b.result(filling)["result"] == 0
    assert a.holds(in_a, 150 * UNIT, 1)
    assert b.holds(in_b, 150 * UNIT, 3)


def test_without_markers_in_contexts_a_thread_that_holds_a_lock_continues(
    old_machine: Machine,
) -> None:
    """A host function needs the lock: what is in flight ends only after what has yet to be submitted."""
    machine = old_machine
    a, b = machine.program("a"), machine.program("b")
    in_a, in_b = a.filled(150 * UNIT, 1), b.filled(150 * UNIT, 2)
    stream = a.call("stream")["stream"]
    assert a.call("lock", stream=stream)["result"] == 0
    filling = b.start("fill", pointer=in_b, bytes=150 * UNIT, value=3)
    machine.until(lambda: machine.group("a")["state"] == "finishing")
    launching = a.start(
        "launch_and_unlock", pointer=in_a, bytes=UNIT, stream=stream, count=25, thread="launches"
    )
    assert b.result(filling)["result"] == 0
    assert a.result(launching)["result"] == 0
    assert a.call("synchronize")["result"] == 0
    assert a.holds(in_a, UNIT, 24)
    assert b.holds(in_b, 150 * UNIT, 3)


def test_a_stream_waits_for_a_value_that_is_written_later(machine: Machine) -> None:
    """Its write is submitted after the GPU was asked for: the drain ends only after it."""
    a, b = machine.program("a"), machine.program("b")
    in_a, in_b = a.filled(150 * UNIT, 1), b.filled(150 * UNIT, 2)
    waiting, writing = (a.call("stream")["stream"] for _ in range(2))
    out = a.call("raw", function="cuMemHostAlloc", arguments=["out", 4096, 0])
    assert out["result"] == 0
    cell = int.from_bytes(bytes.fromhex(out["out"][0])[:8], "little")
    for function in ("cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"):
        value = 0 if "Write" in function else 7
        done = a.call("raw", function=function, arguments=[waiting, cell, value, value and 1])
        assert done["result"] == 0
    filling = b.start("fill", pointer=in_b, bytes=150 * UNIT, value=3)
    machine.until(lambda: machine.group("a")["state"] == "finishing")
    written = a.start(
        "raw", function="cuStreamWriteValue32_v2", arguments=[writing, cell, 7, 0], thread="writes"
    )
    assert b.result(filling)["result"] == 0
    assert a.result(written)["result"] == 0
    assert a.call("synchronize")["result"] == 0
    assert a.holds(in_a, 150 * UNIT, 1)
    assert b.holds(in_b, 150 * UNIT, 3)
