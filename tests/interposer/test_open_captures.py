# SPDX-License-Identifier: BSD-3-Clause
"""Captures that are open when others want the GPU."""

from __future__ import annotations

import pytest

from tests.interposer.rows import NODES, MakeMachine, Runner
from tests.support.machine import UNIT, Machine, Program

MODES = ("GLOBAL", "THREAD_LOCAL", "RELAXED")

OPEN = """
beside = stream_of()
a, b = filled(24 * MIB, 1), filled(8 * MIB, 2)
whole = values(1, 24 * MIB)
MODE = M.CU_STREAM_CAPTURE_MODE_{mode}
def capture():
    ok(driver.cuStreamBeginCapture(stream, MODE))
    ok(driver.cuMemcpyDtoDAsync(b, a, MIB, stream))
capture()
"""


class Contest:
    """A program with a capture open, and another that waits for room."""

    def __init__(self, machine: Machine, code: str) -> None:
        self.machine = machine
        self.other: Program = machine.program("b")
        self.runner = Runner(machine.environment("a"), NODES + code)
        assert self.runner.heard() == "open"
        self.pointer = self.other.call("alloc", bytes=160 * UNIT)["pointer"]
        self.waiting = self.other.start("fill", pointer=self.pointer, bytes=160 * UNIT, value=5)

    def until_revoked(self) -> None:
        self.machine.until(lambda: self.machine.group("a")["state"] == "finishing")

    def other_gets_its_turn(self) -> None:
        assert self.other.result(self.waiting)["result"] == 0

    def next(self) -> str | None:
        self.runner.tell()
        return self.runner.heard()

    def close(self) -> None:
        self.runner.close()


@pytest.mark.parametrize("mode", MODES)
def test_an_open_capture_continues_and_then_releases(make_machine: MakeMachine, mode: str) -> None:
    code = (
        OPEN.replace("{mode}", mode)
        + """
say("open")
hear()
# It may wait for what it submits beside the capture.
ok(driver.cuMemsetD32Async(int(a) + 2 * MIB, 5, 256, beside))
ok(driver.cuStreamSynchronize(beside))
before = ok(driver.cuThreadExchangeStreamCaptureMode(M.CU_STREAM_CAPTURE_MODE_RELAXED))
c = ok(driver.cuMemAlloc(MIB))
ok(driver.cuThreadExchangeStreamCaptureMode(before))
ok(driver.cuMemcpyDtoDAsync(c, b, MIB, stream))
ok(driver.cuMemcpyDtoDAsync(int(c) + 4096, int(a) + 2 * MIB, 1024, stream))
ok(driver.cuMemsetD32Async(int(a) + 3 * MIB, 6, 256, beside))
say("used")
hear()
graph = ok(driver.cuStreamEndCapture(stream))
say("ended")
hear()
replay = ok(driver.cuGraphInstantiate(graph, 0))
run(replay, stream)
assert (read(c, 1024, np.int32) == whole[:4096].view(np.int32)).all()
assert (read(int(c) + 4096, 256, np.int32) == 5).all()
assert (read(int(a) + 3 * MIB, 256, np.int32) == 6).all()
assert (read(a, 2 * MIB, np.uint8) == whole[:2 * MIB]).all()
"""
    )
    contest = Contest(make_machine("--quantum", "0.05"), code)
    try:
        contest.until_revoked()
        assert contest.next() == "used"
        assert contest.other.waits(contest.waiting)
        assert contest.next() == "ended"
        contest.other_gets_its_turn()
        assert contest.next() is None
        assert contest.other.holds(contest.pointer, 160 * UNIT, 5)
    finally:
        contest.close()


