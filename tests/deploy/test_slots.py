# SPDX-License-Identifier: BSD-3-Clause
"""Which slots there are, and which a container had better get."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.deploy.kubernetes.slots import Several, Slots, UnknownSlot

GPUS = ("A", "B", "C")
PER_GPU = 4
ALL = [f"{gpu}::{number}" for gpu in GPUS for number in range(PER_GPU)]


def offering(several: Several = "together") -> Slots:
    slots = Slots(PER_GPU, several)
    slots.update(GPUS, GPUS)
    return slots


def count(slots: list[str]) -> dict[str, int]:
    return dict(Counter(slot.partition("::")[0] for slot in slots))


def test_known_gpus_stay_and_changes_are_reported_once() -> None:
    slots = Slots(2)
    assert slots.update(["A"], []) == {"A": False}
    assert slots.update(["A", "B"], ["B"]) == {"B": True}
    assert slots.update(["B"], ["B"]) == {}
    assert slots.update([], ["A", "B"]) == {"A": True}
    assert slots.offered() == [("A::0", True), ("A::1", True), ("B::0", True), ("B::1", True)]


@pytest.mark.parametrize("slot", ["", "A", "A::", "A::4", "A::-1", "A::x", "D::0", "::0", "A:0"])
def test_slots_that_were_not_offered_are_refused(slot: str) -> None:
    slots = offering()
    with pytest.raises(UnknownSlot, match="is not a slot of this node"):
        slots.gpus([slot])
    with pytest.raises(UnknownSlot):
        slots.preferred([slot], [], 1)
    with pytest.raises(UnknownSlot):
        slots.preferred([], [slot], 1)


def test_gpus_are_named_once_in_their_order() -> None:
    assert offering().gpus(["C::0", "A::3", "C::1"]) == ["A", "C"]


def test_containers_spread_over_the_gpus() -> None:
    free, load = [*ALL], Counter[str]()
    for _ in range(len(ALL)):
        (slot,) = offering().preferred(free, [], 1)
        free.remove(slot)
        load.update(count([slot]))
        assert max(load.values()) - min(load[gpu] for gpu in GPUS) <= 1
    assert offering().preferred(free, [], 1) == []


@pytest.mark.parametrize(
    ("several", "must", "size", "expected"),
    [
        ("together", [], 3, {"B": 3}),
        ("together", [], 4, {"B": 3, "C": 1}),
        ("together", ["C::3"], 3, {"C": 3}),
        ("together", ["A::0"], 2, {"A": 1, "B": 1}),
        ("apart", [], 2, {"B": 1, "C": 1}),
        ("apart", ["C::3"], 3, {"C": 2, "B": 1}),
        ("apart", ["B::3"], 2, {"B": 1, "C": 1}),
    ],
)
def test_one_container_may_have_several_slots(
    several: Several, must: list[str], size: int, expected: dict[str, int]
) -> None:
    """Three slots of B are free, two of C, none of A."""
    free = ["C::0", "C::1", "B::0", "B::1", "B::2"]
    if expected == {"C": 2, "B": 1}:
        free = ["C::0", "B::0"]
    assert count(offering(several).preferred(free, must, size)) == expected


@settings(deadline=None)
@given(
    several=st.sampled_from(get_args(Several)),
    free=st.lists(st.sampled_from(ALL), unique=True),
    must=st.lists(st.sampled_from(ALL), unique=True),
    size=st.integers(0, len(ALL) + 2),
)
def test_a_preferred_allocation_is_valid(
    several: Several, free: list[str], must: list[str], size: int
) -> None:
    chosen = offering(several).preferred(free, must, size)
    there = {*free, *must}
    assert len(chosen) == len({*chosen}) == max(len(must), min(size, len(there)))
    assert {*must} <= {*chosen} <= there
    if several == "together" and not must and size > 0:
        most = max(count(free).values(), default=0)
        assert (len(count(chosen)) <= 1) == (size <= most or len(count(free)) <= 1)
