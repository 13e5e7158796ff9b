# SPDX-License-Identifier: BSD-3-Clause
"""The sums that the core keeps, and the steps of a lease."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core.leases import TRANSITIONS
from tests.scheduler.core_machine import GIB, GPU, Machine
from tests.support.consistency import validate


@pytest.fixture
def machine() -> Machine:
    m = Machine()
    m.runs("a", 40)
    m.process("b", 70).request()
    validate(m.core)
    return m


@pytest.mark.parametrize(
    "name",
    [
        "promised",
        "resident",
        "unevictable",
        "context",
        "left",
        "arriving",
        "leaving",
        "unsettled",
        "unused",
        "lost",
        "hibernated",
    ],
)
def test_a_wrong_sum_of_a_gpu_is_named(machine: Machine, name: str) -> None:
    gpu = machine.core.gpus[GPU]
    setattr(gpu, name, getattr(gpu, name) + GIB)
    with pytest.raises(AssertionError, match=f"the sum {name} of GPU {GPU} is"):
        validate(machine.core)


@pytest.mark.parametrize(
    "name",
    ["promised", "resident", "unevictable", "context", "left", "evicting", "arriving", "lost"],
)
def test_a_wrong_sum_of_a_group_is_named(machine: Machine, name: str) -> None:
    share = machine.core.gpus[GPU].shares["a"]
    setattr(share, name, getattr(share, name) + GIB)
    with pytest.raises(AssertionError, match=f"the sum {name} of a on GPU {GPU} is"):
        validate(machine.core)


def test_a_wrong_sum_of_all_promises_is_named(machine: Machine) -> None:
    machine.core.model.promised += GIB
    with pytest.raises(AssertionError, match="the sum promised of all GPUs is"):
        validate(machine.core)


def test_each_state_of_a_lease_can_be_reached_and_left() -> None:
    reached = set(TRANSITIONS.values())
    assert reached == {state for state, _ in TRANSITIONS} == {"none", "held", "yielding"}
