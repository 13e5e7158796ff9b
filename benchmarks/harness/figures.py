# SPDX-License-Identifier: BSD-3-Clause
"""What a benchmark yields, and how it is printed."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes
    ----------
    bench, metric
        What was run, what was measured.
    value, unit
        The figure: a median unless the metric says otherwise.
    bare
        The same without us, in the same run, alternating; None where there is nothing to compare.
    n
        Number of measurements.
    spread
        Distance between the quartiles, in the same unit.
    target
        The goal: the most that the figure may be, or with ``at_least`` the least.
    """

    bench: str
    metric: str
    value: float
    unit: str
    bare: float | None
    n: int
    spread: float
    target: float | None = None
    at_least: bool = False

    @property
    def missed(self) -> bool:
        """Whether there is a goal, and the figure misses it."""
        if self.target is None:
            return False
        return self.value < self.target if self.at_least else self.value > self.target

    def as_json(self) -> str:
        """Return the figure as one line of JSON."""
        return json.dumps(
            {
                key: round(value, 6) if isinstance(value, float) else value
                for key, value in asdict(self).items()
            }
        )

    def as_text(self) -> str:
        """Return the figure as one line of a table."""
        bare = "" if self.bare is None else f"bare {self.bare:10.3f}"
        sign = "≥" if self.at_least else "≤"
        target = "" if self.target is None else f"goal {sign} {self.target:g}"
        return (
            f"{self.bench:14} {self.metric:44} {self.value:10.3f} {self.unit:3} "
            f"±{self.spread:8.3f}  n={self.n:<5} {bare:16} {target}"
        ).rstrip()


def fraction_right(bench: str, metric: str, value: float, n: int = 1) -> Figure:
    """Return the figure of a fraction that has to be 1."""
    return Figure(bench, metric, value, "", None, n, 0.0, 1.0, at_least=True)


def warn_if_missed(figure: Figure) -> None:
    """Report a figure that misses its goal on standard error."""
    if figure.missed:
        print(
            f"gpushare: {figure.bench}: missed: {figure.metric}: {figure.value:.4g} {figure.unit}, "
            f"the goal is {figure.target:g}",
            file=sys.stderr,
        )


def quartile_distance(values: Sequence[float]) -> float:
    """Return the distance between the first and the third quartile."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4)
    return third - first


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile; the greatest value where there are too few for it."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def median_and_p99(
    bench: str,
    metric: str,
    unit: str,
    values: Sequence[float],
    median_target: float,
    p99_target: float | None = None,
    bare: Sequence[float] = (),
) -> list[Figure]:
    """Summarise waits, of which the slowest matter too, and what was measured for comparison."""
    spread = quartile_distance(values)
    return [
        Figure(
            bench,
            f"{metric}, median",
            statistics.median(values),
            unit,
            statistics.median(bare) if bare else None,
            len(values),
            spread,
            median_target,
        ),
        Figure(
            bench,
            f"{metric}, p99",
            percentile(values, 99),
            unit,
            percentile(bare, 99) if bare else None,
            len(values),
            spread,
            p99_target,
        ),
    ]
