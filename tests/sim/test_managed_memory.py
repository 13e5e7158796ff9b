# SPDX-License-Identifier: BSD-3-Clause
"""Managed memory: where it is, what its moves cost, and advice."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.sim import run

Machine = Callable[..., dict[str, str]]

MANAGED = """
device = use()
stream = device.create_stream()
raw = driver.CUstream(int(stream.handle))
kernel = compile(ADD).get_kernel("add")
kinds = driver.CUmemLocationType
advice_list = driver.CUmem_advise
attributes = driver.CUmem_range_attribute
MIB = 1 << 20

def place(kind, id=0):
    location = driver.CUmemLocation()
    location.type, location.id = kind, id
    return location

gpu = place(kinds.CU_MEM_LOCATION_TYPE_DEVICE)
cpu = place(kinds.CU_MEM_LOCATION_TYPE_HOST)

def advise(block, size, name, where=gpu):
    ok(driver.cuMemAdvise(block, size, getattr(advice_list, "CU_MEM_ADVISE_" + name), where))

def attribute(block, size, name, words=1):
    which = getattr(attributes, "CU_MEM_RANGE_ATTRIBUTE_" + name)
    value = ok(driver.cuMemRangeGetAttribute(4 * words, which, block, size))
    return value if words > 1 else int(value)

def prefetch(block, size, where):
    ok(driver.cuMemPrefetchAsync(block, size, where, 0, raw))
    stream.sync()

