# SPDX-License-Identifier: BSD-3-Clause
"""How training steps are compared; what they cost is measured on a GPU."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from jupyter_gpushare.benchmarks.published import training


class Fake(training.Trainer):
    """Answers as a process would whose steps take so long, and notes when it was asked."""

    def __init__(self, name: str, seconds: float, asked: list[str]) -> None:
        self.name = name
        self.seconds = seconds
        self.asked = asked

    def call(self, command: object) -> str:
        if command in training.MODELS:
            return "made"
        self.asked.append(self.name)
        return str(self.seconds)


def test_compared_programs_run_in_alternating_order() -> None:
    asked: list[str] = []
    trainers = {name: Fake(name, 0.01, asked) for name in ("plain", "ours", "peer")}
    times = training.measure(trainers, "cnn", pairs=4, block=0.1, warm_up=0.0)
    there, back = ["plain", "ours", "peer"], ["peer", "ours", "plain"]
    assert asked[-12:] == there + back + there + back
    assert times == {name: [0.01] * 4 for name in trainers}


def test_the_interval_contains_the_median_and_shrinks_with_more_pairs() -> None:
    draw = random.Random(1)
    many = [1.003 + draw.gauss(0, 0.004) for _ in range(200)]
    few = many[:20]
    low, high = training.interval(few)
    assert low <= statistics.median(few) <= high
    closer = training.interval(many)
    assert closer[1] - closer[0] < high - low
    assert closer[0] <= 1.003 <= closer[1]
    assert training.interval([1.0] * 20) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pairs", "1"], "--pairs is at least 2"),
        (["--block", "0"], "--block above 0"),
        (["--peer", "/no/such/library.so"], "which is not a file"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        training.main(arguments)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_without_a_gpu_the_benchmark_reports_its_needs(capsys: pytest.CaptureFixture[str]) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    assert training.main([]) == 2
    assert capsys.readouterr().err.startswith("gpushare: this needs")
