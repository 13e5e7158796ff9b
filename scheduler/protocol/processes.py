# SPDX-License-Identifier: BSD-3-Clause
"""The processes of peers, as ``/proc`` shows them."""

from __future__ import annotations


def start_time(pid: int) -> str | None:
    """Return when a process that has not ended was started; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # Fields 3 and 22 of proc(5).
    return None if fields[0] in "ZX" else fields[19]
