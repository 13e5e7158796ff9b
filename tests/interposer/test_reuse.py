# SPDX-License-Identifier: BSD-3-Clause
"""What the driver has back, it may give out again before the call that freed it returns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.interposer.raw_calls import POOL, PROPERTIES, raw
from tests.support.machine import UNIT, Machine, Program

SIZE = 8 * UNIT
#: CUmemAccessDesc: GPU 0 may read and write.
ACCESS = struct.pack("<iii", 1, 0, 3).hex()
#: CUDA_ARRAY_DESCRIPTOR: floats.
ARRAY = struct.pack("<QQii", 1024, SIZE // 4096, 0x20, 1).hex()
#: CUDA_ARRAY3D_DESCRIPTOR: of the same, but without memory.
DEFERRED_ARRAY = struct.pack("<QQQiII4x", 1024, SIZE // 4096, 0, 0x20, 1, 0x80).hex()
USED_MEMORY = 7


@pytest.fixture
def a(machine: Machine) -> Program:
    """Return a program."""
    return machine.program("a")


@contextmanager
def freeing(machine: Machine, program: Program, function: str, *arguments: int) -> Iterator[None]:
    """Have a thread free something: the driver has it back, but the call returns only at the end."""
    before = program.call("counters")["injected"]
    program.call("fail", rules=f"{function}%!gpushare:1/linger")
    serial = program.start("raw", function=function, arguments=list(arguments), thread="frees")
    machine.until(lambda: program.call("counters")["injected"] > before)
    yield
    program.call("fail", rules="")
    assert program.result(serial)["result"] == 0


def until_same(machine: Machine, wanted: int, make: Callable[[], int]) -> None:
    """Make others until the driver gives the freed one out."""
    machine.until(lambda: make() == wanted)


def unevictable(machine: Machine) -> int:
    machine.control("status")
    (gpu,) = machine.group("a")["gpus"]
    return int(gpu["unevictable"])


@pytest.mark.parametrize(("before", "after"), [(SIZE, SIZE), (SIZE, 2 * SIZE), (2 * SIZE, SIZE)])
def test_addresses_are_reused_safely(machine: Machine, a: Program, before: int, after: int) -> None:
    def reserve(size: int, hint: int) -> int:
        return raw(a, "cuMemAddressReserve", "out", size, 0, hint, 0)

    address = reserve(before, 0)
    with freeing(machine, a, "cuMemAddressFree", address, before):
        until_same(machine, address, lambda: reserve(after, address))
    handle = raw(a, "cuMemCreate", "out", after, PROPERTIES, 0)
    raw(a, "cuMemMap", address, after, 0, handle, 0)
    raw(a, "cuMemSetAccess", address, after, ACCESS, 1)
    assert a.call("fill", pointer=address, bytes=after, value=5)["result"] == 0
    assert a.holds(address, after, 5)


def test_arrays_are_reused_safely(machine: Machine, a: Program) -> None:
    def create() -> int:
        return raw(a, "cuArrayCreate_v2", "out", ARRAY)

    array = create()
    bare = raw(a, "cuArray3DCreate_v2", "out", DEFERRED_ARRAY)
    with freeing(machine, a, "cuArrayDestroy", array):
        # The interposer creates an array to ask for the size: let it have a handle that was freed later.
        raw(a, "cuArrayDestroy", bare)
        assert create() == array
    raw(a, "cuArrayDestroy", array)
    machine.until(lambda: unevictable(machine) == 0)


def test_pools_are_reused_safely(machine: Machine, a: Program) -> None:
    def create() -> int:
        return raw(a, "cuMemPoolCreate", "out", POOL)

    pool = create()
    with freeing(machine, a, "cuMemPoolDestroy", pool):
        until_same(machine, pool, create)
    raw(a, "cuMemAllocFromPoolAsync", "out", 3 * SIZE, pool, None)
    assert raw(a, "cuMemPoolGetAttribute", pool, USED_MEMORY, "out") == 3 * SIZE


def test_executable_graphs_are_reused_safely(machine: Machine, a: Program) -> None:
    node = POOL + struct.pack("<QQQQ", 0, 0, SIZE, 0).hex()

    def instantiate() -> int:
        graph = raw(a, "cuGraphCreate", "out", 0)
        raw(a, "cuGraphAddMemAllocNode", "out", graph, None, 0, node)
        return raw(a, "cuGraphInstantiateWithFlags", "out", graph, 0)

    executable = instantiate()
    with freeing(machine, a, "cuGraphExecDestroy", executable):
        until_same(machine, executable, instantiate)
    raw(a, "cuGraphLaunch", executable, None)
    machine.until(lambda: unevictable(machine) >= SIZE)


def test_a_free_that_fails_leaves_everything_as_it_was(machine: Machine, a: Program) -> None:
    address = raw(a, "cuMemAddressReserve", "out", SIZE, 0, 0, 0)
    array = raw(a, "cuArrayCreate_v2", "out", ARRAY)
    pool = raw(a, "cuMemPoolCreate", "out", POOL)
    pointer = raw(a, "cuMemAllocFromPoolAsync", "out", SIZE, pool, None)
    held = unevictable(machine)
    assert held > 0
    for function, arguments in [
        ("cuMemAddressFree", [address, SIZE]),
        ("cuArrayDestroy", [array]),
        ("cuMemPoolDestroy", [pool]),
    ]:
        a.call("fail", rules=f"{function}=UNKNOWN")
        assert a.call("raw", function=function, arguments=arguments)["result"] == 999
    a.call("fail", rules="")
    assert unevictable(machine) == held
    assert raw(a, "cuMemPoolGetAttribute", pool, USED_MEMORY, "out") == SIZE
    raw(a, "cuMemFree_v2", pointer)
    assert raw(a, "cuMemPoolGetAttribute", pool, USED_MEMORY, "out") == 0
    handle = raw(a, "cuMemCreate", "out", SIZE, PROPERTIES, 0)
    raw(a, "cuMemMap", address, SIZE, 0, handle, 0)
    raw(a, "cuArrayDestroy", array)
    machine.until(lambda: unevictable(machine) == 0)
