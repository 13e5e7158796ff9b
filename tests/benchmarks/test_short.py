# SPDX-License-Identifier: BSD-3-Clause
"""Each benchmark of `gpushare bench` runs to its end, in a short form on the simulated driver."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.bench import BENCHES

#: Arguments of the short form, and replacements of the module's constants.
SHORT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "launch": ({"rounds": 1}, {}),
    "slab": ({"rounds": 1}, {"LIVE": 500, "COUNT_BARE": 200, "COUNT": 2000}),
    "ordered": ({"rounds": 1}, {"PENDING": 200, "PAIRS": 100}),
    "cell-end": ({"rounds": 4}, {}),
    "quantum-end": ({"seconds": 0.3}, {"HOPS": 5}),
    "busy-server": ({"seconds": 0.3}, {}),
    "fits": ({"rounds": 4}, {}),
    "holder-killed": ({"rounds": 1}, {}),
    "restart": ({"rounds": 1}, {}),
    "takeover": ({"rounds": 1}, {"CLIENTS": 4, "CALM": 0.1}),
    "interrupt": ({"rounds": 1}, {}),
    "turned-to-cpu": ({"rounds": 4}, {}),
    "kernel-start": ({"rounds": 1}, {}),
    "command-start": ({"rounds": 1}, {}),
    "context": ({}, {"PROCESSES": 2}),
    "swap": ({}, {"ROUNDS": 1}),
    "switch": ({}, {"SWITCHES": 2}),
    "scheduler": ({}, {"CLIENTS": 20, "EVENTS": 200, "TURNS": 1}),
    "class": (
        {},
        {
            "USERS": 3,
            "THOUGHT": 0.2,
            "SECONDS": 2.0,
            "CONNECTIONS": 50,
            "BEFORE": 50,
            "SETTLE": 0.5,
        },
    ),
    "lab": ({}, {"NOTEBOOKS": 40, "ROUNDS": 1, "WINDOW": 2.0}),
    "two-gpus": (
        {"seconds": 0.5},
        {
            "SMALL_GPU": 64 << 20,
            "SMALL_NOTEBOOK": 40 << 20,
            "SMALL_RANK": 6 << 20,
            "SMALL_STEPS": 24,
        },
    ),
    "comeback": ({"rounds": 1}, {"TYPING": 0.3}),
    "simulation": ({}, {"DAY": {"researchers": 4.0, "jobs": 1.0, "hours": 0.2}, "GPUS": 2}),
    "agents": (
        {},
        {"SEEDS": (1,), "CLASS": {"students": 6.0, "hours": 0.1}, "AGENTS": 2},
    ),
    "disk": ({}, {"ROUNDS": 1, "SIMULATED_SIZE": 128 << 20, "BLOCK": 64 << 20}),
    "foresight": (
        {},
        {"SEEDS": (1,), "CLASS": {"people": 1.0, "students": 6.0, "hours": 0.1}},
    ),
}
#: The tests that run the others.
TESTED = {
    "conformance": "gpu/test_runner.py",
    "estimates": "scheduler/test_estimates.py",
    "hibernate": "gpu/test_hibernate_bench.py",
    "idle-power": "benchmarks/test_idle_power.py",
    "interference": "gpu/test_comparisons.py",
    "makespan": "gpu/test_comparisons.py",
    "oversubscribe": "interposer/test_managed.py",
    "shares": "gpu/test_shares.py",
    "training": "gpu/test_training.py",
}


def test_each_benchmark_has_a_test(root: Path) -> None:
    assert SHORT.keys() | TESTED.keys() == BENCHES.keys()
    for name, path in TESTED.items():
        module, _ = BENCHES[name]
        assert module in (root / "tests" / path).read_text()


# A crowd that takes turns by the clock, and a browser: too much beside the other tests of `make test`.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "lab" else ()) for name in SHORT]
)
def test_a_short_form_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "lab":
        request.getfixturevalue("chromium")
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    module, function = BENCHES[name]
    bench = importlib.import_module(f"jupyter_gpushare.benchmarks.published.{module}")
    arguments, constants = SHORT[name]
    for constant, value in constants.items():
        monkeypatch.setattr(bench, constant, value)
    figures = list(getattr(bench, function)(**arguments))
    assert figures
    assert all(math.isfinite(figure.value) for figure in figures)
