# SPDX-License-Identifier: BSD-3-Clause
"""Traces made from a seed: a class of students, with or without agents, a research group, and jobs of two kinds.

``GENERATORS`` is the table of their parameters. docs/reference/simulation.md has the sources of the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .calibration import GIB, H200
from .trace import Header, Kernel, Step, Trace, TraceError


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a generator: its default, its bounds, and its meaning."""

    value: float
    least: float
    most: float
    help: str


@dataclass(frozen=True, slots=True)
class Generator:
    """A kind of trace."""

    help: str
    make: Callable[[Random, dict[str, float]], list[Kernel]]
    parameters: dict[str, Parameter]


def generate(name: str, seed: int, given: dict[str, float], gpus: int | None = None) -> Trace:
    """Make a trace. Equal seeds and parameters make equal traces.

    Raises
    ------
    TraceError
        There is no such generator or parameter. The text is one sentence.
    """
    generator = GENERATORS.get(name)
    if generator is None:
        raise TraceError(f"no generator is called {name!r}; there are {', '.join(GENERATORS)}")
    values = {key: parameter.value for key, parameter in generator.parameters.items()}
    for key, value in given.items():
        parameter = generator.parameters.get(key)
        if parameter is None:
            known = ", ".join(generator.parameters)
            raise TraceError(f"{name} has no parameter {key!r}; there are {known}")
        if not parameter.least <= value <= parameter.most:
            raise TraceError(
                f"{key} has to be from {parameter.least:g} to {parameter.most:g}, not {value:g}"
            )
        values[key] = value
    if gpus is not None:
        values["gpus"] = float(gpus)
    kernels = generator.make(Random(f"{name} {seed}"), values)
    kernels.sort(key=lambda k: (k.at, k.name))
    return Trace(Header(name, gpus=int(values["gpus"])), tuple(kernels))


def _log_normal(random: Random, median: float, sigma: float, least: float, most: float) -> float:
    return min(max(random.lognormvariate(math.log(median), sigma), least), most)


def _size(random: Random, median: float, sigma: float, most: float) -> int:
    """Bytes, in steps of 2 MiB; ``median`` and ``most`` are GiB."""
    size = _log_normal(random, median, sigma, 0.25, most)
    return int(size * GIB) >> 21 << 21


def _loop(seconds: float, burst: float, pause: float) -> list[Step]:
    """A training loop with so many seconds of GPU time, alternating with pauses."""
    count = max(1, round(seconds / burst))
    if count == 1:
        return [("gpu", seconds, 1.0)]
    return [("repeat", count, (("gpu", seconds / count, 1.0), ("cpu", pause)))]


# --- A class --------------------------------------------------------------------------------------


def _exercise(random: Random, values: dict[str, float]) -> list[Step]:
    """The work of one cell on the GPU."""
    kind = random.random()
    if kind < values["training_cells"]:
        seconds = _log_normal(random, values["training_s"], 0.8, 5.0, 600.0)
        return _loop(seconds, 1.0, 0.1)
    if kind < values["training_cells"] + values["medium_cells"]:
        seconds = _log_normal(random, values["medium_s"], 0.6, 0.2, 10.0)
        return [("cpu", 0.1), ("gpu", seconds, 1.0), ("cpu", 0.05)]
    seconds = _log_normal(random, values["short_s"], 1.2, 0.001, 2.0)
    return [("cpu", 0.05), ("gpu", seconds, H200.small_burst), ("cpu", 0.02)]


@dataclass(slots=True)
class _Student:
    """The plan of a student: cells, each with its seconds alone, its GPU time, and the pause after it."""

    at: float
    random: Random
    cells: list[tuple[list[Step], float, float, float]]

    def cell(self, index: int, values: dict[str, float]) -> tuple[list[Step], float, float, float]:
        """Return a cell; pauses are of mean 1."""
        while index >= len(self.cells):
            steps: list[Step] = [("cell",)]
            if not self.cells:
                size = _size(self.random, values["footprint_gib"], 0.6, 24.0)
                steps += [("cpu", 3.0), ("allocate", size)]
            steps += [*_exercise(self.random, values), ("end",)]
            shape = Kernel("", "", "", 0.0, tuple(steps))
            pause = self.random.expovariate(1.0)
            self.cells.append((steps, shape.alone(), shape.work(), pause))
        return self.cells[index]


