# SPDX-License-Identifier: BSD-3-Clause
"""Compare random programs with and without the interposer on a real GPU.

A real driver answers many calls in ways that no document promises, and some not twice in the same way. So nothing ends
the run here: what differs is counted by kind, with the first program that showed it. Where the bare driver also differs
from itself, hangs or crashes, the interposer is not to blame, and that is counted apart.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO

from jupyter_gpushare.benchmarks.harness.antagonist import Antagonist
from jupyter_gpushare.benchmarks.harness.machine import Machine
from jupyter_gpushare.benchmarks.published.conformance import guarded
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError

from .differing import Found, Kind, differences
from .programs import Recipe, generate, shrink
from .running import HERE, Disturber, Player, PlayerEnded, Run, documented, last

#: Seconds after which a program counts as hung: to make a context takes up to a second where many do so at once.
PATIENCE = 30.0
#: Seconds for a program of one or two calls.
BRIEFLY = 20.0
#: What a kernel leaves that has waited too long.
LAUNCH_FAILED = 719
#: Seconds from one time that a program is asked for its memory to the next.
EVERY = 0.07
#: Seconds from one time that all of the GPU is wanted to the next.
SURGE = 0.6
#: What a program begins with that the probes below need.
_BEGIN = ("0 mkstream 2 1 0", "0 alloc 0 5000", "0 writenow 0 0 5000 7 1")
#: What no driver promises to survive. Each is tried once, bare; what crashes or hangs is left out.
PROBES: dict[str, tuple[str, ...]] = {
    **{f"wrong {number}": (f"0 wrong {number}",) for number in range(26)},
    "freetwice *": (
        "0 freetwice 0 2 0",
        "0 allocasync 1 900 2",
        "0 freetwice 1 2 1",
        "0 allocasync 1 900 2",
        "0 freetwice 1 2 2",
        "0 allochost 1 900 0",
        "0 freetwice 1 2 0",
    ),
    "freeinside *": (
        "0 freeinside 0 7 2",
        "0 allocasync 1 900 2",
        "0 freeinside 1 7 2",
        "0 allochost 2 900 0",
        "0 freeinside 2 7 2",
        "0 map 3 1 0",
        "0 freeinside 3 7 2",
    ),
    "retain *": (
        "0 retain 0 9",
        "0 allocasync 1 900 2",
        "0 retain 1 9",
        "0 allochost 2 900 0",
        "0 retain 2 9",
    ),
    "access *": ("0 map 3 1 0", "0 unmap 3", "0 access 3 1", "0 access 3 0"),
    "remap *": ("0 map 3 1 0", "0 remap 3 1"),
    "rmstream * 0": ("0 slow 3000000", "0 alloc 1 5000", "0 rmstream 2 0", "0 ctxsync"),
    "rmpool *": ("0 mkpool 0", "0 allocpool 1 900 2 0", "0 rmpool 0", "0 free 1"),
    "rmctx*": ("0 mkctx 0", "0 use 1", "0 alloc 1 900", "* rmctx", "0 alloc 2 900"),
    "reset *": ("* reset 0", "0 alloc 1 900", "0 mkstream 3 1 0", "0 setnow 1 0 900 1"),
    "fork*": ("* fork", "0 read 0 0 5000"),
    "fault *": ("* fault 2", "0 alloc 1 900"),
    "mailbox *": ("0 mailbox 1 900 2 1 7", "0 read 1 0 900"),
    "export *": ("! partner", "0 export 0 0", "0 elsewhere 0 0 900 1", "0 elsewhere 0 2 0 0"),
}


@dataclass(frozen=True)
class LeftOut:
    """Lines that programs do not have on a GPU; ``*`` stands for anything.

    Attributes
    ----------
    line
        The line without the thread.
    where
        ``threads``: only where several threads run at the same time; empty: everywhere.
    why
        The reason.
    """

    line: str
    where: str
    why: str

    def covers(self, text: str, free: bool) -> bool:
        """Tell whether it is such a line, in a program whose threads run freely or not."""
        return (free or not self.where) and fnmatchcase(text, self.line)


def left_out() -> list[LeftOut]:
    """Read the table."""
    with (HERE / "left_out.csv").open(newline="", encoding="utf-8") as file:
        return [LeftOut(**row) for row in csv.DictReader(file)]


def fit(program: Sequence[str], without: Sequence[LeftOut]) -> list[str]:
    """Return the program without what is left out."""
    threads = next((int(line[10:]) for line in program if line.startswith("! threads ")), 1)
    free = threads > 1 and "! lockstep" not in program
    return [
        line
        for line in program
        if line.startswith("!") or not any(row.covers(line[2:], free) for row in without)
    ]


def paced(program: Sequence[str], rng: random.Random) -> list[str]:
    """Put pauses into a program: else the GPU would be done with it before it could be taken away."""
    threads = next((int(line[10:]) for line in program if line.startswith("! threads ")), 1)
    lines = []
    for line in program:
        lines.append(line)
        if not line.startswith("!") and rng.random() < 0.2:
            lines.append(f"{rng.randrange(threads)} pause {rng.randrange(6000)}")
    return lines


# --- The place ---


class Evictions:
    """Counts how often memory of the programs left the GPU."""

    def __init__(self, socket: Path) -> None:
        self.count = self.bytes = 0
        self._client = ControlClient(socket)
        self._client.__enter__()
        self._client.request("subscribe")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(ControlError, OSError):
            while not self._stopped.is_set():
                event = self._client.next_event(0.1)
                if event is None or event["kind"] != "evict" or not event.get("bytes"):
                    continue
                if not str(event["group"]).startswith("antagonist"):
                    self.count += 1
                    self.bytes += int(event["bytes"])

    def close(self) -> None:
        """Count no more."""
        self._stopped.set()
        self._thread.join()
        self._client.__exit__(None, None, None)


class Surge(Antagonist):
    """Wants all of the GPU now and then, and in between leaves room for contexts.

    A context on a real GPU takes more memory than all blocks of a program. It finds no room beside what was promised
    to another client, and would wait for ever for a client that never wants less.
    """

    def _room(self) -> int:
        room = super()._room()
        now = time.monotonic() % SURGE
        return room if now < SURGE / 4 else room - room // 4


class GpuPlace:
    """A GPU, a scheduler, and pairs of players: one without the interposer, one with it.

    Parameters
    ----------
    player
        The compiled player, with its kernels beside it.
    pairs
        How many programs run at once.
    seed
        What the disturbances are drawn from.
    environ
        Without ``GPUSHARE_SIM`` there must be a GPU. The backend is ``swap``, and managed memory is forbidden.
    every
        Seconds, on average, until a program is asked for its memory again.

    Raises
    ------
    jupyter_gpushare.benchmarks.published.conformance.Unfit
        If there is no GPU, or managed memory would be allowed.
    """

    def __init__(
        self,
        player: Path,
        pairs: int,
        seed: str,
        environ: Mapping[str, str],
        every: float = EVERY,
    ) -> None:
        self.player = player
        given = guarded(environ)
        given.setdefault("GPUSHARE_SIM_MEMORY", str(4 << 30))
        given.setdefault("GPUSHARE_SIM_BANDWIDTH", "20000000000")
        # A module is loaded at once: later, that may wait for a kernel that waits for us.
        given |= {
            "CUDA_MODULE_LOADING": "EAGER",
            "DIFFERENTIAL_REAL": "1",
            "GPUSHARE_PLACE": "0",
            "GPUSHARE_SIM_STRICT": "1",
        }
        self.machine = Machine(given, whole=True)
        self.simulated = self.machine.driver.simulated
        self.machine.environ |= {"GPUSHARE_BACKEND": "swap", "GPUSHARE_FORBID_MANAGED": "1"}
        with contextlib.ExitStack() as stack:
            stack.callback(self.machine.close)
            self.machine.start_scheduler("--quantum", "0.05")
            self.players: list[tuple[Player, Player]] = []
            self.groups = [f"differential-{number}" for number in range(pairs)]
            stack.callback(self._close_players)
            self.players += [self._pair(group) for group in self.groups]
            self.evictions = Evictions(self.machine.socket)
            stack.callback(self.evictions.close)
            self.disturber = Disturber(
                self.machine.socket,
                [f"bench-{group}" for group in self.groups],
                random.Random(seed),
                # All that is left beside contexts and other processes, however much that is at the moment.
                Surge(self.machine.socket, pause=0.02),
                # The long one is for what takes longer to move in than the others leave time for.
                [*(every / pairs * share for share in (0.2, 0.6, 2.2) * 8), 0.8],
            )
            self.disturber.start()
            stack.callback(self.disturber.stop)
            self._stack = stack.pop_all()

    def _kernels(self) -> dict[str, str]:
        name = "kernels.so" if self.simulated else "kernels.ptx"
        return {"DIFFERENTIAL_KERNELS": str(self.player.with_name(name))}

    def _bare(self) -> dict[str, str]:
        environ = {**self.machine.bare_environ(), **self._kernels()}
        cuda = self.machine.driver.cuda
        if self.simulated:
            environ["LD_PRELOAD"] = str(cuda)
        else:
            # The same driver, also where the loader would not find it.
            before = environ.get("LD_LIBRARY_PATH", "")
            environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(cuda.parent), before)))
        return environ

    def _interposed(self, group: str) -> dict[str, str]:
        return {**self.machine.client_environ(group), **self._kernels()}

    def _pair(self, group: str) -> tuple[Player, Player]:
        bare = Player(self.player, self._bare())
        try:
            return bare, Player(self.player, self._interposed(group))
        except PlayerEnded:
            bare.close()
            raise

    def renew(self, pair: int) -> None:
        """Start a pair of players again, whatever became of it."""
        for player in self.players[pair]:
            player.close()
        self.players[pair] = self._pair(self.groups[pair])

    def _close_players(self) -> None:
        for pair in self.players:
            for player in pair:
                player.close()

    def run(self, pair: int, program: Sequence[str], patience: float) -> tuple[Run, Run]:
        """Run a program bare and under the interposer, both at once."""
        bare, interposed = self.players[pair]
        bare.start(program, patience)
        interposed.start(program, patience)
        return bare.finish(), interposed.finish()

    def run_bare(self, pair: int, program: Sequence[str], patience: float) -> Run:
        """Run a program without the interposer."""
        bare, _ = self.players[pair]
        bare.start(program, patience)
        return bare.finish()

    def close(self) -> None:
        """End all that was started."""
        self._stack.close()


# --- The survey ---


@dataclass
class Case:
    """A kind of difference, and the first program that showed it."""

    kind: Kind
    text: str
    seed: str
    program: list[str]
    said: str = ""
    stacks: str = ""
    count: int = 0


@dataclass
class Survey:
    """Runs programs on a GPU and sorts what differs.

    Parameters
    ----------
    place
        Where.
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
        Seconds to shorten the first program of each kind; 0: not at all.
    say
        Takes lines for people.
    """

    place: GpuPlace
    seed: str
    recipe: Recipe
    seconds: float
    calls: int | None = None
    program: Sequence[str] | None = None
    shrinking: float = 0.0
    say: Callable[[str], None] = print
    programs: int = 0
    compared: int = 0
    #: Programs whose bare run hung or crashed, and by what; and in what bare runs differ from each other.
    failed_bare: Counter[str] = field(default_factory=Counter)
    unsteady: Counter[str] = field(default_factory=Counter)
    cases: dict[Kind, Case] = field(default_factory=dict)
    without: list[LeftOut] = field(default_factory=left_out)

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self._table = documented()
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self._begun)

    def _patience(self) -> float:
        """Seconds for a program, so that all ends soon after the time is over."""
        return max(PATIENCE / 2, min(PATIENCE, self._left() + PATIENCE / 2))

    def run(self) -> None:
        """Look for what must be left out, then run programs until the time is over."""
        pairs = range(len(self.place.players))
        idle = list(pairs)

        def probe(pattern: str) -> LeftOut | None:
            pair = idle.pop()
            try:
                run = self.place.run_bare(pair, [*_BEGIN, *PROBES[pattern]], BRIEFLY)
            except PlayerEnded as error:
                self.place.renew(pair)
                return LeftOut(pattern, "", f"It ends the tester itself ({error}).")
            finally:
                idle.append(pair)
            gave_up = any(f"={LAUNCH_FAILED} " in trace for trace in run.traces)
            if run.status == 0 and not gave_up:
                return None
            how = "hangs" if run.status is None or gave_up else f"ends with {run.status}"
            return LeftOut(pattern, "", f"The bare driver here {how} ({last(run)}).")

        with ThreadPoolExecutor(len(pairs)) as pool:
            for row in pool.map(probe, PROBES) if self.program is None else ():
                if row is not None:
                    self.without.append(row)
                    self.say(f"left out: {row.line}: {row.why}")
            for done in [pool.submit(self._work, pair) for pair in pairs]:
                done.result()

    def _work(self, pair: int) -> None:
        while self._left() > 0 and (self.calls is None or self.compared < self.calls):
            name = f"{self.seed}/{next(self._numbers)}"
            try:
                self._look_at(pair, name, self._make(name))
            except PlayerEnded as error:
                self.say(f"{name}: a player ended: {error}")
                with self._lock:
                    self.failed_bare["a player ended"] += 1
                self.place.renew(pair)

    def _make(self, name: str) -> list[str]:
        if self.program is not None:
            return list(self.program)
        return paced(fit(generate(name, self.recipe), self.without), random.Random(name))

    def _look_at(self, pair: int, name: str, lines: list[str]) -> None:
        bare, ours = self.place.run(pair, lines, self._patience())
        with self._lock:
            self.programs += 1
        if bare.status != 0:
            how = "hung" if bare.status is None else f"ended with {bare.status}"
            where = " ".join(last(bare).split()[:3])
            with self._lock:
                self.failed_bare[f"{how}, {where}"] += 1
            return
        found = differences(bare, ours, self._table)
        with self._lock:
            self.compared += ours.calls
        if found:
            found = self._without_unsteady(pair, lines, bare, found)
        said = self.place.players[pair][1].said()
        for one in found:
            self._note(pair, name, lines, one, ours, said)

    def _without_unsteady(
        self, pair: int, lines: list[str], bare: Run, found: list[Found]
    ) -> list[Found]:
        """Return what is no difference between two bare runs, too."""
        for _ in range(2):
            own = differences(bare, self.place.run_bare(pair, lines, self._patience()), ())
            end = min((one.line for one in own if one.final), default=1 << 31)
            names = {(one.kind.operation, one.kind.name) for one in own}
            rest = []
            for one in found:
                if one.line < end and (one.kind.operation, one.kind.name) not in names:
                    rest.append(one)
                    continue
                with self._lock:
                    self.unsteady[f"{one.kind.operation} {one.kind.name}"] += 1
            found = rest
        return found

    def _note(
        self, pair: int, name: str, lines: list[str], found: Found, ours: Run, said: str
    ) -> None:
        with self._lock:
            known = self.cases.get(found.kind)
            if known is None:
                case = Case(found.kind, found.text, name, lines, said[-8000:], ours.stacks[-8000:])
                self.cases[found.kind] = case
            else:
                case = known
            case.count += 1
        if known is not None:
            return
        self.say(f"{name}: {found.kind}\n    {found.text[:600]}")
        if self.shrinking > 0 and self._left() > 0:
            case.program = self._shorten(pair, lines, found.kind)
            self.say("\n    ".join((f"{name}: {found.kind}: shortened", *case.program[:40])))

    def _shorten(self, pair: int, lines: list[str], kind: Kind) -> list[str]:
        def fails(some: list[str]) -> bool:
            for _ in range(2):
                bare, ours = self.place.run(pair, some, BRIEFLY)
                if bare.status == 0 and any(
                    one.kind == kind for one in differences(bare, ours, self._table)
                ):
                    return True
            return False

        return shrink(lines, fails, min(self.shrinking, self._left()))

    def totals(self) -> dict[str, object]:
        """Return the figures."""
        disturber = self.place.disturber
        return {
            "programs": self.programs,
            "calls": self.compared,
            "differences": sum(case.count for case in self.cases.values()),
            "kinds": len(self.cases),
            "failed_bare": sum(self.failed_bare.values()),
            "unsteady": sum(self.unsteady.values()),
            "evictions": self.place.evictions.count,
            "evicted_bytes": self.place.evictions.bytes,
            "disturbances": disturber.times,
            "antagonist": disturber.antagonist.turns,
            "seconds": round(time.monotonic() - self._begun, 1),
        }

    def report(self) -> list[str]:
        """Say what was found, a line each kind."""
        lines = [
            f"different: {case.count} x {case.kind} (first: {case.seed})"
            for case in sorted(self.cases.values(), key=lambda case: -case.count)
        ]
        lines += [
            f"bare run failed: {count} x {how}" for how, count in self.failed_bare.most_common()
        ]
        lines += [
            f"bare differs from bare: {count} x {what}"
            for what, count in self.unsteady.most_common()
        ]
        if (error := self.place.disturber.antagonist.error) is not None:
            lines.append(f"the client that wants the whole GPU has ended: {error}")
        return [*lines, json.dumps(self.totals())]

    def write(self, file: TextIO) -> None:
        """Write each kind with its program, one JSON object a line."""
        for case in self.cases.values():
            print(json.dumps({**vars(case), "kind": str(case.kind)}), file=file)


def survey(
    player: Path,
    *,
    jobs: int,
    seed: str,
    recipe: Recipe,
    seconds: float,
    calls: int | None,
    program: Sequence[str] | None,
    shrinking: float,
    log: Path | None,
    every: float,
) -> int:
    """Run a survey on this machine's GPU, and return the exit status."""
    place = GpuPlace(player, jobs, seed, os.environ, every)
    try:
        made = Survey(
            place,
            seed,
            recipe,
            seconds,
            calls,
            program,
            shrinking,
            lambda text: print(text, flush=True),
        )
        try:
            made.run()
        finally:
            # What was found is worth something, whatever ended the run.
            for line in made.report():
                print(line, flush=True)
            if log is not None:
                with log.open("w", encoding="utf-8") as file:
                    made.write(file)
    finally:
        place.close()
    return 1 if made.cases or not made.compared else 0
