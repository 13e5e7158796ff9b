# SPDX-License-Identifier: BSD-3-Clause
"""How long a burst is expected to go on."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jupyter_gpushare.scheduler.core.model import DurationPredictor

seconds = st.floats(0.001, 1000.0)


def after(*bursts: float) -> DurationPredictor:
    predictor = DurationPredictor()
    for burst in bursts:
        predictor.remember(burst)
    return predictor


def test_an_unknown_burst_has_a_default_and_is_then_expected_to_double() -> None:
    assert after().expected(0.0) == 1.0
    assert after().expected(20.0) == 20.0


def test_regular_bursts_are_expected_to_end_alike() -> None:
    predictor = after(2.0, 2.0, 2.0)
    assert predictor.expected(0.0) == pytest.approx(2.0)
    assert predictor.expected(1.5) == pytest.approx(0.5)


def test_a_burst_longer_than_all_others_is_expected_to_double() -> None:
    assert after(2.0, 2.0).expected(6.0) == pytest.approx(6.0)


def test_a_burst_longer_than_the_short_ones_is_expected_to_be_long() -> None:
    predictor = after(*[0.005] * 5, 30.0, *[0.005] * 5)
    assert predictor.expected(0.0) < 5.0
    assert predictor.expected(0.1) > 5.0


def test_recent_bursts_count_most() -> None:
    assert after(10.0, *[0.1] * 8).expected(0.0) < after(*[0.1] * 8, 10.0).expected(0.0)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=40), st.floats(0.0, 2000.0))
def test_predictions_stay_within_the_observed_range(bursts: list[float], so_far: float) -> None:
    expected = after(*bursts).expected(so_far)
    assert 0.0 <= expected <= max(*bursts, so_far) + 1e-9
