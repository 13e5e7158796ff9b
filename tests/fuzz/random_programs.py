# SPDX-License-Identifier: BSD-3-Clause
"""Random CUDA programs on a simulated GPU that is too small for them, each beside a plain model of its memory.

Several processes run programs of allocations, copies, kernels, graphs and frees (``csrc/fuzz/runner.c`` says which)
while their memory is evicted and restored, waits are cancelled, the scheduler is stopped and killed, processes die, and
calls of the driver are refused. Whenever bytes come back from the device they are compared with what a host copy says.
A program follows from its seed; the interleaving with the others does not, so a program that failed is run again
several times while lines are taken out of it, and the shortest one that still fails is printed.

    python -m tests.fuzz.random_programs --minutes 10 --seed 7

Exit status: 0 if every byte was right, 1 if not, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.scheduler.core.model.records import unchanged
from jupyter_gpushare.scheduler.protocol.client import ControlError
from tests.fuzz.evictions import places, scene
from tests.support.ground import MIB, Figures, Ground, Mismatch, RefusedStart, Runner
from tests.support.stopping import stop

#: Seconds that one program may take, on a machine that has much else to do.
PATIENCE = 120.0
#: Seconds for which the start of a process may be refused.
START_PATIENCE = 30.0
SLOTS = 12

#: Calls of the mover (its thread is called "gpushare") that are refused; it tries again until the rule ends.
MOVER_RULES = (
    "cuMemCreate%gpushare",
    "cuMemMap%gpushare",
    "cuMemSetAccess%gpushare",
    "cuMemcpyDtoHAsync%gpushare",
    "cuMemcpyHtoDAsync%gpushare",
    "cuMemHostRegister",
)
#: Calls of the program itself that are refused; what it asked for did not happen.
PROGRAM_RULES = (
    "cuMemCreate%!gpushare",
    "cuMemMap%!gpushare",
    "cuMemSetAccess%!gpushare",
    "cuMemAddressReserve",
    "cuMemcpy*%!gpushare",
    "cuMemset*%!gpushare",
    "cuLaunchKernel",
    "cuGraphLaunch",
)


# --- Programs ---


@dataclass(frozen=True)
class Recipe:
    """What programs are made of.

    Attributes
    ----------
    operations
        How many, of all threads together.
    threads
        At most so many threads.
    largest
        Bytes of the largest block; sizes are log-uniform.
    asks
        Share of requests to release, to evict everything and to cancel.
    failures
        Share of operations that let calls be refused for a while.
    resets, forks
        Share of operations that reset the context (of programs with one thread), and that fork.
    rules
        Failures that are injected again and again; empty: of all kinds.
    frees
        Frees for every 12 allocations that are tried.
    scenes
        Share of scenes: several operations and evictions between which data hardly changes.
    """

    operations: int = 1500
    threads: int = 3
    largest: int = 24 * MIB
    asks: float = 0.004
    failures: float = 0.0
    resets: float = 0.0005
    forks: float = 0.0003
    rules: tuple[str, ...] = ()
    frees: int = 5
    scenes: float = 0.0


def _log_uniform(rng: random.Random, largest: int) -> int:
    return max(1, int(2 ** rng.uniform(0, largest.bit_length())) % (largest + 1))


def _rule(rng: random.Random) -> str:
    rule = rng.choice(MOVER_RULES if rng.random() < 0.6 else PROGRAM_RULES)
    number = f":{rng.randint(1, 20)}" if rng.random() < 0.5 else ""
    chance = "" if number else f"@{rng.choice((0.02, 0.1, 0.5, 1))}"
    return f"{rule}{number}{chance}"


def _operation(rng: random.Random, recipe: Recipe, alone: bool) -> str:
    """Make one operation, without its thread."""
    slot, other = rng.randrange(SLOTS), rng.randrange(SLOTS)
    stream, later = rng.randrange(4), int(rng.random() < 0.7)
    offset = rng.randrange(recipe.largest) if rng.random() < 0.5 else 0
    length = _log_uniform(rng, recipe.largest)
    value = rng.randrange(1 << 32)
    drawn = rng.random()
    if recipe.rules and rng.random() < 0.05:
        return f"inject 20 {rng.choice(recipe.rules)}"
    if drawn < recipe.failures:
        return f"inject {rng.choice((1, 5, 20, 100))} {_rule(rng)}"
    if drawn < recipe.failures + recipe.asks:
        return f"ask {rng.choice((0, 1, 1, 1, 2))}"
    if alone and rng.random() < recipe.resets:
        return "reset"
    if rng.random() < recipe.forks:
        return "fork"
    match rng.choices(
        ("alloc", "free", "set", "set2d", "write", "copy", "mix", "read", "rest"),
        (12, recipe.frees, 10, 3, 14, 10, 24, 14, 8),
    )[0]:
        case "alloc":
            size = _log_uniform(rng, recipe.largest)
            return f"alloc {slot} {rng.choice((0, 0, 0, 1, 2))} {size} {stream} {value % 4096}"
        case "free":
            return f"free {slot} {rng.choice((0, 0, 2))} {stream}"
        case "set":
            width = rng.choice((1, 2, 4))
            return f"set {slot} {stream} {later} {width} {offset} {length} {value}"
        case "set2d":
            return f"set2d {slot} {stream} {later} {value} {length} {value % 256}"
        case "write":
            return f"write {slot} {stream} {later} {offset} {length} {value}"
        case "copy":
            return (
                f"copy {slot} {other} {stream} {later} {offset} {value % recipe.largest} {length}"
            )
        case "mix":
            return f"mix {slot} {other} {stream} {value} {offset} {value % recipe.largest} {length}"
        case "read":
            if rng.random() < 0.1:
                return f"read2d {slot} {value} {length}"
            return f"read {slot} {stream} {later} {offset} {length}"
    return rng.choice(
        (
            f"query {slot} {offset}",
            f"query {slot} {offset}",
            f"sync {rng.randrange(5)}",
            f"capture {value % 2}",
            f"replay {value % 2} {stream}",
            f"replay {value % 2} {stream}",
            f"cell {value % 2}",
            f"pause {rng.choice((10, 100, 2000))}",
        )
    )


def generate(seed: str, recipe: Recipe) -> list[str]:
    """Make the program of a seed: one operation a line."""
    rng = random.Random(seed)
    threads = rng.randint(1, recipe.threads)
    favoured = places(seed.partition("/")[0])
    lines: list[str] = []
    while len(lines) < recipe.operations:
        thread = rng.randrange(threads)
        if recipe.scenes and rng.random() < recipe.scenes:
            made = scene(rng, SLOTS, recipe.largest, favoured)
        else:
            made = [_operation(rng, recipe, threads == 1)]
        lines += [f"{thread} {operation}" for operation in made]
    return lines


# --- Disturbances ---


class History:
    """Counts the scheduler's moves as they are told."""

    def __init__(self, ground: Ground, figures: Figures) -> None:
        self.ground = ground
        self.figures = figures
        self.since = 0

    def read(self) -> None:
        """Take in what is new."""
        answer = self.ground.control("history", since=self.since)
        events = answer["events"]
        assert isinstance(events, list)
        for event in events:
            self.since = max(self.since, event["sequence"])
            if event["kind"] == "evict":
                self.figures.evictions += 1
                self.figures.evicted += event["bytes"]
                zero, shared = event.get("zero", 0), event.get("shared", 0)
                self.figures.zero += zero
                self.figures.shared += shared
                # At least so much. What was never written is discarded: that needs no digest.
                hashed = event.get("hashed", 0)
                self.figures.clean += unchanged(hashed, event["copied"], zero, shared)
            elif event["kind"] == "restore":
                self.figures.restored += event["bytes"]

    def forget(self) -> None:
        """Start again with another scheduler."""
        self.since = 0


