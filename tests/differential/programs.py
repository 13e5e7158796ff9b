# SPDX-License-Identifier: BSD-3-Clause
"""Random programs of driver calls, and shorter ones that still fail.

A program is text (``player/player.h`` says what it means). Each seed switches some groups of operations on and others
off, so that most programs are about few things: a fault that needs ten graph operations in a row is not diluted by
everything else that exists. This is called swarm testing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

#: Slots, as in ``player.h``.
BLOCKS, STREAMS, EVENTS, GRAPHS, POOLS, ARRAYS, OPENED = 12, 6, 5, 3, 2, 2, 3
LARGEST = 6 << 20
_Number = Callable[[random.Random], int]


def _below(limit: int) -> _Number:
    return lambda rng: int(rng.random() * limit)


def _size(rng: random.Random) -> int:
    """Small sizes share pages with others, large ones have their own; both happen often."""
    return max(1, int(2 ** (rng.random() * LARGEST.bit_length())) % LARGEST)


def _large(rng: random.Random) -> int:
    """No slab's share."""
    return rng.randrange(1 << 20, LARGEST)


def _now_and_then(chance: float) -> _Number:
    return lambda rng: int(rng.random() < chance)


block, stream, event, graph = _below(BLOCKS), _below(STREAMS), _below(EVENTS), _below(GRAPHS)
#: Streams that the program made itself.
own: _Number = lambda rng: 2 + int(rng.random() * (STREAMS - 2))  # noqa: E731
mostly_own: _Number = lambda rng: own(rng) if rng.random() < 0.8 else stream(rng)  # noqa: E731
size, large, offset, value = _size, _large, _below(LARGEST), _below(1 << 16)


@dataclass(frozen=True)
class Operation:
    """One operation: how often it comes, and what its numbers are.

    Attributes
    ----------
    name
        As the player knows it.
    weight
        How often it is drawn, compared with the others.
    numbers
        What makes its numbers.
    everybody
        All other threads wait meanwhile.
    """

    name: str
    weight: float
    numbers: tuple[_Number, ...] = ()
    everybody: bool = False


def _op(name: str, weight: float, *numbers: _Number, everybody: bool = False) -> Operation:
    return Operation(name, weight, numbers, everybody)


