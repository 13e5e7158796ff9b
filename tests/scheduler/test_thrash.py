# SPDX-License-Identifier: BSD-3-Clause
"""Whether groups get on side by side without being resident."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.thrash import Detector


def feed(detector: Detector, group: str, floating: bool, rate: float, at: float) -> bool:
    """Ten seconds of GPU time at so many submissions a second, which end then."""
    said = [
        detector.feed(group, floating, 0.1, round(rate * 0.1), at - 10 + 0.1 * n)
        for n in range(1, 101)
    ]
    return any(said)


@pytest.fixture
def detector() -> Detector:
    detector = Detector()
    assert not feed(detector, "a", False, 1000, 100.0)
    assert not feed(detector, "b", False, 1000, 100.0)
    return detector


def test_a_little_slower_is_not_thrashing(detector: Detector) -> None:
    assert not feed(detector, "a", True, 500, 110.0)
    assert detector.verdict(("a", "b"), 110.0) == "try"
    assert detector.slowdown("a") == pytest.approx(2.0)


def test_less_than_a_third_is(detector: Detector) -> None:
    assert feed(detector, "a", True, 200, 110.0)
    assert detector.verdict(("a", "b"), 110.0) == "thrashing"
    assert detector.verdict(("b", "c"), 110.0) == "try"


def test_less_work_is_not_less_throughput(detector: Detector) -> None:
    for second in range(60):
        assert not detector.feed("a", True, 0.001, 1, 110.0 + second)
        assert not detector.feed("a", True, 0.0, 0, 110.5 + second)


def test_without_a_measure_it_is_tried() -> None:
    detector = Detector()
    assert not feed(detector, "a", True, 1, 110.0)
    assert detector.verdict(("a",), 110.0) == "try"


def test_is_said_once_and_tried_again_later_and_later(detector: Detector) -> None:
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


def test_a_try_that_goes_well_goes_on(detector: Detector) -> None:
    assert feed(detector, "a", True, 100, 110.0)
    assert not feed(detector, "a", True, 900, 180.0)
    assert detector.verdict(("a",), 180.0) == "try"


def test_the_measure_follows_the_work(detector: Detector) -> None:
    """A notebook whose kernels have become ten times longer does not thrash for that."""
    feed(detector, "a", False, 100, 130.0)
    assert not feed(detector, "a", True, 80, 140.0)


def test_forgets_a_group(detector: Detector) -> None:
    feed(detector, "a", True, 100, 110.0)
    detector.forget("a")
    assert detector.verdict(("a",), 110.0) == "try"
    assert detector.slowdown("a") is None
