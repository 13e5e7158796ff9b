# SPDX-License-Identifier: BSD-3-Clause
"""What the scheduler does around a hand-off so that it is short."""

from __future__ import annotations

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.observability.rehearsal import Rehearsal


def test_a_rehearsal_decodes_decides_and_encodes_a_hand_off_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    rehearsal = Rehearsal()
    handle = rehearsal._core.handle

    def watched(event: ev.Event, now: float) -> list[ev.Decision]:
        decisions = handle(event, now)
        seen.append(type(event).__name__)
        seen.extend(type(d).__name__ for d in decisions if isinstance(d, ev.Grant | ev.Revoke))
        return decisions

    monkeypatch.setattr(rehearsal._core, "handle", watched)
    for _ in range(3):
        seen.clear()
        rehearsal.run()
        assert seen == ["Tick", "Revoke", "Released", "Grant", "Request"]


def test_a_rehearsal_keeps_nothing() -> None:
    rehearsal = Rehearsal()
    for _ in range(200):
        rehearsal.run()
    core = rehearsal._core
    assert len(core.model.leased) == len(core.queue) == 1
