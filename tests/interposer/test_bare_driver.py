# SPDX-License-Identifier: BSD-3-Clause
"""No program is worse off than on the bare driver: each row runs twice, as those of ``test_kinds.py`` do."""

from __future__ import annotations

import pytest

from tests.interposer.rows import FAULT, HOLDS, MAPPED_EMPTY, run_alone, run_shared
from tests.support.machine import Machine

#: What a driver refuses in a context that has failed, and what it does not mind. None may wait.
CALLS = """
M = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
host = np.zeros(64, np.uint8)
refused = {
    "alloc": lambda: driver.cuMemAlloc(MIB),
    "large alloc": lambda: driver.cuMemAlloc(16 * MIB),
    "pitch": lambda: driver.cuMemAllocPitch(1000, 100, 4),
    "ordered alloc": lambda: driver.cuMemAllocAsync(MIB, stream),
    "pool alloc": lambda: driver.cuMemAllocFromPoolAsync(MIB, mine, stream),
    "free": lambda: driver.cuMemFree(kept),
    "ordered free": lambda: driver.cuMemFreeAsync(kept, stream),
    "info": lambda: driver.cuMemGetInfo(),
    "range": lambda: driver.cuMemGetAddressRange(kept),
    "fill": lambda: driver.cuMemsetD8(kept, 1, MIB),
    "ordered fill": lambda: driver.cuMemsetD8Async(kept, 1, MIB, stream),
    "copy": lambda: driver.cuMemcpyDtoH(host.ctypes.data, kept, 64),
    "launch": lambda: (start(function, stream, 64),),
    "stream": lambda: driver.cuStreamCreate(1),
    "event": lambda: driver.cuEventCreate(0),
    "synchronize": lambda: driver.cuCtxSynchronize(),
}
allowed = {
    "attribute": lambda: driver.cuPointerGetAttribute(M, kept),
    "pool figures": lambda: driver.cuMemPoolGetAttribute(
        mine, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
    "trim": lambda: driver.cuMemPoolTrimTo(mine, 0),
    "reserve": lambda: driver.cuMemAddressReserve(4 * MIB, 0, 0, 0),
    "create": lambda: driver.cuMemCreate(4 * MIB, properties(), 0),
    "access": lambda: driver.cuMemSetAccess(address, 4 * MIB, [access(0)], 1),
    "get access": lambda: driver.cuMemGetAccess(at(0), address),
    "retain": lambda: driver.cuMemRetainAllocationHandle(address),
    "size": lambda: driver.cuDeviceTotalMem(0),
}

def check_answers():
    for names, expected in ((refused, 700), (allowed, 0)):
        answers = {name: error(call()) for name, call in names.items()}
        assert answers == dict.fromkeys(names, expected), answers
"""


MODES = ("GLOBAL", "THREAD_LOCAL", "RELAXED")

