# SPDX-License-Identifier: BSD-3-Clause
"""Searches the world of the property tests for violations of its rules, some 30 times as fast as hypothesis does.

It calls the same rules with arguments from a plain random generator, and checks the same invariants. What it finds is
made smaller, and printed as a test for ``test_found.py``::

    python -m tests.scheduler.explore --seed 1 --seconds 60

Each run has a seed of its own, counted up from the first, and is the same each time.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from jupyter_gpushare.scheduler import policies
from tests.scheduler.script import DEFAULTS, AbsentError, Chosen, Script
from tests.scheduler.world.constants import GPUS, GROUPS, MIB, OUTCOMES
from tests.scheduler.world.processes import Process
from tests.scheduler.world.world import World

# --- What rules are called with -------------------------------------------------------------------

Draw = Callable[[Random], Any]


def among(*values: Any) -> Draw:
    return lambda random: random.choice(values)


def whole(least: int, most: int, unit: int = 1) -> Draw:
    return lambda random: random.randint(least, most) * unit


def either(*draws: Draw) -> Draw:
    return lambda random: random.choice(draws)(random)


def several(draw: Draw, least: int, most: int) -> Draw:
    return lambda random: [draw(random) for _ in range(random.randint(least, most))]


class Drawn(Chosen):
    """Draws a process or a GPU when a rule asks for one, and keeps that choice."""

    def __init__(self, random: Random) -> None:
        super().__init__(0)
        self.random = random

    def process(self, among: list[Process]) -> Process:
        self.number = self.random.choice(sorted(p.number for p in among))
        return super().process(among)

    def gpu_of(self, process: Process) -> str:
        self.gpu = self.random.choice(sorted(process.memory))
        return self.gpu


FLAG = among(False, True)
MOST_MOVING = 5

#: How a world starts.
START: dict[str, Draw] = {
    "quantum": among("auto", 0.5, 5.0),
    "anti_thrash": among("auto", "auto", "on", "off"),
    "policy": among("burst", "burst", *sorted(policies.OURS)),
    "steady": FLAG,
    "foreign": either(among(0), whole(0, 100)),
    "host": among(400, 1000, 4000),
    "footprints": several(whole(100, 850), 2, 4),
    "context": either(among(20), among(20, 100, 200), whole(1, 450)),
    "hibernates": among(True, True, False),
    "residue": either(among(0, 4, 4, 20), whole(0, 150)),
    "dearer": FLAG,
    "prefetch": FLAG,
    "preferences": several(
        among(
            {},
            {"keep": True},
            {"priority": "background"},
            {"priority": "agent"},
            {"exclusive": True},
        ),
        0,
        len(GROUPS),
    ),
}

#: Of each rule, its arguments.
ARGUMENTS: dict[str, dict[str, Draw]] = {
    "attach": {
        "group": among(*GROUPS),
        "gpus": among(GPUS[:1], GPUS[:1], GPUS[1:], GPUS),
        "over": among(False, False, True),
    },
    "oversubscribe": {"data": Drawn},
    "grow": {
        "data": Drawn,
        "size": either(whole(1, 900, MIB), whole(1, 300, MIB)),
        "extra": either(among(0), whole(0, 100)),
        "urgent": FLAG,
    },
    "allocate_unevictable": {"data": Drawn, "size": whole(1, 150, MIB)},
    "begin_context": {"data": Drawn, "size": either(whole(1, 80, MIB), whole(1, 400, MIB))},
    "free": {"data": Drawn, "part": either(among(0.0, 1.0), Random.random)},
    "submit": {"data": Drawn},
    "wake_for_a_call": {"data": Drawn, "cause": among("call", "exit")},
    "all_processes_go_idle": {
        "told": FLAG,
        "outcomes": several(among(*OUTCOMES), 0, 6),
        "calling": several(FLAG, 0, 6),
    },
    "hibernate_or_wake": {"data": Drawn, "hibernate": FLAG},
    "configure_hibernation": {"seconds": among(0.0, 1.0, 30.0, 30.0)},
    "the_driver_ends_a_step": {"data": Drawn, "outcome": among(*OUTCOMES)},
    "finish": {"data": Drawn, "cause": among("cell", "quiet", "idle")},
    "hand_over": {"well": FLAG},
    "move": {"which": several(whole(0, MOST_MOVING), 1, 12)},
    "exchange_messages": {
        "turns": several(
            lambda r: (r.randint(0, MOST_MOVING), r.random() < 0.5, r.random() < 0.8), 1, 12
        )
    },
    "pass_time": {"step": among(0.0005, 0.004, 0.012, 0.3, 2.0, 40.0)},
    "process_dies": {"data": Drawn},
    "stop": {"data": Drawn},
    "resume": {"data": Drawn},
    "memory_of_a_dead_process_is_freed": {},
    "contexts_are_measured": {"gpu": among(*GPUS)},
    "other_programs_use_the_gpu": {"gpu": among(*GPUS), "wanted": whole(0, 400)},
    "release": {"data": Drawn, "evict": FLAG},
    "cancel": {"data": Drawn},
    "adjust": {
        "group": among(*GROUPS),
        "preference": among(
            {"priority": "background"}, {"priority": "interactive"}, {"priority": "auto"},
            {"priority": "agent"}, {"keep": True}, {"keep": False}, {"frozen": True}, {"frozen": False},
            {"memory": 300 * MIB}, {"memory": 0}, {"exclusive": True},
        ),
    },
    "cell": {"data": Drawn, "exclusive": FLAG, "from_kernel": FLAG, "agent": among(None, False, True)},
    "queue_cells": {"group": among(*GROUPS), "count": among(0, 1, 3, 20)},
    "run_next_cell": {
        "data": Drawn,
        "count": among(0, 1, 20),
        "pause": among(0.001, 0.004, 0.3, 1.5),
        "from_kernel": FLAG,
    },
    "configure": {"mode": among("auto", "on", "off")},
    "choose_policy": {"policy": among(*sorted(policies.OURS))},
    "entitle": {
        "whose": among("user:ada", "user:ben", "user:*", "team:all", "team:lab"),
        "share": among(
            {}, {"request": 0.5}, {"limit": 0.3}, {"weight": 3.0}, {"gpus": 1}, {"gpus": 1},
            {"gpus": 2}, {"host": 600 * MIB},
        ),
    },
    "drain": {"gpu": among(*GPUS), "on": FLAG},
    "hold": {"group": among(*GROUPS), "on": FLAG},
    "hint": {"group": among(*GROUPS), "kind": among("focus", "typing", "ready", "ready")},
    "focus": {"user": among("ada", "ben"), "group": among("", *GROUPS)},
    "meter": {"seconds": among(0.001, 0.5, 4.0)},
    "report_stuck_kernel": {"data": Drawn},
    "the_scheduler_is_replaced": {},
    "a_connection_breaks": {"data": Drawn},
    "all_processes_are_served": {},
    "others_are_served_beside_a_stopped_process": {"data": Drawn, "for_ever": FLAG},
}  # fmt: skip

#: What takes so long that a run has at most one of them.
SERVED = ("all_processes_are_served", "others_are_served_beside_a_stopped_process")
#: Without these, nothing happens.
ALWAYS = ("exchange_messages", "submit", "pass_time")
#: Invariants that take longer than all others together; they are checked now and then.
DEAR = ("victims_are_ranked_as_in_a_new_plan", "sums_are_right")
DEAR_EVERY = 8


def check_tables(world: type[World]) -> None:
    """See to it that the tables above name just the rules of a world, and just their arguments.

    Raises
    ------
    LookupError
        They do not.
    """
    wanted = {
        rule.function.__name__: set(inspect.signature(rule.function).parameters) - {"self"}
        for rule in world().rules
    }
    wanted["start"] = set(inspect.signature(world.start).parameters) - {"self"}
    known = {name: set(arguments) for name, arguments in {**ARGUMENTS, "start": START}.items()}
    differ = sorted(n for n in wanted.keys() | known.keys() if wanted.get(n) != known.get(n))
    if differ or set(DEFAULTS) != set(START) - {"footprints"}:
        raise LookupError(
            f"the rules or arguments of {', '.join(differ) or 'begin'} are not those of the world: "
            "amend START and ARGUMENTS in explore.py, and DEFAULTS in script.py"
        )


# --- Runs -----------------------------------------------------------------------------------------

Step = tuple[str, dict[str, Any]]


@dataclass
class Run:
    """How a world starts, and the rules that are called then."""

    start: dict[str, Any]
    steps: list[Step] = field(default_factory=list)


class ViolationError(Exception):
    """A rule or an invariant does not hold, as ``error`` says."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Player:
    """Takes one world through a run.

    Parameters
    ----------
    world
        Which one.
    dear_every
        The dear invariants are checked at each so manieth step; 0: no invariant is ever checked.
    """

    def __init__(self, world: Script, dear_every: int = DEAR_EVERY) -> None:
        self.world = world
        self.dear_every = dear_every
        self.rules = {rule.function.__name__: rule for rule in world.rules}
        #: The steps that were possible, as they can be called again.
        self.run = Run({})

    def start(self, start: dict[str, Any]) -> None:
        self.run = Run(start)
        self._call(lambda: self.world.start(**start))

    def step(self, name: str, arguments: dict[str, Any]) -> bool:
        """Call a rule, if it can be called now."""
        rule = self.rules[name]
        if not all(holds(self.world) for holds in rule.preconditions):
            return False
        # What is drawn is known afterwards, also if the rule does not hold.
        self.run.steps.append((name, arguments))
        try:
            self._call(lambda: rule.function(self.world, **arguments))
        except AbsentError:
            self.run.steps.pop()
            return False
        return True

    def end(self) -> None:
        self._call(self.world.teardown)

    def again(self, run: Run) -> None:
        """Go through a run that was gone through before, or a part of it."""
        self.start(run.start)
        for name, arguments in run.steps:
            self.step(name, arguments)
        self.end()

    def _call(self, rule: Callable[[], None]) -> None:
        try:
            rule()
            self._check()
        except AbsentError:
            raise
        except Exception as error:
            raise ViolationError(error) from error

    def _check(self) -> None:
        if not self.dear_every:
            return
        dear = len(self.run.steps) % self.dear_every == 0
        for invariant in self.world.invariants:
            if dear or invariant.function.__name__ not in DEAR:
                invariant.function(self.world)


