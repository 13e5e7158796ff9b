# SPDX-License-Identifier: BSD-3-Clause
"""Scenes for the fuzzer's programs: data that changes little, or not at all, from one eviction to the next.

Operations at random nearly always change more than a byte of a unit, and blocks that always change are soon no longer
hashed. So evictions that rely on a digest hardly happen by themselves, and a wrong digest does no harm there.
"""

from __future__ import annotations

import random

#: Bytes of which the host stores one digest.
UNIT = 2 << 20
#: Milliseconds that a program waits at most for an eviction that it asked for.
WAIT = 40
#: Offsets of as much text as all processes write alike.
SOURCES = 3


def places(seed: str) -> tuple[int, ...]:
    """Return offsets in a unit, in bytes, that all programs of a seed change again and again.

    To ignore one byte of two million is a fault that only a change of that very byte shows. No fuzzer has the time to
    try all of them, so the seed says which are tried: a test plants its fault at one of them.
    """
    rng = random.Random(f"places of {seed}")
    return tuple(rng.randrange(UNIT) for _ in range(3))


def _touch(rng: random.Random, slot: int, favoured: tuple[int, ...]) -> str:
    place = rng.choice(favoured) if rng.random() < 0.6 else rng.randrange(UNIT)
    length = 1 if rng.random() < 0.7 else rng.randint(2, 16)
    stream, later = rng.randrange(4), int(rng.random() < 0.7)
    return f"touch {slot} {stream} {later} {rng.randrange(8)} {place} {length} {rng.randrange(256)}"


def scene(rng: random.Random, slots: int, largest: int, favoured: tuple[int, ...]) -> list[str]:
    """Make the operations of a scene, without their thread.

    Parameters
    ----------
    rng
        Where chance comes from.
    slots
        How many slots a thread has.
    largest
        Bytes of the largest block.
    favoured
        Offsets in a unit that are changed more often than others: see `places`.
    """
    kind = rng.choice(("as it is", "zeros", "equal", "unchanged"))
    used = rng.sample(range(slots), 2 if kind == "equal" else 1)
    # A capture that is under way ends.
    lines = [f"replay {rng.randrange(2)} {rng.randrange(4)}"]
    size = min(largest, rng.randint(1, 4) * UNIT + rng.choice((0, 0, 12345)))
    source = rng.randrange(SOURCES)
    for slot in used:
        stream, later = rng.randrange(4), int(rng.random() < 0.7)
        # A new block's data has not changed yet. That of an old one may have changed at each eviction so far.
        if rng.random() < 0.5:
            lines.append(f"free {slot} 0 {stream}")
        lines.append(f"alloc {slot} {rng.choice((0, 0, 0, 2))} {size} {stream} 0")
        if kind == "zeros":
            first, count = rng.choice((0, 0, 1)) * UNIT, rng.randint(1, 3) * UNIT
            lines.append(f"set {slot} {stream} {later} 1 {first} {count} 0")
        elif kind == "equal":
            lines.append(f"write {slot} {stream} {later} 0 {size} {source}")
    rounds = rng.randint(4, 8) if kind == "unchanged" else rng.randint(2, 4)
    for turn in range(rounds):
        # Now and then nothing changes: then the piece is hashed again, if it was not any longer.
        if turn and kind != "unchanged" and rng.random() < 0.8:
            touches = rng.randint(1, 2)
            lines += [_touch(rng, rng.choice(used), favoured) for _ in range(touches)]
        lines.append(f"evict {WAIT}")
        # Restores everything, and compares.
        lines += [f"read {slot} {rng.randrange(4)} {turn % 2} 0 {largest * 2}" for slot in used]
    return lines
