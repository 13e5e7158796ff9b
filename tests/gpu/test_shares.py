# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of shares: that it counts what was done, and runs on the simulated driver."""

from __future__ import annotations

import json

import pytest

from jupyter_gpushare.benchmarks.published import shares
from jupyter_gpushare.benchmarks.published.shares import Found, Work
from jupyter_gpushare.cli.main import main


def work(*busy: tuple[float, float], seconds: float = 30.0) -> Work:
    """Kernels of a tenth of a second, one after the other, in each of these times."""
    ends = [begin + 0.1 * n for begin, end in busy for n in range(1, 1 + round(10 * (end - begin)))]
    return Work(0.0, seconds, ends, 0.1)


def test_a_cuda_kernel_counts_for_its_part_in_the_window() -> None:
    half = work((1.0, 2.0))
    assert half.share(0.0, 2.0) == pytest.approx(0.5)
    assert half.share(1.05, 1.15) == pytest.approx(1.0)
    assert half.share(1.95, 2.05) == pytest.approx(0.5)
    assert half.share(2.0, 3.0) == 0.0


def test_every_window_is_checked_and_a_shorter_run_is_one_window() -> None:
    burst = work((12.0, 16.0))
    each = burst.shares(0.0, 30.0)
    assert len(each) == 201
    assert (min(each), max(each)) == (pytest.approx(0.0), pytest.approx(0.4))
    assert burst.shares(11.0, 17.0) == [pytest.approx(4 / 6)]


def test_figures_are_computed_from_the_work() -> None:
    # In its first window, the one with the request has all of it: that does not count.
    found = Found(
        alone=[0.1, 0.1],
        limited=work((0.0, 4.0), (10.0, 13.0), (20.0, 23.0)),
        requested=[work((0.0, 15.0), (20.0, 25.0)), work((15.0, 20.0), (25.0, 30.0))],
        weighed=[work((0.0, 16.0), (20.0, 26.0)), work((16.0, 20.0), (26.0, 30.0))],
    )
    values = {figure.metric: figure.value for figure in shares.figures(0.1, found)}
    assert values == {
        "100 ms, a kernel alone": pytest.approx(100.0),
        "100 ms, limit 30%: most above in 10 s": pytest.approx(10.0),
        "100 ms, limit 30%: share": pytest.approx(30.0),
        "100 ms, request 60%: share": pytest.approx(50.0),
        "100 ms, request 60%: least in 10 s": pytest.approx(50.0),
        "100 ms, request 60%: share of the other": pytest.approx(50.0),
        "100 ms, weights 2:1: ratio": pytest.approx(1.5),
        "100 ms, weights 2:1: share of both": pytest.approx(100.0),
    }


def test_the_benchmark_runs_on_the_simulated_driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    monkeypatch.setattr(shares, "LENGTHS", (0.01,))
    assert main(["bench", "shares", "--seconds", "1", "--json"]) == 0
    figures = {
        figure["metric"]: figure["value"]
        for figure in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert len(figures) == 8
    # By its nanoseconds, a kernel is never done sooner.
    assert figures["10 ms, a kernel alone"] >= 9.9
    # How much it had depends on the 10 s before this one.
    assert "10 ms, limit 30%: share" in figures