def explore(random: Random, player: Player) -> None:
    """Go through a new run; ``player.run`` has it then, also if it is a violation.

    Only some rules take part: those that are called again and again lead to where the others never get.
    """
    part = random.choice([0.4, 0.7, 1.0])
    names = [n for n in ARGUMENTS if n not in SERVED and random.random() < part]
    if random.random() < 0.5:
        names = [n for n in names if n != "stop"]
    names += [*ALWAYS, *random.choice([(), *((name,) for name in SERVED)])]
    player.start({name: draw(random) for name, draw in START.items()})
    left = float(random.choice([15, 25, 40]))
    while left > 0:
        name = random.choice(names)
        arguments = {key: draw(random) for key, draw in ARGUMENTS[name].items()}
        called = player.step(name, arguments)
        left -= 1 if called else 0.1
        if called and name in SERVED:
            names.remove(name)
    player.step("all_processes_are_served", {})
    player.end()


def settled(run: Run) -> Run:
    """Return a run with the choices that were made, less the steps that had none to make."""
    steps = []
    for name, arguments in run.steps:
        data = arguments.get("data")
        if data is None:
            steps.append((name, arguments))
        elif data.number:
            steps.append((name, {**arguments, "data": Chosen(data.number, data.gpu)}))
    return Run(run.start, steps)


