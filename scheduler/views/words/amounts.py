# SPDX-License-Identifier: BSD-3-Clause
"""Amounts as text, in the same format as in the in-kernel part and in JupyterLab (``labextension/src/core/format.ts``).

The cases in ``tests/formats.json`` keep the three in step.
"""

from __future__ import annotations

import math


def percent(fraction: float) -> str:
    """Format a fraction: ``25%``."""
    return f"{_digits(100 * fraction)}%"


def fine(seconds: float) -> str:
    """Format a time that can be a few milliseconds: ``2.5 ms``."""
    return f"{1000 * seconds:g} ms" if seconds < 1 else duration(seconds)


def size(amount: float) -> str:
    """Format a number of bytes: ``5.25 GiB``."""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 999.5 would round to 1000, which has four digits.
        if abs(value) < 999.5:
            break
        value, unit = value / 1024, larger
    return f"{_digits(value)} {unit}"


def of_which(whole: float, part: float, what: str) -> str:
    """Format a number of bytes, and a part of them if there is one: ``24 GiB (21.5 GiB clean)``."""
    return f"{size(whole)} ({size(part)} {what})" if part else size(whole)


def duration(seconds: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``1 d 6 h``."""
    tenths = math.floor(10 * max(0.0, seconds) + 0.5)
    if tenths < 100:
        return f"{tenths / 10:.1f} s"
    whole = math.floor(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", "s")
    # Rounded down, because a wait of 59 minutes and 59 seconds is not an hour.
    return _two(whole // 60, 60, "h", "min") if whole < 86400 else _two(whole // 3600, 24, "d", "h")


def within(seconds: float | None, otherwise: str) -> str:
    """Return the end of a sentence that tells when something happens."""
    return otherwise if seconds is None else f" within {duration(seconds)}"


def _digits(value: float) -> str:
    """Return at most three digits, without trailing zeros."""
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    # A half is rounded up, as in JavaScript.
    text = f"{math.floor(value * 10**places + 0.5) / 10**places:.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def _two(count: int, size_of_larger: int, larger: str, smaller: str) -> str:
    """Return a number of small units as large units and the rest."""
    rest = count % size_of_larger
    return f"{count // size_of_larger} {larger}" + (f" {rest} {smaller}" if rest else "")
