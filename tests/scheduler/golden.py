# SPDX-License-Identifier: BSD-3-Clause
"""What the core decides, recorded: to show that it decides the same after a change that is to change no decision.

``tests/scheduler/golden/`` has the recordings: runs of the property tests' world (``explore.py``) and the simulator's
example traces, each under every policy. Where the core is to decide otherwise, record anew (two minutes), and state in
the commit what differs and why::

    python -m tests.scheduler.golden --record

Without ``--record``, it replays them all and shows the first difference of each run that differs.

The files are lines of JSON, compressed with xz. The first line names the fields of each message. A run begins with an
object: its name, which core it is of, and that core's settings. Each line after that is what the core took in at one
time: ``[time, events, decisions]``. The time is null where it is that of the line before. In place of the decisions of
events that the core refused is the name of the error. A message is a list of its name and the values of its fields; as
the value of a field, it is an object, ``{"Usage": [values]}``.
"""

from __future__ import annotations

import argparse
import difflib
import json
import lzma
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

from jupyter_gpushare.scheduler.core import messages as events
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import OURS, REGISTRY
from jupyter_gpushare.scheduler.simulation.calibration import H200
from jupyter_gpushare.scheduler.simulation.generate import generate
from jupyter_gpushare.scheduler.simulation.node import Node
from jupyter_gpushare.scheduler.simulation.run import NODE, place
from jupyter_gpushare.scheduler.simulation.trace import read
from tests.scheduler.explore import Player, ViolationError, check_tables, explore
from tests.scheduler.script import Script
from tests.scheduler.world.world import World

HERE = Path(__file__).parent / "golden"
TRACES = Path(__file__).parents[2] / "examples" / "traces"

#: Runs of the world, and how many of them are in one file.
RUNS, RUNS_A_FILE = 2000, 1000
#: Lines of one run at most, in the world and of a trace under one policy: later ones are much like these.
LONGEST = {"world": 800, "simulator": 1000}
#: Seconds between two readings of a simulated meter: with those of real ones there is little else.
METER = 5.0
#: Seconds by which the simulator lets a core wait that wants to be asked at once.
SLACK = 2e-6

#: Each message by its name. Nothing else here depends on where they are, or on what kind of class they are.
MESSAGES: dict[str, type[Any]] = {
    name: kind
    for name, kind in vars(events).items()
    if isinstance(kind, type)
    and hasattr(kind, "__match_args__")
    # Not the class that they may be made with.
    and kind.__module__.startswith(f"{events.__name__}.")
}
#: Unless a run states it, its core does not prefetch, because the recordings are older than that.
NO_HINTS = {"prefetch": False}
#: What makes a core of the settings of a run.
CORES: dict[str, Callable[[dict[str, Any]], Core]] = {
    "world": lambda settings: World.make_core({**NO_HINTS, **settings}),
    "simulator": lambda settings: Core(REGISTRY, Rules(**{**NO_HINTS, **settings})),
}

Fields = dict[str, tuple[str, ...]]


def fields_of_messages() -> Fields:
    return {name: kind.__match_args__ for name, kind in MESSAGES.items()}


# --- Messages as lists ----------------------------------------------------------------------------


def plain(value: Any, fields: Fields) -> Any:
    """Return the value of a field as JSON has it."""
    name = type(value).__name__
    if MESSAGES.get(name) is type(value):
        return {name: message(value, fields)[1:]}
    if isinstance(value, tuple | list):
        return [plain(item, fields) for item in value]
    if isinstance(value, dict):
        return {key: plain(item, fields) for key, item in value.items()}
    return value


def message(said: Any, fields: Fields) -> list[Any]:
    """Return an event or a decision as JSON has it."""
    name = type(said).__name__
    values: list[Any] = [name]
    for item in fields[name]:
        value = getattr(said, item)
        # Most are numbers or texts.
        values.append(
            value
            if type(value) in (int, float, str, bool) or value is None
            else plain(value, fields)
        )
    return values


def built(value: Any, fields: Fields) -> Any:
    """Return the value of a field that ``plain`` wrote."""
    if isinstance(value, list):
        return tuple(built(item, fields) for item in value)
    if isinstance(value, dict):
        for name in value.keys() & MESSAGES.keys():
            return event([name, *value[name]], fields)
        return {key: built(item, fields) for key, item in value.items()}
    return value


def event(written: list[Any], fields: Fields) -> Any:
    """Return the event that ``message`` wrote."""
    name, *values = written
    named = zip(fields[name], values, strict=True)
    return MESSAGES[name](**{key: built(value, fields) for key, value in named})


