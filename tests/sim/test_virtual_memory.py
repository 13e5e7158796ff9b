# SPDX-License-Identifier: BSD-3-Clause
"""Virtual memory in full: handles, addresses, mappings, and memory that processes share by a descriptor."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import VIRTUAL, used, wait_for_use
from tests.support.sim import MIB, Talker, run

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]


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


def share(environment: dict[str, str], talk: Talk) -> tuple[Talker, Talker]:
    """Return a program that has exported memory, and one that has imported it."""
    name = repr("\0" + environment["GPUSHARE_SIM_NAME"])
    exporter = talk(environment, EXPORTER.replace("NAME", name))
    assert exporter.heard() == "ready"
    importer = talk(environment, IMPORTER.replace("NAME", name))
    assert importer.heard() == "ready"
    return exporter, importer


def test_memory_shared_by_a_descriptor_is_counted_once(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    exporter, importer = share(environment, talk)
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
    exporter, importer = share(environment, talk)
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
