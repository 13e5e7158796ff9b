# SPDX-License-Identifier: BSD-3-Clause
"""Amounts in words, as the scheduler writes them (``scheduler/views/words/amounts.py``), which kernels cannot import.

The cases in ``tests/formats.json`` hold the two together.
"""

import math


def percent(fraction: float) -> str:
    """A fraction in words: ``25%``."""
    return f"{_digits(100 * fraction)}%"


def of_which(whole: float, part: float, what: str) -> str:
    """Format a number of bytes, and a part of them if there is one: ``24 GiB (21.5 GiB clean)``."""
    return f"{size(whole)} ({size(part)} {what})" if part else size(whole)


def size(amount: float) -> str:
    """Bytes in words: ``5.25 GiB``."""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 999.5 would be rounded to 1000, which has four digits.
        if abs(value) < 999.5:
            break
        value, unit = value / 1024, larger
    return f"{_digits(value)} {unit}"


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``1 d 6 h``."""
    tenths = math.floor(10 * max(0.0, seconds) + 0.5)
    if tenths < 100:
        return f"{tenths / 10:.1f} s"
    whole = math.floor(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", "s")
    # Whole minutes and hours that have passed: a wait of 59 minutes and 59 seconds is no hour.
    return _two(whole // 60, 60, "h", "min") if whole < 86400 else _two(whole // 3600, 24, "d", "h")


def _digits(value: float) -> str:
    """Return three digits at most, without zeros after the point."""
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    # As JavaScript rounds: a half goes up.
    text = f"{math.floor(value * 10**places + 0.5) / 10**places:.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def _two(count: int, size_of_larger: int, larger: str, smaller: str) -> str:
    """Return a number of small units in large ones and the rest."""
    rest = count % size_of_larger
    return f"{count // size_of_larger} {larger}" + (f" {rest} {smaller}" if rest else "")
