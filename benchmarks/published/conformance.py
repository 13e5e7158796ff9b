# SPDX-License-Identifier: BSD-3-Clause
"""GPU programs that lose their memory all the time compute the same bits as without us.

Each program (``tests/gpu/programs``) runs five times and prints a digest of its state after each step:

- ``plain``: without us;
- ``evict``: under the interposer; between every two steps all its memory is evicted;
- ``hibernate``: the same, and its context with it: it is checkpointed, and the next step wakes it. What the driver
  cannot checkpoint is left alone, and has to say so;
- ``elsewhere``: the same, and the next step wakes it on another GPU; left out where there is none
  of the same name;
- ``antagonist``: with a client that always wants the whole GPU, and with a quantum of milliseconds: every few kernels,
  all of its memory is evicted, wherever the program is.

All digests must be equal, and there must have been as many evictions as is claimed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...scheduler.core.refusals import WHY
from ...scheduler.gpu.devices import Devices
from ...scheduler.gpu.drivers import find_driver
from ...scheduler.protocol import wire as protocol
from ...scheduler.protocol.client import ControlClient, ControlError
from ..harness.antagonist import Antagonist
from ..harness.figures import Figure, fraction_right
from ..harness.machine import Machine

Mode = Literal["plain", "evict", "hibernate", "elsewhere", "antagonist"]
MODES: tuple[Mode, ...] = ("plain", "evict", "hibernate", "elsewhere", "antagonist")
#: Minimum number of evictions with the antagonist.
EVICTIONS = 10
#: Minimum time between two evictions of a program; the antagonist's pause until every running program has been evicted
#: often enough, and after that, all in seconds; and how often is enough.
QUANTUM, PAUSE, LEISURE, ENOUGH = 0.01, 0.01, 0.3, 40
STEPS = 12
#: Why a program may be left alone where it was to hibernate: what the driver cannot do, or must not.
CANNOT = ("driver", "gpus", "nccl", "ipc", "managed", "unevictable")
#: Seconds for one run of one program, and for all.
PATIENCE, TIME_LIMIT = 120.0, 330.0
#: Lines of standard error that are kept of a run that failed.
LAST_LINES = 40
#: Seconds for a program that took too long to say where it is.
LAST_WORDS = 2.0


class Unfit(Exception):
    """This machine is none to run on; the message is one sentence for the user."""


class Moves(NamedTuple):
    """What a lease group lost and got back, how often it was hibernated, and how often it woke on another GPU."""

    evictions: int
    evicted: int
    restored: int
    hibernations: int
    elsewhere: int


NOTHING = Moves(0, 0, 0, 0, 0)


@dataclass
class Run:
    """One run of a program.

    Attributes
    ----------
    end
        ``done``; ``absent``: what it needs is not here; ``refused``: what it does was refused; ``failed``.
    digests, parts
        Of each step, and of the end; of each buffer of it.
    text
        Why it was absent or refused; the last lines of standard error of one that failed.
    left_alone
        Why it was not hibernated any more, a code; empty if it was.
    """

    end: Literal["done", "absent", "refused", "failed"]
    digests: list[str] = field(default_factory=list)
    parts: list[list[str]] = field(default_factory=list)
    text: str = ""
    left_alone: str = ""
    seconds: float = 0.0
    moves: Moves = NOTHING


@dataclass
class Verdict:
    """What came of a program."""

    program: str
    steps: int
    modes: Sequence[Mode] = MODES
    runs: dict[Mode, Run] = field(default_factory=dict)

    @property
    def absent(self) -> bool:
        """Whether it does not run on this machine at all."""
        return "plain" in self.runs and self.runs["plain"].end == "absent"

    @property
    def problem(self) -> str:
        """What is wrong, in a few words; empty if nothing is."""
        if self.absent:
            return ""
        missing = [mode for mode in self.modes if mode not in self.runs]
        for mode, run in self.runs.items():
            if run.end != "done":
                return f"{mode}: {run.end}"
        if missing:
            return f"{missing[0]}: no time left"
        plain = self.runs["plain"].digests
        for mode in self.modes[1:]:
            run = self.runs[mode]
            if run.digests != plain:
                return f"{mode}: differs from {_first_difference(self.runs['plain'], run)}"
            if mode in ("hibernate", "elsewhere"):
                if run.left_alone and run.left_alone not in CANNOT:
                    return f"{mode}: {run.left_alone}"
                times = run.moves.hibernations if mode == "hibernate" else run.moves.elsewhere
                if times < self.steps and not run.left_alone:
                    return f"{mode}: {times} times, fewer than {self.steps}"
                continue
            least = self.steps if mode == "evict" else EVICTIONS
            if run.moves.evictions < least:
                return f"{mode}: {run.moves.evictions} evictions, fewer than {least}"
        return ""

    def as_json(self) -> str:
        """Return all of it as one line of JSON."""
        runs = {
            mode: {
                "end": run.end,
                "seconds": round(run.seconds, 2),
                **run.moves._asdict(),
                "digest": run.digests[-1] if run.digests else None,
                "text": run.text,
                "left_alone": run.left_alone,
            }
            for mode, run in self.runs.items()
        }
        fields = {"program": self.program, "steps": self.steps, "absent": self.absent}
        return json.dumps({**fields, "problem": self.problem, "runs": runs})


def _code(left_alone: str) -> str:
    """Return the code of what a program said of being left alone; the sentence, where it has none."""
    return next((code for code, why in WHY.items() if left_alone.endswith(why)), left_alone)


def _first_difference(plain: Run, other: Run) -> str:
    """Say where two runs of the same number of steps begin to differ."""
    steps = zip(plain.digests, other.digests, strict=True)
    step = next(n for n, (a, b) in enumerate(steps) if a != b)
    pairs = list(zip(plain.parts[step], other.parts[step], strict=False))
    wrong = [str(n) for n, (a, b) in enumerate(pairs) if a != b]
    return f"step {step} on, in {len(wrong)} of {len(pairs)} parts ({', '.join(wrong[:8])})"


def programs_folder() -> Path:
    """Return where the programs are.

    Raises
    ------
    Unfit
        If this is no checkout of the sources.
    """
    for top in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (top / "tests/gpu/programs").is_dir():
            return top / "tests/gpu/programs"
    raise Unfit("the programs are in tests/gpu/programs of the sources: run this in a checkout")


class _Counted(ExitStack):
    """Counts what each lease group of a scheduler loses, from the scheduler's events."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.evictions: Counter[str] = Counter()
        self.evicted: Counter[str] = Counter()
        self.restored: Counter[str] = Counter()
        self.hibernations: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()
        #: The groups of the running programs, and the program that takes their memory.
        self.running: set[str] = set()
        self.antagonist: Antagonist | None = None
        self._client = self.enter_context(ControlClient(path))
        self._client.request("subscribe")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.callback(self._thread.join)
        self.callback(self._stopped.set)

    def of(self, group: str) -> Moves:
        """Return the sums for a group."""
        return Moves(
            self.evictions[group],
            self.evicted[group],
            self.restored[group],
            self.hibernations[group],
            self.elsewhere[group],
        )

    def _listen(self) -> None:
        try:
            while not self._stopped.is_set():
                event = self._client.next_event(0.1)
                if event is None:
                    continue
                if event["kind"] == "wake" and event.get("gpu"):
                    self.elsewhere[event["group"]] += 1
                # How much it freed may not have been measured by then.
                if event["kind"] == "hibernate":
                    self.hibernations[event["group"]] += 1
                if not event.get("bytes"):
                    continue
                if event["kind"] == "evict":
                    self.evictions[event["group"]] += 1
                    self.evicted[event["group"]] += event["bytes"]
                    self._set_pace()
                elif event["kind"] == "restore":
                    self.restored[event["group"]] += event["bytes"]
        except ControlError as error:
            # What is missing will be found to be missing.
            print(f"gpushare: evictions are counted no more: {error}", file=sys.stderr)

    def _set_pace(self) -> None:
        if self.antagonist is not None:
            had = [self.evictions[group] for group in self.running.copy()]
            hurry = any(0 < evictions < ENOUGH for evictions in had)
            self.antagonist.pause = PAUSE if hurry else LEISURE


