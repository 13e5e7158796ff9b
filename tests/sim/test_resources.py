# SPDX-License-Identifier: BSD-3-Clause
"""What contexts cost, host memory, virtual memory in full and managed memory's advice."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.sim.programs import VIRTUAL, used
from tests.support.sim import MIB, Talker, run

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]


def test_a_context_grows_with_its_first_kernel_and_is_freed_at_once(machine: Machine) -> None:
    run(
        machine(memory="256MiB", context="8MiB", context_growth="16MiB", teardown_ms=600_000),
        """
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        def taken():
            return pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
        assert taken() == 0
        device = use()
        assert taken() == 8
        program = compile(ADD)
        assert taken() == 8, "a library is loaded when it is used"
        kernel = program.get_kernel("add")
        stream = device.create_stream()
        block = ok(driver.cuMemAlloc(1 << 20))
        for _ in range(2):
            run_add(stream, kernel, block, 16)
            stream.sync()
            assert taken() == 8 + 16 + 1
        other = ok(driver.cuCtxCreate(None, 0, 0))
        assert taken() == 33
        module = ok(driver.cuModuleLoadData(program.code))
        assert taken() == 49
        ok(driver.cuCtxDestroy(other))
        assert taken() == 25
        ok(driver.cuDevicePrimaryCtxReset(0))
        assert taken() == 0
        ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuDevicePrimaryCtxRelease(0))
        assert taken() == 8
        ok(driver.cuDevicePrimaryCtxRelease(0))
        assert taken() == 0
        """,
    )


def test_growth_that_does_not_fit_is_out_of_memory_and_may_be_retried(machine: Machine) -> None:
    run(
        machine(memory="64MiB", context="8MiB", context_growth="16MiB"),
        """
        def refused(act):
            try:
                act()
            except Exception as caught:
                assert "OUT_OF_MEMORY" in str(caught), caught
            else:
                raise AssertionError("it did not fail")

        device = use()
        stream = device.create_stream()
        small = ok(driver.cuMemAlloc(1024))
        write(small, np.zeros(16, np.float32))
        program = compile(ADD)
        block = ok(driver.cuMemAlloc(50 << 20))
        refused(lambda: program.get_kernel("add"))
        ok(driver.cuMemFree(block))
        kernel = program.get_kernel("add")
        run_add(stream, kernel, small, 16)
        stream.sync()
        assert read(small, 1)[0] == 1
        ok(driver.cuCtxCreate(None, 0, 0))
        raw = ok(driver.cuStreamCreate(0))
        block = ok(driver.cuMemAlloc(30 << 20))
        refused(lambda: run_add(raw, kernel, small, 16))
        ok(driver.cuMemFree(block))
        run_add(raw, kernel, small, 16)
        ok(driver.cuStreamSynchronize(raw))
        assert read(small, 1)[0] == 2
        """,
    )


FORKED = """
use()
block = ok(driver.cuMemAlloc(32 << 20))
child = os.fork()
if child == 0:
    signal.pause()
