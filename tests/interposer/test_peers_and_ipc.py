# SPDX-License-Identifier: BSD-3-Clause
"""Memory that two GPUs (rows as in ``test_kinds.py``) or two programs use."""

from __future__ import annotations

import pytest

from tests.interposer.rows import (
    PEERS,
    MakeMachine,
    Runner,
    await_unevictable,
    drive,
    evict,
    run_alone,
    run_shared,
)
from tests.support.machine import Machine
from tests.support.sim import MIB

FETCHES = """
function = function_of(compile('''extern "C" __global__ void copy(float *to, const float *from) {
    to[threadIdx.x] = from[threadIdx.x];
}'''), "copy")
def fetch(pointer):
    ok(driver.cuMemsetD8(near, 0, 256))
    assert start(function, stream, near, pointer, threads=64) == 0
    result = error(driver.cuStreamSynchronize(stream))
    return result or int(not (read(near, 64) == data).all())
"""

TWO_DEVICES = {
    "copies between two GPUs": PEERS
    + """
for _ in range(2):
    ok(driver.cuMemsetD8(near, 0, 256))
    step()
    ok(driver.cuMemcpyPeer(near, contexts[0], far, contexts[1], 128))
    assert (read(near, 32) == data[:32]).all()
    step()
    ok(driver.cuMemcpyPeerAsync(near, contexts[0], far, contexts[1], 256, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert (read(near, 64) == data).all()
""",
    "peer access": PEERS
    + FETCHES
    + """
step()
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
assert fetch(far) == 0
step()
assert fetch(far) == 0
ok(driver.cuCtxSetCurrent(contexts[1]))
later = ok(driver.cuMemAlloc(4 * MIB))
write(later, data)
address = reserve(2 * MIB)
ok(driver.cuMemMap(address, 2 * MIB, 0, ok(driver.cuMemCreate(2 * MIB, properties(1), 0)), 0))
step()
ok(driver.cuMemSetAccess(address, 2 * MIB, [access(0), access(1)], 2))
write(address, data)
ok(driver.cuMemPoolSetAccess(ok(driver.cuDeviceGetDefaultMemPool(1)), [access(0)], 1))
pooled = ok(driver.cuMemAllocAsync(256, NONE))
ok(driver.cuCtxSynchronize())
write(pooled, data)
ok(driver.cuCtxSetCurrent(contexts[0]))
for _ in range(2):
    assert [fetch(p) for p in (later, address, pooled)] == [0, 0, 0]
    step()
assert [int(ok(driver.cuMemGetAccess(at(d), address))) for d in (0, 1)] == [3, 3]
ok(driver.cuMemSetAccess(address, 2 * MIB, [access(0, NEITHER)], 1))
step()
assert int(ok(driver.cuMemGetAccess(at(0), address))) == 0
assert fetch(later) == 0
assert fetch(address) == 700, "access was taken back"
""",
    "peer access of a context that ends": PEERS
    + """
own = ok(driver.cuCtxCreate(None, 0, 0))
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
step()
ok(driver.cuCtxDestroy(own))
step()
ok(driver.cuCtxSetCurrent(contexts[0]))
"""
    + FETCHES
    + """
assert fetch(far) == 700
""",
    "peer access of a context that is reset": PEERS
    + """
ok(driver.cuCtxEnablePeerAccess(contexts[1], 0))
step()
ok(driver.cuDevicePrimaryCtxReset(0))
contexts[0] = ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxSetCurrent(contexts[0]))
near = ok(driver.cuMemAlloc(256))
stream = stream_of()
step()
"""
    + FETCHES
    + """
assert fetch(far) == 700
""",
}


@pytest.mark.parametrize("row", TWO_DEVICES)
def test_programs_behave_as_with_the_bare_driver_on_two_gpus(
    make_machine: MakeMachine, row: str
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    code = TWO_DEVICES[row]
    assert run_alone(code, devices=2) == run_shared(machine, code) > 0


EXPORTER = """
use()
other = filled(5 * MIB, 9)
large, small = filled(12 * MIB, 1), filled(300, 2)
handles = [ok(driver.cuIpcGetMemHandle(pointer)) for pointer in (large, small)]
assert raw(handles[0]) == raw(ok(driver.cuIpcGetMemHandle(int(large) + MIB))), "of the allocation"
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 201, "not in the process itself"
for refused in (mapped(2 * MIB)[0], ok(driver.cuMemAllocAsync(64, NONE))):
    assert error(driver.cuIpcGetMemHandle(refused)) == 1
say(" ".join(raw(handle).hex() for handle in handles))
hear()
assert holds(large, 12 * MIB, 3) and holds(small, 300, 2), "written by the other"
ok(driver.cuMemFree(large))
say("freed")
hear()
"""

IMPORTER = """
use()
own = filled(5 * MIB, 8)
texts = sys.stdin.readline().split()
handles = [made(driver.CUipcMemHandle, text) for text in texts]
assert error(driver.cuIpcOpenMemHandle(handles[0], 0)) == 1
large, small = (ok(driver.cuIpcOpenMemHandle(handle, 1)) for handle in handles)
assert int(ok(driver.cuIpcOpenMemHandle(handles[0], 1))) == int(large), "opened twice, mapped once"
base, size = ok(driver.cuMemGetAddressRange(int(large) + 5 * MIB))
assert (int(base), size) == (int(large), 12 * MIB)
say("opened")
hear()
assert holds(large, 12 * MIB, 1) and holds(small, 300, 2)
write(large, values(3, 12 * MIB))
say("written")
hear()
assert holds(large, 12 * MIB, 3), "it is there as long as it is open"
ok(driver.cuIpcCloseMemHandle(large))
ok(driver.cuIpcCloseMemHandle(large))
assert error(driver.cuIpcCloseMemHandle(large)) == 1
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 400, "it is gone"
say("closed")
hear()
assert holds(small, 300, 2) and holds(own, 5 * MIB, 8), "its process has ended"
assert error(driver.cuIpcOpenMemHandle(handles[0], 1)) == 400
ok(driver.cuIpcCloseMemHandle(small))
"""


def test_two_jupyter_kernels_share_memory_by_ipc(machine: Machine) -> None:
    exporter = Runner(machine.environment("a"), EXPORTER)
    importer = Runner(machine.environment("b"), IMPORTER)
    try:
        handles = exporter.heard()
        assert handles is not None
        slab = 2 * MIB
        evict(machine, "a", busy=False)
        await_unevictable(machine, "a", 12 * MIB + slab)
        importer.tell(handles)
        assert importer.heard() == "opened"
        evict(machine, "a", busy=False)
        evict(machine, "b", busy=False)
        await_unevictable(machine, "b", 0)
        importer.tell()
        assert importer.heard() == "written"
        evict(machine, "a", busy=False)
        exporter.tell()
        assert exporter.heard() == "freed"
        await_unevictable(machine, "a", slab)
        evict(machine, "b", busy=False)
        importer.tell()
        assert importer.heard() == "closed"
        exporter.close()
        evict(machine, "b", busy=False)
        importer.tell()
        assert importer.heard() is None
    finally:
        exporter.close()
        importer.close()


def test_memory_that_cannot_be_shared_is_refused_in_a_sentence(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_BACKEND="managed")
    code = "use()\nassert error(driver.cuIpcGetMemHandle(filled(5 * MIB))) == 801\nstep()\n"
    runner = Runner(machine.environment("a"), code)
    try:
        drive(machine, "a", runner)
        assert "CUDA IPC is not available" in runner.errors
    finally:
        runner.close()