def _attend(student: _Student, values: dict[str, float], think: float) -> tuple[float, int]:
    """Return the GPU time that a student needs in this class, and the number of cells."""
    now, work, count = student.at, 0.0, 0
    while now < values["hours"] * 3600:
        _, alone, asked, pause = student.cell(count, values)
        now += alone + pause * think
        work += asked
        count += 1
    return work, count


@dataclass(slots=True)
class _Person:
    """What a student does in the browser between two cells.

    The student looks at other things, comes back to the notebook (focus), reads, types, and runs the next cell. Now and
    then, the student only looks at it, or edits it and does not run it within a minute.
    """

    random: Random
    values: dict[str, float]

    def pause(self, seconds: float) -> list[Step]:
        """Return the steps of a pause of this length."""
        random, values = self.random, self.values
        typing = min(_log_normal(random, values["typing_s"], 0.8, 0.5, 300.0), 0.8 * seconds)
        reading = min(
            _log_normal(random, values["reading_s"], 0.8, 0.2, 60.0), 0.5 * (seconds - typing)
        )
        steps: list[Step] = []
        rest = seconds - typing - reading
        # Only long before the next cell: otherwise it would lead to that cell.
        free = rest - 60.0
        for kind, chance in (("focus", values["glances"]), ("typing", values["edits"])):
            asked = random.random()
            if free > 0 and asked < chance:
                before = random.uniform(0.0, free)
                steps += [("think", max(before, 0.001)), ("hint", "focus")]
                free, rest = free - before, rest - before
                if kind == "typing":
                    steps += [("hint", "typing")]
        return [*steps, ("think", max(rest, 0.001)), ("hint", "focus"), ("think", max(reading, 0.001)),
                ("hint", "typing"), ("think", max(typing, 0.001))]  # fmt: skip


def _class(random: Random, values: dict[str, float]) -> list[Kernel]:
    """Students: each has one notebook, runs a cell, thinks, and runs the next cell.

    The time between two cells follows from the load.
    """
    students = [
        _Student(random.uniform(0.0, values["arrival_s"]), Random(random.getrandbits(64)), [])
        for _ in range(int(values["students"]))
    ]
    wanted = values["load"] * values["gpus"] * values["hours"] * 3600
    low, high = 0.5, 7200.0
    for _ in range(40):
        think = math.sqrt(low * high)
        if sum(_attend(student, values, think)[0] for student in students) > wanted:
            low = think
        else:
            high = think
    kernels = []
    for number, student in enumerate(students):
        count = _attend(student, values, high)[1]
        if not count:
            continue
        steps: list[Step] = []
        # Cells and pauses do not depend on whether people are modelled.
        person = _Person(Random(f"person {student.at}"), values) if values["people"] else None
        for index in range(count):
            cell, _, _, pause = student.cell(index, values)
            seconds = max(pause * high, 0.1)
            steps += [*cell, *([("think", seconds)] if person is None else person.pause(seconds))]
        name = f"student-{number:03d}"
        kernels.append(Kernel(name, name, "interactive", round(student.at, 3), tuple(steps)))
    return kernels


# --- A class with agents --------------------------------------------------------------------------


