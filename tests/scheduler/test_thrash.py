# SPDX-License-Identifier: BSD-3-Clause
"""Whether groups get on side by side without being resident."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.paging import ThrashingDetector
from tests.scheduler.core_machine import GPU, Lab, Process, of


def feed(detector: ThrashingDetector, group: str, floating: bool, rate: float, at: float) -> bool:
    """Ten seconds of GPU time at so many submissions a second, which end then."""
    said = [
        detector.feed(group, floating, 0.1, round(rate * 0.1), at - 10 + 0.1 * n)
        for n in range(1, 101)
    ]
    return any(said)


@pytest.fixture
def detector() -> ThrashingDetector:
    detector = ThrashingDetector()
    assert not feed(detector, "a", False, 1000, 100.0)
    assert not feed(detector, "b", False, 1000, 100.0)
    return detector


def test_a_little_slower_is_not_thrashing(detector: ThrashingDetector) -> None:
    assert not feed(detector, "a", True, 500, 110.0)
    assert detector.verdict(("a", "b"), 110.0) == "try"
    assert detector.slowdown("a") == pytest.approx(2.0)


def test_less_than_a_third_of_the_throughput_is_thrashing(detector: ThrashingDetector) -> None:
    assert feed(detector, "a", True, 200, 110.0)
    assert detector.verdict(("a", "b"), 110.0) == "thrashing"
    assert detector.verdict(("b", "c"), 110.0) == "try"


def test_less_work_is_not_less_throughput(detector: ThrashingDetector) -> None:
    for second in range(60):
        assert not detector.feed("a", True, 0.001, 1, 110.0 + second)
        assert not detector.feed("a", True, 0.0, 0, 110.5 + second)


def test_without_a_measurement_overlap_is_tried() -> None:
    detector = ThrashingDetector()
    assert not feed(detector, "a", True, 1, 110.0)
    assert detector.verdict(("a",), 110.0) == "try"


def test_thrashing_is_reported_once_and_retried_at_growing_intervals(
    detector: ThrashingDetector,
) -> None:
    now = 110.0
    for pause in (60.0, 120.0, 240.0):
        assert feed(detector, "a", True, 100, now)
        assert not feed(detector, "a", True, 100, now)
        again = detector.retry_at(("a",), now)
        assert again is not None
        assert now - 10 + pause < again <= now + pause
        assert detector.verdict(("a",), again - 0.001) == "thrashing"
        assert detector.verdict(("a",), again) == "try"
        now = again + 10


def test_a_successful_try_continues(detector: ThrashingDetector) -> None:
    assert feed(detector, "a", True, 100, 110.0)
    assert not feed(detector, "a", True, 900, 180.0)
    assert detector.verdict(("a",), 180.0) == "try"


def test_the_measure_follows_the_work(detector: ThrashingDetector) -> None:
    """A notebook whose kernels have become ten times longer does not thrash for that."""
    feed(detector, "a", False, 100, 130.0)
    assert not feed(detector, "a", True, 80, 140.0)


def test_a_removed_group_is_forgotten(detector: ThrashingDetector) -> None:
    feed(detector, "a", True, 100, 110.0)
    detector.forget("a")
    assert detector.verdict(("a",), 110.0) == "try"
    assert detector.slowdown("a") is None


# --- Under the core -------------------------------------------------------------------------------


def has(lab: Lab, process: Process, rate: float, seconds: float) -> None:
    """A process has the GPU for so long, at so many submissions a second."""
    number = process.number
    for _ in range(round(seconds * 10)):
        lab.sleep(0.1)
        lab.busy[number] = lab.busy.get(number, 0.0) + 0.1
        lab.submissions[number] = lab.submissions.get(number, 0) + round(rate / 10)
        lab.do(ev.Meter(number, GPU, lab.busy[number], lab.submissions[number], lab.now))


def rotate(lab: Lab, holder: Process, other: Process) -> None:
    """The other asks, has to wait for the holder's memory, and gets its turn."""
    decisions = other.request()
    assert of(ev.Grant, decisions) == []
    assert of(ev.Revoke, decisions + lab.sleep(5))
    for order in of(ev.Evict, holder.release() + lab.sleep(0.1)):
        holder.evict(order)
    other.restore()
    assert other.state == "running"


def managed(backend: Any = "managed", **settings: Any) -> tuple[Lab, Process, Process]:
    """Two that do not fit, whose throughput with their memory in is known."""
    lab = Lab(quantum=2.0, **settings)
    a, b = lab.process("a", 75, backend=backend), lab.process("b", 60, backend=backend)
    a.request()
    a.restore()
    has(lab, a, 1000, 1)
    rotate(lab, a, b)
    has(lab, b, 1000, 1)
    return lab, a, b


def test_managed_memory_overlaps_once_the_possible_loss_is_known() -> None:
    lab, a, b = managed()
    assert of(ev.Grant, a.request())
    assert lab.core.groups["a"].floating
    has(lab, a, 900, 5)
    has(lab, b, 900, 5)
    assert {a.state, b.state} <= {"running", "restoring"}


def test_thrashing_groups_rotate_with_a_reason_and_retry() -> None:
    lab, a, b = managed()
    a.request()
    has(lab, a, 100, 1)
    assert a.state == "finishing"
    a.release()
    assert of(ev.Grant, a.request()) == []
    assert a.reason["code"] == "thrashing"
    assert a.reason["params"]["holder_name"] == "b.ipynb"
    lab.do(ev.Cancel("a"))
    lab.sleep(61)
    assert of(ev.Grant, a.request())
    assert b.state == "running"


@pytest.mark.parametrize(
    ("backend", "settings"),
    [("swap", {}), ("managed", {"anti_thrash": "on"}), ("managed", {"policy": "fcfs"})],
)
def test_other_groups_rotate_as_usual(backend: str, settings: dict[str, Any]) -> None:
    lab, a, b = managed(backend, **settings)
    rotate(lab, b, a)
    assert not lab.core.groups["a"].floating


def test_managed_memory_is_metered_until_its_speed_is_known() -> None:
    lab = Lab()
    a = lab.runs("a", 10, backend="managed")
    assert lab.pace(a).meter
    has(lab, a, 1000, 2)
    assert lab.paced[a.number] == ev.Pace(a.number)
