# SPDX-License-Identifier: BSD-3-Clause
"""The gate and the mover as a machine of small steps, every order of which is tried.

Two application threads submit work through the gate of ``csrc/interposer/gate/enter.h``; the helper thread takes the
lease away, moves two blocks out and in again and opens the gate; the GPU carries submissions and copies out whenever it
likes. The processor is x86-TSO: a thread's stores wait in a buffer that reaches memory at any later time, which is all
that a store followed by a load of something else can be surprised by. (On weaker machines, ``membarrier`` is a full
fence as well, and the store that leaves the gate is a release.)

The names of the steps are those of the C functions. ``BUGS`` are the ways of getting it wrong that are to be noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

OPEN, HELD, SHUT = 1, 2, 3
#: What a thread does next.
ENTER, CHECK, SUBMIT, LEAVE, BACK_OUT, ACQUIRE, WAIT, DONE = range(8)
RESIDENT, LEAVING, SWAPPED, ARRIVING, EMPTY = range(5)
#: Bytes of fresh memory: no version that was ever written.
POISON = -1

BUGS = (
    "no membarrier",
    "no in-flag",
    "no drain",
    "wait for one thread only",
    "unmap before the copy out is done",
    "copy back forgotten",
    "resident before the copy in is done",
    "open with a block missing",
    "failed block taken as whole",
    "host memory given back before the copy in is done",
    "written block discarded",
    "blocks' host memory swapped",
    "nobody is woken",
)


class Wrong(Exception):
    """Something that must not happen did."""


class Thread(NamedTuple):
    """An application thread."""

    at: int = ENTER
    left: int = 2  # submissions
    inside: int = 0  # its flag, as memory has it
    buffer: tuple[int, ...] = ()  # stores of the flag that are not in memory yet
    queued: int = 0  # submissions that the GPU has not carried out


class Block(NamedTuple):
    """A block of device memory; contents are the number of submissions that wrote them."""

    state: int = RESIDENT
    mapped: bool = True
    device: int = 0
    host: int | None = None  # None: no host memory
    copying: str = ""  # "out" or "in": a copy that the GPU has not carried out
    written: bool = True  # else any bytes are right


class State(NamedTuple):
    """All there is."""

    threads: tuple[Thread, ...]
    blocks: tuple[Block, ...]
    word: int = OPEN
    helper: str = "idle"
    step: int = 0
    rounds: int = 2
    failures: int = 1
    waiters: int = 0
    truth: int = 0


def start() -> State:
    """Return the first state: everything resident, the gate open, the second block fresh."""
    return State((Thread(), Thread()), (Block(), Block(device=POISON, written=False)))


class Machine:
    """Says what can happen next; with a bug or without."""

    def __init__(self, bug: str | None = None) -> None:
        self.bug = bug

    # --- Application threads ---

    def _thread(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        thread = state.threads[i]
        if thread.buffer:
            yield (
                f"thread {i}: a store reaches memory",
                self._with(
                    state, i, thread._replace(inside=thread.buffer[0], buffer=thread.buffer[1:])
                ),
            )
        flagged = self.bug != "no in-flag"
        match thread.at:
            case 0:  # ENTER
                if not thread.left:
                    yield f"thread {i}: ends", self._with(state, i, thread._replace(at=DONE))
                    return
                buffer = (*thread.buffer, 1) if flagged else thread.buffer
                yield (
                    f"thread {i}: sets its flag",
                    self._with(state, i, thread._replace(at=CHECK, buffer=buffer)),
                )
            case 1:  # CHECK
                at = SUBMIT if state.word <= OPEN else BACK_OUT
                yield (
                    f"thread {i}: finds {state.word}",
                    self._with(state, i, thread._replace(at=at)),
                )
            case 2:  # SUBMIT
                done = thread._replace(at=LEAVE, left=thread.left - 1, queued=thread.queued + 1)
                yield f"thread {i}: submits", self._with(state, i, done)
            case 3 | 4:  # LEAVE, BACK_OUT
                buffer = (*thread.buffer, 0) if flagged else thread.buffer
                at = ENTER if thread.at == LEAVE else ACQUIRE
                yield (
                    f"thread {i}: clears its flag",
                    self._with(state, i, thread._replace(at=at, buffer=buffer)),
                )
            case 5:  # ACQUIRE: the lock is a fence
                inside = thread.buffer[-1] if thread.buffer else thread.inside
                fenced = thread._replace(inside=inside, buffer=())
                if state.word == SHUT:
                    waiting = self._with(state, i, fenced._replace(at=WAIT))
                    yield f"thread {i}: waits", waiting._replace(waiters=state.waiters + 1)
                else:
                    entered = self._with(state, i, fenced._replace(at=ENTER))
                    yield f"thread {i}: opens a held gate", entered._replace(word=OPEN)
            case 6:  # WAIT
                if state.word != SHUT:
                    woken = self._with(state, i, thread._replace(at=ENTER))
                    yield f"thread {i}: wakes", woken._replace(word=OPEN, waiters=state.waiters - 1)

    # --- The GPU ---

    def _gpu(self, state: State) -> Iterator[tuple[str, State]]:
        for i, thread in enumerate(state.threads):
            if not thread.queued:
                continue
            for b, block in enumerate(state.blocks):
                if not block.mapped:
                    raise Wrong(f"a submission of thread {i} uses block {b}, which has no memory")
                if block.written and block.device != state.truth:
                    raise Wrong(
                        f"a submission of thread {i} reads {block.device} instead of {state.truth} in block {b}"
                    )
            blocks = tuple(
                block._replace(device=state.truth + 1, written=True) for block in state.blocks
            )
            done = self._with(state, i, thread._replace(queued=thread.queued - 1))
            yield f"GPU: thread {i}'s work", done._replace(blocks=blocks, truth=state.truth + 1)
        for b, block in enumerate(state.blocks):
            if not block.copying:
                continue
            if not block.mapped or block.host is None:
                raise Wrong(f"a copy of block {b} uses memory that is gone")
            if block.copying == "out":
                moved = block._replace(host=block.device, copying="")
            else:
                moved = block._replace(device=block.host, copying="")
            yield f"GPU: copy of block {b} {block.copying}", self._with_block(state, b, moved)

    # --- The helper ---

    def _helper(self, state: State) -> Iterator[tuple[str, State]]:
        count = len(state.threads)
        match state.helper:
            case "idle":
                if state.rounds:
                    shut = state._replace(
                        word=SHUT, helper="membarrier", step=0, rounds=state.rounds - 1
                    )
                    yield "helper: shuts the gate", shut
                if state.word == OPEN:
                    yield "helper: the burst is over", state._replace(word=HELD)
            case "membarrier":
                if self.bug == "no membarrier":
                    yield "helper: no membarrier", state._replace(helper="wait", step=0)
                    return
                thread = state.threads[state.step]
                inside = thread.buffer[-1] if thread.buffer else thread.inside
                fenced = self._with(state, state.step, thread._replace(inside=inside, buffer=()))
                last = state.step + 1 == count
                yield (
                    f"helper: membarrier on thread {state.step}",
                    fenced._replace(
                        helper="wait" if last else "membarrier",
                        step=0 if last else state.step + 1,
                    ),
                )
            case "wait":
                last = state.step + 1 == (1 if self.bug == "wait for one thread only" else count)
                if not state.threads[state.step].inside:
                    yield (
                        f"helper: thread {state.step} is outside",
                        state._replace(
                            helper="drain" if last else "wait",
                            step=0 if last else state.step + 1,
                        ),
                    )
            case "drain":
                if self.bug == "no drain" or not any(thread.queued for thread in state.threads):
                    yield "helper: drained; RELEASED", state._replace(helper="out", step=0)
            case "out":
                yield from self._out(state)
            case "in":
                yield from self._in(state)

    def _out(self, state: State) -> Iterator[tuple[str, State]]:
        b = state.step
        if b == len(state.blocks):
            yield "helper: EVICTED", state._replace(helper="in", step=0)
            return
        block = state.blocks[b]
        if block.state == SWAPPED or block.state == EMPTY:
            yield f"helper: block {b} is out", state._replace(step=b + 1)
            return
        if block.state == RESIDENT:
            unwritten = not block.written or self.bug == "written block discarded"
            if unwritten:
                gone = block._replace(state=EMPTY, mapped=False, device=POISON, host=None)
                yield f"helper: discards block {b}", self._with_block(state, b, gone)
            else:
                begun = block._replace(state=LEAVING, host=POISON, copying="out")
                yield f"helper: starts to copy block {b} out", self._with_block(state, b, begun)
                # A partial eviction leaves the rest where it is.
                if b > 0:
                    yield f"helper: keeps block {b}", state._replace(step=b + 1)
            if state.failures:
                failed = state._replace(failures=state.failures - 1, step=b + 1)
                yield f"helper: block {b} cannot be copied out and stays", failed
        elif not block.copying or self.bug == "unmap before the copy out is done":
            gone = block._replace(state=SWAPPED, mapped=False, device=POISON)
            yield f"helper: unmaps block {b}", self._with_block(state, b, gone)._replace(step=b + 1)

    def _in(self, state: State) -> Iterator[tuple[str, State]]:
        b = state.step
        if b == len(state.blocks):
            missing = any(block.state != RESIDENT for block in state.blocks)
            if missing and self.bug != "open with a block missing":
                yield "helper: something lacks; again", state._replace(step=0)
                return
            word = OPEN if state.waiters else HELD
            if self.bug == "nobody is woken":
                yield "helper: leaves the gate shut", state._replace(helper="gone")
                return
            yield "helper: opens the gate", state._replace(helper="idle", step=0, word=word)
            return
        block = state.blocks[b]
        if block.state == RESIDENT:
            yield f"helper: block {b} is in", state._replace(step=b + 1)
        elif block.state in (SWAPPED, EMPTY):
            if state.failures:
                whole = self.bug == "failed block taken as whole"
                failed = block._replace(
                    state=RESIDENT if whole else block.state, mapped=whole, device=POISON
                )
                yield (
                    f"helper: block {b} gets no memory",
                    self._with_block(state, b, failed)._replace(
                        failures=state.failures - 1, step=b + 1
                    ),
                )
            if self.bug == "open with a block missing" and b == 1:
                yield "helper: leaves block 1 out", state._replace(step=b + 1)
                return
            fresh = block._replace(mapped=True, device=POISON)
            if block.state == EMPTY:
                fresh = fresh._replace(state=RESIDENT)
            elif self.bug == "copy back forgotten":
                fresh = fresh._replace(state=RESIDENT, host=None)
            else:
                fresh = fresh._replace(state=ARRIVING, copying="in")
                if self.bug == "host memory given back before the copy in is done":
                    fresh = fresh._replace(host=None)
                if self.bug == "resident before the copy in is done":
                    fresh = fresh._replace(state=RESIDENT)
                if self.bug == "blocks' host memory swapped":
                    fresh = fresh._replace(host=(block.host or 0) + 100 * (b + 1))
            yield f"helper: maps block {b}", self._with_block(state, b, fresh)
        elif not block.copying:
            arrived = block._replace(state=RESIDENT, host=None)
            yield (
                f"helper: block {b} has arrived",
                self._with_block(state, b, arrived)._replace(step=b + 1),
            )

    # ---

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that can come next, and the state after it."""
        for i in range(len(state.threads)):
            yield from self._thread(state, i)
        yield from self._gpu(state)
        yield from self._helper(state)

    @staticmethod
    def _with(state: State, i: int, thread: Thread) -> State:
        threads = list(state.threads)
        threads[i] = thread
        return state._replace(threads=tuple(threads))

    @staticmethod
    def _with_block(state: State, b: int, block: Block) -> State:
        blocks = list(state.blocks)
        blocks[b] = block
        return state._replace(blocks=tuple(blocks))


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes
    ----------
    states
        How many were seen.
    wrong
        What must not happen and does, or None.
    steps
        The shortest way to it.
    """

    states: int
    wrong: str | None
    steps: list[str]


def explore(machine: Machine) -> Result:
    """Try every order of the steps, the shortest ways first."""
    first = start()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])

    def way(state: State) -> list[str]:
        steps = []
        while (before := came_from[state]) is not None:
            state, step = before
            steps.append(step)
        return steps[::-1]

    while waiting:
        state = waiting.popleft()
        stuck = True
        try:
            for step, after in machine.next(state):
                stuck = False
                if after not in came_from:
                    came_from[after] = (state, step)
                    waiting.append(after)
        except Wrong as wrong:
            return Result(len(came_from), str(wrong), way(state))
        if stuck and any(thread.at != DONE for thread in state.threads):
            return Result(len(came_from), "nothing can go on", way(state))
    return Result(len(came_from), None, [])