class Suite:
    """Runs programs and compares.

    Parameters
    ----------
    environ
        The environment to start from. Without ``GPUSHARE_SIM`` there must be a real GPU. The backend is ``swap``, and
        managed memory is forbidden.
    steps
        Steps of each program.
    jobs
        Programs at once.
    time_limit
        Seconds after which no further program is started.
    progress
        Is given a line for each run that ended.
    ways
        Which, beside ``plain``; all by default.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        steps: int = STEPS,
        jobs: int = 0,
        time_limit: float = TIME_LIMIT,
        progress: Callable[[str], object] = lambda line: None,
        ways: Sequence[Mode] = MODES,
    ) -> None:
        self.modes = [mode for mode in MODES if mode == "plain" or mode in ways]
        self.environ = guarded(environ)
        self.steps = steps
        self.jobs = jobs or max(1, min(6, (os.cpu_count() or 1) // 2))
        self.deadline = time.monotonic() + time_limit
        self.progress = progress

    def run(self, programs: Sequence[Path]) -> list[Verdict]:
        """Run all programs in all ways, each way for all of them at once."""
        verdicts = {path: Verdict(path.stem, self.steps, self.modes) for path in programs}
        with tempfile.TemporaryDirectory(prefix="gs-") as folder:
            for mode in self.modes:
                # Where it does not run without us, there is nothing to compare.
                going = [
                    path
                    for path, verdict in verdicts.items()
                    if (plain := verdict.runs.get("plain")) is None or plain.end == "done"
                ]
                # What one drains of its GPU would drive the others away as well.
                jobs = 1 if mode == "elsewhere" else self.jobs
                with self._world(mode) as world, ThreadPoolExecutor(jobs) as pool:
                    if mode == "elsewhere" and not world.moves():
                        self.progress(
                            "elsewhere: not here: it takes two GPUs of one name, and driver 580"
                        )
                        for verdict in verdicts.values():
                            verdict.modes = [other for other in verdict.modes if other != mode]
                        continue
                    for path, run in zip(
                        going,
                        pool.map(lambda p: self._one(p, mode, world, Path(folder)), going),  # noqa: B023
                        strict=True,
                    ):
                        if run is not None:
                            verdicts[path].runs[mode] = run
        return list(verdicts.values())

    @contextmanager
    def _world(self, mode: Mode) -> Iterator[_World]:
        machine = Machine(self.environ, whole=True)
        with ExitStack() as stack:
            stack.callback(machine.close)
            if mode == "plain":
                yield _World(machine, None)
                return
            machine.start_scheduler(*(("--quantum", str(QUANTUM)) if mode == "antagonist" else ()))
            counted = stack.enter_context(_Counted(machine.socket))
            antagonist = None
            if mode == "antagonist":
                antagonist = stack.enter_context(Antagonist(machine.socket, pause=PAUSE))
                counted.antagonist = antagonist
            yield _World(machine, counted)
            if antagonist is not None and antagonist.error is not None:
                self.progress(f"the antagonist ended: {antagonist.error}")

    def _one(self, path: Path, mode: Mode, world: _World, folder: Path) -> Run | None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            return None
        name = f"{path.stem}-{mode}"
        environ = world.machine.bare_environ()
        if world.counted is not None:
            environ = world.machine.client_environ(name)
            environ["GPUSHARE_CONFORMANCE_PROTOCOL"] = str(protocol.CONTROL_VERSION)
            if mode in ("evict", "hibernate", "elsewhere"):
                environ["GPUSHARE_CONFORMANCE_STEP"] = mode
        helpers = [str(path.parent.parent), *filter(None, [environ.get("PYTHONPATH")])]
        environ["PYTHONPATH"] = os.pathsep.join(helpers)
        # What is compiled is compiled once, and the same code runs in all three.
        for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR"):
            environ[cache] = str(folder / path.stem / cache)
        started = time.monotonic()
        patience = min(PATIENCE, left + 10.0)
        if world.counted is not None:
            world.counted.running.add(environ["GPUSHARE_GROUP"])
        run = _start(path, self.steps, environ, patience, folder / name, partial(world.seen, name))
        run.seconds = time.monotonic() - started
        if world.counted is not None:
            world.counted.running.discard(environ["GPUSHARE_GROUP"])
            # The last events are on their way while the process ends.
            time.sleep(0.2)
            run.moves = world.counted.of(environ["GPUSHARE_GROUP"])
            if mode == "elsewhere":
                world.open()
        said = f": {run.text.splitlines()[-1]}" if run.text else ""
        self.progress(
            f"{path.stem:20} {mode:10} {run.end} in {run.seconds:5.1f} s, "
            f"{run.moves.evictions} evictions, {run.moves.hibernations} hibernations"
            f"{f', {run.moves.elsewhere} elsewhere' if mode == 'elsewhere' else ''}"
            f"{f' (left alone: {run.left_alone})' if run.left_alone else ''}{said}"
        )
        return run


class _World(NamedTuple):
    """A machine, and the counter of its evictions; None without sharing."""

    machine: Machine
    counted: _Counted | None

    def seen(self, name: str) -> str:
        """Return how the scheduler sees a client."""
        if self.counted is None:
            return ""
        try:
            return f"the scheduler sees: {json.dumps(self.machine.group(name))}\n"
        except (ControlError, StopIteration):
            return "the scheduler does not see it\n"

    def moves(self) -> bool:
        """Return whether anything can wake on another GPU here."""
        end = time.monotonic() + PATIENCE
        while (found := self._status()["hibernation"])["able"] is None and time.monotonic() < end:
            time.sleep(0.01)
        return bool(found["moves"])

    def open(self) -> None:
        """End all drains: a program that died may have left one."""
        for gpu in self._status()["gpus"]:
            if gpu["draining"]:
                self.machine.control("drain", gpu=gpu["uuid"], on=False)

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.machine.control("status")["status"]  # type: ignore[assignment]
        return found


def guarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Refuse machines without a GPU, and settings that would allow managed memory on a real one."""
    found = dict(environ)
    found.setdefault("GPUSHARE_BACKEND", "swap")
    found.setdefault("GPUSHARE_FORBID_MANAGED", "1")
    if found["GPUSHARE_BACKEND"] != "swap" or found["GPUSHARE_FORBID_MANAGED"] != "1":
        raise Unfit("this needs GPUSHARE_BACKEND=swap and GPUSHARE_FORBID_MANAGED=1")
    driver = find_driver(found)
    if driver is None:
        raise Unfit("there is no NVIDIA driver here")
    if not driver.simulated:
        devices = Devices(driver.nvml)
        gpus = devices.start()
        devices.stop()
        if not gpus:
            raise Unfit(f"there is no NVIDIA GPU here (NVML: {devices.state})")
    return found


