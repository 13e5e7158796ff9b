# SPDX-License-Identifier: BSD-3-Clause
"""With hibernation, every group that can be served is served."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU
from tests.scheduler.night import OTHER, Kernel, Night


def serve(night: Night, kernels: list[Kernel], seconds: float, cell: float = 0.3) -> list[Kernel]:
    """Let each lease holder run one cell; return the groups that were never granted a lease."""
    left = list(kernels)
    end = night.now + seconds
    while left and night.now < end:
        for kernel in [k for k in left if k.lease and not k.parked]:
            kernel.restore()
            night.sleep(cell)
            kernel.end()
            left.remove(kernel)
        night.sleep(0.1)
    return left


def start(night: Night, count: int, gib: float, context: int) -> list[Kernel]:
    """So many kernels that start one after the other, each of which computes once."""
    kernels = []
    for number in range(count):
        kernel = night.kernel(f"k{number}", context=context)
        night.sleep(5)
        assert kernel.grow(gib) is not None
        kernel.request()
        assert not serve(night, [kernel], 20)
        kernels.append(kernel)
    return kernels


@pytest.mark.parametrize("policy", sorted(policies.OURS))
def test_a_class_whose_students_run_one_cell_at_the_same_time_is_served(policy: str) -> None:
    """The contexts of all leave no room for what any of them needs, and none is idle."""
    night = Night(policy=policy)
    kernels = start(night, 12, 70, 3 * GIB)
    for kernel in kernels:
        if kernel.parked:
            kernel.call()
    night.sleep(30)
    before = len(night.orders(ev.Hibernate))
    for kernel in kernels:
        kernel.request()
    assert not serve(night, kernels, 300)
    # Each group makes room at most once, and none hibernates only to wake at once.
    assert len(night.orders(ev.Hibernate)) - before <= 2 * len(kernels)


def test_waiting_groups_hibernate_for_the_head_of_the_queue() -> None:
    night = Night()
    kernels = [night.kernel(f"k{n}", 70, context=3 * GIB) for n in range(12)]
    for kernel in kernels:
        kernel.request()
    first, last = kernels[0], kernels[-1]
    night.sleep(3)
    assert first.lease, "the head of the queue"
    assert last.where == "waking", "it waits for its turn, and is woken then"
    assert last.parked
    assert night.group("k11")["position"] == 11
    assert not first.parked
    assert not serve(night, kernels, 300)


def test_the_call_that_wakes_it_waits_only_once() -> None:
    """Its wake waited in the queue already, so its lease is asked for from there."""
    night = Night(policy="fcfs")
    kernels = start(night, 12, 70, 3 * GIB)
    asleep = next(k for k in kernels if k.parked)
    awake = [k for k in kernels if not k.parked]
    running, *others = awake[:4]
    running.request()
    running.restore()
    asleep.call()
    night.sleep(0.5)
    for kernel in others:
        kernel.request()
    assert asleep.parked
    running.end()
    while asleep.parked:
        serve(night, others, 0.1)
    later = [k for k in others if k.state == "waiting"]
    asleep.request()
    places = [night.group(k.group)["position"] for k in later if k.state == "waiting"]
    assert len(places) > 1
    assert asleep.lease or night.group(asleep.group)["position"] < min(places)


def test_a_group_that_submits_long_after_its_wake_queues_behind_earlier_requests() -> None:
    night = Night()
    kernels = start(night, 12, 70, 3 * GIB)
    asleep = next(k for k in kernels if k.parked)
    asleep.call()
    while asleep.parked:
        night.sleep(0.1)
    night.sleep(3.0)
    running, other = [k for k in kernels if not k.parked and k is not asleep][:2]
    running.request()
    running.restore()
    other.request()
    night.sleep(0.1)
    asleep.request()
    assert night.group(asleep.group)["position"] == 2


def test_the_wait_of_a_parked_group_can_be_cancelled() -> None:
    night = Night()
    kernels = [night.kernel(f"k{n}", 70, context=3 * GIB) for n in range(12)]
    for kernel in kernels:
        kernel.request()
    night.sleep(3)
    last = kernels[-1]
    night.do(ev.Cancel(last.group))
    assert last.where == "hibernated"
    assert not serve(night, kernels[:-1], 300)
    last.call()
    last.request()
    assert not serve(night, [last], 30)


def test_a_group_that_cannot_be_woken_for_its_lease_gets_an_error() -> None:
    night = Night()
    kernels = [night.kernel(f"k{n}", 70, context=3 * GIB) for n in range(12)]
    for kernel in kernels:
        kernel.request()
    night.sleep(3)
    last = kernels[-1]
    last.call()
    last.restores = "failed"
    assert not serve(night, kernels[:-1], 300)
    night.sleep(30)
    answers = [d for d in night.orders(ev.Awake) if d.client == last.number]
    assert [bool(d.status) for d in answers] == [True]
    assert "cannot be woken" in answers[0].text
    assert last.where == "hibernated"
    last.restores = ""
    last.call()
    last.request()
    assert not serve(night, [last], 60)


def busy_neighbours(night: Night, count: int, seconds: float, until: Kernel) -> float:
    """Let small ones submit again and again, 10 ms after each burst; return when the large one was granted."""
    small = [k for k in night.processes.values() if isinstance(k, Kernel)][-count:]
    began = night.now
    while night.now < began + seconds and not until.lease:
        for kernel in small:
            if kernel.parked:
                if not night.core.clients[kernel.number].asked:
                    kernel.call()
            elif kernel.lease:
                if kernel.resident < kernel.promised:
                    kernel.restore()
                kernel.end("quiet")
            elif not night.core.clients[kernel.number].wants:
                kernel.request()
        night.sleep(0.010)
        for kernel in small:
            if kernel.lease and not kernel.parked:
                kernel.begin()
    return night.now - began


@pytest.mark.parametrize("policy", sorted(policies.OURS))
def test_small_neighbours_that_never_pause_hibernate_for_a_large_group(policy: str) -> None:
    night = Night(policy=policy)
    large = night.kernel("large", 83, context=2 * GIB)
    for number in range(7):
        night.kernel(f"small{number}", 4, context=3 * GIB)
    busy_neighbours(night, 7, 3.0, large)
    large.request()
    busy_neighbours(night, 7, 60.0, large)
    assert large.lease


@pytest.mark.parametrize("policy", ["burst", pytest.param("fcfs", marks=pytest.mark.slow)])
def test_small_neighbours_stay_hibernated_until_the_large_group_is_served(
    policy: str,
) -> None:
    """It needs the room of several of their contexts at once, and each of them would run beside it any moment."""
    night = Night(policy=policy, reserve=2 * GIB)
    large = night.kernel("large", 83, context=GIB)
    for number in range(20):
        night.kernel(f"small{number}", 4, context=GIB)
    busy_neighbours(night, 20, 1.0, large)
    for _ in range(2):
        if large.parked:
            large.call()
        large.request()
        assert busy_neighbours(night, 20, 30.0, large) < 15, night.group("large")["reason"]
        large.restore()
        large.end()
        large.release()


@pytest.mark.parametrize("able", [False, None])
def test_a_context_that_would_keep_others_out_for_ever_is_refused(able: bool | None) -> None:
    """Without hibernation, each admitted footprint can be served later."""
    night = Night(able=False) if able is False else Night(hibernate_after=None)
    large = night.kernel("large", 83, context=2 * GIB)
    small = [night.kernel(f"small{n}", 4, context=3 * GIB) for n in range(5)]
    newcomer = Kernel(night, 90, "newcomer")
    newcomer.attach()
    least = ev.Usage(GPU, 0, 0, 0, 3 * GIB)
    (answer,) = night.do(ev.Grow(newcomer.number, 3, least, 0))
    assert answer.status == "device"
    assert "83.0 GiB" not in answer.text, "what it needs with its context"
    assert "of the 85.0 GiB that another" in answer.text
    assert "Shut down a notebook" in answer.text
    # Memory that cannot be evicted is no better.
    least = ev.Usage(GPU, small[0].promised, 0, 3 * GIB, 3 * GIB)
    (answer,) = night.do(ev.Grow(small[0].number, 4, least, small[0].promised))
    assert answer.status == "device"
    for kernel in small:
        kernel.request()
    large.request()
    for _ in range(100):
        if large.lease:
            break
        for kernel in small:
            if kernel.lease:
                kernel.end()
        night.sleep(1)
    assert large.lease


def test_a_context_is_not_refused_for_a_group_that_other_programs_keep_out() -> None:
    night = Night(able=False)
    night.kernel("large", 83, context=2 * GIB)
    night.foreign = 40 * GIB
    night.do(night.reading())
    assert night.kernel("small", context=3 * GIB).context
    night.foreign = 0
    night.do(night.reading())


def test_kept_memory_is_evicted_after_a_while() -> None:
    night = Night()
    kept = [night.kernel(name, 1, context=15 * GIB) for name in ("one", "two")]
    for kernel in kept:
        night.do(ev.Adjust(kernel.group, keep=True))
    large = night.kernel("large", 70)
    large.request()
    night.sleep(290)
    assert not any(kernel.hibernation for kernel in kept)
    assert large.reason["code"] == "crowded"
    night.sleep(15)
    assert large.lease
    assert [kernel.where for kernel in kept].count("hibernated") == 1


def test_a_group_with_a_drained_gpu_does_not_wake_before_the_group_it_made_room_for() -> None:
    """It came first, but cannot run. So it was hibernated and woken twice a second, and neither was ever served."""
    night = Night(gpus=2)
    first = night.kernel("first", context=30 * GIB)
    night.kernel("kept", context=25 * GIB)
    night.do(ev.Adjust("kept", keep=True))
    beside = Kernel(night, 90, "first")
    night.place_of[beside.number] = OTHER
    night.processes[beside.number] = beside
    night.do(ev.Attach(90, 1090, "first", "first", "swap", usages=(ev.Usage(OTHER),)))
    night.do(ev.Drain(OTHER, True))
    large = night.kernel("large", 60, context=5 * GIB)
    first.request()
    large.request()
    for _ in range(50):
        if first.parked and not night.core.clients[first.number].asked:
            first.call()
        night.sleep(0.1)
    assert large.lease
    assert len(night.orders(ev.Hibernate)) == 1
    large.restore()
    large.end()
    night.do(ev.Drain(OTHER, False))
    night.sleep(5)
    assert first.lease