#: In every program.
ALWAYS = (
    _op("alloc", 8, block, size),
    _op("free", 4, block),
    _op("set", 8, block, mostly_own, _below(3), offset, size, value),
    _op("writenow", 6, block, offset, size, value, _below(3)),
    _op("read", 8, block, offset, size),
    _op("mkstream", 4, own, _now_and_then(0.6), _below(7)),
    _op("sync", 3, mostly_own),
)
#: Each of these is in some programs.
GROUPS: dict[str, tuple[Operation, ...]] = {
    "copies": (
        _op("write", 6, block, mostly_own, offset, size, value),
        _op("copy", 8, block, block, mostly_own, offset, offset, size, _below(4)),
        _op("copynow", 3, block, block, offset, offset, size),
        _op("copyrows", 2, block, value, value, value),
        _op("setnow", 4, block, offset, size, value),
        _op("readlater", 5, block, mostly_own, offset, size),
    ),
    "kernels": (
        _op("mix", 14, block, block, mostly_own, size, value),
        _op("slow", 1, _below(3_000_000)),
        _op("slow", 2, _below(100)),
    ),
    "mailbox": (_op("mailbox", 5, block, size, own, _below(3), value),),
    "streams": (
        _op("rmstream", 2, own, _below(2)),
        _op("query", 3, stream),
        _op("streaminfo", 3, stream),
        _op("ctxsync", 2),
    ),
    "events": (
        _op("mkevent", 4, event, _below(4)),
        _op("rmevent", 2, event),
        _op("record", 6, event, mostly_own),
        _op("waitevent", 5, event, mostly_own),
        _op("eventsync", 2, event),
        _op("eventquery", 3, event),
        _op("elapsed", 1, event, event),
    ),
    "values": (_op("setvalue", 6, block, own, own, offset, value),),
    "hosts": (_op("host", 6, own, lambda rng: 3),),
    "locks": (
        _op("host", 5, own, _below(4)),
        _op("lock", 3, _below(2)),
        _op("unlock", 3, _below(2)),
    ),
    "async": (
        _op("allocasync", 8, block, size, mostly_own),
        _op("freeasync", 6, block, mostly_own),
        _op("trim", 1, _below(3), size),
    ),
    "pools": (
        _op("mkpool", 3, _below(POOLS)),
        _op("allocpool", 6, block, size, mostly_own, _below(POOLS)),
        _op("freeasync", 4, block, mostly_own),
        _op("rmpool", 1, _below(POOLS)),
        _op("trim", 2, _below(3), size),
        _op("threshold", 1, _below(3), size),
        _op("poolused", 3, _below(3)),
    ),
    "pitched": (_op("allocpitch", 5, block, value, value),),
    "page-locked": (_op("allochost", 4, block, size, _below(8)),),
    "mapped": (
        _op("map", 6, block, _below(3), _below(2)),
        _op("unmap", 3, block),
        _op("remap", 4, block, _now_and_then(0.8)),
        _op("access", 3, block, _now_and_then(0.7)),
        _op("release", 2, block),
        _op("retain", 3, block, offset),
    ),
    "misuse": (
        _op("freetwice", 3, block, mostly_own, _below(3)),
        _op("freeinside", 2, block, offset, stream),
        _op("retain", 2, block, offset),
        _op("wrong", 5, _below(26)),
    ),
    "queries": (
        _op("attributes", 4, block, offset),
        _op("range", 4, block, offset),
        _op("info", 2),
        _op("device", 1, _below(140)),
        _op("retainprimary", 1, _below(2)),
    ),
    "captures": (
        _op("begin", 5, mostly_own, _below(3), graph),
        _op("branch", 2, own),
        _op("endcapture", 5, _below(5)),
        _op("capturemode", 1, _below(3)),
        _op("instantiate", 4, graph),
        _op("launch", 7, graph, mostly_own),
        _op("upload", 1, graph, mostly_own),
        _op("graphinfo", 1, graph),
        _op("rmgraph", 3, graph, _below(2)),
    ),
    "graphs": (
        _op("mkgraph", 4, graph, block, size, value),
        _op("instantiate", 4, graph),
        _op("launch", 7, graph, mostly_own),
        _op("graphinfo", 2, graph),
        _op("rmgraph", 3, graph, _below(2)),
    ),
    "nodes": (
        _op("mkevent", 2, event, _below(4)),
        _op("rmevent", 0.5, event),
        _op("record", 2, event, mostly_own),
        _op("waitevent", 2, event, mostly_own),
        _op("eventsync", 2, event),
        _op("eventquery", 1, event),
        _op("elapsed", 1, event, event),
        _op("begin", 4, own, _below(3), graph),
        _op("eventnode", 6, event, own, _below(2), _below(8)),
        _op("valuenode", 6, block, own, offset, value, _below(8)),
        _op("endcapture", 3, _below(5)),
        _op("mkgraph", 6, graph, block, size, value),
        _op("addevent", 6, graph, event, _below(2)),
        _op("addvalue", 6, graph, block, offset, value),
        _op("addcondition", 6, graph, _below(3), block, value),
        _op("instantiate", 12, graph),
        _op("setevent", 5, graph, event, _below(2), _below(2)),
        _op("changevalue", 5, graph, block, offset, value, _below(4)),
        _op("update", 3, graph),
        _op("launch", 24, graph, own),
        _op("awaited", 4, block, own, own, offset, value),
        _op("graphinfo", 1, graph),
        _op("rmgraph", 5, graph, _below(2)),
    ),
    "graph-memory": (
        _op("begin", 3, mostly_own, _below(3), graph),
        _op("scratch", 5, block, mostly_own, size),
        _op("endcapture", 3, _below(5)),
        _op("instantiate", 3, graph),
        _op("launch", 5, graph, mostly_own),
        _op("rmgraph", 2, graph, _below(2)),
        _op("graphtrim", 1),
    ),
    "arrays": (
        _op("mkarray", 3, _below(ARRAYS), value),
        _op("rmarray", 1, _below(ARRAYS)),
        _op("writearray", 3, _below(ARRAYS), value),
        _op("readarray", 3, _below(ARRAYS), value),
        _op("arraycopy", 4, _below(ARRAYS), block, _below(2)),
    ),
    "contexts": (
        _op("mkctx", 2, _below(4)),
        _op("use", 5, _below(3)),
        _op("pushpop", 2, _below(3)),
        _op("rmctx", 1, everybody=True),
        _op("retainprimary", 1, _below(2)),
    ),
    "ipc": (
        _op("export", 5, block, _below(OPENED)),
        _op("elsewhere", 7, _below(OPENED), _below(3), size, value),
        _op("opening", 0.5, value, everybody=True),
    ),
    "evictions": (_op("evict", 6, _below(4)),),
    "charges": (
        _op("allocasync", 8, block, large, mostly_own),
        _op("freeasync", 8, block, mostly_own),
        _op("charge", 1, everybody=True),
    ),
    "behind": (
        _op("behind", 2, _below(4)),
        _op("use", 5, _below(2)),
        _op("rmctx", 0.5, everybody=True),
    ),
    "herds": (_op("herd", 2, _below(7), everybody=True),),
    "peers": (
        _op("peers", 2, _below(4), everybody=True),
        _op("use", 5, lambda rng: 2 * int(rng.random() * 2)),
    ),
}
#: Rare, and in some programs only: they end much of what there is, or take long.
RARE: dict[str, tuple[Operation, ...]] = {
    "frees": (
        _op("alloc", 10, block, large),
        _op("setnow", 10, block, lambda rng: 0, large, value),
        _op("mix", 20, block, block, mostly_own, large, value),
        _op("pause", 40, _below(4000)),
        _op("freebusy", 20, block),
    ),
    "reset": (_op("reset", 0.5, _below(2), everybody=True),),
    "fork": (_op("fork", 0.5, everybody=True),),
    "fault": (_op("fault", 0.3, mostly_own, everybody=True),),
    "silence": (_op("silence", 0.5, _below(2000)),),
    "quiesce": (_op("quiesce", 0.5, everybody=True),),
}


