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
            # What an interrupted benchmark writes comes from the interruption.
            last = result.error.splitlines()[-1:] if result.end == "failed" else []
            why = "It failed" if result.end == "failed" else "It reached its time limit"
            which = "These are the figures until then" if result.figures else "There are no figures"
            yield f"{why}{': ' + last[0] if last else ''}. {which}."
        yield ""
        if result.figures:
            yield from (
                "| metric | measured | for comparison, in the same run | goal |",
                "|---|---|---|---|",
            )
            yield from map(_row, result.figures)
            yield ""


def _row(figure: Figure) -> str:
    value = _quantity(figure.value, figure.unit)
    if figure.missed:
        value = f"**{value}**"
    factor, _ = _scale(figure.value, figure.unit)
    spread = f"± {_number(factor * figure.spread)}, " if figure.spread else ""
    bare = "" if figure.bare is None else _quantity(figure.bare, figure.unit)
    sign = "≥" if figure.at_least else "≤"
    goal = "" if figure.target is None else f"{sign} {_quantity(figure.target, figure.unit)}"
    metric = figure.metric.replace("|", "\\|")
    return f"| {metric} | {value} ({spread}n = {figure.n}) | {bare} | {goal} |"


def _quantity(value: float, unit: str) -> str:
    """Return a number with its unit."""
    factor, unit = _scale(value, unit)
    return f"{_number(factor * value)}{'' if unit == '%' else ' '}{unit}".rstrip()


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return by what a number is multiplied, and the unit after that: short times are in milliseconds."""
    return (1e3, "ms") if unit == "s" and 0 < abs(value) < 0.1 else (1.0, unit)


def _number(value: float) -> str:
    """Return a number with three significant digits, or without decimal places from 100 on."""
    text = f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")
