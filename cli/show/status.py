# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare status``: who has the GPU, who waits and why."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from typing import Any

from ...kernel_provisioner.in_kernel.tables import words_of
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.redaction import OTHER
from ...scheduler.views.words.amounts import duration, size

#: Seconds between two pictures of ``--watch`` if nothing happens, and at least.
WATCH_SLOW = 1.0
WATCH_FAST = 0.1


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="show who has the GPU, who waits and why",
        description="Show who has the GPU, who waits and why, and where the memory is.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as in docs/reference/control.md"
    )
    parser.add_argument("--watch", action="store_true", help="go on, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Print the status, once or again and again."""
    try:
        with ControlClient() as client:
            if not args.watch:
                _print(client.request("status", text=True)["status"], args.json)
                return 0
            client.request("subscribe")
            while True:
                status = client.request("status", text=True)["status"]
                if not args.json and sys.stdout.isatty():
                    # Home, and clear what is below: no flicker.
                    print("\033[H\033[J", end="")
                _print(status, args.json)
                time.sleep(WATCH_FAST)
                client.next_event(WATCH_SLOW)
                while client.next_event(0.0) is not None:
                    pass
    except ControlError as error:
        return complain(str(error))


def _print(status: dict[str, Any], as_json: bool) -> None:
    # What is read by a program or written to a file keeps one line for each row.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = json.dumps(status) if as_json else render(status, width)
    print(text, flush=True)


def render(status: dict[str, Any], width: int | None = None) -> str:
    """Word a status as text.

    Parameters
    ----------
    status
        The scheduler's.
    width
        Columns of the terminal; None: lines may have any length.
    """
    parts = [
        _wrapped(
            f"maintenance: {status['maintenance']}" if status.get("maintenance") else "", width
        ),
        _gpus(status, width),
        _groups(status, width),
        _processes(status, width),
        _wrapped(_notices(status), width),
        _wrapped(_words(status).get("hibernation", ""), width),
        _wrapped(_footer(status), width),
    ]
    return "\n\n".join(part for part in parts if part)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: set[int],
    width: int | None = None,
) -> str:
    """Align columns.

    Parameters
    ----------
    head
        What the columns are called.
    rows
        Their cells.
    right
        Which of them are aligned to the right.
    width
        Columns of the terminal; what has no room there is below its row. None: lines may have any length.
    """
    rows = [[_spread(cell) for cell in row] for row in rows]
    if width is not None:
        rows = [
            [_shortened(cell, max(width // 3, MIDDLE)) for cell in r[:-1]] + [r[-1]] for r in rows
        ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    fit = len(head)
    while width is not None and fit > 1 and sum(widths[:fit]) + 2 * (fit - 1) > width:
        fit -= 1
    lines = []
    for number, row in enumerate((head, *rows)):
        cells = [
            row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in range(fit)
        ]
        lines.append("  ".join(cells).rstrip())
        if number > 0:
            below = [f"{head[i].lower()} {row[i]}".strip() for i in range(fit, len(row)) if row[i]]
            lines += _folded(", ".join(below), width or 0, **_BELOW) if below else []
    return _drawn("\n".join(lines))


#: Takes the second of the two columns of a wide character, such as a Chinese one, while a text is laid out.
_FILL = "\0"


def _spread(text: str) -> str:
    """Return a text that has one character for each column of a terminal."""
    return "".join(
        one + _FILL if unicodedata.east_asian_width(one) in "WF" else one for one in text
    )


def _drawn(text: str) -> str:
    """Return the text that is shown for one that was spread."""
    return text.replace(_FILL, "")


#: Longest cell of a table that has to fit into a narrow terminal.
MIDDLE = 24
_BELOW = {"initial_indent": "    ", "subsequent_indent": "    "}


def _shortened(cell: str, most: int) -> str:
    """Cut the middle out of a cell that is too long: names differ at both ends."""
    if len(cell) <= most:
        return cell
    end = (most - 1) // 2
    start = most - 1 - end
    # Both halves of a wide character stay, or neither.
    start -= cell[start] == _FILL
    return f"{cell[:start]}…{cell[-end:].lstrip(_FILL)}"


def _wrapped(text: str, width: int | None) -> str:
    if width is None:
        return text
    lines = [one for line in text.splitlines() for one in _folded(_spread(line), width) or [""]]
    return _drawn("\n".join(lines))


def _folded(text: str, width: int, **indents: Any) -> list[str]:
    """Wrap a text that was spread."""
    # A line may end between the halves of a wide character, which then needs one more column.
    return textwrap.wrap(text, width - (_FILL in text), **indents)


def _gpus(status: dict[str, Any], width: int | None) -> str:
    if not status["gpus"]:
        return "no GPU is known to the scheduler; run: gpushare doctor"
    head = ("GPU", "NAME", "TOTAL", "RESIDENT", "PINNED", "CONTEXTS", "OTHERS", "FREE")
    rows = [
        (
            str(gpu["index"]),
            gpu["name"],
            *(
                size(gpu[key])
                for key in ("total", "resident", "pinned", "contexts", "foreign", "free")
            ),
        )
        for gpu in status["gpus"]
    ]
    drained = _words(status).get("draining", [])
    return "\n".join([table(head, rows, set(range(2, len(head))), width), *drained])


def _words(status: dict[str, Any]) -> dict[str, Any]:
    """Return the sentences about the whole node; an older scheduler sends none."""
    return status.get("words") or {}


def _groups(status: dict[str, Any], width: int | None) -> str:
    if not status["groups"]:
        return "nobody uses the GPU through gpushare now"
    now = status["time"]
    # Who sees the notebooks of others wants to know whose they are.
    viewer = status.get("viewer", {}).get("user")
    users = any(group.get("user", viewer) not in (viewer, OTHER) for group in status["groups"])
    head = (
        "STATE",
        "NAME",
        *(("USER",) if users else ()),
        "ID",
        "CLASS",
        "FOR",
        "FOOTPRINT",
        "RESIDENT",
        "SWAPPED",
        "WISHES",
        "",
    )
    rows = []
    for group in status["groups"]:
        words = words_of(group)
        rows.append(
            (
                words["state"],
                group["name"],
                *((group["user"],) if users else ()),
                group["id"][:8],
                str(group.get("class") or ""),
                duration(now - group["since"]) if group["since"] is not None else "",
                *(
                    size(sum(gpu[key] for gpu in group["gpus"]))
                    for key in ("footprint", "resident", "swapped")
                ),
                words["wishes"],
                words["why"],
            )
        )
    first = head.index("FOR")
    return table(head, rows, set(range(first, first + 4)), width)


def _processes(status: dict[str, Any], width: int | None) -> str:
    """Word who holds what nobody states; only administrators are told."""
    found = status.get("processes")
    if not found:
        return ""
    indices = {gpu["uuid"]: str(gpu["index"]) for gpu in status["gpus"]}
    head = ("NOT STATED", "GPU", "PID", "USER", "HOLDS", "STATES")
    rows = [
        (
            "outside gpushare" if one["code"] == "outside" else "more than stated",
            indices.get(one["gpu"], one["gpu"]),
            str(one["pid"]),
            one["user"] or "?",
            size(one["bytes"]),
            size(one["claimed"]),
        )
        for one in found
    ]
    return table(head, rows, {1, 2, 4, 5}, width)


def _notices(status: dict[str, Any]) -> str:
    return "\n".join(
        f"note: {notice.get('text') or notice['code']}"
        for notice in status["notices"]
        if notice["code"] != "maintenance"
    )


def _footer(status: dict[str, Any]) -> str:
    host = status["host"]
    words = [
        _words(status).get("settings", ""),
        f"host memory {size(host['swapped'])} of {size(host['budget'])}",
    ]
    pool = host.get("pool")
    if pool is not None and pool["prepared"]:
        words.append(
            f"pool {size(pool['in_use'])} used, {size(pool['prepared'])} ready, "
            f"{size(pool['pinned'])} pinned"
        )
    if status["driver"]["simulated"]:
        words.append("simulated driver")
    return ", ".join(word for word in words if word)
