# SPDX-License-Identifier: BSD-3-Clause
"""Groups whose processes wait for each other on the GPU give their lease back, and soon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.collectives import Collectives
from jupyter_gpushare.scheduler.core.rules import Rules
from tests.scheduler.core_machine import GIB, GPU, Machine, Process
from tests.support.properties import examples

#: Seconds between two looks at the model.
LOOK = 0.001


@dataclass
class Rank:
    """One of several processes that meet in collective operations, with work of its own in between."""

    process: Process
    #: Of each collective operation, how much work of its own comes before it, in submissions.
    between: list[int]
    #: When each of its submissions was made, and of which operation it is the part (None: its own).
    made: list[float] = field(default_factory=list)
    parts: list[int | None] = field(default_factory=list)

    def submit(self, now: float) -> None:
        meets = sum(part is not None for part in self.parts)
        own = 0
        for part in reversed(self.parts):
            if part is not None:
                break
            own += 1
        due = own >= self.between[meets % len(self.between)]
        self.made.append(now)
        self.parts.append(meets if due else None)

    def submit_until(self, meets: int, now: float) -> None:
        while sum(part is not None for part in self.parts) < meets:
            self.submit(now)


class World:
    """Some ranks of one group, and a group that is waiting for their memory."""

    def __init__(self, between: list[list[int]], ahead: list[int], length: float) -> None:
        self.machine = Machine(quantum=0.5)
        self.length = length
        self.ranks = []
        for own in between:
            self.ranks.append(Rank(self.machine.runs("ranks", 8), own))
        self.machine.sleep(1)
        for rank, meets in zip(self.ranks, ahead, strict=True):
            rank.submit_until(meets, self.machine.now)
        self.steps = 0

    def done_at(self) -> list[float]:
        """When each rank's work is over, as far as it is submitted; infinity: not before others submit more."""
        ends: list[list[float]] = [[] for _ in self.ranks]
        while True:
            before = [len(done) for done in ends]
            for number, rank in enumerate(self.ranks):
                done = ends[number]
                while len(done) < len(rank.parts):
                    start = max(rank.made[len(done)], done[-1] if done else 0.0)
                    part = rank.parts[len(done)]
                    for other, reached in zip(self.ranks, ends, strict=True):
                        if part is None or other is rank:
                            continue
                        if part not in other.parts or len(reached) < other.parts.index(part):
                            start = math.inf
                            break
                        place = other.parts.index(part)
                        start = max(start, other.made[place], reached[place - 1] if place else 0.0)
                    if start == math.inf:
                        break
                    done.append(start + (0.0001 if part is None else self.length))
            if [len(done) for done in ends] == before:
                break
        return [
            math.inf if len(done) < len(rank.parts) else (done[-1] if done else 0.0)
            for rank, done in zip(self.ranks, ends, strict=True)
        ]

    def drain(self, patience: float) -> float:
        """Have them revoked; return how long it took until another had their room."""
        other = self.machine.process("other", 90)
        decisions = other.request()
        decisions += self.machine.sleep(1)
        began = self.machine.now
        said: set[int] = set()
        while other.lease == 0:
            assert self.machine.now - began < patience, (self.steps, self.done_at())
            for decision in decisions:
                if isinstance(decision, ev.Step):
                    self.steps += 1
                    rank = next(r for r in self.ranks if r.process.number == decision.client)
                    assert decision.again
                    rank.process.lease = decision.lease
                    rank.submit(self.machine.now)
                if isinstance(decision, ev.Evict):
                    self.machine.processes[decision.client].evict(decision)
            decisions = []
            for rank, done in zip(self.ranks, self.done_at(), strict=True):
                process = rank.process
                if process.lease and done <= self.machine.now:
                    decisions += process.release()
                    decisions += process.request()
                elif process.lease and self.machine.now - began > 0.2 and not said:
                    said.add(process.number)
                    stuck = ev.Stuck(process.number, process.lease, "nccl", began)
                    decisions += self.machine.do(stuck)
            decisions += self.machine.sleep(LOOK)
        return self.machine.now - began


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=2, max_size=5),
    st.data(),
    st.sampled_from([0.0001, 0.003, 0.02]),
)
def test_ranks_that_wait_for_each_other_drain(
    between: list[list[int]], data: st.DataObject, length: float
) -> None:
    ahead = data.draw(st.lists(st.integers(0, 4), min_size=len(between), max_size=len(between)))
    world = World(between, ahead, length)
    taken = world.drain(patience=20)
    # Each operation in progress costs the lagging ranks submissions; a few are too many.
    behind = sum(max(ahead) - meets for meets in ahead)
    lag = sum((max(ahead) - m) * (max(own) + 1) for m, own in zip(ahead, between, strict=True))
    assert taken < 0.5 + (lag + 8) * (0.010 + 4 * length)
    assert (world.steps > 0) >= (behind > 0)


