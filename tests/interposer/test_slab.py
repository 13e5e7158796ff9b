# SPDX-License-Identifier: BSD-3-Clause
"""Small blocks share slabs: programs see no difference, in any order of allocations and frees."""

from __future__ import annotations

import random
import time
from bisect import bisect
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.machine import UNIT, Machine, Program

MIB = 1 << 20
#: What the GPU of these tests makes of 1/256 of its memory, and what is small.
SLAB = 2 * MIB
SMALL = SLAB // 8
INVALID_VALUE = 1


def size_of(draw: random.Random, most: int = SMALL) -> int:
    """Any order of magnitude alike, and at times just at a power of two."""
    size = int(2 ** draw.uniform(0, most.bit_length() - 1))
    return max(1, min(most, size + draw.choice((0, 0, -1, 1))))


def words(size: int) -> int:
    return size // 4 * 4


class Blocks:
    """The live blocks of one program; each is filled with a value of its own."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.live: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []
        self.value = 0

    def add(self, size: int) -> int:
        reply = self.program.call("alloc", bytes=size)
        assert reply["result"] == 0
        pointer = int(reply["pointer"])
        assert pointer % 512 == 0
        at = bisect(self.starts, pointer)
        if at < len(self.starts):
            assert pointer + size <= self.starts[at]
        if at > 0:
            before = self.starts[at - 1]
            assert before + self.live[before][0] <= pointer
        self.starts.insert(at, pointer)
        self.value += 1
        self.live[pointer] = (size, self.value)
        if words(size):
            filled = self.program.call("fill", pointer=pointer, bytes=words(size), value=self.value)
            assert filled["result"] == 0
        return pointer

    def remove(self, pointer: int) -> None:
        self.check(pointer)
        assert self.program.call("free", pointer=pointer)["result"] == 0
        del self.live[pointer]
        self.starts.remove(pointer)

    def check(self, pointer: int) -> None:
        size, value = self.live[pointer]
        if words(size):
            assert self.program.holds(pointer, words(size), value)

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.live.values())


def held(program: Program) -> int:
    """Bytes of the GPU that the program is told it has taken."""
    info = program.call("info")
    return int(info["total"]) - int(info["free"])


@pytest.mark.parametrize("seed", range(3))
def test_blocks_are_disjoint_and_keep_their_contents(machine: Machine, seed: int) -> None:
    draw = random.Random(seed)
    blocks = Blocks(machine.program("a"))
    for _ in range(800):
        if blocks.live and draw.random() < 0.45:
            blocks.remove(draw.choice(blocks.starts))
        elif blocks.bytes < 24 * MIB:
            blocks.add(size_of(draw))
    for pointer in [*blocks.starts]:
        blocks.check(pointer)


def test_blocks_survive_an_eviction(machine: Machine) -> None:
    draw = random.Random(11)
    a, b = machine.program("a"), machine.program("b")
    blocks = Blocks(a)
    for _ in range(100):
        blocks.add(draw.randint(SMALL // 4, SMALL))
        blocks.add(size_of(draw))
    a.call("cell", phase="end")
    b.filled(216 * UNIT, 2)
    # Room that the progress of an eviction frees is given away before the eviction ends and is counted.
    machine.until(lambda: machine.group("a")["totals"]["evicted"] >= 2 * SLAB)
    b.call("cell", phase="end")
    for pointer in draw.sample(blocks.starts, 75):
        blocks.remove(pointer)
    for _ in range(75):
        blocks.add(size_of(draw))
    for pointer in [*blocks.starts]:
        blocks.check(pointer)


def test_little_is_wasted(machine: Machine) -> None:
    draw = random.Random(5)
    a = machine.program("a")
    before = held(a)
    live: dict[int, int] = {}
    for i in range(4000):
        if i > 1500 and live and sum(live.values()) > 20 * MIB:
            pointer = draw.choice(list(live))
            assert a.call("free", pointer=pointer)["result"] == 0
            del live[pointer]
            continue
        size = max(512, size_of(draw, 64 << 10))
        reply = a.call("alloc", bytes=size)
        assert reply["result"] == 0
        live[int(reply["pointer"])] = size
    assert sum(live.values()) > 19 * MIB
    # A slab may be just begun, and one may be kept empty.
    assert held(a) - before - 2 * SLAB < sum(live.values()) / 0.75


def test_all_memory_is_returned(machine: Machine) -> None:
    a = machine.program("a")
    before = held(a)
    pointers = [a.call("alloc", bytes=100_000)["pointer"] for _ in range(100)]
    assert held(a) > before + 4 * SLAB
    random.Random(1).shuffle(pointers)
    for pointer in pointers:
        assert a.call("free", pointer=pointer)["result"] == 0
    assert held(a) == before


def test_an_empty_slab_is_kept_for_a_while(machine: Machine) -> None:
    """Allocating and freeing at the brink does not make and destroy one each time."""
    a = machine.program("a")
    full = [a.call("alloc", bytes=SMALL)["pointer"] for _ in range(8)]
    one = held(a)
    for _ in range(3):
        more = a.call("alloc", bytes=SMALL)["pointer"]
        assert held(a) == one + SLAB
        start = time.monotonic()
        assert a.call("free", pointer=more)["result"] == 0
        # It is kept for two seconds, in which this machine should have got so far.
        assert held(a) == one + SLAB or time.monotonic() - start > 2.0
    time.sleep(2.1)
    assert a.call("free", pointer=full.pop())["result"] == 0
    assert held(a) == one


@pytest.mark.parametrize("order", ["upwards", "downwards", "any"])
def test_free_neighbours_are_merged(machine: Machine, order: str) -> None:
    a = machine.program("a")
    pointers = [a.call("alloc", bytes=SLAB // 64)["pointer"] for _ in range(64)]
    kept = a.call("alloc", bytes=SMALL)["pointer"]
    two = held(a)
    pointers.sort(reverse=order == "downwards")
    if order == "any":
        random.Random(2).shuffle(pointers)
    for pointer in pointers:
        assert a.call("free", pointer=pointer)["result"] == 0
    large = [a.call("alloc", bytes=SMALL)["pointer"] for _ in range(15)]
    assert len({*large, kept}) == 16
    assert held(a) == two


@pytest.mark.parametrize("how", ["twice", "inside", "near"])
def test_a_wrong_free_is_refused(machine: Machine, how: str) -> None:
    a = machine.program("a")
    first, second = a.filled(4096, 1), a.filled(4096, 2)
    wrong = {"twice": first, "inside": second + 512, "near": second - 1}[how]
    if how == "twice":
        assert a.call("free", pointer=first)["result"] == 0
    assert a.call("free", pointer=wrong)["result"] == INVALID_VALUE
    assert a.holds(second, 4096, 2)
    third = a.filled(4096, 3)
    assert abs(third - second) >= 4096
    assert a.holds(second, 4096, 2)


def test_threads_share_slabs(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine()
    a = machine.program("a")
    before = held(a)
    pointers: list[int] = []
    for _ in range(20):
        started = [a.start("alloc", bytes=30_000 + 512 * i, thread=f"t{i}") for i in range(4)]
        pointers += [int(a.result(serial)["pointer"]) for serial in started]
    ordered = sorted(pointers)
    assert all(low + 30_000 <= high for low, high in pairwise(ordered))
    started = [
        a.start("free", pointer=pointer, thread=f"t{i % 4}") for i, pointer in enumerate(pointers)
    ]
    assert all(a.result(serial)["result"] == 0 for serial in started)
    assert held(a) == before
