# SPDX-License-Identifier: BSD-3-Clause
"""Every order of the gate's and the mover's steps is right; each bug of the protocol shows in some order."""

from __future__ import annotations

import pytest

from tests.fuzz.model import BUGS, Machine, explore


def test_every_order_of_the_steps_is_right() -> None:
    result = explore(Machine())
    assert result.wrong is None, "\n".join(result.steps)
    # Fewer would mean that something never happens.
    assert result.states > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_protocol_is_found(bug: str) -> None:
    assert explore(Machine(bug)).wrong is not None
