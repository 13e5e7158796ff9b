# SPDX-License-Identifier: BSD-3-Clause
"""How likely a group is to use the GPU soon, after a hint and without one."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.likelihood import (
    CELL_DELAY,
    HORIZON,
    PRIORS,
    UNHINTED,
    UseLikelihood,
)
from jupyter_gpushare.scheduler.core.model import DurationPredictor
from tests.scheduler.core_machine import Machine


def chance(uses: UseLikelihood, group: str, now: float) -> float | None:
    found = uses.estimate(group, now)
    return None if found is None else round(found.likelihood, 4)


def test_a_first_hint_has_the_likelihood_of_its_kind() -> None:
    uses = UseLikelihood()
    assert uses.estimate("a", 0.0) is None
    for sign, prior in PRIORS.items():
        uses.hint(sign, sign, 10.0)
        found = uses.estimate(sign, 11.0)
        assert found == (pytest.approx(prior), sign, 10.0, 10.0 + HORIZON, 0, 0)


def test_a_groups_own_trials_soon_outweigh_those_of_others() -> None:
    uses = UseLikelihood()
    # Twice the focus led to work; the third time it did not.
    for at, used in ((0.0, True), (100.0, True), (200.0, False)):
        uses.hint("a", "focus", at)
        if used:
            uses.use("a", at + 5.0)
    uses.hint("a", "focus", 300.0)
    common = (2 + 10 * 0.3) / (3 + 10)
    assert chance(uses, "a", 300.0) == round((2 + 2 * common) / (3 + 2), 4) == 0.5538
    # Of another group, nothing is known but what others did.
    uses.hint("b", "focus", 300.0)
    assert chance(uses, "b", 300.0) == round(common, 4) == 0.3846
    found = uses.estimate("a", 300.0)
    assert found is not None
    assert (found.trials, found.hits) == (3, 2)


def test_repeated_hints_within_a_minute_are_one_trial() -> None:
    uses = UseLikelihood()
    for at in (0.0, 10.0, 59.0):
        uses.hint("a", "typing", at)
    uses.use("a", 59.5)
    uses.hint("a", "typing", 70.0)
    found = uses.estimate("a", 70.0)
    assert found is not None
    assert (found.trials, found.hits) == (1, 1)


def test_a_hint_counts_until_its_group_works_or_the_minute_is_over() -> None:
    uses = UseLikelihood()
    uses.hint("a", "typing", 0.0)
    assert uses.next_change("a", 0.0) == HORIZON
    assert chance(uses, "a", HORIZON - 0.1) == 0.6
    assert chance(uses, "a", HORIZON) is None
    # Work after the minute is not its result.
    uses.use("a", HORIZON)
    assert uses.next_change("a", HORIZON) is None
    uses.hint("a", "typing", 100.0)
    assert chance(uses, "a", 100.0) == round((0 + 2 * (10 * 0.6) / 11) / (1 + 2), 4)


def test_the_strongest_hint_counts_and_a_command_is_certain() -> None:
    uses = UseLikelihood()
    uses.hint("a", "focus", 0.0)
    uses.hint("a", "typing", 1.0)
    found = uses.estimate("a", 2.0)
    assert found is not None
    assert (found.sign, found.since) == ("typing", 1.0)
    uses.hint("a", "ready", 3.0)
    uses.hint("a", "ready", 30.0)
    found = uses.estimate("a", 31.0)
    assert found is not None
    assert found == (1.0, "ready", 30.0, 90.0, 0, 0)
    # Nothing is learnt from it, used or not.
    uses.expire("a", 200.0)
    uses.hint("a", "ready", 200.0)
    assert chance(uses, "a", 201.0) == 1.0


def test_a_change_of_habits_is_learnt() -> None:
    uses = UseLikelihood()
    for turn in range(200):
        uses.hint("a", "focus", turn * 100.0)
        uses.use("a", turn * 100.0 + 1.0)
    uses.hint("a", "focus", 30_000.0)
    before = chance(uses, "a", 30_000.0)
    assert before is not None
    assert before > 0.9
    for turn in range(40):
        uses.hint("a", "focus", 40_000.0 + turn * 100.0)
    after = chance(uses, "a", 43_900.0)
    assert after is not None
    assert after < 0.3


def test_a_group_that_has_left_is_forgotten() -> None:
    uses = UseLikelihood()
    uses.hint("a", "typing", 0.0)
    uses.use("a", 1.0)
    uses.hint("a", "typing", 100.0)
    uses.forget("a")
    assert uses.estimate("a", 101.0) is None
    # Another kernel may get its id.
    uses.hint("a", "typing", 102.0)
    found = uses.estimate("a", 102.0)
    assert found is not None
    assert (found.trials, found.hits) == (0, 0)


def test_without_a_hint_the_lengths_of_absences_count() -> None:
    absences = DurationPredictor(unknown=0.0)
    assert absences.ends_within(5.0, HORIZON, UNHINTED) == UNHINTED
    for length in (30.0, 400.0):
        absences.remember(length)
    # After 10 s, both are possible, and one of them ends within the minute.
    assert absences.ends_within(10.0, 60.0, UNHINTED) == pytest.approx((0.85 + 0.05) / (1.85 + 1))
    # After 100 s only the long one is, and it takes longer.
    assert absences.ends_within(100.0, 60.0, UNHINTED) == pytest.approx(0.05 / 2)
    assert absences.ends_within(350.0, 60.0, UNHINTED) == pytest.approx(1.05 / 2)
    # It is longer than all before.
    assert absences.ends_within(500.0, 60.0, UNHINTED) == UNHINTED


def test_the_core_learns_from_requests_and_bursts() -> None:
    m = Machine()
    a = m.process("a", 10)
    uses = m.core.prefetcher.hints.likelihood
    m.do(ev.Hint("nobody", "typing"))
    assert not uses.live
    m.do(ev.Hint("a", "focus"))
    assert m.core.deadline() == m.now + HORIZON
    a.request()
    assert not uses.live
    a.end("cell")
    # The next work is a burst under the same lease.
    m.sleep(100)
    m.do(ev.Hint("a", "focus"))
    a.begin()
    # While it works, hints say nothing new.
    m.do(ev.Hint("a", "typing"))
    assert not uses.live
    a.end("cell")
    m.sleep(100)
    m.do(ev.Cell("a", "begin", "m", m.now, True))
    assert uses.estimate("a", m.now) is None
    m.sleep(CELL_DELAY)
    found = uses.estimate("a", m.now)
    assert found is not None
    assert found.sign == "cell"
    m.do(ev.Cell("a", "end", "m", m.now, True))
    m.sleep(HORIZON)
    assert not uses.live
    m.do(ev.Hint("a", "focus"))
    found = uses.estimate("a", m.now)
    assert found is not None
    assert (found.trials, found.hits) == (2, 2)


def test_it_is_forgotten_with_its_group() -> None:
    m = Machine()
    a = m.process("a", 10)
    m.do(ev.Hint("a", "focus"))
    m.do(ev.Detach(a.number))
    assert not m.core.prefetcher.hints.likelihood.live