def _start(
    path: Path,
    steps: int,
    environ: dict[str, str],
    patience: float,
    log: Path,
    seen: Callable[[], str],
) -> Run:
    """Run a program and read what it says. Whatever becomes of it, this returns.

    If it takes too long, ``seen`` tells how it looked from outside.
    """
    command = [sys.executable, str(path), "--steps", str(steps)]
    with log.open("w+", errors="replace") as errors:
        with subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Its own group: what it starts ends with it.
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=patience)
                why = f"exit status {process.returncode}" if process.returncode else ""
            except subprocess.TimeoutExpired:
                view = seen()
                process.send_signal(signal.SIGUSR1)
                time.sleep(LAST_WORDS)
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                why = f"{view}not finished after {patience:.0f} s"
        errors.seek(0)
        last = errors.read().splitlines()[-LAST_LINES:]
    lines = [_object(line) for line in output.splitlines()]
    digests = [str(line["digest"]) for line in lines if "digest" in line]
    parts = [list(line["parts"]) for line in lines if "digest" in line]
    for line in lines:
        if "absent" in line:
            return Run("absent", text=str(line["absent"]))
        if "refused" in line:
            return Run("refused", digests, parts, str(line["refused"]))
    if not why and len(digests) != steps + 1:
        why = f"{len(digests)} digests instead of {steps + 1}"
    if why:
        return Run("failed", digests, parts, "\n".join([*last, why]))
    alone = [str(line["left_alone"]) for line in lines if "left_alone" in line]
    return Run("done", digests, parts, left_alone=_code(alone[0]) if alone else "")


