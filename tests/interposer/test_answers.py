# SPDX-License-Identifier: BSD-3-Clause
"""A program that goes wrong gets the driver's own answers."""

from __future__ import annotations

import json

import pytest

from jupyter_gpushare.benchmarks.harness.machine import machine
from tests.gpu.answers import KINDER, RECORDED, SCENARIOS, answers, differences

#: The simulated driver fails with an illegal address where a real one traps, so that only the other codes are compared.
TRAP, ILLEGAL_ADDRESS = 719, 700
#: What the strict simulated driver answers otherwise than an NVIDIA H200 does.
SIMULATED = {"cuFuncGetAttribute", "after it: cuMemAlloc"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_errors_are_those_of_the_driver(scenario: str) -> None:
    with machine(GPUSHARE_SIM_STRICT="1") as here:
        bare = answers(scenario, here.bare_environ())
        ours = answers(scenario, here.client_environ("answers"))
    recorded = {
        call: ILLEGAL_ADDRESS if answer == TRAP else answer
        for call, answer in json.loads(RECORDED.read_text())[scenario].items()
    }
    assert otherwise(recorded, bare) <= SIMULATED, differences(recorded, bare)
    assert otherwise(bare, ours) <= KINDER, differences(bare, ours)


def otherwise(expected: dict[str, object], found: dict[str, object]) -> set[str]:
    return {call for call in expected | found if expected.get(call) != found.get(call)}