# --- Making them smaller --------------------------------------------------------------------------


@dataclass(frozen=True)
class Violation:
    """What was violated, without its figures: two runs with the same are of one cause, most likely."""

    kind: str
    text: str
    where: str

    @classmethod
    def of(cls, error: BaseException) -> Violation:
        text = str(error).partition("\n")[0].partition("[Process")[0].partition(": {")[0]
        frames = traceback.extract_tb(error.__traceback__)
        return cls(type(error).__name__, re.sub(r"[\d.]+", "#", text)[:60], frames[-1].name)

    def __str__(self) -> str:
        return (
            f"{self.kind} in {self.where}: {self.text}"
            if self.text
            else f"{self.kind} in {self.where}"
        )


def attempt(run: Run) -> tuple[Violation | None, Run]:
    """Go through a run with every check; return what it violates, and those of its steps that were possible."""
    player = Player(Script(), dear_every=1)
    try:
        player.again(run)
    except ViolationError as error:
        return Violation.of(error.error), player.run
    return None, player.run


def shrink(run: Run, wanted: Violation, seconds: float) -> Run:
    """Leave out what the violation does not need: steps, then what is unusual about the start."""
    until = time.monotonic() + seconds

    def keep(less: Run) -> bool:
        nonlocal run
        if time.monotonic() > until:
            return False
        found, possible = attempt(less)
        if found == wanted:
            run = possible
        return found == wanted

    size = max(1, len(run.steps) // 2)
    while size:
        first, smaller = 0, False
        while first < len(run.steps):
            if keep(replace(run, steps=run.steps[:first] + run.steps[first + size :])):
                smaller = True
            else:
                first += size
        # What could not go may be able to, now that others have gone.
        size = size if smaller and size == 1 else size // 2
    for name, usual in DEFAULTS.items():
        if run.start[name] != usual:
            keep(replace(run, start={**run.start, name: usual}))
    while len(sizes := run.start["footprints"]) > 1:
        if not keep(replace(run, start={**run.start, "footprints": sizes[:-1]})):
            break
    for index in range(len(run.start["footprints"])):
        sizes = list(run.start["footprints"])
        sizes[index] = 0
        keep(replace(run, start={**run.start, "footprints": sizes}))
    return run


# --- Showing them ---------------------------------------------------------------------------------


def written(value: Any) -> str:
    """Return a value as one would write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}": {written(v)}' for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(written, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, str):
        return f'"{value}"'
    if type(value) is int and value and value % MIB == 0:
        return f"{value // MIB} * MIB"
    return repr(value)


def as_test(run: Run, name: str, said: str) -> str:
    """Return a run as a test for ``test_found.py``."""
    start = dict(run.start)
    sizes = written(start.pop("footprints"))
    unusual = [f"{k}={written(v)}" for k, v in start.items() if v != DEFAULTS[k]]
    lines = [f"def {name}() -> None:", f'    """{said}."""']
    lines.append(f"    script = begin({', '.join([sizes, *unusual])})")
    for step, arguments in run.steps:
        given = ", ".join(f"{k}={written(v)}" for k, v in arguments.items())
        lines.append(f"    script.{step}({given})")
    return "\n".join([*lines, "    script.teardown()"])


# --- Searching ------------------------------------------------------------------------------------


@dataclass
class Search:
    """What came of a search."""

    runs: int = 0
    #: The smallest run of each violation, and how often it was found.
    found: dict[Violation, Run] = field(default_factory=dict)
    counts: Counter[Violation] = field(default_factory=Counter)


def search(
    seed: int, *, seconds: float, runs: int, shrinking: float, say: Callable[[str], None]
) -> Search:
    """Explore until the time is over or there were so many runs; say what is found.

    Parameters
    ----------
    seed
        Of the first run.
    seconds, runs
        When to end; time for shrinking does not count.
    shrinking
        Seconds to make one run smaller, at most.
    say
        Gets each violation as a test.
    """
    check_tables(Script)
    result = Search()
    until = time.monotonic() + seconds
    while result.runs < runs and time.monotonic() < until:
        player = Player(Script())
        number = seed + result.runs
        result.runs += 1
        try:
            explore(Random(number), player)
        except ViolationError as error:
            run = settled(player.run)
            # With every check, it may be noticed earlier, and as something else.
            found, run = attempt(run)
            violation = found or Violation.of(error.error)
            result.counts[violation] += 1
            if violation in result.found:
                continue
            begun = time.monotonic()
            run = shrink(run, violation, shrinking)
            until += time.monotonic() - begun
            result.found[violation] = run
            again = "" if found else " (and not again, step by step)"
            say(f"# Seed {number}{again}\n{as_test(run, f'test_seed_{number}', str(violation))}\n")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler.explore", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=1, help="of the first run (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="most runs")
    parser.add_argument(
        "--shrink", type=float, default=60.0, help="seconds to make one smaller (default: 60)"
    )
    args = parser.parse_args()
    result = search(
        args.seed, seconds=args.seconds, runs=args.runs, shrinking=args.shrink,
        say=lambda text: print(text, flush=True),
    )  # fmt: skip
    for violation, count in result.counts.most_common():
        print(f"{count} x {violation}")
    print(f"{result.runs} runs from seed {args.seed}: {len(result.found)} kinds of violations")
    return 1 if result.found else 0


if __name__ == "__main__":
    sys.exit(main())