# --- Recording ------------------------------------------------------------------------------------


class EnoughError(Exception):
    """So much of a run was recorded as is wanted."""


class Tape:
    """What the core of one run took in and decided, as lines of a file.

    Parameters
    ----------
    name
        Of the run.
    """

    def __init__(self, name: str, fields: Fields) -> None:
        self.name = name
        self.fields = fields
        self.lines: list[Any] = []
        self.kinds: Counter[str] = Counter()
        self._now: float | None = None
        self._part = 0

    def begin(self, kind: str, settings: dict[str, Any]) -> Core:
        """Return a new core, and record what it is asked from now on."""
        core = CORES[kind](settings)
        self._part += 1
        self._now = None
        self.lines.append({"run": f"{self.name}.{self._part}", "core": kind, "settings": settings})
        handle, handle_all = core.handle, core.handle_all
        busy = False

        def tapped(said: Sequence[Any], now: float, inner: Callable[[], list[Any]]) -> list[Any]:
            nonlocal busy
            if busy:
                return inner()  # one asks the other
            if len(self.lines) > LONGEST[kind]:
                raise EnoughError
            busy = True
            try:
                decisions = inner()
            except Exception as error:
                self._add(said, now, type(error).__name__)
                raise
            finally:
                busy = False
            self._add(said, now, [message(decision, self.fields) for decision in decisions])
            return decisions

        core.handle = lambda e, now: tapped((e,), now, lambda: handle(e, now))  # type: ignore[method-assign]
        core.handle_all = lambda said, now: tapped(said, now, lambda: handle_all(said, now))  # type: ignore[method-assign]
        return core

    def _add(self, said: Sequence[Any], now: float, outcome: list[Any] | str) -> None:
        written = [message(one, self.fields) for one in said]
        self.lines.append([None if now == self._now else now, written, outcome])
        self.kinds.update(one[0] for one in written)
        self.kinds.update(one[0] for one in outcome if isinstance(one, list))
        self._now = now


