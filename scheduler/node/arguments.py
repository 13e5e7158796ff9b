# SPDX-License-Identifier: BSD-3-Clause
"""Parsing of command-line arguments: sizes and times, errors of one line, and suggestions."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Formatter(argparse.HelpFormatter):
    """Formats help texts: several paragraphs keep their layout, and addresses are not broken."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n\n" in text else "\n".join(self._split_lines(text, width))

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and suggest what was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **settings})

    def error(self, message: str) -> NoReturn:
        """Exit with the message and status 2."""
        self.exit(2, f"gpushare: {message.rstrip('.')}. See: {self.prog} --help\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; those of a subcommand fail here and not in its parent, so that the hint names it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            what = "option" if unknown[0].startswith("-") else "argument"
            meant = nearest(unknown[0], self._option_string_actions)
            self.error(f"unknown {what} {unknown[0]!r}{meant}")
        return found, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            raise argparse.ArgumentError(
                action,
                f"invalid choice {value!r}{nearest(value, choices)}; choose from {', '.join(choices)}",
            )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known word most similar to a mistyped one, or nothing."""
    import difflib

    found = difflib.get_close_matches(word, [*known], 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def complain(text: str) -> int:
    """Print a mistake that the user can correct in one line, and return the exit status for it."""
    print(f"gpushare: {text}", file=sys.stderr)
    return 2


def size(text: str) -> int:
    """Parse bytes, with ``K``, ``M``, ``G`` or ``T`` for powers of 1024."""
    word = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = word[-1:] if word[-1:] in UNITS and not word[-1:].isdigit() else ""
    try:
        value = float(word.removesuffix(unit)) * UNITS[unit]
        if not 0 <= value < 1 << 63:
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid size {text!r}; use a number of bytes, or for example 512M or 8G"
        ) from None
    return int(value)


def quantum(text: str) -> float | str:
    """Parse a quantum: ``auto``, or seconds."""
    if text == "auto":
        return text
    return _above_zero(text, f"invalid quantum {text!r}; use auto or a positive number of seconds")


def seconds(text: str) -> float:
    """Parse a duration in seconds."""
    return _above_zero(text, f"invalid time {text!r}; use a positive number of seconds")


def idleness(text: str) -> float:
    """Parse an idle time in seconds; 0 or ``off`` means never."""
    if text in ("off", "0"):
        return 0.0
    return _above_zero(text, f"invalid time {text!r}; use off or a positive number of seconds")


def switch(text: str) -> bool:
    """Parse ``on`` or ``off``."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; use on or off")
    return text == "on"


def number(what: str, least: float, most: float) -> Callable[[str], float]:
    """Return a parser of numbers within bounds; ``what`` names them in its error."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"invalid {what} {text!r}; use a number from {least:g} to {most:g}"
            )
        return value

    return parse


def count(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(
                f"invalid number {text!r}; use a whole number from 1 to {most}"
            )
        return value

    return parse


#: Parses a likelihood.
likelihood = number("likelihood", 0, 1)


def _above_zero(text: str, complaint: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(complaint)
    return value