ROWS = {
    "an allocation after a free during a capture": HOLDS
    + """
stream, other, block = stream_of(), stream_of(), filled(MIB)
ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(driver.cuMemFree(block))
ok(driver.cuStreamEndCapture(stream))
hold(other)
pointers = []
def allocate():
    use()
    pointers.append(ok(driver.cuMemAlloc(MIB)))
thread = threading.Thread(target=allocate)
thread.start()
thread.join(20)
waited = thread.is_alive()
let_go()
thread.join()
assert not waited and len(pointers) == 1
step()
""",
    "a capture that begins while memory is freed": HOLDS
    + """
stream, other, block = stream_of(), stream_of(), filled(MIB)
hold(other)
def free():
    use()
    ok(driver.cuMemFree(block))
def capture():
    use()
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
freeing, capturing = threading.Thread(target=free), threading.Thread(target=capture)
freeing.start()
freeing.join(0.5)  # one that does not wait ends in that time
assert freeing.is_alive()
capturing.start()
capturing.join(20)
waited = capturing.is_alive()
let_go()
freeing.join()
capturing.join()
assert not waited
ok(driver.cuStreamEndCapture(stream))
step()
""",
    "work in streams while a context is current that was reset": """
use()
first = ok(driver.cuCtxGetCurrent())
step()
reset, again = threading.Event(), threading.Event()
found = []
def late():
    ok(driver.cuCtxSetCurrent(first))
    reset.set()
    again.wait()
    found.append(error(driver.cuMemsetD8Async(block, 7, MIB, stream)))
thread = threading.Thread(target=late)
thread.start()
reset.wait()
ok(driver.cuDevicePrimaryCtxReset(0))
use()
block, stream = filled(MIB), stream_of()
step()
again.set()
thread.join()
assert found == [0], found
ok(driver.cuStreamSynchronize(stream))
assert (read(block, MIB, np.uint8) == 7).all()
step()
""",
    "allocations and frees that end a capture": """
use()
M = driver.CUstreamCaptureMode
stream, kept = stream_of(), filled(MIB)
step()
for mode, expected in (("GLOBAL", 900), ("THREAD_LOCAL", 900), ("RELAXED", 0)):
    for relaxed in (False, True):
        for call in (
            lambda: driver.cuMemAlloc(MIB),
            lambda: driver.cuMemAllocPitch(1000, 100, 4),
            lambda: driver.cuMemFree(spare),
        ):
            spare = ok(driver.cuMemAlloc(MIB))
            ok(driver.cuStreamBeginCapture(stream, getattr(M, "CU_STREAM_CAPTURE_MODE_" + mode)))
            if relaxed:
                before = ok(driver.cuThreadExchangeStreamCaptureMode(
                    M.CU_STREAM_CAPTURE_MODE_RELAXED))
            assert error(driver.cuMemFree(0)) == 0
            assert error(call()) == (0 if relaxed else expected)
            if relaxed:
                ok(driver.cuThreadExchangeStreamCaptureMode(before))
            ended = error(driver.cuStreamEndCapture(stream))
            assert ended == (901 if expected and not relaxed else 0)
step()
assert holds(kept, MIB)
""",
    "what is only for mapped memory refuses allocations": """
use()
kept, large = filled(4096), filled(16 * MIB)
ordered = ok(driver.cuMemAllocAsync(4 * MIB, stream_of()))
handle = ok(driver.cuMemCreate(4 * MIB, properties(), 0))
for block in (kept, large, ordered):
    for address in (int(block), int(block) + 100):
        assert error(driver.cuMemRetainAllocationHandle(address)) == 1
        assert error(driver.cuMemGetAccess(at(0), address)) == 1
    for size in (2 * MIB, 4 * MIB, 16 * MIB):
        assert error(driver.cuMemUnmap(block, size)) == 1
        assert error(driver.cuMemSetAccess(block, size, [access(0)], 1)) == 1
        step()
        assert error(driver.cuMemAddressFree(block, size)) == 1
        assert error(driver.cuMemMap(block, 2 * MIB, 0, handle, 0)) == 1
assert holds(kept, 4096) and holds(large, 16 * MIB)
""",
    "what is freed twice": HOLDS
    + """
busy, beside = stream_of(), stream_of()
for size in (4096, 4 * MIB):
    block = ok(driver.cuMemAllocAsync(size, busy))
    hold(busy)
    ok(driver.cuMemFreeAsync(block, busy))
    assert error(driver.cuMemFreeAsync(block, busy)) == 1
    assert error(driver.cuMemFreeAsync(block, beside)) == 1
    assert error(driver.cuMemFree(block)) == 1
    assert error(driver.cuMemGetAddressRange(block)) == 500
    assert error(driver.cuPointerGetAttribute(TYPE, block)) == 1
    let_go()
    ok(driver.cuStreamSynchronize(busy))
    others = [filled(size, i) for i in range(8)]
    ok(driver.cuStreamSynchronize(busy))
    step()
    assert all(holds(other, size, i) for i, other in enumerate(others))
    if block not in others:
        assert error(driver.cuMemFreeAsync(block, busy)) == 1
        assert error(driver.cuMemFree(block)) == 1
    for other in others:
        ok(driver.cuMemFree(other))
""",
    "a context that has failed": FAULT
    + CALLS
    + """
kept, mine = filled(8 * MIB), pool()
address, handle = mapped(4 * MIB)
fail_for_good()
check_answers()
step()
check_answers()
ok(driver.cuDevicePrimaryCtxReset(0))
use()
again = filled(48 * MIB, 2)
step()
assert holds(again, 48 * MIB, 2)
""",
    "a context that has failed beside one that has not": FAULT
    + CALLS
    + """
failing, mine = ok(driver.cuCtxGetCurrent()), pool()
other = ok(driver.cuCtxCreate(None, 0, 0))
in_other = filled(8 * MIB, 2)
ok(driver.cuCtxSetCurrent(failing))
kept = filled(8 * MIB)
address, handle = mapped(4 * MIB, 3)
fail_for_good()
check_answers()
ok(driver.cuCtxSetCurrent(other))
assert holds(in_other, 8 * MIB, 2) and holds(address, 4 * MIB, 3)
step()
assert holds(in_other, 8 * MIB, 2) and holds(address, 4 * MIB, 3)
more = filled(4 * MIB, 4)
step()
assert holds(more, 4 * MIB, 4)
ok(driver.cuCtxSetCurrent(failing))
check_answers()
""",
    "a kernel fails, and nothing asks but allocations": FAULT
    + """
kept, size = filled(4096), 4096
for work in range(3):
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(size))))
    ok(driver.cuMemsetD8(kept, 1, size))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(size))))
step()
until = time.monotonic() + 60
assert start(function, stream, 64) == 0
while error(driver.cuMemAlloc(size)) == 0:
    assert time.monotonic() < until
for again in range(3):
    assert error(driver.cuMemAlloc(size)) == 700
    assert error(driver.cuMemFree(kept)) == 700
    assert error(driver.cuMemGetInfo()) == 700
""",
    "a primary context is not destroyed as others are": """
use()
kept, primary = filled(8 * MIB), ok(driver.cuCtxGetCurrent())
ordered = ok(driver.cuMemAllocAsync(4 * MIB, NONE))
ok(driver.cuMemsetD8(ordered, 3, 4 * MIB))
address, handle = mapped(4 * MIB, 2)
cuda = ctypes.CDLL("libcuda.so.1")
for round in range(2):
    assert error(driver.cuCtxDestroy(primary)) == 201
    assert cuda.cuCtxDetach(ctypes.c_void_p(int(primary))) == 201
    assert holds(kept, 8 * MIB) and holds(address, 4 * MIB, 2)
    assert (read(ordered, 4 * MIB, np.uint8) == 3).all()
    step()
ok(driver.cuMemFree(kept))
""",
    "a pool that may take only so much": """
use()
mine = pool(most=4 * MIB)
assert error(driver.cuMemAllocFromPoolAsync(8 * MIB, mine, NONE)) == 2
block = ok(driver.cuMemAllocFromPoolAsync(3 * MIB, mine, NONE))
assert error(driver.cuMemAllocFromPoolAsync(3 * MIB, mine, NONE)) == 2
step()
ok(driver.cuMemFreeAsync(block, NONE))
ok(driver.cuStreamSynchronize(NONE))
block = ok(driver.cuMemAllocFromPoolAsync(4 * MIB, mine, NONE))
step()
""",
    "a thread without a context": HOLDS
    + """
stream, flags = stream_of(), 0
block, large = filled(4096), filled(4 * MIB)
ordered = ok(driver.cuMemAllocAsync(4 * MIB, stream))
calls = {
    "free": lambda: driver.cuMemFree(large),
    "ordered": lambda: driver.cuMemFree(ordered),
    "handle": lambda: driver.cuIpcGetMemHandle(block),
    "range": lambda: driver.cuMemGetAddressRange(block),
    "info": lambda: driver.cuMemGetInfo(),
    "alloc": lambda: driver.cuMemAlloc(MIB),
}
answers = {}
def ask(ignored=None):
    answers.update({name: error(call()) for name, call in calls.items()})
thread = threading.Thread(target=ask)
thread.start()
thread.join()
assert answers == dict.fromkeys(calls, 201), answers
# A host function has none, and a free in it would wait for itself.
answers.clear()
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ask)
ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(_ptr=ctypes.addressof(function)), 0))
ok(driver.cuStreamSynchronize(stream))
assert answers == dict.fromkeys(calls, 201), answers
step()
assert holds(block, 4096) and holds(large, 4 * MIB)
""",
    "what is asked about memory that a stream will free": HOLDS
    + """
A = driver.CUpointer_attribute
stream, mine = stream_of(), pool()
blocks = [
    ok(driver.cuMemAlloc(4096)),
    ok(driver.cuMemAlloc(4 * MIB)),
    ok(driver.cuMemAllocFromPoolAsync(4 * MIB, mine, stream)),
]
ok(driver.cuStreamSynchronize(stream))
hold(stream)
for block in blocks:
    ok(driver.cuMemFreeAsync(block, stream))
    assert error(driver.cuIpcGetMemHandle(block)) == 1
    assert error(driver.cuPointerSetAttribute(1, A.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block)) == 1
    kinds = [A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
             A.CU_POINTER_ATTRIBUTE_RANGE_SIZE]
    assert [int(value) for value in ok(driver.cuPointerGetAttributes(3, kinds, block))] == [0, -2, 0]
let_go()
ok(driver.cuStreamSynchronize(stream))
step()
""",
    "attributes that the driver does not have": """
use()
block = filled(4096)
cuda = ctypes.CDLL("libcuda.so.1")
kinds, value = (ctypes.c_int * 2)(2, 999), ctypes.c_uint64()
values = (ctypes.c_void_p * 2)(*[ctypes.addressof(value)] * 2)
for attribute in (-1, 0, 999):
    assert cuda.cuPointerGetAttribute(values[0], attribute, ctypes.c_uint64(int(block))) != 0
assert cuda.cuPointerGetAttributes(2, kinds, values, ctypes.c_uint64(int(block))) != 0
step()
""",
    "a capture begins while a free waits for work that waits for it": HOLDS
    + """
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
busy, captured = stream_of(), stream_of()
context, called = ok(driver.cuCtxGetCurrent()), threading.Event()
def free(block):
    ok(driver.cuCtxSetCurrent(context))
    called.set()
    results.append(error(driver.cuMemFree(block)))
def sleeps(thread):
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"
for size in (4096, 8 * MIB):
    results = []
    block = filled(size)
    hold(busy)
    called.clear()
    thread = threading.Thread(target=free, args=(block,))
    thread.start()
    called.wait()
    while not sleeps(thread):
        time.sleep(0.01)
    ok(driver.cuStreamBeginCapture(captured, RELAXED))
    let_go()
    thread.join()
    ok(driver.cuStreamEndCapture(captured))
    assert results == [0]
    step()
""",
    "what needs no context, with a destroyed one current": """
use()
M = driver.CUstreamCaptureMode
stream, kept = stream_of(), filled(4 * MIB)
other = ok(driver.cuCtxCreate(None, 0, 0))
thread = threading.Thread(target=lambda: ok(driver.cuCtxDestroy(other)))
thread.start()
thread.join()
assert error(driver.cuCtxSynchronize()) == 709
for number in range(3):
    step()
    ok(driver.cuMemsetD8Async(kept, number, MIB, stream))
    step()
    graph = ok(driver.cuGraphInstantiate(ok(driver.cuGraphCreate(0)), 0))
    step()
    ok(driver.cuGraphLaunch(graph, stream))
    step()
    ok(driver.cuStreamBeginCapture(stream, M.CU_STREAM_CAPTURE_MODE_RELAXED))
    ok(driver.cuStreamEndCapture(stream))
    step()
    for call in (driver.cuMemsetD8(kept, 9, MIB), driver.cuMemAlloc(MIB), driver.cuMemFree(kept)):
        assert error(call) == 709
    ok(driver.cuStreamSynchronize(stream))
use()
assert (read(kept, MIB, np.uint8) == 2).all()
""",
    "a kernel that was launched before an allocation writes to it": """
use()
stream = stream_of()
code = compile('''extern "C" __global__ void deliver(volatile unsigned long long *mailbox) {
    while (!mailbox[0]) {}
    *(volatile unsigned *)mailbox[0] = 42;
}''')
function = function_of(code, "deliver")
host = ok(driver.cuMemHostAlloc(4096, 0))
mailbox = np.frombuffer((ctypes.c_char * 4096).from_address(int(host)), np.uint64)
for allocate in (
    lambda: ok(driver.cuMemAlloc(4 * MIB)),
    lambda: ok(driver.cuMemAllocAsync(4 * MIB, stream_of())),
    lambda: mapped_empty(4 * MIB),
):
    mailbox[:] = 0
    assert start(function, stream, host) == 0
    block = allocate()
    mailbox[0] = int(block)
    ok(driver.cuStreamSynchronize(stream))
    step()
    assert read(block, 1, np.uint32)[0] == 42
""",
}

