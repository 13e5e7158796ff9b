# SPDX-License-Identifier: BSD-3-Clause
"""The fast search knows all rules of the world, and finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core.core import Core
from tests.scheduler import explore
from tests.scheduler.script import Chosen, Script, begin
from tests.scheduler.world.constants import MIB
from tests.scheduler.world.processes import Process
from tests.scheduler.world.world import World


def test_the_tables_have_all_rules_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    explore.check_tables(World)
    monkeypatch.delitem(explore.ARGUMENTS["grow"], "urgent")
    monkeypatch.delitem(explore.ARGUMENTS, "drain")
    monkeypatch.delitem(explore.START, "dearer")
    with pytest.raises(LookupError, match="of drain, grow, start are not those of the world"):
        explore.check_tables(World)


def test_the_search_finds_no_violation_without_a_defect() -> None:
    said: list[str] = []
    result = explore.search(1, seconds=60.0, runs=12, shrinking=1.0, say=said.append)
    assert said == []
    assert result.runs == 12


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make cores that ignore a drain while a group is waiting."""
    make = World.make_core

    def other(settings: dict[str, Any]) -> Core:
        core = make(settings)
        handle = core.handle

        def forgetful(event: Any, now: float) -> list[Any]:
            drains = type(event).__name__ == "Drain" and event.on and core.queue
            return [] if drains else handle(event, now)

        core.handle = forgetful  # type: ignore[method-assign]
        return core

    monkeypatch.setattr(World, "make_core", staticmethod(other))


def test_a_violation_is_printed_as_a_short_test(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    said: list[str] = []
    result = explore.search(1, seconds=60.0, runs=40, shrinking=30.0, say=said.append)
    (violation,) = result.found
    assert (violation.kind, violation.where) == ("AssertionError", "drain")
    assert result.counts[violation] > 1
    assert len(result.found[violation].steps) <= 3
    names: dict[str, Any] = {"begin": begin, "Chosen": Chosen, "MIB": MIB}
    exec(said[0], names)
    (test,) = (found for name, found in names.items() if name.startswith("test_seed_"))
    with pytest.raises(AssertionError):
        test()
    monkeypatch.undo()
    test()


def test_steps_are_written_as_calls() -> None:
    calls: list[explore.Step] = [
        ("grow", {"data": Chosen(2, "GPU-1"), "size": 3 * MIB, "extra": 0, "urgent": False}),
        ("attach", {"group": "a", "gpus": ("GPU-1",), "over": True}),
        ("adjust", {"group": "b", "preference": {"memory": 300 * MIB}}),
        ("exchange_messages", {"turns": [(1, True, False)]}),
    ]
    start = {**explore.DEFAULTS, "footprints": [100, 0], "policy": "fcfs"}
    assert explore.as_test(explore.Run(start, calls), "test_it", "It was so").splitlines() == [
        "def test_it() -> None:",
        '    """It was so."""',
        '    script = begin([100, 0], policy="fcfs")',
        '    script.grow(data=Chosen(2, "GPU-1"), size=3 * MIB, extra=0, urgent=False)',
        '    script.attach(group="a", gpus=("GPU-1",), over=True)',
        '    script.adjust(group="b", preference={"memory": 300 * MIB})',
        "    script.exchange_messages(turns=[(1, True, False)])",
        "    script.teardown()",
    ]


def test_choices_are_kept_and_steps_without_a_choice_are_left_out() -> None:
    script = Script()
    drawn = [explore.Drawn(explore.Random(1)) for _ in range(2)]
    script.pick(drawn[0], [Process(3, "a")])
    steps = [("submit", {"data": data}) for data in drawn]
    kept = explore.settled(explore.Run({}, [*steps, ("meter", {"seconds": 0.5})])).steps
    assert repr(kept) == "[('submit', {'data': Chosen(3)}), ('meter', {'seconds': 0.5})]"
