# SPDX-License-Identifier: BSD-3-Clause
"""A program that goes wrong gets the driver's own answers."""

from __future__ import annotations

import pytest

from jupyter_gpushare.benchmarks.machine import machine
from tests.gpu.answers import SCENARIOS, answers, differences


@pytest.mark.parametrize("scenario", ["handles"])
def test_what_goes_wrong_is_answered_as_by_the_bare_driver(scenario: str) -> None:
    assert scenario in SCENARIOS
    with machine() as here:
        bare = answers(scenario, here.bare_environ())
        ours = answers(scenario, here.client_environ("answers"))
    assert "the process" not in bare, bare
    assert differences(bare, ours) == []