say(str(child))
hear()
"""


def wait_for_use(environment: dict[str, str], bytes: int) -> None:
    """Wait until so many bytes are used."""
    deadline = time.monotonic() + 60
    while used(environment) != bytes:
        assert time.monotonic() < deadline


def test_a_forked_child_holds_a_killed_process_memory(machine: Machine, talk: Talk) -> None:
    import os
    import signal

    environment = machine(memory="128MiB", context="8MiB", fork_holds=1)
    parent = talk(environment, FORKED)
    child = int(parent.heard())
    parent.kill()
    parent.process.wait(60)
    try:
        assert used(environment) == 40 * MIB
        alone = talk(environment, FORKED.split("child =")[0] + "say()\nhear()\n")
        assert alone.heard() == "ready"
        alone.kill()
        wait_for_use(environment, 40 * MIB)
    finally:
        os.kill(child, signal.SIGKILL)
    wait_for_use(environment, 0)


def test_a_forked_child_holds_nothing_by_default(machine: Machine, talk: Talk) -> None:
    import os
    import signal

    environment = machine(memory="128MiB", context="8MiB")
    parent = talk(environment, FORKED)
    child = int(parent.heard())
    parent.kill()
    parent.process.wait(60)
    try:
        assert used(environment) == 0
    finally:
        os.kill(child, signal.SIGKILL)


HOST = """
device = use()
SIZE = 4 << 20
block = ok(driver.cuMemAlloc(SIZE))
plain = np.arange(SIZE // 4, dtype=np.uint32)

def type_of(pointer):
    which = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return int(ok(driver.cuPointerGetAttribute(which, pointer)))
"""


def test_registered_host_memory(machine: Machine) -> None:
    run(
        machine(),
        HOST
        + """
at = plain.ctypes.data
assert error(driver.cuMemHostUnregister(at)) == 713
ok(driver.cuMemHostRegister(at + 4096, 1 << 20, 0))
assert error(driver.cuMemHostRegister(at, SIZE, 0)) == 712
assert error(driver.cuMemHostRegister(at + 8192, 64, 0)) == 712
assert error(driver.cuMemHostRegister(int(block), 64, 0)) == 1
assert error(driver.cuMemHostUnregister(at)) == 713
assert error(driver.cuPointerGetAttribute(
    driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at)) == 1
HOST_TYPE = int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
assert type_of(at + 4096) == type_of(at + 5000) == HOST_TYPE
assert int(ok(driver.cuMemHostGetDevicePointer(at + 4096, 0))) == at + 4096
assert error(driver.cuMemHostGetFlags(at + 4096)) == 1, "only of memory that the driver allocated"
ok(driver.cuMemHostUnregister(at + 4096))
assert error(driver.cuMemHostGetDevicePointer(at + 4096, 0)) == 1
ok(driver.cuMemHostRegister(at, SIZE, 0))
page_locked = ok(driver.cuMemHostAlloc(SIZE, 2))
assert ok(driver.cuMemHostGetFlags(page_locked)) & 2 and type_of(page_locked) == HOST_TYPE
assert error(driver.cuMemHostRegister(page_locked, SIZE, 0)) == 712
assert error(driver.cuMemHostUnregister(page_locked)) == 713
""",
    )


def test_kernels_use_mapped_host_memory(machine: Machine) -> None:
    run(
        machine(),
        HOST
        + """
stream = device.create_stream()
kernel = compile(ADD).get_kernel("add")
page_locked = ok(driver.cuMemHostAlloc(SIZE, 2))
data = np.ctypeslib.as_array((ctypes.c_float * (SIZE // 4)).from_address(page_locked))
data[:] = 3
run_add(stream, kernel, ok(driver.cuMemHostGetDevicePointer(page_locked, 0)), SIZE // 4)
stream.sync()
assert (data == 4).all()
""",
    )


def test_page_locking_and_pageable_copies_have_their_cost(machine: Machine) -> None:
    run(
        machine(bandwidth="4GiB", pageable_bandwidth="1GiB", page_lock_bandwidth="2GiB"),
        HOST
        + """
SECOND = 1_000_000_000
def spent(name, act):
    before = getattr(counters(), name)
    act()
    return getattr(counters(), name) - before

at = plain.ctypes.data
assert spent("in_ns", lambda: write(block, plain)) == SECOND * SIZE // (1 << 30)
assert spent("page_lock_ns", lambda: ok(driver.cuMemHostRegister(at, SIZE, 0))) == SECOND * SIZE // (2 << 30)
assert spent("in_ns", lambda: write(block, plain)) == SECOND * SIZE // (4 << 30)
assert spent("out_ns", lambda: ok(driver.cuMemcpyDtoH(at, block, SIZE))) == SECOND * SIZE // (4 << 30)
assert spent("page_lock_ns", lambda: ok(driver.cuMemHostAlloc(SIZE, 0))) == SECOND * SIZE // (2 << 30)
assert spent("page_locked", lambda: ok(driver.cuMemAllocHost(SIZE))) == SIZE
ok(driver.cuMemHostUnregister(at))
assert spent("out_ns", lambda: ok(driver.cuMemcpyDtoH(at, block, SIZE))) == SECOND * SIZE // (1 << 30)
""",
    )
    run(
        machine(bandwidth="4GiB"),
        HOST
        + """
before = counters().in_ns
write(block, plain)
assert counters().in_ns - before == 1_000_000_000 * SIZE // (4 << 30), "no slower by default"
ok(driver.cuMemHostRegister(plain.ctypes.data, SIZE, 0))
assert counters().page_lock_ns == 0 and counters().page_locked == SIZE
""",
    )


def test_the_copy_engines_work_at_once_across_processes(machine: Machine, talk: Talk) -> None:
    """A copy of the other process and the other way does not wait; one the same way does."""
    code = """
    device = use()
    stream = ok(driver.cuStreamCreate(1))
    block = ok(driver.cuMemAlloc(SIZE))
    page_locked = ok(driver.cuMemHostAlloc(SIZE, 0))
    def submit(into):
        if into:
            ok(driver.cuMemcpyHtoDAsync(block, page_locked, SIZE, stream))
        else:
            ok(driver.cuMemcpyDtoHAsync(page_locked, block, SIZE, stream))
    say()
    for line in sys.stdin:
        if line.strip() == "query":
            say(str(error(driver.cuStreamQuery(stream))))
        else:
            submit(line.strip() == "in")
            say()
    """
    environment = machine(memory="64MiB", context="1MiB", bandwidth="1MiB")
    long = talk(environment, code.replace("SIZE", "(16 << 20)"))
    short = talk(environment, code.replace("SIZE", "1024"))
    for one in (long, short):
        assert one.heard() == "ready"

    def ask(one: Talker, what: str) -> str:
        one.tell(what)
        return one.heard()

    ask(long, "in")
    ask(short, "out")
    while ask(short, "query") == "600":
        assert ask(long, "query") == "600", "the engines are one"
    assert ask(long, "query") == "600"
    ask(short, "in")
    assert ask(short, "query") == "600"
    for one in (long, short):
        one.kill()


def test_one_handle_may_be_mapped_at_two_addresses(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
unmap()
before = free()
other = ok(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
handle = ok(driver.cuMemCreate(SIZE, properties, 0))
for at in (address, other):
    ok(driver.cuMemMap(at, SIZE, 0, handle, 0))
    ok(driver.cuMemSetAccess(at, SIZE, [access], 1))
assert before - free() == SIZE
ok(driver.cuMemRelease(handle))
write(address, data)
run_add(stream, kernel, other, COUNT)
stream.sync()
assert (read(address, COUNT) == data + np.float32(1)).all()
same = [ok(driver.cuMemRetainAllocationHandle(int(at))) for at in (address, other)]
assert int(same[0]) == int(same[1])
got = ok(driver.cuMemGetAllocationPropertiesFromHandle(same[0]))
assert got.location.id == 0 and got.type == properties.type
for one in same:
    ok(driver.cuMemRelease(one))
unmap()
assert before - free() == SIZE, "the other mapping keeps it"
assert (read(other, COUNT) == data + np.float32(1)).all()
ok(driver.cuMemUnmap(other, SIZE))
assert free() == before
""",
    )


def test_several_mappings_may_be_made_in_one_call(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
unmap()
ok(driver.cuMemAddressFree(address, SIZE))
PART = 2 << 20
address = ok(driver.cuMemAddressReserve(4 * PART, 0, 0, 0))
place = driver.CUmemLocation()
place.type, place.id = properties.location.type, 0

def part(i):
    return int(address) + i * PART

def map_part(i, size=PART):
    handle = ok(driver.cuMemCreate(size, properties, 0))
    ok(driver.cuMemMap(part(i), size, 0, handle, 0))
    ok(driver.cuMemRelease(handle))

def set_access(i, count):
    return error(driver.cuMemSetAccess(part(i), count * PART, [access], 1))

def access_of(i):
    return int(ok(driver.cuMemGetAccess(place, part(i))))

map_part(0)
map_part(1, 2 * PART)
assert access_of(0) == access_of(1) == 0, "a mapping begins without access"
assert set_access(0, 4) == 1, "the last part is not mapped"
assert set_access(0, 2) == set_access(2, 1) == 1, "only whole mappings"
assert access_of(0) == 0
assert set_access(0, 3) == 0
assert access_of(0) == access_of(2) == 3
data = np.arange(3 * PART // 4, dtype=np.float32)
write(address, data)
assert error(driver.cuMemGetAccess(place, part(3))) == 1
assert error(driver.cuMemUnmap(address, 4 * PART)) == 1
assert error(driver.cuMemUnmap(address, 2 * PART)) == 1
assert error(driver.cuMemUnmap(part(2), PART)) == 1
assert (read(address, data.size) == data).all(), "what is refused does nothing"
map_part(3)
assert access_of(3) == 0 and access_of(2) == 3
ok(driver.cuMemUnmap(address, 4 * PART))
assert free() == empty
map_part(0)
assert access_of(0) == 0, "access is to be set again"
assert error(driver.cuMemAddressFree(address, 4 * PART)) == 1, "not while something is mapped"
ok(driver.cuMemUnmap(address, PART))
assert error(driver.cuMemAddressFree(address, PART)) == 1, "the whole reservation"
ok(driver.cuMemAddressFree(address, 4 * PART))
""",
    )


def test_a_reservation_may_request_an_address(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        size = 8 << 20
        first = int(ok(driver.cuMemAddressReserve(3 * size, 0, 0, 0)))
        ok(driver.cuMemAddressFree(first, 3 * size))
        middle = int(ok(driver.cuMemAddressReserve(size, 0, first + size, 0)))
        assert middle == first + size
        ends = [int(ok(driver.cuMemAddressReserve(size, 0, at, 0))) for at in (first, first + 2 * size)]
        assert ends == [first, first + 2 * size], "neighbours may touch"
        other = int(ok(driver.cuMemAddressReserve(size, 0, middle, 0)))
        assert other not in (first, *ends), "a wish that cannot be met is not an error"
        aligned = int(ok(driver.cuMemAddressReserve(size, 1 << 30, 0, 0)))
        assert aligned % (1 << 30) == 0
        """,
    )


def test_a_mapping_may_have_host_memory(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
unmap()
kinds = driver.CUmemLocationType
before = free()
for kind in (kinds.CU_MEM_LOCATION_TYPE_HOST, kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA,
             kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT):
    properties.location.type, properties.location.id = kind, 0
    map(give_access=False)
    assert free() == before, "it is not the device's"
    on_host = driver.CUmemAccessDesc()
    on_host.location = properties.location
    on_host.flags = access.flags
    ok(driver.cuMemSetAccess(address, SIZE, [access, on_host], 2))
    assert int(ok(driver.cuMemGetAccess(properties.location, address))) == 3
    counted = counters().copied_in
    write(address, data)
    assert counters().copied_in == counted, "no engine moves it"
    run_add(stream, kernel, address, COUNT)
    stream.sync()
    view = np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(int(address)))
    assert (view == data + np.float32(1)).all()
    which = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert int(ok(driver.cuPointerGetAttribute(which, address))) == 1
    unmap()
properties.location.type, properties.location.id = kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA, 3
assert error(driver.cuMemCreate(SIZE, properties, 0)) == 1, "there is one node"
properties.location.type, properties.location.id = kinds.CU_MEM_LOCATION_TYPE_DEVICE, 0
map()
assert error(driver.cuMemSetAccess(address, SIZE, [on_host], 1)) == 801, "the host does not reach the device's"
""",
    )


SHARING = (
    VIRTUAL.split("empty = free()")[0]
    + """
import array, socket
fd_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
properties.requestedHandleTypes = fd_type
link = socket.socket(socket.AF_UNIX)

def map_it(handle):
    ok(driver.cuMemMap(address, SIZE, 0, handle, 0))
    ok(driver.cuMemSetAccess(address, SIZE, [access], 1))
"""
)

EXPORTER = (
    SHARING
    + """
handle = ok(driver.cuMemCreate(SIZE, properties, 0))
map_it(handle)
write(address, np.full(COUNT, 3, np.float32))
fd = ok(driver.cuMemExportToShareableHandle(handle, fd_type, 0))
again = ok(driver.cuMemImportFromShareableHandle(int(fd), fd_type))
ok(driver.cuMemRelease(again))
ok(driver.cuMemRelease(handle))
link.bind(NAME)
link.listen()
say()
peer, _ = link.accept()
socket.send_fds(peer, [b"x"], [int(fd)])
hear()
assert (read(address, COUNT) == 4).all(), "what the other wrote"
ok(driver.cuMemUnmap(address, SIZE))
os.close(int(fd))
say()
hear()
"""
)

IMPORTER = (
    SHARING
    + """
link.connect(NAME)
_, (fd,), _, _ = socket.recv_fds(link, 1, 1)
handle = ok(driver.cuMemImportFromShareableHandle(fd, fd_type))
os.close(fd)
properties = ok(driver.cuMemGetAllocationPropertiesFromHandle(handle))
assert properties.location.id == 0 and properties.requestedHandleTypes == fd_type
map_it(handle)
ok(driver.cuMemRelease(handle))
assert (read(address, COUNT) == 3).all()
run_add(stream, kernel, address, COUNT)
stream.sync()
say()
hear()
assert (read(address, COUNT) == 4).all(), "it outlives its exporter"
say()
hear()
"""
)


def test_memory_shared_by_a_descriptor_is_counted_once(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    name = repr("\0" + environment["GPUSHARE_SIM_NAME"])
    exporter = talk(environment, EXPORTER.replace("NAME", name))
    assert exporter.heard() == "ready"
    importer = talk(environment, IMPORTER.replace("NAME", name))
    assert importer.heard() == "ready"
    assert used(environment) == 6 * MIB
    exporter.tell()
    assert exporter.heard() == "ready"
    assert used(environment) == 6 * MIB, "the importer still has it"
    exporter.tell()
    assert exporter.close() == 0
    importer.tell()
    assert importer.heard() == "ready"
    assert used(environment) == 5 * MIB
    importer.kill()
    wait_for_use(environment, 0)


def test_a_killed_exporter_leaves_the_memory_to_the_importer(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    name = repr("\0" + environment["GPUSHARE_SIM_NAME"])
    exporter = talk(environment, EXPORTER.replace("NAME", name))
    assert exporter.heard() == "ready"
    importer = talk(environment, IMPORTER.replace("NAME", name))
    assert importer.heard() == "ready"
    exporter.kill()
    wait_for_use(environment, 5 * MIB)
    importer.tell()
    assert importer.heard() == "ready"
    importer.tell()
    assert importer.close() == 0
    assert used(environment) == 0


def test_only_memory_made_for_it_is_exported(machine: Machine) -> None:
    run(
        machine(),
        SHARING
        + """
properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
handle = ok(driver.cuMemCreate(SIZE, properties, 0))
assert error(driver.cuMemExportToShareableHandle(handle, fd_type, 0)) == 1
assert error(driver.cuMemImportFromShareableHandle(99, fd_type)) == 1
""",
    )


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


def test_an_instant_launch_computes_nothing(machine: Machine) -> None:
    run(
        machine(instant=1, compute_capability="8.6"),
        """
        device = use()
        assert tuple(device.compute_capability) == (8, 6)
        stream = device.create_stream()
        block = ok(driver.cuMemAlloc(1024))
        write(block, np.zeros(256, np.float32))
        run_add(stream, compile(ADD).get_kernel("add"), block, 256)
        stream.sync()
        assert not read(block, 256).any() and counters().kernels == 0
        """,
    )


def test_a_missing_compiler_is_a_compilation_error(machine: Machine) -> None:
    run(
        machine(cxx="no-such-compiler"),
        """
        use()
        try:
            compile(ADD)
        except Exception as caught:
            assert "no-such-compiler" in str(caught), caught
        else:
            raise AssertionError("it compiled")
        """,
    )
