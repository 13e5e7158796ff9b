# SPDX-License-Identifier: BSD-3-Clause
"""Arguments of commands: sizes, quanta, and complaints of one line."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message and status 2."""
        self.exit(2, f"gpushare: {message}; see: {self.prog} --help\n")


def complain(text: str) -> int:
    """Print one line about what the user can mend, and return the exit status for it."""
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
            f"{text!r} is no size; write bytes, or for example 512M or 8G"
        ) from None
    return int(value)


def quantum(text: str) -> float | str:
    """Parse a quantum: ``auto``, or seconds."""
    if text == "auto":
        return text
    return _above_zero(text, f"{text!r} is no quantum; write auto, or seconds above 0")


def seconds(text: str) -> float:
    """Parse a length of time."""
    return _above_zero(text, f"write a number of seconds above 0, not {text!r}")


def idleness(text: str) -> float:
    """Parse seconds of idleness: 0 or ``off`` for never."""
    if text in ("off", "0"):
        return 0.0
    return _above_zero(text, f"write off, or a number of seconds above 0, not {text!r}")


def _above_zero(text: str, complaint: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(complaint)
    return value