def _agents(random: Random, values: dict[str, float]) -> list[Kernel]:
    """A class, and agents that programs drive for some of its students.

    With the same seed, the students do the same for any number of agents. Each agent asks for the same GPU time in all:
    it runs a cell, its language model answers, and it runs the next.
    """
    kernels = _class(random, values)
    span, count = values["hours"] * 3600, int(values["agents"])
    for number in range(count):
        own = Random(random.getrandbits(64))
        at = own.uniform(0.0, values["arrival_s"])
        asked = values["agent_load"] * values["gpus"] * span / count
        cells: list[list[Step]] = []
        had = 0.0
        while had < asked:
            seconds = _log_normal(own, values["agent_cell_s"], 1.2, 0.01, 120.0)
            seconds = min(seconds, asked - had)
            had += seconds
            cells.append([("cpu", 0.1), *_loop(seconds, 1.0, 0.05), ("cpu", 0.1)])
        size = _size(own, values["footprint_gib"], 0.6, 24.0)
        cells[0] = [("cpu", 3.0), ("allocate", size), *cells[0]]
        alone = sum(Kernel("", "", "", 0.0, tuple(cell)).alone() for cell in cells)
        answers = [own.expovariate(1.0) for _ in cells]
        pause = max(0.0, span - at - alone) / sum(answers)
        steps: list[Step] = []
        for cell, answer in zip(cells, answers, strict=True):
            steps += [("cell",), *cell, ("end",), ("think", max(answer * pause, 0.1))]
        student = kernels[number % len(kernels)].user if kernels else "agent"
        kernels.append(
            Kernel(f"agent-{number:03d}", student, "agent", round(at, 3), tuple(steps), "agent")
        )
    return kernels


# --- A research group -----------------------------------------------------------------------------


def _research(random: Random, values: dict[str, float]) -> list[Kernel]:
    """Researchers with notebooks, and training jobs in the background, over some hours."""
    span = values["hours"] * 3600
    users = int(values["researchers"])
    kernels = []
    for number in range(users):
        at = random.uniform(0.0, 0.5 * span)
        stay = random.uniform(0.25, 1.0) * (span - at)
        size = _size(random, values["footprint_gib"], 0.9, 100.0)
        steps: list[Step] = []
        elapsed = 0.0
        while elapsed < stay:
            cell: list[Step] = [("cell",)]
            if not steps:
                cell += [("cpu", 5.0), ("allocate", size)]
            seconds = _log_normal(random, values["cell_s"], 1.6, 0.002, 900.0)
            cell += [("cpu", 0.2), *_loop(seconds, 5.0, 0.5), ("end",)]
            pause = _log_normal(random, values["think_s"], 1.0, 2.0, 3600.0)
            elapsed += Kernel("", "", "", 0.0, tuple(cell)).alone() + pause
            steps += [*cell, ("think", pause)]
        user = f"researcher-{number:04d}"
        kernels.append(Kernel(f"{user}-notebook", user, "interactive", round(at, 3), tuple(steps)))
    for number in range(int(values["jobs"])):
        kernels.append(
            _job(
                random,
                values,
                f"job-{number:04d}",
                f"researcher-{random.randrange(max(1, users)):04d}",
                "background",
                random.uniform(0.0, 0.8 * span),
            )
        )
    return kernels


def _job(
    random: Random, values: dict[str, float], name: str, user: str, label: str, at: float
) -> Kernel:
    seconds = _log_normal(random, values["job_s"], values["job_sigma"], 60.0, 86400.0)
    duty = random.uniform(values["duty_least"], values["duty_most"])
    burst = _log_normal(random, values["burst_s"], 0.5, 0.05, 60.0)
    size = _size(random, values["job_footprint_gib"], 0.6, 100.0)
    pause = burst * (1 - duty) / duty
    loop = _loop(seconds * duty, burst, pause)
    return Kernel(
        name,
        user,
        label,
        round(at, 3),
        (("cpu", 5.0), ("allocate", size), *loop),
        "background" if label != "production" else "interactive",
    )


# --- Production and opportunistic jobs ------------------------------------------------------------


def _production(random: Random, values: dict[str, float]) -> list[Kernel]:
    """Production jobs, which must not become slower, and opportunistic jobs, which use the rest."""
    kernels = []
    for label in ("production", "opportunistic"):
        for number in range(int(values[label])):
            at = random.uniform(0.0, values["hours"] * 3600)
            kernels.append(_job(random, values, f"{label}-{number:03d}", "cluster", label, at))
    return kernels


