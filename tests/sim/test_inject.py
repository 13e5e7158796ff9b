# SPDX-License-Identifier: BSD-3-Clause
"""Failures on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.sim import run

Machine = Callable[..., dict[str, str]]

PARTS = """
device = use()
SIZE = 2 << 20
properties = driver.CUmemAllocationProp()
properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = 0
access = driver.CUmemAccessDesc()
access.location = properties.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
raw = ok(driver.cuStreamCreate(0))
host = np.zeros(SIZE // 4, np.uint32)
other = np.zeros(SIZE, np.uint8)
block = ok(driver.cuMemAlloc(SIZE))
event = ok(driver.cuEventCreate(0))

context = ok(driver.cuCtxGetCurrent())
pool = driver.CUmemPoolProps()
pool.allocType, pool.location = properties.type, properties.location

def free():
    return ok(driver.cuMemGetInfo())[0]

def create():
    return driver.cuMemCreate(SIZE, properties, 0)
"""


def test_rules_select_the_calls_that_fail(machine: Machine) -> None:
    run(
        machine(fail="cuMemCreate:2,cuMemCreate:4+=UNKNOWN"),
        PARTS
        + """
before = free()
results = [create() for _ in range(5)]
assert [error(result) for result in results] == [0, 2, 0, 999, 999]
assert counters().injected == 3
assert before - free() == 2 * SIZE, "a call that fails does nothing"
assert fail("") == 0
assert error(create()) == 0
assert fail("cuMemCreate:1") == 0
assert [error(create()) for _ in range(2)] == [2, 0], "calls count from when the rules were set"
assert fail("cuMemA*=NOT_SUPPORTED") == 0
assert error(driver.cuMemAlloc(64)) == error(driver.cuMemAddressReserve(SIZE, 0, 0, 0)) == 801
assert error(create()) == 0
""",
    )


CALLS = {
    "cuMemCreate": "create()",
    "cuMemAddressReserve": "driver.cuMemAddressReserve(SIZE, 0, 0, 0)",
    "cuMemMap": "driver.cuMemMap(address, SIZE, 0, handle, 0)",
    "cuMemSetAccess": "driver.cuMemSetAccess(address, SIZE, [access], 1)",
    "cuMemRetainAllocationHandle": "driver.cuMemRetainAllocationHandle(int(address))",
    "cuMemcpyHtoDAsync_v2": "driver.cuMemcpyHtoDAsync(block, host.ctypes.data, SIZE, raw)",
    "cuMemcpyDtoHAsync": "driver.cuMemcpyDtoHAsync(host.ctypes.data, block, SIZE, raw)",
    "cuMemcpyDtoD": "driver.cuMemcpyDtoD(block, int(block) + 64, 64)",
    "cuMemcpyHtoD": "driver.cuMemcpyHtoD(block, host.ctypes.data, SIZE)",
    "cuMemsetD8": "driver.cuMemsetD8(block, 1, SIZE)",
    "cuMemUnmap": "driver.cuMemUnmap(address, SIZE)",
    "cuMemRelease": "driver.cuMemRelease(handle)",
    "cuMemAddressFree": "driver.cuMemAddressFree(address, SIZE)",
    "cuMemAlloc": "driver.cuMemAlloc(64)",
    "cuMemAllocAsync": "driver.cuMemAllocAsync(64, raw)",
    "cuMemAllocManaged": "driver.cuMemAllocManaged(SIZE, 1)",
    "cuMemPrefetchAsync": "driver.cuMemPrefetchAsync(managed, SIZE, properties.location, 0, raw)",
    "cuMemHostRegister": "driver.cuMemHostRegister(other.ctypes.data, SIZE, 0)",
    "cuMemHostAlloc": "driver.cuMemHostAlloc(64, 0)",
    "cuStreamCreate": "driver.cuStreamCreate(0)",
    "cuEventCreate": "driver.cuEventCreate(0)",
    "cuEventRecord": "driver.cuEventRecord(event, raw)",
    "cuEventSynchronize": "driver.cuEventSynchronize(event)",
    "cuEventQuery": "driver.cuEventQuery(event)",
    "cuStreamSynchronize": "driver.cuStreamSynchronize(raw)",
    "cuStreamQuery": "driver.cuStreamQuery(raw)",
    "cuCtxSynchronize": "driver.cuCtxSynchronize()",
    "cuDevicePrimaryCtxRetain": "driver.cuDevicePrimaryCtxRetain(0)",
    "cuCtxSetCurrent": "driver.cuCtxSetCurrent(context)",
    "cuStreamDestroy": "driver.cuStreamDestroy(ok(driver.cuStreamCreate(0)))",
    "cuEventDestroy": "driver.cuEventDestroy(ok(driver.cuEventCreate(0)))",
    "cuMemPoolCreate": "driver.cuMemPoolCreate(pool)",
    "cuGraphInstantiate*": "driver.cuGraphInstantiate(ok(driver.cuGraphCreate(0)), 0)",
    "cuCtxCreate": "driver.cuCtxCreate(None, 0, 0)",
}


def test_each_call_fails_once_and_works_then(machine: Machine) -> None:
    out_of_memory = {
        *(
            "cuMemCreate",
            "cuMemAddressReserve",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemAlloc",
            "cuMemAllocAsync",
        ),
        *(
            "cuMemAllocManaged",
            "cuMemHostRegister",
            "cuMemHostAlloc",
            "cuStreamCreate",
            "cuEventCreate",
        ),
        *("cuDevicePrimaryCtxRetain", "cuCtxCreate", "cuMemPoolCreate", "cuGraphInstantiate*"),
    }
    keep = {"cuMemCreate": "handle", "cuMemAddressReserve": "address"}
    steps = "".join(
        f"assert fail({name + ':1'!r}) == 0\n"
        f"assert error({call}) == {2 if name in out_of_memory else 999}, {name!r}\n"
        f"{keep.get(name, '_')} = ok({call})\n"
        f"assert counters().injected == {index}\n"
        for index, (name, call) in enumerate(CALLS.items(), 1)
    )
    run(
        machine(),
        PARTS + "managed = ok(driver.cuMemAllocManaged(SIZE, 1))\nok(driver.cuMemPrefetchAsync("
        "managed, SIZE, properties.location, 0, raw))\nok(driver.cuMemAllocAsync(64, raw))\n"
        + steps,
    )


def test_an_injected_failure_leaves_no_trace(machine: Machine) -> None:
    run(
        machine(),
        PARTS
        + """
address = ok(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
handle = ok(create())
ok(driver.cuMemMap(address, SIZE, 0, handle, 0))
ok(driver.cuMemSetAccess(address, SIZE, [access], 1))
host[:] = 7
ok(driver.cuMemcpyHtoD(address, host.ctypes.data, SIZE))
taken = free()
assert fail("cuMemUnmap,cuMemRelease,cuMemAddressFree,cuMemcpy*") == 0
for call in [
    lambda: driver.cuMemUnmap(address, SIZE),
    lambda: driver.cuMemRelease(handle),
    lambda: driver.cuMemAddressFree(address, SIZE),
    lambda: driver.cuMemcpyDtoH(other.ctypes.data, address, SIZE),
]:
    assert error(call()) == 999
assert not other.any()
assert free() == taken
assert fail("") == 0
assert (read(address, SIZE // 4, np.uint32) == 7).all()
ok(driver.cuMemUnmap(address, SIZE))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(address, SIZE))
""",
    )


def test_a_copy_may_fail_later(machine: Machine) -> None:
    run(
        machine(),
        PARTS
        + """
ok(driver.cuMemsetD32(block, 1, SIZE // 4))
page_locked = ok(driver.cuMemHostAlloc(SIZE, 0))
mirror = np.ctypeslib.as_array((ctypes.c_uint32 * (SIZE // 4)).from_address(page_locked))
mirror[:] = 5

def copy():
    ok(driver.cuMemcpyDtoHAsync(page_locked, block, SIZE, raw))

def told(ask):
    assert fail("cuMemcpyDtoHAsync:1=ILLEGAL_ADDRESS/later") == 0
    copy()
    result = ask()
    while result == 600:
        result = ask()
    assert result == 700
    assert ask() == 0, "it is told once"
    assert (mirror == 5).all(), "the copy was not done"

told(lambda: error(driver.cuStreamSynchronize(raw)))
told(lambda: error(driver.cuStreamQuery(raw)))
told(lambda: error(driver.cuCtxSynchronize()))
def by_event(wait):
    ok(driver.cuEventRecord(event, raw))
    return error(wait(event))
told(lambda: by_event(driver.cuEventSynchronize))

# What came before the failure is not blamed for it.
ok(driver.cuEventRecord(event, raw))
assert fail("cuMemcpy*/later") == 0
copy()
assert fail("") == 0
ok(driver.cuEventSynchronize(event))
assert error(driver.cuStreamSynchronize(raw)) == 999
copy()
ok(driver.cuStreamSynchronize(raw))
assert (mirror == 1).all(), "the context lives"
assert fail("cuMemcpyDtoH/later") == 0
mirror[:] = 5
assert error(driver.cuMemcpyDtoH(page_locked, block, SIZE)) == 999, "a synchronous call is told at once"
assert (mirror == 5).all()
""",
    )


def test_a_kernel_fails_later_or_for_good(machine: Machine) -> None:
    run(
        machine(),
        PARTS
        + """
stream = device.create_stream()
raw = driver.CUstream(int(stream.handle))
kernel = compile(ADD).get_kernel("add")
write(block, np.zeros(256, np.float32))
assert fail("cuLaunchKernel*:2=LAUNCH_FAILED/later") == 0
for _ in range(3):
    run_add(stream, kernel, block, 256)
assert error(driver.cuStreamSynchronize(raw)) == 719
assert (read(block, 256) == 2).all()
assert fail("cuLaunchKernel*=LAUNCH_FAILED/fatal") == 0
try:
    run_add(stream, kernel, block, 256)
except Exception as caught:
    assert "LAUNCH_FAILED" in str(caught), caught
else:
    raise AssertionError("the launch did not fail")
assert fail("") == 0
assert error(driver.cuMemAlloc(64)) == error(driver.cuStreamSynchronize(raw)) == 719
ok(driver.cuDevicePrimaryCtxReset(0))
""",
    )


def test_rules_may_select_threads(machine: Machine) -> None:
    run(
        machine(fail="cuMemAlloc%work:2,cuMemFree%!work"),
        PARTS
        + """
import threading
libc = ctypes.CDLL(None)

def work(results, name):
    ok(driver.cuCtxSetCurrent(context))
    libc.prctl(15, name, 0, 0, 0)
    results.extend(error(driver.cuMemAlloc(64)) for _ in range(3))
    results.append(error(driver.cuMemFree(ok(driver.cuMemAllocAsync(64, raw)))))

for name, expected in ((b"worker", [0, 2, 0, 0]), (b"other", [0, 0, 0, 999])):
    results = []
    thread = threading.Thread(target=work, args=(results, name))
    thread.start()
    thread.join()
    assert results == expected, (name, results)
""",
    )


def test_chance_depends_on_the_seed_alone(machine: Machine) -> None:
    environment = machine(fail="cuMemAlloc@0.25")
    code = "use(); print(*(error(driver.cuMemAlloc(64)) for _ in range(400)))"
    first, again = (run(environment, code).stdout for _ in range(2))
    other = run(environment | {"GPUSHARE_SIM_FAIL_SEED": "7"}, code).stdout
    assert first == again != other
    for line in (first, other):
        assert 40 < line.split().count("2") < 160
    never = run(environment | {"GPUSHARE_SIM_FAIL": "cuMemAlloc@0"}, code).stdout
    assert set(never.split()) == {"0"}


@pytest.mark.parametrize(
    "rule",
    [
        "cuMemCreat",
        "cuMemAlloc:0",
        "cuMemAlloc:two",
        "cuMemAlloc:2-",
        "cuMemAlloc%",
        "cuMemAlloc%a-thread-with-a-long-name",
        "cuMemAlloc@1.5",
        "cuMemAlloc@",
        "cuMemAlloc=OUT_OF_LUCK",
        "cuMemAlloc=SUCCESS",
        "cuMemcpy*/soon",
        "cuMemAlloc/later",
        "",
    ],
)
def test_a_malformed_rule_is_named(machine: Machine, rule: str) -> None:
    environment = machine(fail=f"cuMemFree:3,{rule}")
    done = run(environment, "print(error(driver.cuInit(0)))")
    assert done.stdout.strip() == "1"
    (line,) = done.stderr.splitlines()
    assert "GPUSHARE_SIM_FAIL" in line
    assert f"'{rule}'" in line


def test_malformed_rules_at_run_time_change_nothing(machine: Machine) -> None:
    done = run(
        machine(fail="cuMemAlloc=UNKNOWN"),
        """
        use()
        assert fail("cuMemAlloc,nothing") == -1
        assert error(driver.cuMemAlloc(64)) == 999
        """,
    )
    assert "'nothing'" in done.stderr


def test_a_malformed_seed_is_named(machine: Machine) -> None:
    done = run(machine(fail_seed="x"), "print(error(driver.cuInit(0)))")
    assert done.stdout.strip() == "1"
    assert "GPUSHARE_SIM_FAIL_SEED='x'" in done.stderr