def _object(line: str) -> dict[str, Any]:
    """Return a line of a program's; libraries print others between them."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def run() -> Iterator[Figure]:
    """Run all programs on the GPU, else one on the simulated driver; yield how many were as without us."""
    environ, pattern = dict(os.environ), "*.py"
    driver = find_driver(environ)
    if driver is None or driver.simulated:
        # The libraries need a real driver.
        environ["GPUSHARE_SIM"], pattern = "1", "driver_api.py"
    suite = Suite(environ, progress=lambda line: print(line, file=sys.stderr, flush=True))
    verdicts = [v for v in suite.run(sorted(programs_folder().glob(pattern))) if not v.absent]
    for verdict in verdicts:
        if verdict.problem:
            print(f"{verdict.program}: {verdict.problem}", file=sys.stderr)
    right = sum(not verdict.problem for verdict in verdicts)
    moves = [run.moves for verdict in verdicts for run in verdict.runs.values()]
    evictions = sum(of.evictions for of in moves)
    hibernations = sum(of.hibernations for of in moves)
    total = len(verdicts)
    share = right / total if total else 0.0
    yield fraction_right("conformance", "programs equal to the last bit, of all", share, total)
    yield Figure("conformance", "evictions meanwhile", float(evictions), "", None, total, 0.0)
    yield Figure("conformance", "hibernations meanwhile", float(hibernations), "", None, total, 0.0)