def launch_on(block, size):
    run_add(stream, kernel, block, size // 4)
    stream.sync()

names = "faulted prefetched remote written_back".split()
last = dict.fromkeys(names, 0)
def moved():
    now = counters()
    change = {name: (getattr(now, name) - last[name]) / MIB for name in names}
    last.update({name: getattr(now, name) for name in names})
    return {name: value for name, value in change.items() if value}

def new(mib):
    block = ok(driver.cuMemAllocManaged(mib * MIB, 1))
    np.ctypeslib.as_array((ctypes.c_float * (mib * MIB // 4)).from_address(int(block)))[:] = 0
    return block
"""


def test_managed_residency_is_kept_piece_by_piece(machine: Machine) -> None:
    run(
        machine(memory="64MiB", context="1MiB", fault_bandwidth="16GiB", bandwidth="64GiB"),
        MANAGED
        + """
block = new(16)
prefetch(block, 4 * MIB, gpu)
assert moved() == {"prefetched": 4}
prefetch(block, 8 * MIB, gpu)
assert moved() == {"prefetched": 4}
ok(driver.cuMemsetD8(int(block) + 4 * MIB, 0, 6 * MIB))
assert moved() == {"faulted": 2}, "what a fill does not touch does not come"
launch_on(block, 16 * MIB)
assert moved() == {"faulted": 6}
prefetch(int(block) + 2 * MIB, 4 * MIB, cpu)
assert moved() == {"prefetched": 4}
launch_on(block, 16 * MIB)
assert moved() == {"faulted": 4}
out = np.empty(MIB, np.uint8)
prefetch(block, 16 * MIB, cpu)
moved()
ok(driver.cuMemcpyDtoH(out.ctypes.data, int(block) + 3 * MIB, MIB))
assert moved() == {"faulted": 2}
total, free = ok(driver.cuMemGetInfo())[::-1]
assert total - free == 3 * MIB
""",
    )


def test_a_working_set_beyond_the_device_thrashes(machine: Machine) -> None:
    run(
        machine(memory="33MiB", context="1MiB", fault_bandwidth="16GiB", bandwidth="64GiB"),
        MANAGED
        + """
blocks = [new(16) for _ in range(3)]
for block in blocks:
    launch_on(block, 16 * MIB)
moved()
for _ in range(2):
    for block in blocks:
        launch_on(block, 16 * MIB)
    assert moved() == {"faulted": 48, "written_back": 48}, "each pass brings in all of it again"
advise(blocks[0], 16 * MIB, "SET_READ_MOSTLY")
advise(blocks[1], 16 * MIB, "SET_READ_MOSTLY")
for block in blocks:
    launch_on(block, 16 * MIB)
assert moved() == {"faulted": 48, "written_back": 16}, "a copy leaves for nothing"
prefetch(blocks[2], 16 * MIB, cpu)
moved()
prefetch(blocks[1], 16 * MIB, cpu)
assert moved() == {}, "a copy leaves for nothing"
""",
    )


def test_page_faults_and_prefetches_have_their_cost(machine: Machine) -> None:
    run(
        machine(memory="64MiB", context="1MiB", fault_bandwidth="1GiB", bandwidth="4GiB"),
        MANAGED
        + """
block = new(8)
launch_on(block, 8 * MIB)
assert counters().fault_ns == 1_000_000_000 * 8 // 1024
assert counters().in_ns == counters().out_ns == 0
prefetch(block, 8 * MIB, cpu)
prefetch(block, 8 * MIB, gpu)
assert counters().in_ns == counters().out_ns == 1_000_000_000 * 8 // 4096
assert counters().fault_ns == 1_000_000_000 * 8 // 1024
""",
    )


def test_advice_may_keep_memory_on_the_host(machine: Machine) -> None:
    run(
        machine(memory="64MiB", context="1MiB", fault_bandwidth="16GiB", bandwidth="64GiB"),
        MANAGED
        + """
block = new(8)
advise(block, 4 * MIB, "SET_PREFERRED_LOCATION", cpu)
advise(block, 8 * MIB, "SET_ACCESSED_BY", gpu)
for _ in range(2):
    launch_on(block, 8 * MIB)
    assert moved() == {"remote": 8}
assert ok(driver.cuMemGetInfo())[0] == 63 * MIB
prefetch(block, 2 * MIB, gpu)
assert moved() == {"prefetched": 2}, "advice does not prevent a prefetch"
launch_on(block, 8 * MIB)
assert moved() == {"remote": 6}
advise(block, 8 * MIB, "UNSET_ACCESSED_BY", gpu)
launch_on(block, 8 * MIB)
assert moved() == {"faulted": 4, "remote": 2}
advise(block, 8 * MIB, "UNSET_PREFERRED_LOCATION")
launch_on(block, 8 * MIB)
assert moved() == {"faulted": 2}
assert (np.ctypeslib.as_array((ctypes.c_float * (2 * MIB)).from_address(int(block))) == 5).all()
""",
    )


def test_advice_can_be_queried(machine: Machine) -> None:
    run(
        machine(devices=2),
        MANAGED
        + """
block = new(8)
half = 4 * MIB
NONE = -2
assert attribute(block, half, "READ_MOSTLY") == 0
assert attribute(block, half, "PREFERRED_LOCATION") == NONE
assert attribute(block, half, "PREFERRED_LOCATION_TYPE") == 0
assert attribute(block, half, "LAST_PREFETCH_LOCATION") == NONE
advise(block, half, "SET_READ_MOSTLY")
assert attribute(block, half, "READ_MOSTLY") == 1
assert attribute(block, 2 * half, "READ_MOSTLY") == 0, "not all of it"
advise(block, 2 * half, "SET_PREFERRED_LOCATION", place(kinds.CU_MEM_LOCATION_TYPE_DEVICE, 1))
assert attribute(block, 2 * half, "PREFERRED_LOCATION") == 1
assert attribute(block, 2 * half, "PREFERRED_LOCATION_TYPE") == int(kinds.CU_MEM_LOCATION_TYPE_DEVICE)
assert attribute(block, 2 * half, "PREFERRED_LOCATION_ID") == 1
advise(block, half, "SET_PREFERRED_LOCATION", place(kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA))
assert attribute(block, half, "PREFERRED_LOCATION") == NONE
assert attribute(block, half, "PREFERRED_LOCATION_TYPE") == int(kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA)
assert attribute(block, 2 * half, "PREFERRED_LOCATION_TYPE") == 0
advise(block, 2 * half, "SET_PREFERRED_LOCATION", cpu)
assert attribute(block, 2 * half, "PREFERRED_LOCATION") == -1
advise(block, 2 * half, "SET_ACCESSED_BY", cpu)
advise(block, half, "SET_ACCESSED_BY", place(kinds.CU_MEM_LOCATION_TYPE_DEVICE, 1))
assert attribute(block, half, "ACCESSED_BY", 3) == [1, -1, NONE]
assert attribute(block, 2 * half, "ACCESSED_BY", 3) == [-1, NONE, NONE]
prefetch(block, half, gpu)
assert attribute(block, half, "LAST_PREFETCH_LOCATION") == 0
assert attribute(block, 2 * half, "LAST_PREFETCH_LOCATION") == NONE
which = [attributes.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, attributes.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY]
assert ok(driver.cuMemRangeGetAttributes([4, 8], which, 2, block, half)) == [1, [1, -1]]
def refused(name, where):
    return error(driver.cuMemAdvise(block, half, getattr(advice_list, "CU_MEM_ADVISE_" + name), where))
assert refused("SET_ACCESSED_BY", place(kinds.CU_MEM_LOCATION_TYPE_DEVICE, 5)) == 101
assert refused("SET_ACCESSED_BY", place(kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA)) == 1
assert error(driver.cuMemAdvise(block, 9 * MIB, advice_list.CU_MEM_ADVISE_SET_READ_MOSTLY, gpu)) == 1
# The form with an ordinal, of CUDA 8.
old = ctypes.CDLL("libcuda.so.1").cuMemAdvise
at, size = ctypes.c_uint64(int(block)), ctypes.c_size_t(half)
assert old(at, size, int(advice_list.CU_MEM_ADVISE_SET_PREFERRED_LOCATION), 1) == 0
assert attribute(block, half, "PREFERRED_LOCATION") == 1
assert old(at, size, int(advice_list.CU_MEM_ADVISE_SET_PREFERRED_LOCATION), -1) == 0
assert attribute(block, half, "PREFERRED_LOCATION") == -1
""",
    )


def test_batches_of_prefetches_and_discards(machine: Machine) -> None:
    run(
        machine(memory="64MiB", context="1MiB", fault_bandwidth="16GiB", bandwidth="64GiB"),
        MANAGED
        + """
blocks = [new(4) for _ in range(3)]
sizes = [4 * MIB] * 3
def batch(call, places, firsts):
    ok(call(blocks, sizes, 3, places, firsts, len(places), 0, raw))
    stream.sync()
batch(driver.cuMemPrefetchBatchAsync, [gpu], [0])
assert moved() == {"prefetched": 12}
batch(driver.cuMemPrefetchBatchAsync, [gpu, cpu], [0, 2])
assert moved() == {"prefetched": 4}
assert attribute(blocks[1], 4 * MIB, "LAST_PREFETCH_LOCATION") == 0
assert attribute(blocks[2], 4 * MIB, "LAST_PREFETCH_LOCATION") == -1
def refused(places, firsts, flags=0, stream=raw):
    return error(driver.cuMemPrefetchBatchAsync(blocks, sizes, 3, places, firsts, len(places), flags, stream))
assert refused([gpu, cpu], [1, 2]) == refused([gpu, cpu], [0, 0]) == refused([gpu], [0], flags=1) == 1
assert refused([gpu], [0], stream=driver.CUstream(0)) == 1
launch_on(blocks[0], 4 * MIB)
assert (np.frombuffer((ctypes.c_float * MIB).from_address(int(blocks[0])), np.float32) == 1).all()
ok(driver.cuMemDiscardBatchAsync(blocks, sizes, 3, 0, raw))
stream.sync()
assert (np.frombuffer((ctypes.c_ubyte * MIB).from_address(int(blocks[0])), np.uint8) == 0xCD).all(), "it is gone"
assert moved() == {}
batch(driver.cuMemPrefetchBatchAsync, [cpu], [0])
assert moved() == {}, "what was discarded is not worth a copy"
batch(driver.cuMemPrefetchBatchAsync, [gpu], [0])
assert moved() == {"prefetched": 12}
batch(driver.cuMemPrefetchBatchAsync, [cpu], [0])
moved()
batch(driver.cuMemDiscardAndPrefetchBatchAsync, [gpu], [0])
assert moved() == {}
assert ok(driver.cuMemGetInfo())[0] == 51 * MIB
""",
    )
