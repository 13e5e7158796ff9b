# SPDX-License-Identifier: BSD-3-Clause
"""Short cells of an interactive user while a training loop runs. Both fit on the GPU, so nothing has to move.

The same bursts of about 5 ms are run alone, with the loop but without us, and with the loop under each policy. A pair
goes through all of these once, every second pair in reverse. The cells are sent to a Jupyter kernel; a burst's time is
from its first submission to its end, a cell's from its request to the reply, on the host's clock::

    gpushare bench interference --policy burst --policy tgs --pairs 20 --json

With ``--pause``, a pair is the first burst after such a pause with the loop, and the first one without it.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from ...kernel_provisioner.launch import with_in_kernel_part
from ...scheduler.policies import available
from ..harness.figures import Figure, percentile, quartile_distance
from ..harness.machine import MIB, Machine, machine
from ..programs.holder import torch_can
from ..programs.jobs import KERNEL_NS, PORTION, Job, calibrated, interval
from .notebooks import PORTS_TRIED

PAIRS = 20
#: Bursts a pair, portions a burst, and seconds between two on average.
BURSTS, BURST, PAUSE = 25, 5, 0.045
#: Texts of a training step.
BATCH = 8
#: Bursts before a long pause, so that the person is known as one who uses the GPU for short times.
BEFORE = 5
#: Bytes that each holds, and seconds of training by which the loop counts as being in the background.
HELD, WARM_UP = 16 * MIB, 4.0
#: Seconds within which a kernel starts, and a cell ends.
PATIENCE = 300.0
ALONE, FREELY = "alone", "shared freely"
#: Targets, percent: p99 over that without other work; training time lost in addition to the time of the bursts.
LATER, LOST = 3.0, 15.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one condition gave in one pair.

    Attributes
    ----------
    bursts, cells
        Seconds of each burst, and of its cell.
    rate
        Training steps a second meanwhile.
    """

    bursts: list[float]
    cells: list[float]
    rate: float


Pair = dict[str, Part]

_SET_UP = """
from jupyter_gpushare.benchmarks.programs.jobs import Jobs
jobs, taken = Jobs({torch}), []
jobs.portion({portion})
jobs.hold({held}, {held}, 1)
"""


