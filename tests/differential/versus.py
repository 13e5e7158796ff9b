# SPDX-License-Identifier: BSD-3-Clause
"""Compares our generator and shrinker with hypothesis, on defects of ``seeds.py``, with the same operations and time.

python -m tests.differential.versus --only 1,4,12,15 --find 120 --shrink 60
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from tests.support.folders import socket_folder
from tests.support.workshop import Workshop

from .programs import ALWAYS, GROUPS, RARE, Recipe, generate, shrink
from .running import Places, build_player, compare, documented
from .seeds import DEFECTS, build, ground

PATIENCE = 15.0


class Judge:
    """Runs programs; remembers when the first failed, and the shortest one that did."""

    def __init__(self, here: Places, find: float, shrinking: float) -> None:
        self.here = here
        self.find, self.shrinking = find, shrinking
        self.table = documented()
        self.begun = time.monotonic()
        self.found = 0.0
        self.programs = 0
        self.shortest: list[str] | None = None

    @property
    def over(self) -> bool:
        """Tell whether the time for what is being done is over."""
        now = time.monotonic()
        return now > (self.found + self.shrinking if self.found else self.begun + self.find)

    def fails(self, program: Sequence[str]) -> bool:
        """Run it: once until one has failed, and then up to three times."""
        if self.over:
            return False
        for _ in range(3 if self.found else 1):
            self.programs += not self.found
            if compare(*self.here.run(0, program, PATIENCE), self.table) is None:
                continue
            self.found = self.found or time.monotonic()
            if self.shortest is None or len(program) < len(self.shortest):
                self.shortest = list(program)
            return True
        return False

    def row(self, name: str, number: str) -> str:
        """Say how it went."""
        if self.shortest is None:
            return f"| {number} | {name} | {self.programs} | not found | |"
        operations = [line for line in self.shortest if not line.startswith("!")]
        return f"| {number} | {name} | {self.programs} | {self.found - self.begun:.1f} s | {len(operations)} |"


def ours(judge: Judge, recipe: Recipe, seed: str) -> None:
    """Find and shorten as the tester does."""
    for number in range(1_000_000):
        program = generate(f"{seed}/{number}", recipe)
        if judge.over:
            return
        if judge.fails(program):
            shrink(program, judge.fails, judge.shrinking)
            return


def strategy(recipe: Recipe) -> st.SearchStrategy[list[str]]:
    """Return the same operations and numbers, as hypothesis draws them."""
    groups = {**GROUPS, **RARE}
    operations = [*ALWAYS, *(one for name in recipe.only for one in groups[name])]

    @st.composite
    def line(draw: Callable[..., random.Random], threads: int) -> str:
        rng = draw(st.randoms(use_true_random=False))
        operation = rng.choices(operations, [one.weight for one in operations])[0]
        numbers = " ".join(str(number(rng)) for number in operation.numbers)
        who = "*" if operation.everybody else str(rng.randrange(threads))
        return f"{who} {operation.name} {numbers}".rstrip()

    @st.composite
    def program(draw: Callable[..., object]) -> list[str]:
        threads = draw(st.integers(1, recipe.threads))
        assert isinstance(threads, int)
        settings = [f"! threads {threads}", *(["! lockstep"] if draw(st.booleans()) else [])]
        lines = draw(st.lists(line(threads), min_size=1, max_size=recipe.lines))
        assert isinstance(lines, list)
        # It begins as ours do.
        begin = [
            text
            for thread in range(1 if "! lockstep" in settings else threads)
            for slot in (2, 3)
            for text in (
                f"{thread} mkstream {slot} 1 0",
                f"{thread} alloc {slot} 100000",
                f"{thread} writenow {slot} 0 100000 5 1",
            )
        ]
        return [*recipe.settings, *settings, "! GPUSHARE_SIM_STRICT=1", *begin, *lines]

    return program()


def theirs(judge: Judge, recipe: Recipe, seed: str) -> None:
    """Find and shorten as hypothesis does."""
    settings = hypothesis.settings(
        max_examples=1_000_000,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(strategy(recipe))
    def search(program: list[str]) -> None:
        if judge.over and not judge.found:
            raise KeyboardInterrupt
        if judge.fails(program):
            raise AssertionError

    # Hypothesis calls a program that fails now and then flaky.
    with contextlib.suppress(AssertionError, KeyboardInterrupt, HypothesisException):
        search()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.versus")
    parser.add_argument("--only", default="1,4,12,15", help="numbers of defects")
    parser.add_argument("--find", type=float, default=120.0, help="seconds to find one (120)")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to shorten it (60)")
    parser.add_argument("--seed", default="versus", help="what the programs are made from")
    options = parser.parse_args(arguments)
    print("| | by | programs | found after | lines |\n|---|---|---|---|---|", flush=True)
    with socket_folder() as name:
        player = build_player(Path(name))
        workshop = Workshop(Path(name), Path(__file__).resolve().parents[2])
        for number in options.only.split(","):
            defect = DEFECTS[number]
            libraries = build(workshop, defect)
            for by, search in (("ours", ours), ("hypothesis", theirs)):
                with ground(defect, player, libraries, defect.scheduler) as here:
                    judge = Judge(here, options.find, options.shrink)
                    search(judge, defect.recipe, options.seed)
                    print(judge.row(by, number), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
