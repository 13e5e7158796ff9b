# SPDX-License-Identifier: BSD-3-Clause
"""The core decides what it decided when ``golden.py`` recorded it."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.policies import OURS
from tests.scheduler import golden

WORLDS = [path for path in golden.recordings() if path.name.startswith("world-")]
#: Messages that do not occur in the world.
NEVER = {
    *(
        "Await",
        "Desist",
        "Disk",
        "Fetch",
        "Maintain",
        "Notice",
        "Recall",
        "Rename",
        "Reserve",
    ),
    "Spill",
}
#: Parts of messages.
PARTS = {"Awaited", "Entitlement", "Usage"} | {
    name for name in golden.MESSAGES if name.startswith("Learnt")
}

every_recording = pytest.mark.parametrize("path", golden.recordings(), ids=lambda p: p.name)


def check(path: Path, every: int) -> None:
    count, texts = golden.differences(path, every)
    shown = "\n\n".join(texts[:3])
    assert not texts, f"{len(texts)} of {count} differ, such as:\n{shown}"
    assert count


@every_recording
def test_some_of_the_runs_give_the_recorded_decisions(path: Path) -> None:
    # The many runs of the world are much alike.
    check(path, every=25 if path in WORLDS else 10)


@pytest.mark.slow
@every_recording
def test_all_runs_give_the_recorded_decisions(path: Path) -> None:
    check(path, every=1)


def test_the_recordings_have_every_kind_of_event_of_the_world() -> None:
    names = set()
    said = set()
    for path in golden.recordings():
        assert path.stat().st_size < 1_000_000
        _, found = golden.parts(path)
        names |= {part.name.rpartition(".")[0] for part in found}
        if path in WORLDS:
            text = lzma.decompress(path.read_bytes()).decode()
            said |= {name for name in golden.MESSAGES if f'["{name}",' in text}
    assert sum(name.startswith("world ") for name in names) >= 2000
    traces = {path.stem for path in golden.TRACES.iterdir()}
    assert names >= {f"{trace} under {policy}" for trace in traces for policy in OURS}
    # A message without fields has no comma.
    assert said == golden.MESSAGES.keys() - NEVER - PARTS - {"Tick"}


@pytest.fixture(scope="module")
def recorded() -> tuple[golden.Fields, list[golden.Part]]:
    fields, found = golden.parts(WORLDS[0])
    return fields, [part for _, part in zip(range(40), found, strict=False)]


def test_a_different_quantum_is_detected(recorded: tuple[golden.Fields, list[golden.Part]]) -> None:
    fields, found = recorded
    others = [replace(p, settings={**p.settings, "quantum": 0.1}) for p in found]
    texts = [text for part in others if (text := golden.replay(part, fields))]
    decided = [text for text in texts if "expected (-) and found (+):" in text]
    assert decided
    assert all(text.startswith("world ") for text in texts)
    assert any("\n  - " in text or "\n  + " in text for text in decided)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (None, "a Tick, as recorded; the core now wants the next at None"),
        (0.0, "nothing came before, as recorded; the core now wants a Tick at 0.0"),
    ],
)
def test_a_different_deadline_is_detected(
    wanted: float | None,
    text: str,
    recorded: tuple[golden.Fields, list[golden.Part]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields, found = recorded
    monkeypatch.setattr(Core, "deadline", lambda self: wanted)
    assert any(text in golden.replay(part, fields) for part in found)


def test_a_changed_field_of_a_decision_is_shown(
    recorded: tuple[golden.Fields, list[golden.Part]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, found = recorded
    make = golden.CORES["world"]

    def other(settings: dict[str, Any]) -> Core:
        core = make(settings)
        handle = core.handle

        def changed(event: Any, now: float) -> list[Any]:
            return [
                structs.replace(decision, bytes=decision.bytes + 1)  # type: ignore[union-attr]
                if type(decision).__name__ == "Evict"
                else decision
                for decision in handle(event, now)
            ]

        core.handle = changed  # type: ignore[method-assign]
        return core

    monkeypatch.setitem(golden.CORES, "world", other)
    text = next(text for part in found if (text := golden.replay(part, fields)))
    minus, plus = (
        next(line for line in text.splitlines() if line.startswith(f"  {sign} Evict(client="))
        for sign in "-+"
    )
    assert minus[4:] != plus[4:]
    assert minus.partition("bytes=")[0][4:] == plus.partition("bytes=")[0][4:]


def test_a_message_with_changed_fields_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grant:
        __match_args__ = ("client", "lease")

    monkeypatch.setitem(golden.MESSAGES, "Grant", Grant)
    _, texts = golden.differences(WORLDS[0], every=10)
    assert texts == [
        "Grant had the fields ['client', 'filling', 'lease'], and now has ['client', 'lease']"
    ]