#: What a program with such operations begins with.
BEGINNINGS = {
    "events": ("mkevent 0 0", "mkevent 1 2"),
    "nodes": ("mkevent 0 0", "mkevent 1 2"),
    "frees": (
        "slow 3000000",
        "alloc 3 3000000",
        "alloc 4 3000000",
        "alloc 5 3000000",
        "setnow 3 0 3000000 1",
        "setnow 4 0 3000000 2",
        "setnow 5 0 3000000 3",
    ),
    "pools": ("mkpool 0",),
    "arrays": ("mkarray 0 40000", "writearray 0 1"),
    "contexts": ("mkctx 0",),
    "behind": ("behind 0",),
}


@dataclass(frozen=True)
class Recipe:
    """What programs may be made of.

    Attributes
    ----------
    lines
        The most operations of a program.
    threads
        The most threads.
    fewest_threads
        The fewest.
    lockstep
        The share of programs with several threads whose threads take turns line by line.
    only
        These groups, in every program; empty: some of all, as the seed says.
    settings
        Lines that every program begins with.
    without
        Operations that are left out.
    """

    lines: int = 300
    threads: int = 3
    fewest_threads: int = 1
    lockstep: float = 0.6
    only: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


EVERYTHING = Recipe()


def generate(seed: str, recipe: Recipe = EVERYTHING) -> list[str]:
    """Make the program of a seed."""
    rng = random.Random(seed)
    groups = {**GROUPS, **RARE}
    chosen = recipe.only or tuple(
        name for name in groups if rng.random() < (0.4 if name in GROUPS else 0.15)
    )
    operations = [
        operation
        for operation in (*ALWAYS, *(one for name in chosen for one in groups[name]))
        if operation.name not in recipe.without
    ]
    weights = [operation.weight for operation in operations]
    threads = rng.randint(recipe.fewest_threads, recipe.threads)
    program = list(recipe.settings)
    if threads > 1:
        program.append(f"! threads {threads}")
        if rng.random() < recipe.lockstep:
            program.append("! lockstep")
    if "ipc" in chosen:
        program.append("! partner")
    if rng.random() < 0.15:
        program.append("! signals")
    if rng.random() < 0.7:
        program.append("! GPUSHARE_SIM_STRICT=1")
    if rng.random() < 0.7:
        program.append("! GPUSHARE_SIM_REUSE=1")
    if rng.random() < 0.3:
        program.append(f"0 slow {rng.choice((10_000, 200_000, 1_000_000))}")
    # Something to begin with; else the first operations would find nothing.
    for thread in range(1 if "! lockstep" in program else threads):
        for slot in range(2, STREAMS):
            program.append(f"{thread} mkstream {slot} {rng.randrange(2)} {rng.randrange(7)}")
        for slot in range(3):
            program.append(f"{thread} alloc {slot} {size(rng)}")
            program.append(f"{thread} writenow {slot} 0 {size(rng)} {value(rng)} 1")
        program += [f"{thread} {line}" for name in chosen for line in BEGINNINGS.get(name, ())]
    for operation in rng.choices(operations, weights, k=rng.randint(10, recipe.lines)):
        who = "*" if operation.everybody else rng.randrange(threads)
        numbers = " ".join(str(number(rng)) for number in operation.numbers)
        program.append(f"{who} {operation.name} {numbers}".rstrip())
    return program


def shrink(program: Sequence[str], fails: Callable[[list[str]], bool], seconds: float) -> list[str]:
    """Take lines out of a program, and make its numbers smaller, for as long as it still fails.

    Parameters
    ----------
    program
        One that fails.
    fails
        Runs a program, several times if need be, and says whether it failed.
    seconds
        How long to try.
    """
    end = monotonic() + seconds
    best = list(program)
    part = max(1, len(best) // 2)
    while monotonic() < end:
        taken = False
        at = 0
        while at < len(best) and monotonic() < end:
            shorter = best[:at] + best[at + part :]
            if shorter and fails(shorter):
                best, taken = shorter, True
            else:
                at += part
        if part == 1 and not taken:
            break
        part = max(1, part // 2)
    for index, line in enumerate(best):
        words = line.split()
        if words[0] == "!":
            continue
        for place in range(2, len(words)):
            number = int(words[place])
            for smaller in sorted({0, 1, 4096, number // 2} - {number}):
                if smaller > number or monotonic() > end:
                    continue
                changed = [*words[:place], str(smaller), *words[place + 1 :]]
                shorter = [*best[:index], " ".join(changed), *best[index + 1 :]]
                if fails(shorter):
                    best, words = shorter, changed
                    break
    return best
