# SPDX-License-Identifier: BSD-3-Clause
"""Memory that programs map themselves: rows as in ``test_kinds.py``, turns, and moves that fail."""

from __future__ import annotations

import pytest

from tests.interposer.rows import (
    MakeMachine,
    Runner,
    drive,
    run_alone,
    run_shared,
)
from tests.support.machine import Machine

ROWS = {
    "the application's own mappings": """
use()
other = filled(5 * MIB, 9)
address, handle = mapped(8 * MIB)
step(unevictable=0)
# From the records, while it is evicted.
assert int(ok(driver.cuMemGetAccess(at(0), address))) == 3
again = ok(driver.cuMemRetainAllocationHandle(int(address) + 4 * MIB))
assert int(again) == int(handle)
ok(driver.cuMemRelease(again))
p = ok(driver.cuMemGetAllocationPropertiesFromHandle(handle))
assert p.location.id == 0 and p.type == PINNED
assert error(driver.cuMemAddressFree(address, 8 * MIB)) != 0, "something is mapped there"
assert attribute("MEMORY_TYPE", address) == 2 and attribute("DEVICE_ORDINAL", address) == 0
second = reserve(8 * MIB)
ok(driver.cuMemMap(second, 8 * MIB, 0, handle, 0))
assert error(driver.cuMemMap(second, 8 * MIB, 0, handle, 0)) != 0, "it is taken"
assert error(driver.cuMemMap(int(second) + (1 << 36), 8 * MIB, 0, handle, 0)) != 0, "not reserved"
assert int(ok(driver.cuMemGetAccess(at(0), second))) == 0
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
ok(driver.cuMemSetAccess(second, 8 * MIB, [access(0, READ)], 1))
assert holds(address, 8 * MIB) and holds(second, 8 * MIB), "one memory, two addresses"
write(int(address) + MIB, values(2, MIB))
assert holds(int(second) + MIB, MIB, 2)
step(unevictable=0)
assert holds(int(second) + MIB, MIB, 2) and int(ok(driver.cuMemGetAccess(at(0), second))) == 1
ok(driver.cuMemUnmap(address, 8 * MIB))
ok(driver.cuMemAddressFree(address, 8 * MIB))
step(unevictable=0)
ok(driver.cuMemUnmap(second, 8 * MIB))
step(unevictable=0)  # now without any mapping
third = reserve(8 * MIB)
ok(driver.cuMemMap(third, 8 * MIB, 0, handle, 0))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemSetAccess(third, 8 * MIB, [access(0)], 1))
step(unevictable=0)
assert holds(third, MIB, 1) and holds(int(third) + MIB, MIB, 2) and holds(other, 5 * MIB, 9)
before = free()
ok(driver.cuMemUnmap(third, 8 * MIB))
ok(driver.cuMemAddressFree(third, 8 * MIB))
assert free() >= before + 8 * MIB, "the last mapping held it"
""",
    "a mapping of part of a handle": """
use()
address, handle = mapped(16 * MIB)
ok(driver.cuMemUnmap(address, 16 * MIB))
step(unevictable=0)
part = reserve(6 * MIB)
ok(driver.cuMemMap(part, 6 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(part, 6 * MIB, [access(0)], 1))
step(unevictable=0)
assert (read(part, 6 * MIB, np.uint8) == values(1, 16 * MIB)[:6 * MIB]).all()
write(int(part) + 3 * MIB, values(2, MIB))
step(unevictable=0)
ok(driver.cuMemMap(address, 16 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(address, 16 * MIB, [access(0)], 1))
expected = values(1, 16 * MIB)
expected[3 * MIB:4 * MIB] = values(2, MIB)
assert (read(address, 16 * MIB, np.uint8) == expected).all()
""",
    "a segment that grows and shrinks": """
use()
P = properties()
P.requestedHandleTypes = FD
base, part = reserve(64 * MIB), 4 * MIB
handles = {}
def grow(*which):
    for i in which:
        handles[i] = ok(driver.cuMemCreate(part, P, 0))
        ok(driver.cuMemMap(int(base) + i * part, part, 0, handles[i], 0))
    ok(driver.cuMemSetAccess(int(base) + which[0] * part, len(which) * part, [access(0)], 1))
def shrink(i):
    ok(driver.cuMemUnmap(int(base) + i * part, part))
    ok(driver.cuMemRelease(handles.pop(i)))
grow(0, 1, 2)
write(base, values(1, 3 * part))
step(unevictable=0)
grow(3, 4)
write(int(base) + 3 * part, values(2, 2 * part))
assert holds(base, 3 * part)
step(unevictable=0)
shrink(1)
assert error(driver.cuMemUnmap(int(base), 2 * part)) != 0, "there is a gap"
step(unevictable=0)
grow(1)
write(int(base) + part, values(3, part))
step(unevictable=0)
whole = read(base, 5 * part, np.uint8)
expected = np.concatenate([values(1, 3 * part), values(2, 2 * part)])
expected[part:2 * part] = values(3, part)
assert (whole == expected).all()
ok(driver.cuMemUnmap(base, 5 * part))
for handle in handles.values():
    ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(base, 64 * MIB))
""",
    "what is exported": """
use()
other = filled(5 * MIB, 9)
P = properties()
P.requestedHandleTypes = FD
address, handle = mapped(6 * MIB, of=P)
step(unevictable=0)
fd = ok(driver.cuMemExportToShareableHandle(handle, FD, 0))
step(unevictable=6 * MIB)
twin = ok(driver.cuMemImportFromShareableHandle(fd, FD))
there = reserve(6 * MIB)
ok(driver.cuMemMap(there, 6 * MIB, 0, twin, 0))
ok(driver.cuMemSetAccess(there, 6 * MIB, [access(0)], 1))
assert holds(there, 6 * MIB)
write(there, values(2, 6 * MIB))
step(unevictable=6 * MIB)
assert holds(address, 6 * MIB, 2) and holds(other, 5 * MIB, 9)
ok(driver.cuMemUnmap(there, 6 * MIB))
ok(driver.cuMemRelease(twin))
ok(driver.cuMemUnmap(address, 6 * MIB))
ok(driver.cuMemRelease(handle))
step(unevictable=0)
""",
    "memory for other devices": """
import mmap
use()
other = filled(5 * MIB, 9)
a, b, c = filled(2 * MIB, 1), filled(3 * MIB, 4), mapped(2 * MIB, 6)[0]
step(unevictable=0)
DMA_BUF = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
seen = []
for pointer in a, c:
    fd = ctypes.c_int()
    take = ctypes.CDLL("libcuda.so.1").cuMemGetHandleForAddressRange
    take.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64
    assert take(ctypes.byref(fd), int(pointer), 2 * MIB, int(DMA_BUF), 0) == 0
    seen.append(np.frombuffer(mmap.mmap(fd.value, 2 * MIB), np.uint8))
assert (seen[0] == values(1, 2 * MIB)).all() and (seen[1] == values(6, 2 * MIB)).all()
step(unevictable=4 * MIB)
write(a, values(2, 2 * MIB))
write(c, values(7, 2 * MIB))
ok(driver.cuCtxSynchronize())
assert (seen[0] == values(2, 2 * MIB)).all() and (seen[1] == values(7, 2 * MIB)).all()
SYNC_MEMOPS = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
ok(driver.cuPointerSetAttribute(1, SYNC_MEMOPS, b))
step(unevictable=8 * MIB)
assert holds(b, 3 * MIB, 4) and holds(other, 5 * MIB, 9)
ok(driver.cuMemFree(a))
ok(driver.cuMemFree(b))
step(unevictable=2 * MIB)
""",
    "handles of host memory": """
use()
other = filled(5 * MIB, 9)
P = properties()
P.location.type = T.CU_MEM_LOCATION_TYPE_HOST
address, handle = mapped(4 * MIB, 1, P)
before = free()
step(unevictable=0)
assert holds(address, 4 * MIB) and holds(other, 5 * MIB, 9) and free() == before
assert ok(driver.cuMemGetAllocationPropertiesFromHandle(handle)).location.type == T.CU_MEM_LOCATION_TYPE_HOST
ok(driver.cuMemUnmap(address, 4 * MIB))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(address, 4 * MIB))
""",
    "multicast": """
use()
p = driver.CUmulticastObjectProp()
p.numDevices, p.size = 1, 2 * MIB
name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
assert ok(driver.cuDeviceGetAttribute(name, 0)) == 0
step()
assert error(driver.cuMulticastCreate(p)) == 801
""",
}


