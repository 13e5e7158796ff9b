# SPDX-License-Identifier: BSD-3-Clause
"""Evictions copy only what the host does not have already, and every byte comes back."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpushare._protocol import ffi, lib
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.memory.pool import CHUNK, UNIT, Pool
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.scripted import evicted
from tests.support.machine import Machine, Program, Script, Scripted
from tests.support.scheduler import until

SIZE = 20 * UNIT
#: A GPU with pieces of several units.
MEMORY = str(64 * 16 * UNIT)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(8 * CHUNK)
    pool.order(limit=8 * CHUNK, target=0, most=8 * CHUNK)
    yield pool
    pool.close()


@pytest.fixture(params=["pieces of one unit", "pieces of several units"])
def scripted(
    request: pytest.FixtureRequest, pool: Pool, make_script: Callable[..., Scripted]
) -> Scripted:
    several = request.param == "pieces of several units"
    return make_script(pool, **({"GPUSHARE_SIM_MEMORY": MEMORY} if several else {}))


def leased(script: Script, a: Program, op: str, **parameters: Any) -> dict[str, Any]:
    """Let the program do something under a lease, and take the lease back."""
    call = a.start(op, **parameters)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    result = a.result(call)
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)
    return result


def scattered(script: Script, a: Program, size: int = SIZE) -> int:
    pointer = int(a.call("alloc", bytes=size)["pointer"])
    assert leased(script, a, "scatter", pointer=pointer, bytes=size, seed=1)["result"] == 0
    return pointer


def test_unchanged_data_is_not_copied_again(scripted: Scripted, pool: Pool) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    out = evicted(script, SIZE)
    assert (out.bytes, out.copied, out.hashed) == (SIZE, SIZE, SIZE)
    assert out.usage.host == SIZE
    for _ in range(3):
        assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1)["equal"]
        assert pool.figures().kept == SIZE
        out = evicted(script, SIZE)
        assert (out.bytes, out.copied, out.hashed) == (SIZE, 0, SIZE)
        assert (out.zero, out.shared) == (0, 0)
        assert (out.usage.host, out.usage.clean) == (SIZE, 0)
    assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1)["equal"]


def test_restored_data_counts_as_clean(scripted: Scripted) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    evicted(script, SIZE)
    call = a.start("scattered", pointer=at, bytes=SIZE, seed=1)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert script.next(ev.Restored).usage.clean == SIZE
    assert a.result(call)["equal"]
    assert a.call("free", pointer=at)["result"] == 0
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)
    out = evicted(script, SIZE)
    assert (out.usage.clean, out.usage.resident) == (0, 0)


@pytest.mark.parametrize("offset", [0, 5 * UNIT + 12345, SIZE - 1])
def test_one_changed_byte_costs_one_unit(scripted: Scripted, pool: Pool, offset: int) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    evicted(script, SIZE)
    assert leased(script, a, "set_byte", pointer=at + offset, value=0)["result"] == 0
    assert evicted(script, SIZE).copied == UNIT
    leased(script, a, "set_byte", pointer=at + offset, value=1)
    out = evicted(script, SIZE)
    assert (out.copied, out.usage.host) == (UNIT, SIZE)
    changed = {str(offset): 1}
    check = leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1, changed=changed)
    assert check["equal"]
    # It went to the place that it had.
    assert pool.figures().prepared <= -(-SIZE // CHUNK) * CHUNK + CHUNK


def test_a_digest_that_ignores_a_byte_is_detected_by_comparing(
    make_script: Callable[..., Scripted], pool: Pool
) -> None:
    """The checks of this file can fail: the simulated driver has this fault for that."""
    script, a, _ = make_script(pool, GPUSHARE_SIM_DIGEST_IGNORES="5")
    at = scattered(script, a)
    evicted(script, SIZE)
    assert leased(script, a, "set_byte", pointer=at + 5, value=0)["result"] == 0
    assert evicted(script, SIZE).copied == 0
    check = leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1, changed={"5": 0})
    assert not check["equal"]


def test_zeros_are_neither_copied_nor_stored(scripted: Scripted, pool: Pool) -> None:
    script, a, _ = scripted
    at = int(a.call("alloc", bytes=SIZE)["pointer"])
    leased(script, a, "fill", pointer=at, bytes=SIZE, value=0)
    before = pool.allocated()
    out = evicted(script, SIZE)
    assert (out.bytes, out.copied, out.zero, out.usage.host) == (SIZE, 0, SIZE, 0)
    # Pages were made ahead, before the data was known to be zeros. No process uses them.
    assert pool.figures().in_use == 0
    pool.order(limit=8 * CHUNK, target=0, most=0)
    until(lambda: pool.allocated() == before)
    pool.order(limit=8 * CHUNK, target=0, most=8 * CHUNK)
    assert leased(script, a, "check", pointer=at, bytes=SIZE, value=0)["equal"]
    leased(script, a, "set_byte", pointer=at + 3 * UNIT, value=9)
    out = evicted(script, SIZE)
    assert (out.copied, out.zero, out.usage.host) == (UNIT, SIZE - UNIT, UNIT)
    assert leased(script, a, "check", pointer=at, bytes=3 * UNIT, value=0)["equal"]


def test_copies_that_others_took_are_made_again(scripted: Scripted, pool: Pool) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    evicted(script, SIZE)
    assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1)["equal"]
    # Another client of the user writes other data there.
    slot = pool.lend(os.getpid())
    assert slot is not None
    memory = mmap.mmap(pool.descriptor, os.fstat(pool.descriptor).st_size)
    table = ffi.cast("struct gpushare_pool *", ffi.from_buffer(memory))
    user, taken = lib.gpushare_pool_user(slot), 0
    for chunk in range(8):
        for unit in range(0, lib.GPUSHARE_POOL_UNITS, 2):
            if lib.gpushare_pool_used_at(table.chunks + chunk, unit):
                assert lib.gpushare_pool_claim(table.chunks + chunk, unit, user)
                lib.gpushare_pool_spoil(table.chunks + chunk, unit)
                start = table.data_offset + chunk * CHUNK + unit * UNIT
                memory[start : start + UNIT] = b"x" * UNIT
                lib.gpushare_pool_publish(table.chunks + chunk, unit, user, ffi.NULL, 1)
                taken += UNIT
    assert taken
    assert evicted(script, SIZE).copied == taken
    assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1)["equal"]
    del table


def test_data_that_always_changes_is_seldom_hashed(scripted: Scripted) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    hashed = []
    for seed in range(2, 20):
        hashed.append(evicted(script, SIZE).hashed == SIZE)
        assert leased(script, a, "scatter", pointer=at, bytes=SIZE, seed=seed)["result"] == 0
    # The first has nothing to be compared with, nor has the first after a pause. Hashing stops after four changes.
    assert hashed == [True] * 5 + [False] + [True] * 2 + [False] * 3 + [True] * 2 + [False] * 5
    assert evicted(script, SIZE).copied == SIZE
    assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=19)["equal"]


@pytest.mark.parametrize(
    "rule", ["cuModuleLoadData%gpushare", "cuLaunchKernel%gpushare", "cuEventRecord%gpushare:2"]
)
def test_without_hashing_everything_is_copied(scripted: Scripted, rule: str) -> None:
    script, a, _ = scripted
    at = scattered(script, a)
    a.call("fail", rules=rule)
    while evicted(script, SIZE).usage.resident:
        a.call("fail", rules="")
    assert leased(script, a, "scattered", pointer=at, bytes=SIZE, seed=1)["equal"]


def test_equal_data_of_two_programs_is_stored_once(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    size = 8 * UNIT

    def pool() -> Any:
        return machine.control("status")["status"]["host"]["pool"]

    at = {}
    for program in (a, b):
        at[program] = int(program.call("alloc", bytes=size)["pointer"])
        program.call("scatter", pointer=at[program], bytes=size, seed=5)
        program.call("cell", phase="end")
    machine.evict("a")
    machine.evict("b")
    assert (pool()["in_use"], pool()["shared"]) == (CHUNK, size)
    offset = UNIT + 7
    b.call("set_byte", pointer=at[b] + offset, value=1)
    b.call("cell", phase="end")
    machine.evict("b")
    assert pool()["shared"] == size - UNIT
    os.kill(a.pid, signal.SIGKILL)
    machine.until(lambda: pool()["shared"] == 0)
    changed = {str(offset): 1}
    assert b.call("scattered", pointer=at[b], bytes=size, seed=5, changed=changed)["equal"]


def test_equal_data_stays_right_when_one_program_changes_it(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    size, at = 8 * UNIT, {}
    for program in (a, b):
        at[program] = int(program.call("alloc", bytes=size)["pointer"])
        program.call("scatter", pointer=at[program], bytes=size, seed=5)
        program.call("cell", phase="end")
    for turn in range(1, 4):
        for name in "ab":
            machine.evict(name)
        a.call("set_byte", pointer=at[a] + turn, value=turn)
        a.call("cell", phase="end")
        machine.evict("a")
        changed = {str(n): n for n in range(1, turn + 1)}
        assert a.call("scattered", pointer=at[a], bytes=size, seed=5, changed=changed)["equal"]
        assert b.call("scattered", pointer=at[b], bytes=size, seed=5)["equal"]
        for program in (a, b):
            program.call("cell", phase="end")


def test_three_programs_take_turns_with_data_that_changes(
    make_machine: Callable[..., Machine],
) -> None:
    """The host has room for what has to leave, and for few copies beside that."""
    machine = make_machine("--host-memory", "192M")
    size = 20 * UNIT
    programs = [machine.program(name) for name in "abc"]
    at = [int(program.call("alloc", bytes=size)["pointer"]) for program in programs]
    for number, program in enumerate(programs):
        written = program.call("scatter", pointer=at[number], bytes=size, seed=number)
        assert written["result"] == 0, program.errors
        program.call("cell", phase="end")
    for turn in range(4):
        for number, program in enumerate(programs):
            changed = {str(n): n for n in range(turn)}
            check = program.call(
                "scattered", pointer=at[number], bytes=size, seed=number, changed=changed
            )
            assert check["equal"]
            program.call("set_byte", pointer=at[number] + turn, value=turn)
            program.call("cell", phase="end")


def test_the_struct_of_a_move_has_the_figures_in_their_places() -> None:
    """The core reads them by name, and the client writes them in C."""
    assert ffi.sizeof("struct gpushare_usage") == 80
    assert ctypes.sizeof(ctypes.c_uint64) * 6 + 80 + 16 == ffi.sizeof("struct gpushare_moved")