def test_a_program_that_captures_all_the_time_releases(make_machine: MakeMachine) -> None:
    """Between the end of a capture and the next one, though there is no time between them."""
    code = """
import select
a = filled(32 * MIB, 1)
say("open")
count = 0
while count < 2 or not select.select([sys.stdin], [], [], 0)[0]:
    ok(driver.cuStreamBeginCapture(stream, M.CU_STREAM_CAPTURE_MODE_GLOBAL))
    ok(driver.cuMemcpyDtoDAsync(int(a) + 2 * MIB, a, MIB, stream))
    ok(driver.cuGraphDestroy(ok(driver.cuStreamEndCapture(stream))))
    count += 1
hear()
assert count > 1 and holds(a, 32 * MIB, 1)
"""
    contest = Contest(make_machine("--quantum", "0.05"), code)
    try:
        contest.other_gets_its_turn()
        assert contest.next() is None
    finally:
        contest.close()


AFTERWARDS = """
assert holds(a, 24 * MIB, 1) and holds(b, 8 * MIB, 2), "nothing ran, nothing is lost"
stream = stream_of()
capture()
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
run(replay, stream)
assert holds(a, 24 * MIB, 1) and (read(b, MIB, np.uint8) == whole[:MIB]).all()
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_capture_that_does_not_end_is_broken_off(make_machine: MakeMachine, mode: str) -> None:
    code = (
        OPEN.replace("{mode}", mode)
        + """
say("open")
hear()
assert error(driver.cuMemcpyDtoDAsync(b, a, MIB, stream)) == 901, "invalidated"
assert error(driver.cuMemAllocAsync(MIB, stream)) == 901, "nor is it allocated outside of the capture"
assert error(driver.cuStreamEndCapture(stream)) == 901
assert error(driver.cuStreamEndCapture(stream)) == 401, "it is over"
"""
        + AFTERWARDS
    )
    machine = make_machine("--quantum", "0.05", GPUSHARE_CAPTURE_PATIENCE_MS="200")
    contest = Contest(machine, code)
    try:
        contest.other_gets_its_turn()
        assert contest.next() is None
        assert contest.other.holds(contest.pointer, 160 * UNIT, 5)
    finally:
        contest.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_off_capture_is_not_mistaken_for_another(
    make_machine: MakeMachine, mode: str
) -> None:
    """Its end comes while a second one is open, which is let alone."""
    code = (
        OPEN.replace("{mode}", mode)
        + """
say("open")
hear()
first, stream = stream, stream_of()
ok(driver.cuStreamBeginCapture(stream, MODE))
assert error(driver.cuStreamEndCapture(first)) == 901
ok(driver.cuMemcpyDtoDAsync(b, a, MIB, stream))
say("again")
hear()
replay = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
say("ended")
hear()
run(replay, stream)
assert holds(a, 24 * MIB, 1) and (read(b, MIB, np.uint8) == whole[:MIB]).all()
"""
    )
    machine = make_machine("--quantum", "0.05", GPUSHARE_CAPTURE_PATIENCE_MS="1500")
    contest = Contest(machine, code)
    try:
        contest.other_gets_its_turn()
        assert contest.next() == "again"
        again = contest.other.start("fill", pointer=contest.pointer, bytes=160 * UNIT, value=6)
        contest.until_revoked()
        assert contest.other.waits(again, 0.2)
        assert contest.next() == "ended"
        assert contest.other.result(again)["result"] == 0
        assert contest.next() is None
    finally:
        contest.close()


ENDS = {
    "its stream is destroyed": """
ok(driver.cuStreamDestroy(stream))
""",
    "its context is destroyed": """
ok(driver.cuStreamEndCapture(stream))
second = ok(driver.cuCtxCreate(None, 0, 0))
ok(driver.cuCtxSetCurrent(second))
stream = stream_of()
ok(driver.cuStreamBeginCapture(stream, MODE))
ok(driver.cuCtxDestroy(second))
ok(driver.cuCtxSetCurrent(context))
""",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_capture_ends_at_once_with_its_stream_or_context(
    make_machine: MakeMachine, mode: str, end: str
) -> None:
    """At once: 30 seconds would be longer than the test waits."""
    code = OPEN.replace("{mode}", mode) + ENDS[end] + 'say("open")\nhear()\n' + AFTERWARDS
    contest = Contest(make_machine("--quantum", "0.05"), code)
    try:
        contest.other_gets_its_turn()
        assert contest.next() is None
    finally:
        contest.close()