def test_a_drained_process_without_work_gets_no_step() -> None:
    machine = Machine(quantum=0.5)
    one, two = machine.runs("ranks", 30), machine.runs("ranks", 30)
    other = machine.process("other", 60)
    other.request()
    decisions = machine.sleep(1)
    assert {d.client for d in decisions if isinstance(d, ev.Revoke)} == {one.number, two.number}
    two.release()
    machine.do(ev.Stuck(one.number, one.lease, "nccl", machine.now))

    def steps_of_two(seconds: float) -> list[ev.Step]:
        found = (d for d in machine.sleep(seconds) if isinstance(d, ev.Step))
        return [step for step in found if step.client == two.number]

    assert not steps_of_two(5)
    two.request()
    (step,) = steps_of_two(1)
    # Until it comes to its gate again, once is enough.
    machine.do(ev.Released(two.number, step.lease, "revoke"))
    assert not steps_of_two(5)
    one.release()
    two.end()
    assert machine.group("ranks")["state"] == "waiting"


def own_steps(gpus: int, seconds: int) -> list[float]:
    """Return when a process that says that it is stuck was let through, since then."""
    machine = Machine(quantum=0.5)
    more = [f"GPU-{number}2222222-2222-2222-2222-222222222222" for number in range(1, gpus)]
    for number, gpu in enumerate(more, start=1):
        machine.do(ev.Device(gpu, 100 * GIB, 0, f"GPU {number}", number))
    stuck = machine.runs("stuck", 60)
    for gpu in (GPU, *more):
        held = stuck.promised if gpu == GPU else 0
        machine.do(ev.UsageChanged(stuck.number, ev.Usage(gpu, held, held, 0, GIB)))
    stuck.context = GIB
    other = machine.process("other", 60)
    other.request()
    machine.sleep(1)
    machine.do(ev.Stuck(stuck.number, stuck.lease, "", machine.now))
    since, found = machine.now, []
    while machine.now < since + seconds:
        for decision in machine.sleep(LOOK):
            if isinstance(decision, ev.Step):
                assert (decision.client, decision.again) == (stuck.number, False)
                found.append(machine.now - since)
    return found


def test_a_stuck_process_is_let_through_at_growing_intervals_for_ever() -> None:
    at = own_steps(gpus=1, seconds=300)
    # A thread that launches with a lock held is through in time.
    assert at[24] < 2.5
    pauses = [after - before for before, after in pairwise(at)]
    quick, rare = pauses[: Collectives.quick_own_steps], pauses[Collectives.quick_own_steps :]
    assert all(pause < Rules().own_step + 2 * LOOK for pause in quick)
    assert all(after > before - 2 * LOOK for before, after in pairwise(rare))
    # One that merely computes, in kernels of a second, has ended before the deadline.
    assert len([second for second in at if second < 30]) < 75
    assert rare[-1] > 5
    assert [second for second in at if second > 60]


def test_a_process_on_several_gpus_is_let_through_quickly_for_longer() -> None:
    assert len(own_steps(gpus=2, seconds=2)) == len(own_steps(gpus=1, seconds=2))
    assert len(own_steps(gpus=3, seconds=2)) > len(own_steps(gpus=1, seconds=2))


def test_a_stuck_process_is_let_through_although_its_siblings_step_all_the_time() -> None:
    machine = Machine(quantum=0.5)
    one, two = machine.runs("ranks", 30), machine.runs("ranks", 30)
    other = machine.process("other", 60)
    other.request()
    decisions = machine.sleep(1)
    two.release()
    decisions = two.request() + machine.do(ev.Stuck(one.number, one.lease, "", machine.now))
    since, taken = machine.now, 0
    while not any(isinstance(d, ev.Step) and d.client == one.number for d in decisions):
        assert machine.now < since + 10
        for step in [d for d in decisions if isinstance(d, ev.Step)]:
            taken += 1
            machine.do(ev.Released(two.number, step.lease, "revoke"))
            two.request()
        decisions = machine.sleep(LOOK)
    assert taken > 10
