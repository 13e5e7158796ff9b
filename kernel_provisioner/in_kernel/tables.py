# SPDX-License-Identifier: BSD-3-Clause
"""What ``%gpushare`` shows, as text and as HTML."""

import html
import time
import unicodedata
from typing import Any, Dict, List, Optional, Tuple

from .amounts import duration, of_which, size
from .faults import Failure

#: Said where the interposer lets everything pass, with the reason.
NO_PART = "This kernel does not share the GPU: "


#: Said where the scheduler sends no sentences.
WORDLESS = "The scheduler has an older version that sends codes without sentences. Use --json to show them."


#: Seconds that ``history`` looks back, and the most lines that it shows.
HISTORY = 600.0


HISTORY_LINES = 40


class Answer:
    """What is said, as data and in words."""

    def __init__(self, data: Dict[str, Any], text: str) -> None:
        self.data = data
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._text)}</p>"


class Help(Answer):
    """The help, whose columns stay aligned."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


def words_of(group: Dict[str, Any]) -> Dict[str, str]:
    """A group's state, preferences and why it waits in the scheduler's words; an older scheduler has codes alone."""
    code = (group.get("reason") or {}).get("code")
    return group.get("words") or {
        "state": str(group.get("state")),
        "preferences": "",
        "why": code or "",
    }


def explanation_text(explanation: Dict[str, Any]) -> str:
    """An explanation in the scheduler's words."""
    return "\n".join(explanation.get("lines") or [WORDLESS])


class Explanation(Answer):
    """Which rule put whom before whom: a line each."""

    def _repr_html_(self) -> str:
        return "".join(
            f'<p style="margin-left: {len(line) - len(line.lstrip())}em">{html.escape(line.strip())}</p>'
            for line in self._text.splitlines()
        )


def columns_of(text: str) -> int:
    """Return the width of a text in a terminal, where Chinese characters and emojis take two columns."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def _blanks(width: int, cell: str) -> str:
    return " " * (width - columns_of(cell))


class Table(Answer):
    """Lines of text, and a table below them."""

    #: The first column marks this kernel.
    HEADINGS: Tuple[str, ...] = ()
    #: Columns of numbers.
    RIGHT: Tuple[int, ...] = ()
    #: What is said if there are no rows.
    EMPTY = ""

    def __init__(self, data: Dict[str, Any], own: str) -> None:
        super().__init__(data, "")
        self._own = own

    def lines(self) -> List[str]:
        """What is said before the table."""
        return []

    def rows(self) -> List[Tuple[str, ...]]:
        """The table's rows."""
        raise NotImplementedError

    def _mark(self, group: Any) -> str:
        return "*" if group == self._own else ""

    def __repr__(self) -> str:
        rows = self.rows()
        if not rows:
            return "\n".join([*self.lines(), self.EMPTY])
        table = [self.HEADINGS, *rows]
        widths = [
            max(columns_of(row[column]) for row in table) for column in range(len(self.HEADINGS))
        ]
        text = [
            "  ".join(
                _blanks(width, cell) + cell if column in self.RIGHT else cell + _blanks(width, cell)
                for column, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in table
        ]
        return "\n".join(self.lines() + text)

    def _repr_html_(self) -> str:
        rows = self.rows()
        said = [*self.lines(), *([] if rows else [self.EMPTY])]
        text = "".join(f"<p>{html.escape(line)}</p>" for line in said)
        if not rows:
            return text
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.HEADINGS[1:])
        body = []
        for row in rows:
            cells = []
            for column, cell in enumerate(row[1:], start=1):
                shown = html.escape(cell)
                if column == self.HEADINGS.index("notebook") and row[0]:
                    shown = f"<strong>{shown}</strong>"
                side = "right" if column in self.RIGHT else "left"
                cells.append(f'<td style="text-align: {side}">{shown}</td>')
            body.append("<tr>{}</tr>".format("".join(cells)))
        return "{}<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>".format(
            text, head, "".join(body)
        )