class _Commanded(KernelManager):
    """Starts a kernel by its command, whatever kernelspecs and provisioners there are."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self._command = list(command)

    @property
    def kernel_spec(self) -> KernelSpec:
        """A kernelspec that is not installed."""
        metadata = {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
        return KernelSpec(argv=self._command, language="python", metadata=metadata)


class Person:
    """A notebook's kernel that uses the GPU, and the client that sends it cells.

    Parameters
    ----------
    here
        The GPU.
    shares
        Whether the kernel is a client as the provisioner makes it one; else it uses the driver without us.
    torch, portion
        What it computes with, and how much.
    """

    def __init__(self, here: Machine, *, shares: bool, torch: bool, portion: int) -> None:
        name = "person" if shares else "bare"
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # Without any user's configuration, and without warnings about the transport.
        command += ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=40"]
        environ = here.client_environ(name) if shares else here.bare_environ()
        environ["IPYTHONDIR"] = str(here.folder / "ipython")
        self._kernel = _Commanded(
            with_in_kernel_part(command) if shares else command,
            connection_file=str(here.folder / f"{name}.json"),
        )
        self._kernel.start_kernel(env=environ)
        self._connect()
        try:
            for tried in itertools.count(1):
                try:
                    self._client.wait_for_ready(timeout=PATIENCE)
                    break
                except RuntimeError:
                    if tried == PORTS_TRIED or self._kernel.is_alive():
                        raise
                self._client.stop_channels()
                self._kernel.restart_kernel(now=True, newports=True)
                self._connect()
            self._run(_SET_UP.format(torch=torch, portion=portion, held=HELD))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self._client = self._kernel.client()
        self._client.start_channels()

    def _run(self, code: str, **options: Any) -> dict[str, Any]:
        """Run a cell and return what the reply says."""
        reply = self._client.execute(code, reply=True, timeout=PATIENCE, **options)
        said: dict[str, Any] = reply["content"]
        if said["status"] != "ok":
            raise RuntimeError(f"the kernel's cell failed: {said.get('evalue', said['status'])}")
        return said

    def forget(self) -> None:
        """Forget the bursts so far."""
        # Silent, and so no cell: after a cell without the GPU, the next is not expected to use it.
        self._run("taken.clear()", silent=True)

    def cell(self) -> float:
        """Run a short cell; return its seconds."""
        start = time.monotonic()
        self._run(f"taken.append(jobs.burst({BURST}))")
        return time.monotonic() - start

    def taken(self) -> list[float]:
        """Return the seconds of each burst."""
        said = self._run("", silent=True, user_expressions={"taken": "str(taken)"})
        text = said["user_expressions"]["taken"]["data"]["text/plain"]
        bursts: list[float] = json.loads(ast.literal_eval(text))
        return bursts

    def bursts(self, count: int, seed: int) -> tuple[list[float], list[float]]:
        """Run short cells; return the seconds of each burst, and of its cell."""
        draw = random.Random(seed)
        self.forget()
        cells = []
        for _ in range(count):
            time.sleep(draw.uniform(0.5, 1.5) * PAUSE)
            cells.append(self.cell())
        return self.taken(), cells

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._kernel.shutdown_kernel(now=True)


def run(
    policy: Sequence[str] = (), pairs: int = PAIRS, batch: int = BATCH, pause: float | None = None
) -> Iterator[Figure]:
    """Measure under these policies, by default all that there are.

    Parameters
    ----------
    policy
        Their names.
    pairs
        How many.
    batch
        Texts of a training step.
    pause
        Measure only the first burst after a pause of this many seconds.
    """
    names = list(policy) or sorted(available())
    if pause is not None:
        firsts = measure_firsts(names, pairs, pause, batch)
        for name in names:
            yield from _first_figures(name, firsts, pause)
        return
    found = measure(names, pairs, batch=batch)
    for name in (FREELY, *names):
        yield from _figures(name, found)


@dataclass(frozen=True, slots=True)
class _Side:
    """A person and a training loop that share a GPU."""

    person: Person
    loop: Job
    batch: int

    def train(self) -> None:
        """Begin to train."""
        self.loop.call("train", self.batch)

    def trained(self) -> float:
        """End that; return the steps per second."""
        return float(self.loop.call("trained"))

    def both(self, bursts: int, seed: int) -> Part:
        """Run bursts and the loop at the same time."""
        self.train()
        taken = self.person.bursts(bursts, seed)
        return Part(*taken, self.trained())


@contextlib.contextmanager
def _sides(batch: int) -> Iterator[tuple[Machine, _Side, _Side]]:
    """Start a person and a loop without us, and both with us."""
    with (
        machine(whole=True, GPUSHARE_SIM_KERNEL_NS=KERNEL_NS) as here,
        contextlib.ExitStack() as stack,
    ):
        torch = torch_can(here.driver.simulated)
        if not torch and not here.driver.simulated:
            raise RuntimeError(
                "on a real GPU this needs PyTorch; install torch, or set GPUSHARE_SIM=1"
            )
        portion = calibrated(here.bare_environ(), torch)

        def side(shares: bool) -> _Side:
            person = Person(here, shares=shares, torch=torch, portion=portion)
            stack.callback(person.close)
            environ = here.client_environ("training") if shares else here.bare_environ()
            loop = Job(environ, torch=torch, portion=portion)
            stack.callback(loop.close)
            loop.call("hold", HELD, HELD, 1)
            return _Side(person, loop, batch)

        bare, ours = side(False), side(True)
        ours.loop.call("cell", "begin")  # a cell that trains for hours
        for one in (bare, ours):
            one.train()
            time.sleep(WARM_UP)
            one.trained()
        yield here, bare, ours


def measure(
    policies: Sequence[str], pairs: int, bursts: int = BURSTS, batch: int = BATCH
) -> list[Pair]:
    """Return what each pair gave, by condition. An interrupt ends it with what there is so far."""
    with _sides(batch) as (here, bare, ours):
        seeds = itertools.count()

        def alone() -> Part:
            begun = time.monotonic()
            taken = bare.person.bursts(bursts, next(seeds))
            window = time.monotonic() - begun
            bare.train()
            time.sleep(window)
            return Part(*taken, bare.trained())

        def under(name: str) -> Part:
            here.control("set", policy=name)
            return ours.both(bursts, next(seeds))

        conditions: dict[str, Callable[[], Part]] = {
            ALONE: alone,
            FREELY: lambda: bare.both(bursts, next(seeds)),
        }
        conditions |= {name: lambda name=name: under(name) for name in policies}  # type: ignore[misc]
        found: list[Pair] = []
        for number in range(pairs):
            order = list(conditions) if number % 2 == 0 else list(reversed(conditions))
            try:
                found.append({name: conditions[name]() for name in order})
            except KeyboardInterrupt:
                if not found:
                    raise
                break
        return found


def measure_firsts(
    policies: Sequence[str], pairs: int, pause: float, batch: int = BATCH
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of the first bursts after a pause, by policy: with the loop, and alone."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in policies}
    with _sides(batch) as (here, bare, ours):
        for number in range(pairs):
            for name in policies:
                here.control("set", policy=name)
                ours.train()
                ours.person.bursts(BEFORE, number)
                # Both pause at the same time: that takes half as long.
                ours.person.forget()
                bare.person.forget()
                time.sleep(pause)
                ours.person.cell()
                ours.trained()
                bare.person.cell()
                (together,), (alone,) = ours.person.taken(), bare.person.taken()
                found[name].append((together, alone))
    return found


def _first_figures(
    name: str, firsts: dict[str, list[tuple[float, float]]], pause: float
) -> Iterator[Figure]:
    def later(some: Sequence[tuple[float, float]]) -> float:
        together, alone = (statistics.median(each) for each in zip(*some, strict=True))
        return float(100 * (together / alone - 1))

    taken = firsts[name]
    low, high = interval(taken, later)
    together, alone = zip(*taken, strict=True)
    what = f"{name}: first burst after a pause of {pause:g} s"
    yield Figure(
        "interference",
        f"{what}, over alone [{low:+.1f}, {high:+.1f}]",
        later(taken),
        "%",
        None,
        len(taken),
        quartile_distance([later([one]) for one in taken]),
        LATER if name == "burst" else None,
    )
    for which, choose in (("median", statistics.median), ("longest", max)):
        yield Figure(
            "interference",
            f"{what}, {which}",
            1000 * choose(together),
            "ms",
            1000 * choose(alone),
            len(taken),
            1000 * quartile_distance(together),
        )


def _all(pairs: Sequence[Pair], name: str, what: str) -> list[float]:
    return [seconds for pair in pairs for seconds in getattr(pair[name], what)]


def _p99(pairs: Sequence[Pair], name: str) -> float:
    return percentile(_all(pairs, name, "bursts"), 99)


def _later(pairs: Sequence[Pair], name: str) -> float:
    """Percent by which a burst's p99 is over that of the bursts alone."""
    return 100 * (_p99(pairs, name) / _p99(pairs, ALONE) - 1)


