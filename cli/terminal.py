# SPDX-License-Identifier: BSD-3-Clause
"""Output for people: colour and line breaks on a terminal, plain lines elsewhere; tables; progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

#: The narrowest to which a cell of a table is shortened.
NARROW = 24
_INDENT = "    "


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output or standard error.

    Only a terminal gets colour and line breaks: programs that read the output expect one line for each row.
    """
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        stderr=stderr,
        no_color=plain,
        # Without colours, text is not bold either.
        color_system=None if plain else "auto",
        soft_wrap=not stream.isatty(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def columns() -> int | None:
    """Return the width of standard output's terminal; None if it is not a terminal."""
    return console().width if sys.stdout.isatty() else None


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    right: set[int],
    width: int | None = None,
) -> Text:
    """Lay out a table.

    Parameters
    ----------
    head
        The headings of the columns.
    rows
        The cells.
    right
        The columns that are aligned to the right.
    width
        The width of the terminal. Columns that do not fit are shown below their row. None: lines can have any length.
    """
    grid = [[Text(heading, "bold") for heading in head], *[_cells(row, width) for row in rows]]
    widths = [max(row[i].cell_len for row in grid) for i in range(len(head))]
    fit = len(head)
    while width is not None and fit > 1 and sum(widths[:fit]) + 2 * (fit - 1) > width:
        fit -= 1
    lines = []
    for number, row in enumerate(grid):
        for i in range(fit):
            row[i].align("right" if i in right else "left", widths[i])
        line = Text("  ").join(row[:fit])
        line.rstrip()
        lines.append(line)
        below = [
            f"{head[i].lower()} {row[i].plain}".strip() for i in range(fit, len(row)) if row[i]
        ]
        if number > 0 and below:
            wrapped = Text(", ".join(below)).wrap(console(), (width or 0) - len(_INDENT))
            for part in wrapped:
                part.rstrip()
                lines.append(Text(_INDENT).append_text(part))
    return Text("\n").join(lines)


def _cells(row: Sequence[str | Text], width: int | None) -> list[Text]:
    cells = [cell.copy() if isinstance(cell, Text) else Text(cell) for cell in row]
    if width is None:
        return cells
    # The last column holds a sentence, which is wrapped rather than shortened.
    most = max(width // 3, NARROW)
    return [Text(shortened(cell.plain, most), cell.style) for cell in cells[:-1]] + cells[-1:]


def shortened(text: str, most: int) -> str:
    """Cut the middle out of a text that is too wide, because names differ at both ends."""
    if cell_len(text) <= most:
        return text
    end = (most - 1) // 2
    tail = set_cell_size(text[::-1], end)[::-1]
    return f"{set_cell_size(text, most - 1 - end).rstrip()}…{tail.lstrip()}"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress on standard error if it is a terminal.

    Yields
    ------
    Callable[[str, int, int], None]
        To be called with the name of the current step, the number of steps that are done, and the number of all.
    """
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        # Results that are redirected to a file or another program must stay out of the terminal.
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total
        )
