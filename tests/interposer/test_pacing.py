# SPDX-License-Identifier: BSD-3-Clause
"""What is bounded, paused and measured, by the simulated GPU's own clock; the scheduler does what the test says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.paced import KERNELS, Paced
from tests.support.machine import UNIT, Machine

CANCELLED = 304


@pytest.fixture
def make_paced(machine: Machine) -> Iterator[Callable[..., Paced]]:
    """Return a function that starts the program."""
    made: list[Paced] = []

    def make(**environ: str) -> Paced:
        made.append(Paced(machine, **environ))
        return made[-1]

    yield make
    for paced in made:
        paced.script.close()


@pytest.fixture
def paced(make_paced: Callable[..., Paced]) -> Paced:
    """Return the program with its lease."""
    return make_paced()


# --- Paused ---------------------------------------------------------------------------------------


def test_a_pause_stops_a_program_within_one_submission(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.002)
    training = paced.start("train")
    paced.until(lambda: paced.ran() > 3)
    paced.pace(0.0)
    stopped = paced.progress("launched")
    assert paced.program.waits(training)
    assert paced.progress("launched") <= stopped + 1
    paced.pace(None)
    paced.until(lambda: paced.progress("launched") > stopped + 3)
    paced.program.call("stop")
    assert paced.program.result(training)["result"] == 0


def test_one_submission_is_let_through_after_the_stall(paced: Paced) -> None:
    paced.pace(0.0, stall=0.05)
    done = paced.program.call("launch", count=4)
    assert done["result"] == 0
    assert done["seconds"] >= 4 * 0.05


def test_a_paused_program_captures(paced: Paced) -> None:
    stream = paced.program.call("stream")["stream"]
    paced.pace(0.0)
    before = paced.ran()
    assert paced.program.call("capture", stream=stream, count=3)["result"] == 0
    launching = paced.start("launch_graph", stream=stream, count=1)
    assert paced.program.waits(launching)
    assert paced.ran() == before
    paced.pace(None)
    assert paced.program.result(launching)["result"] == 0
    assert paced.program.call("synchronize")["result"] == 0
    assert paced.ran() == before + 3


@pytest.mark.parametrize("how", ["signal", "scheduler"])
def test_a_paused_program_can_be_interrupted(paced: Paced, how: str) -> None:
    paced.pace(0.0)
    launching = paced.program.start("launch")
    assert paced.program.waits(launching)
    if how == "signal":
        os.kill(paced.program.pid, signal.SIGINT)
    else:
        paced.script.send(protocol.cancel())
    reply = paced.program.result(launching)
    assert reply.get("interrupted") or reply["result"] == CANCELLED
    paced.pace(None)
    assert paced.program.call("launch")["result"] == 0


def test_a_paused_program_releases_its_lease_at_once(paced: Paced) -> None:
    paced.pace(0.0)
    launching = paced.start("launch")
    assert paced.program.waits(launching)
    assert paced.revoke().cause == "revoke"
    paced.grant()
    # The pause is still in force.
    assert paced.program.waits(launching)
    paced.pace(None)
    assert paced.program.result(launching)["result"] == 0


def test_without_a_scheduler_no_program_is_paused(paced: Paced) -> None:
    paced.pace(0.0)
    launching = paced.start("launch", count=3)
    assert paced.program.waits(launching)
    paced.script.disconnect()
    assert paced.program.result(launching)["result"] == 0


# --- Bounded --------------------------------------------------------------------------------------


def test_a_cuda_kernel_longer_than_the_bound_starts_before_the_gpu_is_idle(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.01)
    paced.pace(0.001, meter=True)
    before = paced.ran()
    done = paced.program.call("launch", count=6)
    assert done["result"] == 0
    # All but the last one, and the one before it, which is about to end.
    assert done["ran"] >= before + 4


def test_a_bound_holds_where_nothing_is_charged(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.0005)
    paced.pace(0.001)
    training = paced.start("train")
    paced.until(lambda: paced.ran() > 100)
    paced.until(lambda: paced.progress("launched") - paced.ran() <= 5)
    paced.program.call("stop")
    assert paced.program.result(training)["result"] == 0
    launched = paced.program.call("launch", count=200)
    assert launched["result"] == 0
    assert launched["ran"] >= paced.progress("launched") - 5


def test_long_and_short_runs_of_one_cuda_kernel_are_distinguished(paced: Paced) -> None:
    paced.pace(0.001)

    def learn(seconds: float, blocks: int, count: int) -> None:
        paced.program.call("takes", seconds=seconds)
        for _ in range(count):
            assert paced.program.call("launch", blocks=blocks)["result"] == 0
            assert paced.program.call("synchronize")["result"] == 0

    learn(0.02, 1000, 3)
    learn(0.00002, 1, 50)
    paced.program.call("takes", seconds=0.02)
    before = paced.ran()
    done = paced.program.call("launch", count=6, blocks=1000)
    assert done["result"] == 0
    assert done["ran"] >= before + 4


def test_the_bound_on_work_in_flight_follows_the_measurement(paced: Paced) -> None:
    stream = paced.program.call("stream")["stream"]
    # Long enough that what a busy machine adds to each does not matter.
    paced.program.call("takes", seconds=0.05)
    paced.pace(0.4, meter=True)
    for _ in range(6):
        assert paced.program.call("launch", stream=stream)["result"] == 0
        assert paced.program.call("synchronize")["result"] == 0
    before = paced.progress("launched")
    assert paced.program.call("hold", stream=stream)["result"] == 0
    launching = paced.start("launch", count=40, stream=stream)
    paced.until(lambda: paced.has_launched(before + 2))
    assert paced.program.waits(launching)
    assert paced.progress("launched") - before <= 8
    paced.pace(None)
    assert paced.program.call("let_go")["result"] == 0
    assert paced.program.result(launching)["result"] == 0


def test_graphs_are_bounded(paced: Paced) -> None:
    stream = paced.program.call("stream")["stream"]
    paced.program.call("takes", seconds=0.01)
    assert paced.program.call("capture", stream=stream, count=2)["result"] == 0
    paced.pace(0.001, meter=True)
    before = paced.ran()
    done = paced.program.call("launch_graph", stream=stream, count=4)
    assert done["result"] == 0
    assert done["ran"] >= before + 5


def test_several_threads_share_a_bound(paced: Paced) -> None:
    streams = [paced.program.call("stream")["stream"] for _ in range(3)]
    paced.program.call("takes", seconds=0.01)
    paced.pace(0.001, meter=True)
    before = paced.ran()
    launching = [
        paced.program.start("launch", count=4, stream=stream, thread=f"t{stream}")
        for stream in streams
    ]
    ends = [paced.program.result(serial) for serial in launching]
    assert [end["result"] for end in ends] == [0, 0, 0]
    # All but the last one had ended, or were about to, when it was let in.
    assert max(end["ran"] for end in ends) >= before + 10


def test_long_copies_go_in_pieces(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(GPUSHARE_SIM_MEMORY="512MiB", GPUSHARE_SIM_BANDWIDTH="8000000000")
    paced = Paced(machine)
    try:
        allocated = paced.program.call("alloc", bytes=640 * UNIT)
        assert allocated["result"] == 0
        paced.pace(0.001, meter=True)
        copied = paced.program.call("copy_in", pointer=allocated["pointer"], bytes=640 * UNIT)
        assert copied["result"] == 0
        assert copied["equal"]
        # 160 MiB in pieces of 64 MiB, either way.
        assert measured(paced).submissions == 6
    finally:
        paced.script.close()


# --- Shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "allowed", "seconds", "least"),
    [(0.0005, 0.25, 1.5, 0.15), (0.005, 0.25, 1.5, 0.15), (0.05, 0.25, 1.5, 0.15), (0.4, 0.5, 4.0, 0.42)],
)  # fmt: skip
def test_a_limit_on_gpu_time_is_kept(
    paced: Paced, kernel: float, allowed: float, seconds: float, least: float
) -> None:
    """Also by kernels that take far longer than what can be saved up."""
    paced.program.call("takes", seconds=kernel)
    paced.pace(None, stall=0.01, share=allowed)
    for _ in range(20):
        trained = paced.program.call("train", seconds=seconds)
        assert trained["result"] == 0
        # One kernel and what is saved up at most are beyond it. On a busy machine some kernels take longer than they
        # should, the last one too, so what they should take is compared.
        assert (
            trained["kernels"] * kernel / trained["seconds"] < allowed + (kernel + 0.02) / seconds
        )
        share = trained["busy"] / trained["seconds"]
        # A program that does not get the processor uses less, but not time after time.
        if share > least:
            break
    else:
        pytest.fail(f"it never had what it was left; at last {share}")


# --- Measured -------------------------------------------------------------------------------------


def measured(paced: Paced) -> ev.Meter:
    """End the lease and return the last figures."""
    paced.script.send(protocol.revoke(paced.script.lease))
    last = None
    while not isinstance(event := paced.script.next(object), ev.Released):
        last = event if isinstance(event, ev.Meter) else last
    assert last is not None
    return last


def test_the_meter_measures_time_on_the_gpu(paced: Paced) -> None:
    streams = [None, *(paced.program.call("stream")["stream"] for _ in range(2))]
    paced.program.call("takes", seconds=0.004)
    paced.pace(meter=True)
    before = paced.program.call("counters")["kernel_ns"]
    start = time.monotonic()
    for _ in range(5):
        for stream in streams:
            assert paced.program.call("launch", count=3, stream=stream)["result"] == 0
    assert paced.program.call("synchronize")["result"] == 0
    passed = time.monotonic() - start
    meter = measured(paced)
    kernels = (paced.program.call("counters")["kernel_ns"] - before) / 1e9
    assert meter.submissions == 45
    # Side by side, each of the three streams waits for the engine: that counts once.
    assert kernels * 0.95 <= meter.busy <= passed


def test_gaps_are_not_measured(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.004)
    paced.pace(meter=True)
    before = paced.program.call("counters")["kernel_ns"]
    start = time.monotonic()
    for _ in range(5):
        assert paced.program.call("launch", count=2)["result"] == 0
        assert paced.program.call("synchronize")["result"] == 0
        time.sleep(0.1)
        assert paced.program.call("busy", seconds=0.1)["result"] == 0
        assert paced.program.call("synchronize")["result"] == 0
    passed = time.monotonic() - start
    meter = measured(paced)
    kernels = (paced.program.call("counters")["kernel_ns"] - before) / 1e9
    assert kernels * 0.95 <= meter.busy <= passed - 10 * 0.1


def test_short_cuda_kernels_count_although_few_get_events(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.00002)
    paced.pace(meter=True)
    start = time.monotonic()
    assert paced.program.call("launch", count=20)["result"] == 0
    for _ in range(10):
        assert paced.program.call("launch", count=300)["result"] == 0
        assert paced.program.call("synchronize")["result"] == 0
    passed = time.monotonic() - start
    meter = measured(paced)
    assert meter.submissions == 3020
    # They are estimated from the measured ones. Each takes at least that long, and longer on a busy machine.
    assert 0.6 * 3000 * 0.00002 <= meter.busy <= 2.5 * passed


def test_gpu_time_is_reported_during_a_burst_and_at_its_end(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.01)
    paced.pace(meter=True)
    training = paced.start("train")
    first, second = paced.script.next(ev.Meter), paced.script.next(ev.Meter)
    assert 0 < first.busy < second.busy
    assert first.gpu == second.gpu
    paced.program.call("stop")
    assert paced.program.result(training)["result"] == 0
    paced.program.call("cell", phase="end")
    last = second
    while not isinstance(event := paced.script.next(object), ev.Burst):
        last = event if isinstance(event, ev.Meter) else last
    assert event.phase == "end"
    assert last.submissions == paced.progress("launched")


def test_streams_and_contexts_that_end_are_forgotten(paced: Paced) -> None:
    paced.program.call("takes", seconds=0.002)
    paced.pace(0.001, meter=True)
    for _ in range(5):
        stream = paced.program.call("stream")["stream"]
        assert paced.program.call("launch", count=2, stream=stream)["result"] == 0
        assert paced.program.call("end_stream", stream=stream)["result"] == 0
    assert paced.program.call("end_context", how="reset")["result"] == 0
    assert paced.program.call("init")["result"] == 0
    assert paced.program.call("load", path=KERNELS)["result"] == 0
    assert paced.program.call("launch", count=3)["result"] == 0
    assert measured(paced).submissions == 13
    assert paced.program.errors == []


def test_work_that_cannot_be_measured_continues(make_paced: Callable[..., Paced]) -> None:
    paced = make_paced(GPUSHARE_SIM_FAIL="cuEventRecord%!gpushare")
    paced.program.call("takes", seconds=0.005)
    paced.pace(0.001, share=0.01, meter=True)
    assert paced.program.call("launch", count=20)["result"] == 0
    assert paced.program.call("synchronize")["result"] == 0
    (said,) = paced.program.errors
    assert "is no longer measured: cuEventRecord failed" in said
    paced.pace(0.0)
    launching = paced.start("launch")
    assert paced.program.waits(launching)
    paced.pace(None)
    assert paced.program.result(launching)["result"] == 0


# --- Bursts, and what a revocation waits for ------------------------------------------------------


def test_bursts_are_reported_while_the_gpu_is_shared(paced: Paced) -> None:
    assert paced.program.call("launch")["result"] == 0
    with pytest.raises(TimeoutError):
        paced.script.next(ev.Burst, timeout=0.3)
    paced.script.send(protocol.contended(0, 1))
    ended = paced.script.next(ev.Burst)
    assert (ended.phase, ended.cause) == ("end", "quiet")
    assert paced.program.call("launch")["result"] == 0
    assert paced.script.next(ev.Burst).phase == "begin"
    assert paced.script.next(ev.Burst).phase == "end"


def test_a_queried_burst_lasts_until_its_work_is_done(paced: Paced) -> None:
    """A thread that waits for a long kernel submits nothing."""
    assert paced.program.call("hold")["result"] == 0
    synchronizing = paced.start("synchronize")
    paced.script.send(protocol.end_burst(time.monotonic()))
    with pytest.raises(TimeoutError):
        paced.script.next(ev.Burst, timeout=0.5)
    assert paced.program.call("let_go")["result"] == 0
    ended = paced.script.next(ev.Burst)
    assert (ended.phase, ended.cause) == ("end", "idle")
    assert paced.program.result(synchronizing)["result"] == 0


def test_a_queried_burst_continues_with_new_submissions(paced: Paced) -> None:
    assert paced.program.call("hold")["result"] == 0
    paced.script.send(protocol.end_burst(time.monotonic()))
    # It has been asked by then.
    paced.pace(None)
    assert paced.program.call("launch")["result"] == 0
    assert paced.program.call("let_go")["result"] == 0
    with pytest.raises(TimeoutError):
        paced.script.next(ev.Burst, timeout=0.3)


def test_a_paused_program_is_not_idle(paced: Paced) -> None:
    paced.beside = 1
    paced.pace(0.0)
    assert paced.script.next(ev.Burst).phase == "end"
    launching = paced.start("launch")
    assert paced.script.next(ev.Burst).phase == "begin"
    with pytest.raises(TimeoutError):
        paced.script.next(ev.Burst, timeout=0.3)
    paced.script.send(protocol.pace(ev.Pace(1)))
    assert paced.program.result(launching)["result"] == 0
    assert paced.script.next(ev.Burst).phase == "end"


@pytest.mark.parametrize("meter", [True, False])
def test_a_cuda_kernel_that_delays_a_revocation_is_named(paced: Paced, meter: bool) -> None:
    paced.pace(meter=meter)
    assert paced.program.call("hold")["result"] == 0
    start = time.monotonic()
    assert paced.program.call("launch")["result"] == 0
    paced.script.send(protocol.revoke(paced.script.lease))
    stuck = paced.script.next(ev.Stuck)
    assert (stuck.kernel, stuck.lease) == ("empty", paced.script.lease)
    assert start <= stuck.since <= time.monotonic() - 0.2
    with pytest.raises(TimeoutError):
        paced.script.next(ev.Stuck, timeout=0.1)
    assert paced.program.call("let_go")["result"] == 0
    assert paced.script.next(ev.Released).lease == paced.script.lease


def test_an_unloaded_cuda_kernel_has_no_name(paced: Paced) -> None:
    assert paced.program.call("launch")["result"] == 0
    assert paced.program.call("unload")["result"] == 0
    assert paced.program.call("hold")["result"] == 0
    paced.script.send(protocol.revoke(paced.script.lease))
    assert paced.script.next(ev.Stuck).kernel == "kernel"