def _lost(pairs: Sequence[Pair], name: str) -> float:
    """Return the percentage of the training alone that is lost in addition to the GPU time of the bursts."""
    busy = BURST * PORTION / (BURST * PORTION + PAUSE)
    return 100 * statistics.median(
        1 - pair[name].rate / (pair[ALONE].rate * (1 - busy)) for pair in pairs
    )


def _figures(name: str, pairs: list[Pair]) -> Iterator[Figure]:
    ours = name == "burst"
    for what, figure, target in (
        ("p99 of a burst, over alone", _later, LATER),
        ("training lost in addition to the bursts", _lost, LOST),
    ):
        low, high = interval(pairs, lambda some, figure=figure: figure(some, name))  # type: ignore[misc]
        each = [figure([pair], name) for pair in pairs]
        metric = f"{name}: {what} [{low:+.1f}, {high:+.1f}]"
        spread = quartile_distance(each)
        bare = None if name == FREELY else figure(pairs, FREELY)
        yield Figure(
            "interference",
            metric,
            figure(pairs, name),
            "%",
            bare,
            len(pairs),
            spread,
            target if ours else None,
        )
    for what in ("bursts", "cells"):
        taken, alone = _all(pairs, name, what), _all(pairs, ALONE, what)
        for share in (50, 99):
            yield Figure(
                "interference",
                f"{name}: p{share} of {what}",
                1000 * percentile(taken, share),
                "ms",
                1000 * percentile(alone, share),
                len(taken),
                1000 * quartile_distance(taken),
            )