class RecordedWorld(Script):
    """The world, with a tape of all its cores."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.recorded = tape

    def make_core(self, settings: dict[str, Any]) -> Core:  # type: ignore[override]
        return self.recorded.begin("world", settings)

    def replay(self) -> None:
        """Whether it decides the same again is what the recording will show."""


def record_world(number: int, fields: Fields) -> Tape:
    tape = Tape(f"world {number}", fields)
    player = Player(RecordedWorld(tape), dear_every=0)
    try:
        explore(Random(number), player)
    except ViolationError as error:
        # What the core decided until then is as good as any.
        if not isinstance(error.error, EnoughError):
            text = f"run {number} ends early: {error.error!r:.200}"
            print(text, file=sys.stderr)
    return tape


def record_simulation(path: Path, policy: str, fields: Fields) -> Tape:
    """Record the beginning of what the first node of a trace takes in."""
    trace = read(path)
    if trace.header.generate:
        header = trace.header
        trace = generate(header.generate, header.seed, header.parameters)
    header = trace.header
    gpus = min(header.gpus, NODE)
    tape = Tape(f"{path.stem} under {policy}", fields)
    node = Node(H200, header.gpu_memory, gpus, 600.0, policy, header.host_memory, METER)
    node.core = tape.begin("simulator", {"policy": policy})
    with suppress(EnoughError):
        node.run([(k, i) for k, i in place(trace, header.gpus) if i < gpus])
    return tape


def write(name: str, tapes: Iterable[Tape], fields: Fields) -> None:
    """Write a file, and say what is in it."""
    kinds: Counter[str] = Counter()
    runs = 0
    lines: list[Any] = [fields]
    for tape in tapes:
        runs += 1
        kinds += tape.kinds
        lines += tape.lines
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    data = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    HERE.mkdir(exist_ok=True)
    (HERE / name).write_bytes(data)
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    print(f"{name}: {runs} runs, {len(lines)} lines, {len(data)} bytes: {counts}", flush=True)


def record() -> None:
    check_tables(World)
    fields = fields_of_messages()
    for old in recordings():
        old.unlink()
    for first in range(0, RUNS, RUNS_A_FILE):
        numbers = range(first + 1, first + RUNS_A_FILE + 1)
        name = f"world-{numbers[0]:04}-{numbers[-1]:04}.jsonl.xz"
        write(name, (record_world(number, fields) for number in numbers), fields)
    pairs = [(path, policy) for path in sorted(TRACES.iterdir()) for policy in sorted(OURS)]
    tapes = (record_simulation(path, policy, fields) for path, policy in pairs)
    write("simulator.jsonl.xz", tapes, fields)


# --- Replaying ------------------------------------------------------------------------------------


def recordings() -> list[Path]:
    return sorted(HERE.glob("*.jsonl.xz"))


@dataclass
class Part:
    """What one core took in and decided in one run."""

    name: str
    kind: str
    settings: dict[str, Any]
    #: Lines that are not parsed yet.
    lines: list[str]


def parts(path: Path) -> tuple[Fields, Iterator[Part]]:
    """Read a recording."""
    first, *rest = lzma.decompress(path.read_bytes()).decode().splitlines()
    fields = {name: tuple(names) for name, names in json.loads(first).items()}

    def read_on() -> Iterator[Part]:
        begins = [index for index, line in enumerate(rest) if line.startswith("{")]
        for index, end in zip(begins, [*begins[1:], len(rest)], strict=True):
            header = json.loads(rest[index])
            yield Part(header["run"], header["core"], header["settings"], rest[index + 1 : end])

    return fields, read_on()


def changed_fields(fields: Fields) -> list[str]:
    """Say which messages have other fields than when this was recorded, except new ones of events with a default.

    That includes what events consist of: an older recording says nothing of it, and the core takes the defaults.
    """
    today = fields_of_messages()
    return [
        f"{name} had the fields {sorted(was)}, and now has {sorted(today.get(name, ()))}"
        for name, was in fields.items()
        if not set(was) <= set(today.get(name, ())) <= {*was, *defaults_of_event(name)}
    ]


def defaults_of_event(name: str) -> set[str]:
    """Return the fields of an event, or of a usage in one, that an older recording may lack: they have defaults."""
    kind = MESSAGES.get(name)
    if kind not in (*get_args(events.Event), events.Usage):
        return set()
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    return set(kind.__struct_fields__[required:])


def shown(written: list[Any], fields: Fields) -> str:
    """Return a message as people read it."""
    name, *values = written
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in zip(fields[name], values, strict=True))})"


def listed(outcome: list[Any] | str, fields: Fields) -> list[str]:
    if isinstance(outcome, str):
        return [f"raises {outcome}"]
    return [shown(one, fields) for one in outcome] or ["nothing"]


def replay(part: Part, fields: Fields) -> str:
    """Put a part through a new core; return the first difference as text, or nothing."""
    core = CORES[part.kind](part.settings)
    now = None
    for number, line in enumerate(part.lines, 1):
        at, said, expected = json.loads(line)
        wanted = core.deadline()
        passes = at is not None and now is not None
        now = now if at is None else at
        told = [event(one, fields) for one in said]
        where = f"{part.name}, event {number} of {len(part.lines)}, at {now!r} s"
        # When a core wants to be asked again is one of its decisions: with a tick, and never before the next event.
        if said[0][0] == "Tick" and (wanted is None or wanted > now):
            return f"{where}: a Tick, as recorded; the core now wants the next at {wanted!r}"
        if passes and wanted is not None and wanted < now - SLACK:
            return f"{where}: nothing came before, as recorded; the core now wants a Tick at {wanted!r}"
        outcome: list[Any] | str
        try:
            decisions = core.handle(told[0], now) if len(told) == 1 else core.handle_all(told, now)
        except Exception as error:
            outcome = type(error).__name__
        else:
            outcome = [message(decision, fields) for decision in decisions]
        if outcome != expected:
            lines = difflib.ndiff(listed(expected, fields), listed(outcome, fields))
            took = "\n".join(f"  {shown(one, fields)}" for one in said)
            differs = "\n".join(f"  {one.rstrip()}" for one in lines)
            return f"{where}:\n{took}\nexpected (-) and found (+):\n{differs}"
    return ""


def differences(path: Path, every: int = 1) -> tuple[int, list[str]]:
    """Replay a recording, or a part of each so many; return how many those are, and the first difference of each."""
    fields, found = parts(path)
    changed = changed_fields(fields)
    if changed:
        return 0, changed
    count, texts = 0, []
    for number, part in enumerate(found):
        if number % every == 0:
            count += 1
            text = replay(part, fields)
            if text:
                texts.append(text)
    return count, texts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler.golden", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--record", action="store_true", help="record anew, in place of replaying")
    if parser.parse_args().record:
        record()
        return 0
    differ = False
    for path in recordings():
        count, texts = differences(path)
        differ = differ or bool(texts)
        print("\n\n".join(texts) + "\n" if texts else "", end="")
        print(f"{path.name}: {len(texts)} of {count} differ", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
