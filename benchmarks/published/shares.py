# SPDX-License-Identifier: BSD-3-Clause
"""Whether entitlements hold, measured by the work done: a limit, a request against a greedy program, and weights.

Jobs run one kernel after the other, of about 1, 10 and 50 ms. What a job had of the GPU is the number of its kernels
times what one takes alone and without us (before, between and after), whatever the scheduler's own meters say::

    gpushare bench shares --json
    gpushare bench shares --seconds 42

A limit is looked at in each window of 10 s from the begin on. All else is looked at when a window has passed, since who
begins has nothing behind it, and over whole windows. In less than 20 s there are none: figures are then over the second
half, and nothing has to hold in it. The simulated GPU's kernels are late on a machine that others keep busy.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..harness.figures import Figure, quartile_distance
from ..harness.machine import Machine, machine
from ..programs.holder import torch_can
from ..programs.jobs import Job

#: Seconds of the kernels, of each condition, of measuring a kernel alone, and of GPU time that is submitted ahead.
LENGTHS, SECONDS, ALONE, AHEAD = (0.001, 0.010, 0.050), 22.0, 0.5, 0.1
#: Seconds over which shares hold, and between two windows that are looked at.
WINDOW, STEP = 10.0, 0.1
LIMIT, REQUEST, WEIGHT = 0.3, 0.6, 2.0
#: What is to be reached: percent points above the limit at most, percent for the request at least.
EXCESS, REACHED = 2.0, 58.0
#: One is for limits: what it had before would count.
NAMES = ("limited", "first", "second")
#: Nothing is stated of their time. All are in the background: what is looked at is shares, not classes.
PLAIN = {"request": 0.0, "limit": 0.0, "weight": 1.0, "priority": "background"}


@dataclass(frozen=True, slots=True)
class Work:
    """What a job did in one condition.

    Attributes
    ----------
    begun, until
        When it began, and until when it submitted kernels, seconds.
    ends
        When each of its kernels ended on the GPU.
    length
        Seconds that one takes alone.
    """

    begun: float
    until: float
    ends: Sequence[float]
    length: float

    def share(self, since: float, until: float) -> float:
        """Return the fraction of the time between two moments that the job's kernels are worth."""
        inside = (min(end, until) - max(end - self.length, since) for end in self.ends)
        return sum(seconds for seconds in inside if seconds > 0) / (until - since)

    def shares(self, since: float, until: float) -> list[float]:
        """Return the same of each window between two moments."""
        window = min(WINDOW, until - since)
        count = 1 + math.floor((until - since - window) / STEP + 1e-6)
        begins = [since + number * STEP for number in range(count)]
        return [self.share(begin, begin + window) for begin in begins]


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured with kernels of one length.

    Attributes
    ----------
    alone
        Seconds that one took alone, before, between and after the rest.
    limited
        The work of a job with a limit, alone.
    requested, weighed
        That of two jobs, of which the first has a request, or a greater weight.
    """

    alone: Sequence[float]
    limited: Work
    requested: Sequence[Work]
    weighed: Sequence[Work]


def run(seconds: float = SECONDS) -> Iterator[Figure]:
    """Measure each condition for this number of seconds, with kernels of each length."""
    with machine(whole=True) as here, contextlib.ExitStack() as stack:
        torch = torch_can(here.driver.simulated)
        if not torch and not here.driver.simulated:
            raise RuntimeError(
                "on a real GPU this needs PyTorch; install torch, or set GPUSHARE_SIM=1"
            )
        jobs = []
        for environ in (here.bare_environ(), *map(here.client_environ, NAMES)):
            jobs.append(Job(environ, torch=torch))
            stack.callback(jobs[-1].close)
        for length in LENGTHS:
            yield from figures(length, measure(here, jobs, length, seconds))


def measure(here: Machine, jobs: Sequence[Job], length: float, seconds: float) -> Found:
    """Measure with kernels of one length.

    Parameters
    ----------
    here
        The machine.
    jobs
        One without us, and those under us, as `NAMES` has them.
    length
        Seconds that a kernel takes, about.
    seconds
        Of each condition.
    """
    bare, limited, *both = jobs
    ahead = max(2, round(AHEAD / length))
    size = bare.call("fit", length)
    for job in jobs:
        job.call("resize", size)

    def alone() -> float:
        _, _, ends = bare.call("kernels", min(ALONE, seconds) + 3 * length, ahead)
        return float(statistics.median(end - before for before, end in pairwise(ends)))

    def under(some: Sequence[Job], name: str, **stated: float) -> list[Any]:
        for other in NAMES:
            preferences = stated if other == name else {}
            here.control("adjust", group=f"bench-{other}", **{**PLAIN, **preferences})
        for job in some:
            job.send("kernels", seconds, ahead)
        found = [job.read() for job in some]
        taken.append(alone())
        return found

    taken = [alone()]
    found = [
        under([limited], "limited", limit=LIMIT),
        under(both, "first", request=REQUEST),
        under(both, "first", weight=WEIGHT),
    ]
    one = statistics.median(taken)
    (kept,), requested, weighed = (
        [Work(begun, until, ends, one) for begun, until, ends in some] for some in found
    )
    return Found(taken, kept, requested, weighed)


def settled(works: Sequence[Work]) -> tuple[float, float]:
    """Return the time in which all of them ran, and ran for a window."""
    begun, until = max(work.begun for work in works), min(work.until for work in works)
    return begun + min(WINDOW, (until - begun) / 2), until


def whole(since: float, until: float) -> tuple[float, float]:
    """Return the end of a time: as many windows as fit in, or all where none does."""
    # Jobs do not begin at quite the same moment.
    windows = math.floor((until - since) / WINDOW + 0.01)
    return (until - windows * WINDOW if windows else since), until


def figures(length: float, found: Found) -> Iterator[Figure]:
    """Summarise what was found with kernels of one length."""
    kernels = f"{1000 * length:g} ms"

    def figure(
        metric: str,
        value: float,
        unit: str,
        each: Sequence[float],
        target: float | None = None,
        *,
        at_least: bool = False,
    ) -> Figure:
        what, spread = f"{kernels}, {metric}", quartile_distance(each)
        return Figure("shares", what, value, unit, None, len(each), spread, target, at_least)

    alone = [1000 * seconds for seconds in found.alone]
    yield figure("a kernel alone", statistics.median(alone), "ms", alone)

    work = found.limited
    what = f"limit {100 * LIMIT:g}%"
    each = [100 * share for share in work.shares(work.begun, work.until)]
    yield figure(f"{what}: most above in 10 s", max(each) - 100 * LIMIT, "pp", each, EXCESS)
    yield figure(f"{what}: share", 100 * work.share(*whole(*settled([work]))), "%", each)

    time = settled(found.requested)
    what = f"request {100 * REQUEST:g}%"
    each, others = ([100 * share for share in work.shares(*time)] for work in found.requested)
    first, second = (100 * work.share(*whole(*time)) for work in found.requested)
    yield figure(f"{what}: share", first, "%", each, REACHED, at_least=True)
    yield figure(f"{what}: least in 10 s", min(each), "%", each)
    yield figure(f"{what}: share of the other", second, "%", others)

    time = settled(found.weighed)
    what = f"weights {WEIGHT:g}:1"
    first, second = (work.share(*whole(*time)) for work in found.weighed)
    windows = zip(*(work.shares(*time) for work in found.weighed), strict=True)
    ratios = [mine / theirs for mine, theirs in windows if theirs]
    yield figure(f"{what}: ratio", first / second if second else math.inf, "x", ratios)
    yield figure(f"{what}: share of both", 100 * (first + second), "%", ratios)
