# SPDX-License-Identifier: BSD-3-Clause
"""What contexts cost, and host memory."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.programs import used, wait_for_use
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
        machine(
            bandwidth="4GiB",
            pageable_bandwidth="1GiB",
            page_lock_bandwidth="2GiB",
            page_unlock_bandwidth="1GiB",
        ),
        HOST
        + """
import time
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
began = time.monotonic()
ok(driver.cuMemHostUnregister(at))
assert time.monotonic() - began >= SIZE / (1 << 30)
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
