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


def test_what_is_unknown_has_a_default_and_then_goes_on_as_long_as_it_has() -> None:
    assert after().expected(0.0) == 1.0
    assert after().expected(20.0) == 20.0


def test_regular_bursts_end_as_the_others_did() -> None:
    predictor = after(2.0, 2.0, 2.0)
    assert predictor.expected(0.0) == pytest.approx(2.0)
    assert predictor.expected(1.5) == pytest.approx(0.5)


def test_one_that_outlived_all_goes_on_as_long_again() -> None:
    assert after(2.0, 2.0).expected(6.0) == pytest.approx(6.0)


def test_one_that_outlived_the_short_ones_is_a_long_one() -> None:
    predictor = after(*[0.005] * 5, 30.0, *[0.005] * 5)
    assert predictor.expected(0.0) < 5.0
    assert predictor.expected(0.1) > 5.0


def test_the_recent_ones_count_most() -> None:
    assert after(10.0, *[0.1] * 8).expected(0.0) < after(*[0.1] * 8, 10.0).expected(0.0)


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=40), st.floats(0.0, 2000.0))
def test_stays_within_what_was_seen(bursts: list[float], so_far: float) -> None:
    expected = after(*bursts).expected(so_far)
    assert 0.0 <= expected <= max(*bursts, so_far) + 1e-9