@pytest.mark.parametrize("row", ROWS)
def test_programs_behave_as_with_the_bare_driver(machine: Machine, row: str) -> None:
    assert run_alone(ROWS[row]) == run_shared(machine, ROWS[row]) > 0


@pytest.mark.parametrize("backend", ["swap", "managed"])
def test_mappings_of_two_programs_take_turns(make_machine: MakeMachine, backend: str) -> None:
    """Each has more than half of the GPU in handles of its own, in many pieces and in one."""
    machine = make_machine(GPUSHARE_BACKEND=backend)
    code = """
use()
P = properties()
P.requestedHandleTypes = FD
segments = [mapped(18 * MIB, 1), mapped(22 * MIB, 2, P)]
say("filled")
hear()
for _ in range(3):
    for (address, _), size, seed in zip(segments, (18 * MIB, 22 * MIB), (1, 2)):
        assert holds(address, size, seed)
say("read")
hear()
"""
    programs = [Runner(machine.environment(name), code) for name in "ab"]
    try:
        for program in programs:
            assert program.heard() == "filled"
        for program in programs:
            program.tell()
        for program in programs:
            assert program.heard() == "read"
        machine.until(lambda: any(machine.group(g)["totals"]["evicted"] for g in ("a", "b")))
        for program in programs:
            program.tell()
            assert program.heard() is None
    finally:
        for program in programs:
            program.close()