_JOBS = {
    "job_s": Parameter(1800.0, 10.0, 1e6, "seconds that a job takes alone: median"),
    "job_sigma": Parameter(1.0, 0.0, 3.0, "and sigma of its logarithm"),
    "job_footprint_gib": Parameter(20.0, 0.1, 130.0, "GiB of a job: median"),
    "duty_least": Parameter(
        0.35, 0.05, 1.0, "fraction of a job's time with work on the GPU: least"
    ),
    "duty_most": Parameter(0.75, 0.05, 1.0, "and most"),
    "burst_s": Parameter(2.0, 0.05, 60.0, "seconds of GPU time between two of its pauses: median"),
}

_CLASS = {
    "gpus": Parameter(1, 1, 1000, "GPUs"),
    "students": Parameter(50, 1, 10000, "students"),
    "load": Parameter(0.7, 0.01, 5.0, "GPU time asked for over GPU time there is"),
    "hours": Parameter(2.0, 0.05, 48.0, "hours that the class lasts"),
    "arrival_s": Parameter(600.0, 1.0, 36000.0, "seconds within which all come"),
    "footprint_gib": Parameter(2.5, 0.1, 100.0, "GiB of a notebook: median"),
    "training_cells": Parameter(0.02, 0.0, 1.0, "fraction of cells that train"),
    "training_s": Parameter(25.0, 1.0, 3600.0, "seconds of GPU time of these: median"),
    "medium_cells": Parameter(0.08, 0.0, 1.0, "fraction that compute for about a second"),
    "medium_s": Parameter(0.8, 0.01, 100.0, "seconds of GPU time of these: median"),
    "short_s": Parameter(0.08, 0.001, 10.0, "seconds of GPU time of the rest: median"),
    "people": Parameter(0, 0, 1, "1: students return to the notebook and type before each cell"),
    "typing_s": Parameter(8.0, 0.5, 300.0, "seconds of typing before a cell: median"),
    "reading_s": Parameter(3.0, 0.2, 60.0, "seconds from the focus to the first key: median"),
    "glances": Parameter(0.1, 0.0, 1.0, "fraction of long pauses with a look and no cell"),
    "edits": Parameter(0.05, 0.0, 1.0, "fraction with an edit and no cell"),
}

GENERATORS: dict[str, Generator] = {
    "students": Generator(
        "a class: each student runs a cell, thinks, runs the next", _class, _CLASS
    ),
    "agents": Generator(
        "the same class, and agents that programs drive for some of its students",
        _agents,
        {
            **_CLASS,
            "agents": Parameter(20, 0, 10000, "agents, each with one notebook"),
            "agent_load": Parameter(
                1.0, 0.01, 5.0, "GPU time that the agents ask for over GPU time there is"
            ),
            "agent_cell_s": Parameter(
                1.0, 0.01, 100.0, "seconds of GPU time of an agent's cell: median"
            ),
        },
    ),
    "research": Generator(
        "a research group: notebooks, and training jobs in the background",
        _research,
        {
            "gpus": Parameter(4, 1, 1000, "GPUs"),
            "researchers": Parameter(20, 0, 10000, "people, each with one notebook"),
            "jobs": Parameter(10, 0, 10000, "training jobs"),
            "hours": Parameter(8.0, 0.05, 48.0, "hours"),
            "footprint_gib": Parameter(12.0, 0.1, 130.0, "GiB of a notebook: median"),
            "cell_s": Parameter(0.5, 0.001, 600.0, "seconds of GPU time of a cell: median"),
            "think_s": Parameter(90.0, 1.0, 7200.0, "seconds between two cells: median"),
            **_JOBS,
        },
    ),
    "production": Generator(
        "jobs that must not suffer, and opportunistic ones",
        _production,
        {
            "gpus": Parameter(8, 1, 1000, "GPUs"),
            "production": Parameter(50, 0, 10000, "production jobs"),
            "opportunistic": Parameter(50, 0, 10000, "opportunistic jobs"),
            "hours": Parameter(1.5, 0.05, 48.0, "hours within which all come"),
            **_JOBS,
            "job_s": Parameter(600.0, 10.0, 1e6, "seconds that a job takes alone: median"),
            "job_sigma": Parameter(0.8, 0.0, 3.0, "and sigma of its logarithm"),
            "burst_s": Parameter(0.5, 0.05, 60.0, "seconds of GPU time between two of its pauses"),
        },
    ),
}