for mode in MODES:
    ROWS[f"what a thread does beside a capture in mode {mode}"] = (
        HOLDS
        + f"MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_{mode}"
        + """
captured, beside = stream_of(), stream_of()
kept, out = filled(4 * MIB), filled(MIB)
mine = pool()
step()
hold(beside)
for number in range(3):
    ok(driver.cuMemFreeAsync(ok(driver.cuMemAllocAsync(2 * MIB, beside)), beside))
ok(driver.cuStreamBeginCapture(captured, MODE))
ok(driver.cuMemcpyDtoDAsync(out, kept, MIB, captured))
blocks = []
for size in (4096, 2 * MIB, 20 * MIB):
    ok(driver.cuMemFreeAsync(ok(driver.cuMemAllocAsync(size, beside)), beside))
    blocks.append(ok(driver.cuMemAllocFromPoolAsync(size, mine, beside)))
    ok(driver.cuMemGetInfo())
    ok(driver.cuMemPoolTrimTo(mine, 0))
    ok(driver.cuMemPoolGetAttribute(mine, USED))
let_go()
while error(driver.cuMemFreeAsync(blocks.pop(), beside)) == 0 and blocks:
    ok(driver.cuMemAllocAsync(MIB, beside))
address, handle = reserve(4 * MIB), ok(driver.cuMemCreate(4 * MIB, properties(), 0))
ok(driver.cuMemMap(address, 4 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(address, 4 * MIB, [access(0)], 1))
ok(driver.cuMemUnmap(address, 4 * MIB))
ok(driver.cuMemRelease(handle))
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(captured)), 0))
ok(driver.cuGraphLaunch(replay, captured))
ok(driver.cuStreamSynchronize(captured))
step()
assert (read(out, MIB, np.uint8) == values(1, 4 * MIB)[:MIB]).all()
"""
    )


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    code = MAPPED_EMPTY + ROWS[row]
    assert run_alone(code) == run_shared(machine, code) > 0