class Status(Table):
    """The scheduler's status."""

    HEADINGS: Tuple[str, ...] = (
        "",
        "notebook",
        "state",
        "class",
        "memory",
        "on the GPU",
        "in host memory",
        "preferences",
        "why",
    )
    RIGHT: Tuple[int, ...] = (4, 5, 6)
    EMPTY = "No notebook is using the GPU."

    def __init__(
        self, data: Dict[str, Any], own: str, out_of_the_way: Optional[str] = None
    ) -> None:
        super().__init__(data, own)
        self._out_of_the_way = out_of_the_way
        self._disk = any(
            gpu.get("disk") for group in data.get("groups", []) for gpu in group.get("gpus", [])
        )
        if self._disk:
            place = self.HEADINGS.index("preferences")
            self.HEADINGS = (*self.HEADINGS[:place], "on disk", *self.HEADINGS[place:])
            self.RIGHT = (*self.RIGHT, place)

    def lines(self) -> List[str]:
        """What is said of the GPUs, and of this kernel if it does not take part."""
        said = []
        if self.data.get("maintenance"):
            said.append("Maintenance: {}".format(self.data["maintenance"]))
        for gpu in self.data.get("gpus", []):
            used, total, foreign = (size(gpu.get(key) or 0) for key in ("used", "total", "foreign"))
            said.append(
                f"GPU {gpu.get('index', '?')} ({gpu.get('name', '?')}): {used} of {total} in use, "
                f"{foreign} by programs not managed by gpushare"
            )
        words = self.data.get("words") or {}
        said += words.get("draining", [])
        if words.get("hibernation"):
            said.append("{}.".format(words["hibernation"]))
        if self._out_of_the_way:
            said.append(NO_PART + self._out_of_the_way)
        return said

    def rows(self) -> List[Tuple[str, ...]]:
        """One row for each lease group: those that run, the queue in its order, the others."""
        rows: List[Tuple[str, ...]] = []
        for group in self.data.get("groups", []):
            words = words_of(group)
            rows.append(
                (
                    self._mark(group.get("id")),
                    str(group.get("name") or group.get("id")),
                    words["state"],
                    str(group.get("class") or ""),
                    *self._memory(group.get("gpus", [])),
                    words["preferences"],
                    words["why"],
                )
            )
        return rows

    def _memory(self, gpus: List[Dict[str, Any]]) -> List[str]:
        """A group's memory and where it is, with what is clean and shared of it."""

        def total(*kinds: str) -> int:
            return sum(gpu.get(kind, 0) for gpu in gpus for kind in kinds)

        return [
            size(total("footprint", "unevictable")),
            of_which(total("resident", "unevictable"), total("clean"), "clean"),
            of_which(total("swapped"), total("shared"), "shared"),
            *([size(total("disk"))] if self._disk else []),
        ]


#: Kinds of spans in words: while they last, and afterwards.
SPANS = {
    "burst": ("running", "ran"),
    "wait": ("waiting", "waited"),
    "in": ("restoring", "restored"),
    "out": ("evicting", "evicted"),
    "hibernated": ("hibernated", "was hibernated"),
}


class History(Table):
    """What the scheduler's timeline has of the last minutes (docs/contributing/lab-protocol.md)."""

    HEADINGS = ("", "time", "notebook", "event", "duration", "memory")
    RIGHT = (4, 5)
    EMPTY = "No notebook has used the GPU in the last {}."

    def __init__(self, status: Dict[str, Any], own: str) -> None:
        timeline, now = status.get("timeline"), float(status["time"])
        if timeline is None:
            raise Failure(
                "the scheduler has an older version that keeps no timeline. Restart the Jupyter server."
            )
        start = max(float(timeline["start"]), now - HISTORY)
        spans = [span for span in timeline["spans"] if span["end"] is None or span["end"] > start]
        spans.sort(key=lambda span: (span["start"], span["id"]))
        shown = spans[-HISTORY_LINES:]
        super().__init__(
            {"time": now, "start": start, "spans": shown, "left_out": len(spans) - len(shown)}, own
        )
        self.EMPTY = self.EMPTY.format(duration(now - start))

    def lines(self) -> List[str]:
        """What the table leaves out."""
        left_out = self.data["left_out"]
        said = "Showing the last {} events; there were {} earlier ones in the last {}."
        if not left_out:
            return []
        return [
            said.format(HISTORY_LINES, left_out, duration(self.data["time"] - self.data["start"]))
        ]

    def rows(self) -> List[Tuple[str, ...]]:
        """One row for each burst, wait and move, the last one at the end."""
        now, clock = self.data["time"], time.time()
        rows: List[Tuple[str, ...]] = []
        for span in self.data["spans"]:
            lasts, lasted = SPANS.get(span["kind"], (span["kind"], span["kind"]))
            end = span["end"]
            at = time.localtime(clock - (now - span["start"]))
            rows.append(
                (
                    self._mark(span["group"]),
                    time.strftime("%H:%M:%S", at),
                    str(span.get("name") or span["group"]),
                    lasts if end is None else lasted,
                    duration((now if end is None else end) - span["start"]),
                    size(span["bytes"]) if span.get("bytes") else "",
                )
            )
        return rows
