# SPDX-License-Identifier: BSD-3-Clause
"""Markdown tables of published figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..harness.figures import Figure
from .results import Result


def tables(results: Iterable[Result]) -> Iterator[str]:
    """Return the lines of Markdown tables, one for each result. Figures in bold miss their goal."""
    for result in results:
        yield from (f"### `{result.command}`", "")
        yield f"{result.date[:10]}, commit {result.commit}, {result.host}, {result.seconds:.0f} s."
        if result.end != "done":
            why = "It failed" if result.end == "failed" else "It reached its time limit"
            last = result.error.splitlines()[-1:]
            yield f"{why}{': ' + last[0] if last else ''}. These are the figures until then."
        yield ""
        if result.figures:
            yield from (
                "| metric | measured | in the same run, without gpushare | goal |",
                "|---|---|---|---|",
            )
            yield from map(_row, result.figures)
            yield ""


def _row(figure: Figure) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    value = f"{_number(figure.value)}{unit}"
    if figure.missed:
        value = f"**{value}**"
    spread = f"± {_number(figure.spread)}, " if figure.spread else ""
    bare = "" if figure.bare is None else f"{_number(figure.bare)}{unit}"
    sign = "≥" if figure.at_least else "≤"
    goal = "" if figure.target is None else f"{sign} {_number(figure.target)}{unit}"
    metric = figure.metric.replace("|", "\\|")
    return f"| {metric} | {value} ({spread}n = {figure.n}) | {bare} | {goal} |"


def _number(value: float) -> str:
    """Return a number with three significant digits, or without decimal places from 100 on."""
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"
