# SPDX-License-Identifier: BSD-3-Clause
"""Reads, checks and writes traces: which kernels arrive when, and their steps (docs/reference/simulation.md, "Traces").

A trace is a header and its kernels, one JSON object in each line. A header may name a generator instead of kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast, get_args

from ..core.messages import Priority
from .calibration import H200

FORMAT = "gpushare-trace"
VERSION = 1
PRIORITIES: tuple[str, ...] = get_args(Priority)
#: A larger number counts as a mistake in the trace.
MOST_GPUS, MOST_KERNELS, MOST_STEPS = 1000, 100_000, 50_000_000

#: A step: its name and its parameters. ``repeat`` has a count and steps.
Step = tuple[Any, ...]


class TraceError(ValueError):
    """The trace is not valid. The text is one sentence that names the line and the field."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or job: when it arrives, and its steps until it exits.

    Attributes
    ----------
    label
        The class in reports.
    at
        When it comes, seconds.
    priority, weight, request, limit
        The settings that the scheduler receives for it (docs/explanation/scheduling.md).
    changed, zeros, equal
        The content of its memory (``tiers.Tiers``); None: as in all kernels without these fields.
    """

    name: str
    user: str
    label: str
    at: float
    steps: tuple[Step, ...]
    priority: Priority = "auto"
    weight: float = 1.0
    request: float = 0.0
    limit: float = 0.0
    changed: float | None = None
    zeros: float | None = None
    equal: float | None = None

    def walk(self) -> Iterator[Step]:
        """Yield the steps, with repetitions expanded."""
        return _walk(self.steps)

    def alone(self) -> float:
        """Return the seconds that it takes with a GPU of its own, including its user's pauses."""
        return _sum(self.steps, ("cpu", "gpu", "think"))

    def work(self) -> float:
        """Return the GPU time that it needs, seconds of a whole GPU."""
        return _work(self.steps)

    def footprint(self) -> int:
        """Return the most bytes that it has allocated at any time."""
        return _extent(self.steps)[2]

    def is_job(self) -> bool:
        """Whether it runs without a user: it has work and no pauses."""
        return not _sum(self.steps, ("think",)) and self.alone() > 0

    def count(self) -> int:
        """Return the number of its steps, with repetitions expanded."""
        return _count(self.steps)


@dataclass(frozen=True, slots=True)
class Header:
    """The properties of the whole trace.

    Attributes
    ----------
    gpus
        The number of GPUs for which it is meant.
    gpu_memory, host_memory
        Bytes of one GPU, and bytes of a node's memory that swapped data may take.
    generate, seed, parameters
        How its kernels are made, if it names none.
    """

    name: str
    gpus: int = 1
    gpu_memory: int = H200.gpu_memory
    host_memory: int = H200.host_memory
    generate: str = ""
    seed: int = 0
    parameters: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """A header and its kernels, in the order of their arrival."""

    header: Header
    kernels: tuple[Kernel, ...]


