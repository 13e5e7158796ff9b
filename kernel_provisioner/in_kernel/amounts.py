# SPDX-License-Identifier: BSD-3-Clause
"""Amounts in words."""

from typing import Optional


def percent(fraction: float) -> str:
    """A fraction in words: ``25 %``."""
    return f"{round(100 * fraction, 1):g} %"


def fine(seconds: float) -> str:
    """Seconds in words, of which there may be a few thousandths: ``2.5 ms``."""
    return f"{1000 * seconds:g} ms" if seconds < 1 else duration(seconds)


def size(amount: float) -> str:
    """Bytes in words: ``5.2 GiB``."""
    value, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def within(seconds: Optional[float], otherwise: str) -> str:
    """By when something happens, to be put behind it."""
    return otherwise if seconds is None else f" within {duration(seconds)}"