def test_mappings_that_can_never_fit_are_refused(machine: Machine) -> None:
    code = """
use()
address, handle = mapped(40 * MIB)
assert error(driver.cuMemCreate(40 * MIB, properties(), 0)) == 2
assert holds(address, 40 * MIB)
step(unevictable=0)
"""
    runner = Runner(machine.environment("a"), code)
    try:
        assert drive(machine, "a", runner) == 1
        assert "more would make" in runner.errors
    finally:
        runner.close()


FAILING = """
def fail(rules):
    return ctypes.CDLL(os.environ["GPUSHARE_DRIVER"]).gpushare_sim_fail(rules.encode())

use()
address, handle = mapped(16 * MIB)
second = reserve(16 * MIB)
ok(driver.cuMemMap(second, 16 * MIB, 0, handle, 0))
ok(driver.cuMemSetAccess(second, 16 * MIB, [access(0)], 1))
other = filled(5 * MIB, 9)
say()
while rules := sys.stdin.readline().strip():
    assert fail(rules) == 0
    say()
    hear()
    for _ in range(2):
        assert holds(address, 16 * MIB) and holds(second, 16 * MIB) and holds(other, 5 * MIB, 9)
        say()
        hear()
    assert fail("") == 0
    assert holds(address, 16 * MIB) and holds(second, 16 * MIB) and holds(other, 5 * MIB, 9)
    say("whole")
"""


def evicted(machine: Machine) -> bool:
    """Ask for it again as long as something is left: what failed is not tried again by itself."""
    machine.control("evict", group="a")
    return not any(gpu["resident"] for gpu in machine.group("a")["gpus"])


@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
    ],
)
def test_a_failure_loses_nothing(machine: Machine, call: str) -> None:
    """Whichever call of a move fails: what is mapped twice is whole, on one side or the other."""
    runner = Runner(machine.environment("a"), FAILING)
    try:
        assert runner.heard() == "ready"
        for number in (1, 6):
            runner.tell(f"{call}%gpushare:{number}")
            moved = 0
            while (line := runner.heard()) == "ready":
                machine.control("release", group="a")
                machine.until(lambda: machine.group("a")["state"] == "idle")
                machine.until(lambda: evicted(machine))
                moved += 1
                runner.tell()
            assert (line, moved) == ("whole", 3)
        runner.tell("")
        assert runner.heard() is None
    finally:
        runner.close()
