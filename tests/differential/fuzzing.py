# SPDX-License-Identifier: BSD-3-Clause
"""Runs random programs until the time is over, and shrinks programs whose results differ."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from .programs import EVERYTHING, Recipe, generate, shrink
from .running import PATIENCE, Places, compare, documented


@dataclass
class Totals:
    """What was done."""

    programs: int = 0
    calls: int = 0
    differences: int = 0
    disturbances: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def line(self) -> str:
        """Say it in one line of JSON."""
        figures = {name: value for name, value in vars(self).items() if name != "lock"}
        return json.dumps({**figures, "seconds": round(self.seconds, 1)})


@dataclass(frozen=True)
class Finding:
    """A program whose two runs differ."""

    seed: str
    text: str
    program: Sequence[str]
    errors: str


def report(finding: Finding) -> str:
    """Say what differs, with the program."""
    return "\n".join((f"seed {finding.seed}: {finding.text}", *finding.program, finding.errors))


def fuzz(
    place: Places,
    totals: Totals,
    *,
    seed: str,
    recipe: Recipe = EVERYTHING,
    seconds: float = 60.0,
    calls: int | None = None,
    program: Sequence[str] | None = None,
    shrinking: float = 60.0,
    patience: float = PATIENCE,
) -> Generator[Finding, None, None]:
    """Run programs and yield programs whose results differ.

    Parameters
    ----------
    place
        Where.
    totals
        What was done is added to these.
    seed
        What the programs are made from.
    recipe
        What they may be made of.
    seconds
        No program is started after that time.
    calls
        Nor after so many calls were compared.
    program
        This one again and again, instead of random ones.
    shrinking
        Seconds to make a program that differs shorter.
    patience
        Seconds after which a program counts as hung.
    """
    begun = time.monotonic()
    table = documented()
    numbers = itertools.count()
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def differs(pair: int, lines: Sequence[str]) -> str | None:
        bare, interposed = place.run(pair, lines, patience)
        with totals.lock:
            totals.programs += 1
            totals.calls += interposed.calls
        return compare(bare, interposed, table)

    def shorten(pair: int, lines: list[str], text: str) -> tuple[list[str], str]:
        hangs = text.startswith("hung")
        # What depends on the moment of an eviction does not fail each time. A hang takes long.
        tries = 1 if hangs else 3

        def fails(some: Sequence[str]) -> str | None:
            found = differs(pair, some)
            return found if found is not None and found.startswith("hung") == hangs else None

        shorter = shrink(lines, lambda some: any(fails(some) for _ in range(tries)), shrinking)
        for _ in range(1 if hangs else 20):
            if (again := fails(shorter)) is not None:
                return shorter, again
        return lines, text

    def work(pair: int) -> None:
        try:
            while not stopped.is_set() and time.monotonic() - begun < seconds:
                if calls is not None and totals.calls >= calls:
                    break
                name = f"{seed}/{next(numbers)}"
                lines = list(program) if program is not None else generate(name, recipe)
                text = differs(pair, lines)
                if text is None:
                    continue
                with totals.lock:
                    totals.differences += 1
                if shrinking > 0:
                    print(f"{name}: {text[:2000]}\nlooking for a shorter program", flush=True)
                    lines, text = shorten(pair, lines, text)
                errors = place.players[pair][1].said()
                found.put(Finding(name, text, lines, errors))
        finally:
            found.put(None)

    threads = [
        threading.Thread(target=work, args=(pair,), daemon=True)
        for pair in range(len(place.players))
    ]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            finding = found.get()
            if finding is None:
                working -= 1
            else:
                yield finding
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        totals.seconds += time.monotonic() - begun
        totals.disturbances += place.disturbances