class Trouble:
    """What happens to the programs from outside."""

    def __init__(self, ground: Ground, seed: str, figures: Figures, history: History) -> None:
        self.ground = ground
        self.rng = random.Random(seed)
        self.counts = figures.disturbances
        self.history = history
        self.due = 0.0
        self.restarts_from = time.monotonic() + 3
        self.death_at = time.monotonic() + self.rng.uniform(2, 8)

    def death_is_due(self) -> bool:
        """Tell whether a process is to die now."""
        if time.monotonic() < self.death_at:
            return False
        self.death_at = time.monotonic() + self.rng.uniform(2, 8)
        self.counts["kill"] += 1
        return True

    def step(self, runners: int) -> None:
        """Disturb once, if it is time."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self.rng.uniform(0.005, 0.1)
        group = f"fuzz-{self.rng.randrange(runners)}"
        drawn = self.rng.random()
        kind = (
            "restart"
            if drawn < 0.01 and now >= self.restarts_from
            else "stop"
            if drawn < 0.05
            else "cancel"
            if drawn < 0.1
            else "quantum"
            if drawn < 0.2
            else "release"
            if drawn < 0.5
            else "evict"
        )
        with contextlib.suppress(ControlError):
            self._do(kind, group)
        self.counts[kind] += 1

    def _do(self, kind: str, group: str) -> None:
        scheduler = self.ground.scheduler
        assert scheduler is not None
        match kind:
            case "restart":
                self.history.read()
                self.ground.kill_scheduler()
                time.sleep(self.rng.uniform(0, 0.2))
                self.ground.start_scheduler()
                self.history.forget()
                self.restarts_from = time.monotonic() + 3
            case "stop":
                stop(scheduler.pid)
                time.sleep(self.rng.uniform(0, 0.1))
                scheduler.send_signal(signal.SIGCONT)
            case "quantum":
                self.ground.control("set", quantum=self.rng.choice((0.005, 0.02, 0.1)))
            case _:
                self.ground.control(kind, group=group)


# --- Runs ---


def fuzz(
    ground: Ground,
    figures: Figures,
    *,
    seed: str,
    recipes: Sequence[Recipe],
    processes: int,
    seconds: float,
    trouble: bool = True,
    patience: float = PATIENCE,
    programs: Callable[[int], Iterator[tuple[str, list[str]]]] | None = None,
) -> Mismatch | None:
    """Run programs in several processes for a while, or until one goes wrong.

    Parameters
    ----------
    ground
        Where; its scheduler must run.
    figures
        What was done is added to these.
    seed
        What the programs are made from.
    recipes
        What they consist of, in turn.
    processes
        How many processes run programs at once.
    seconds
        No program is started after that time.
    trouble
        Whether the scheduler and the groups are disturbed meanwhile.
    patience
        Seconds after which a program counts as hung.
    programs
        Makes a process's seeds and programs, instead of ``seed`` and ``recipes``.
    """

    def made(number: int) -> Iterator[tuple[str, list[str]]]:
        for count, recipe in enumerate(itertools.cycle(recipes)):
            name = f"{seed}/{number}/{count}"
            yield name, generate(name, recipe)

    end = time.monotonic() + seconds
    history = History(ground, figures)
    disturber = Trouble(ground, seed, figures, history)
    read_at = 0.0
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        busy: dict[Runner, Iterator[tuple[str, list[str]]]] = {}

        def started(number: int) -> Runner:
            give_up = time.monotonic() + START_PATIENCE
            while True:
                try:
                    return Runner(ground, number)
                except RefusedStart:
                    # Memory that moves while the GPU is read can pass for that of other programs, for a moment.
                    if time.monotonic() > give_up:
                        raise
                    figures.disturbances["start refused"] += 1
                    time.sleep(1.0)

        def begin(number: int, following: Iterator[tuple[str, list[str]]]) -> None:
            runner = started(number)
            stack.callback(runner.close)
            busy[runner] = following
            selector.register(runner.out, selectors.EVENT_READ, runner)
            runner.start(*next(following))

        for number in range(processes):
            begin(number, (programs or made)(number))
        while busy:
            for key, _ in selector.select(0.005):
                runner: Runner = key.data
                if (mismatch := runner.answer(figures)) is not None:
                    return mismatch
                program = next(busy[runner], None) if time.monotonic() < end else None
                if program is None:
                    selector.unregister(runner.out)
                    del busy[runner]
                else:
                    runner.start(*program)
            for waiting in busy:
                if time.monotonic() - waiting.since > patience:
                    status = json.dumps(ground.control("status")["status"])
                    return waiting.mismatch(0, f"no end after {patience:g} s; {status}")
            if trouble:
                disturber.step(processes)
                if len(busy) > 1 and disturber.death_is_due():
                    victim = disturber.rng.choice(list(busy))
                    following = busy.pop(victim)
                    selector.unregister(victim.out)
                    victim.close()
                    begin(victim.number, following)
            # The scheduler keeps the last events only.
            if time.monotonic() >= read_at:
                with contextlib.suppress(ControlError):
                    history.read()
                read_at = time.monotonic() + 0.2
        history.read()
    return None


def shrink(
    found: Mismatch, fails: Callable[[list[str]], Mismatch | None], seconds: float
) -> Mismatch:
    """Take lines out of a program for as long as it still fails, within a time.

    Parameters
    ----------
    found
        The failure.
    fails
        Runs a program, several times if need be, and tells how it failed.
    seconds
        The time.
    """
    end = time.monotonic() + seconds
    if found.line > 0 and (again := fails(found.program[: found.line])) is not None:
        found = again
    size = max(1, len(found.program) // 2)
    while time.monotonic() < end:
        taken = False
        at = 0
        while at < len(found.program) and time.monotonic() < end:
            shorter = found.program[:at] + found.program[at + size :]
            again = fails(shorter) if shorter else None
            if again is None:
                at += size
            else:
                found, taken = again, True
        if size == 1 and not taken:
            break
        size = max(1, size // 2)
    return found


def minimal(found: Mismatch, make_ground: Callable[[], Ground], seconds: float) -> Mismatch:
    """Find a short program that fails as this one did: alone, with evictions from outside."""
    with contextlib.closing(make_ground()) as ground:
        ground.start_scheduler()

        def fails(program: list[str]) -> Mismatch | None:
            again = fuzz(
                ground,
                Figures(),
                seed=found.seed,
                recipes=(),
                processes=1,
                seconds=3600,
                programs=lambda _: iter([(found.seed, program)] * 5),
            )
            return again

        return shrink(found, fails, seconds)


def report(found: Mismatch) -> str:
    """Say what went wrong, with the program."""
    return "\n".join(
        (
            f"seed {found.seed}: line {found.line}: {found.text}",
            *found.program,
            "end",
            *([found.errors.rstrip()] if found.errors else []),
        )
    )


#: Evictions of data that hardly changes.
EVICTIONS = Recipe(operations=400, threads=2, largest=12 * MIB, resets=0.0, scenes=0.05)
#: Without failures, a wrong result code is a finding too; with them, every refusal is right.
RECIPES = (
    Recipe(scenes=0.001),
    Recipe(failures=0.004, scenes=0.001),
    EVICTIONS,
    Recipe(threads=1, largest=40 * MIB),
    Recipe(operations=400, asks=0.1, threads=2, largest=8 * MIB),
    Recipe(threads=2, failures=0.02),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.random_programs",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument(
        "--seed", default=None, help="what the programs are made from (default: random)"
    )
    parser.add_argument("--processes", type=int, default=3, help="programs at a time (default: 3)")
    parser.add_argument("--memory", type=int, default=64, help="MiB of the GPU (default: 64)")
    parser.add_argument(
        "--backend",
        choices=("swap", "managed"),
        default="swap",
        help="how memory moves (default: swap)",
    )
    parser.add_argument(
        "--shrink",
        type=float,
        default=60.0,
        help="seconds to look for a shorter program (default: 60)",
    )
    parser.add_argument(
        "--program", type=Path, help="run this file's program instead, as it was printed"
    )
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.processes < 1 or options.memory < 16:
        parser.error("--minutes and --processes must be positive, --memory 16 or more")
    seed = options.seed if options.seed is not None else str(random.SystemRandom().randrange(10**9))

    def make_ground() -> Ground:
        return Ground(options.memory * MIB, GPUSHARE_BACKEND=options.backend)

    programs = None
    if options.program is not None:
        try:
            lines = [
                line for line in options.program.read_text().splitlines() if line[:1] in "0123"
            ]
        except OSError as error:
            parser.error(f"{options.program} cannot be read: {error.strerror}")
        programs = lambda _: itertools.repeat((seed, lines))  # noqa: E731
    print(f"seed {seed}", flush=True)
    figures = Figures()
    with contextlib.closing(make_ground()) as ground:
        ground.start_scheduler()
        found = fuzz(
            ground,
            figures,
            seed=seed,
            recipes=RECIPES,
            processes=options.processes,
            seconds=options.minutes * 60,
            programs=programs,
        )
    print(figures.line(), flush=True)
    if found is None:
        return 0
    if options.shrink > 0:
        print(
            f"seed {found.seed}: line {found.line}: {found.text}\nlooking for a shorter program",
            flush=True,
        )
        found = minimal(found, make_ground, options.shrink)
    print(report(found))
    return 1


if __name__ == "__main__":
    sys.exit(main())