def _walk(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        if step[0] == "repeat":
            for _ in range(step[1]):
                yield from _walk(step[2])
        else:
            yield step


def _sum(steps: Iterable[Step], names: tuple[str, ...]) -> float:
    total = 0.0
    for step in steps:
        if step[0] == "repeat":
            total += step[1] * _sum(step[2], names)
        elif step[0] in names:
            total += step[1]
    return total


def _work(steps: Iterable[Step]) -> float:
    total = 0.0
    for step in steps:
        if step[0] == "repeat":
            total += step[1] * _work(step[2])
        elif step[0] == "gpu":
            total += step[1] * step[2]
    return total


def _count(steps: Iterable[Step]) -> int:
    return sum(step[1] * _count(step[2]) if step[0] == "repeat" else 1 for step in steps)


def _extent(steps: Iterable[Step], held: int = 0) -> tuple[int, int, int]:
    """Return the bytes held after the steps, and the least and the most. Each repetition adds equally many bytes."""
    least = most = held
    for step in steps:
        if step[0] == "allocate":
            held += step[1]
        elif step[0] == "free":
            held -= step[1]
        elif step[0] == "repeat":
            after, bottom, top = _extent(step[2], held)
            grown = after - held
            more = (step[1] - 1) * grown
            least, most = min(least, bottom, bottom + more), max(most, top, top + more)
            held += step[1] * grown
        least, most = min(least, held), max(most, held)
    return held, least, most


# --- Reading --------------------------------------------------------------------------------------


def read(path: Path) -> Trace:
    """Read and check a trace.

    Raises
    ------
    TraceError
        It is not valid; the text names the line and the field.
    OSError
        It cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        return parse(file)


def parse(lines: Iterable[str]) -> Trace:
    """Check the lines of a trace, as ``read``."""
    header: Header | None = None
    kernels: dict[str, Kernel] = {}
    steps = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(f"line {number} has to be a JSON object, not {_shown(row)}")
        reader = _Row(number, row)
        if header is None:
            header = reader.header()
            continue
        kernel = reader.kernel(header.gpu_memory)
        if kernel.name in kernels:
            reader.refuse("kernel", f"names {kernel.name!r} a second time")
        kernels[kernel.name] = kernel
        steps += kernel.count()
        if len(kernels) > MOST_KERNELS or steps > MOST_STEPS:
            raise TraceError(
                f"line {number}: a trace has at most {MOST_KERNELS} kernels with {MOST_STEPS} steps in all"
            )
    if header is None:
        raise TraceError("the trace is empty: its first line has to be a header")
    if header.generate and kernels:
        raise TraceError(
            f'line 1: "generate" names a generator ({header.generate}), but kernels follow'
        )
    if not header.generate and not kernels:
        raise TraceError('the trace has no kernels, and its header names none to "generate"')
    return Trace(header, tuple(sorted(kernels.values(), key=lambda k: (k.at, k.name))))


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


#: What a user does in a notebook that the browser reports.
HINTS = ("focus", "typing")
#: By step: the kinds of its parameters. Parameters after the bar are optional.
_STEPS: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "cell": ((), ()),
    "end": ((), ()),
    "cpu": (("seconds",), ()),
    "gpu": (("seconds", "demand"), (1.0,)),
    "think": (("seconds",), ()),
    "hint": (("hint",), ()),
    "allocate": (("bytes",), ()),
    "free": (("bytes",), ()),
}
_HEADER = frozenset(
    {"format", "version", "name", "gpus", "gpu_memory", "host_memory", "generate", "seed"}
    | {"parameters"}
)
_CONTENT = ("changed", "zeros", "equal")
_KERNEL = frozenset(
    {"kernel", "user", "class", "at", "steps", "priority", "weight", "request", "limit"}
    | set(_CONTENT)
)


class _Row:
    """One line, and errors about it."""

    def __init__(self, number: int, row: dict[str, Any]) -> None:
        self.number = number
        self.row = row

    def refuse(self, name: str, what: str) -> NoReturn:
        raise TraceError(f'line {self.number}: "{name}" {what}')

    def header(self) -> Header:
        row = self.row
        if row.get("format") != FORMAT:
            self.refuse("format", f"has to be {FORMAT!r}, not {_shown(row.get('format'))}")
        if row.get("version") != VERSION:
            self.refuse(
                "version",
                f"is {_shown(row.get('version'))}; this gpushare reads version {VERSION}",
            )
        self._known(_HEADER)
        parameters = row.get("parameters", {})
        if not isinstance(parameters, dict):
            self.refuse("parameters", f"has to be an object, not {_shown(parameters)}")
        for name, value in parameters.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                self.refuse("parameters", f"has {_shown(value)} for {name!r}, which is no number")
        return Header(
            self._text("name", ""),
            self._whole("gpus", 1, 1, MOST_GPUS),
            self._whole("gpu_memory", H200.gpu_memory, 1 << 30, 1 << 50),
            self._whole("host_memory", H200.host_memory, 0, 1 << 50),
            self._text("generate", ""),
            self._whole("seed", 0, 0, 1 << 62),
            {name: float(value) for name, value in parameters.items()},
        )

    def kernel(self, memory: int) -> Kernel:
        self._known(_KERNEL)
        for name in ("kernel", "at", "steps"):
            if name not in self.row:
                self.refuse(name, "is missing")
        name = self._text("kernel", "")
        if not name:
            self.refuse("kernel", "must not be empty")
        priority = self._text("priority", "auto")
        if priority not in PRIORITIES:
            self.refuse("priority", f"has to be one of {', '.join(PRIORITIES)}, not {priority!r}")
        listed = self.row["steps"]
        if not isinstance(listed, list):
            self.refuse("steps", f"has to be a list, not {_shown(listed)}")
        steps = self._steps(listed, "steps")
        self._cells(steps)
        _, least, most = _extent(steps)
        if least < 0:
            self.refuse("steps", "frees more than was allocated")
        if most > memory:
            self.refuse(
                "steps", f"allocates {most} bytes, more than the {memory} bytes that a GPU has"
            )
        return Kernel(
            name,
            self._text("user", name),
            self._text("class", "interactive"),
            self._number("at", 0.0, 0.0, 1e9),
            steps,
            cast("Priority", priority),
            self._number("weight", 1.0, 1e-3, 1e6),
            self._number("request", 0.0, 0.0, 1.0),
            self._number("limit", 0.0, 0.0, 1.0),
            *(self._number(name, 0.0, 0.0, 1.0) if name in self.row else None for name in _CONTENT),
        )

    def _steps(self, listed: Sequence[Any], where: str, depth: int = 0) -> tuple[Step, ...]:
        found: list[Step] = []
        for index, entry in enumerate(listed):
            place = f"{where}[{index}]"
            if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                self._bad(place, f'has to be a list such as ["gpu", 0.5], not {_shown(entry)}')
            name, values = entry[0], entry[1:]
            if name == "repeat":
                found.append(self._repeat(values, place, depth))
                continue
            if name not in _STEPS:
                known = ", ".join([*_STEPS, "repeat"])
                self._bad(place, f"is a step that nobody knows, {name!r}; there are {known}")
            kinds, defaults = _STEPS[name]
            least = len(kinds) - len(defaults)
            if not least <= len(values) <= len(kinds):
                wanted = f"{', '.join(kinds)}" or "nothing"
                self._bad(place, f"is {_shown(entry)}, but {name!r} takes {wanted}")
            values = [*values, *defaults[len(values) - least :]]
            for kind, value in zip(kinds, values, strict=True):
                self._value(place, name, kind, value)
            found.append((name, *values))
        return tuple(found)

    def _repeat(self, values: list[Any], place: str, depth: int) -> Step:
        if len(values) != 2 or not isinstance(values[1], list) or not values[1]:
            self._bad(place, 'has to be ["repeat", count, [steps]]')
        if not _is_whole(values[0]) or not 1 <= values[0] <= MOST_STEPS:
            self._bad(
                place, f"repeats {_shown(values[0])} times; it has to be a whole number from 1"
            )
        if depth >= 8:
            self._bad(place, "is a repetition more than 8 deep")
        return ("repeat", values[0], self._steps(values[1], f"{place}[2]", depth + 1))

    def _value(self, place: str, name: str, kind: str, value: object) -> None:
        if kind == "bytes":
            if not _is_whole(value) or not 1 <= cast("int", value) <= 1 << 50:
                self._bad(place, f"{name!r} needs a whole number of bytes, not {_shown(value)}")
            return
        if kind == "hint":
            if value not in HINTS:
                self._bad(
                    place, f"{name!r} has to be one of {', '.join(HINTS)}, not {_shown(value)}"
                )
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._bad(place, f"{name!r} needs {kind} as a number, not {_shown(value)}")
        if kind == "demand" and not 0 < value <= 1:
            self._bad(
                place,
                f"{name!r} has a demand of {_shown(value)}; it has to be above 0 and at most 1",
            )
        if kind == "seconds" and not 0 < value <= 1e8:
            self._bad(place, f"{name!r} needs seconds above 0, not {_shown(value)}")

    def _cells(self, steps: Iterable[Step]) -> None:
        if _cells_open(steps, False, lambda what: self._bad("steps", what)):
            self._bad("steps", "begins a cell that never ends")

    def _bad(self, place: str, what: str) -> NoReturn:
        raise TraceError(f"line {self.number}: {place} {what}")

    def _known(self, names: frozenset[str]) -> None:
        for name in self.row:
            if name not in names:
                self.refuse(
                    name, f"is a field that nobody knows; there are {', '.join(sorted(names))}"
                )

    def _text(self, name: str, default: str) -> str:
        value = self.row.get(name, default)
        if not isinstance(value, str) or len(value) > 200:
            self.refuse(name, f"has to be a short text, not {_shown(value)}")
        return value

    def _whole(self, name: str, default: int, least: int, most: int) -> int:
        value = self.row.get(name, default)
        if not _is_whole(value) or not least <= value <= most:
            self.refuse(
                name, f"has to be a whole number from {least} to {most}, not {_shown(value)}"
            )
        return int(value)

    def _number(self, name: str, default: float, least: float, most: float) -> float:
        value = self.row.get(name, default)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value <= most:
            self.refuse(name, f"has to be a number from {least:g} to {most:g}, not {_shown(value)}")
        return float(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cells_open(steps: Iterable[Step], inside: bool, refuse: Any) -> bool:
    """Whether a cell is open after the steps; cells neither nest nor span a repetition's border."""
    for step in steps:
        if step[0] == "cell":
            if inside:
                refuse("begins a cell within a cell")
            inside = True
        elif step[0] == "end":
            if not inside:
                refuse("ends a cell that was not begun")
            inside = False
        elif step[0] == "think" and inside:
            refuse("thinks within a cell; people think between cells")
        elif step[0] == "repeat" and _cells_open(step[2], inside, refuse) != inside:
            refuse("repeats steps that begin a cell and do not end it, or the other way round")
    return inside


# --- Writing --------------------------------------------------------------------------------------


def write(trace: Trace, file: TextIO) -> None:
    """Write a trace with all its kernels."""
    header = trace.header
    row: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": header.name,
        "gpus": header.gpus,
        "gpu_memory": header.gpu_memory,
        "host_memory": header.host_memory,
    }
    file.write(json.dumps(row) + "\n")
    for kernel in trace.kernels:
        row = {
            "kernel": kernel.name,
            "user": kernel.user,
            "class": kernel.label,
            "at": kernel.at,
            "priority": kernel.priority,
            "weight": kernel.weight,
            "request": kernel.request,
            "limit": kernel.limit,
            **{name: value for name in _CONTENT if (value := getattr(kernel, name)) is not None},
            "steps": kernel.steps,
        }
        file.write(json.dumps(row) + "\n")
