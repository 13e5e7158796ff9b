# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare demo --run`` shows: the queue's timeline as it happens, and the summary with the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...scheduler.protocol.async_client import AsyncControlClient
from ...scheduler.views.words.amounts import size
from ...scheduler.views.words.reasons import reason_text
from ..show.status import table
from .plan import Cell, Plan

#: Seconds by which lines are held back: what the server and the scheduler say is put in the order in which it happened.
HOLD = 0.1
#: Columns of the picture of who ran when.
WIDTH = 76
#: Bursts that must have ended with their cell. Not all do: some go quiet before, while the other waits.
CELL_ENDS = 4
#: Causes of a burst's end that mean the end of a cell: as the kernel saw it, or the server.
CELL_END = ("cell", "idle")

ENDS = {
    "cell": "gives the GPU up: its cell has ended",
    "idle": "gives the GPU up: its cell has ended, as the server sees",
    "quiet": "gives the GPU up: its cell goes on without it",
    "release": "gives the GPU up, as it was told to",
}
GLYPHS = {
    "run": "▶",
    "end": "■",
    "quiet": "■",
    "wait": "…",
    "out": "↓",
    "in": "↑",
    "yield": "◁",
    "right": "✓",
}
COLOURS = {"run": "32", "wait": "33", "out": "35", "in": "35", "right": "1;32", "refuse": "31"}
NAME_COLOURS = ("36", "34")
LANES = {"running": "█", "moving": "▒", "waiting": "░", "idle": "·"}


def _paint(text: str, colour: str | None) -> str:
    if not colour or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{colour}m{text}\033[0m"


class Timeline:
    """What happens in the queue, printed as it happens and kept.

    Parameters
    ----------
    names
        What people call the lease groups; what happens to others is left out.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._width = max(map(len, names.values()))
        self._colours = dict(zip(self._names, itertools.cycle(NAME_COLOURS), strict=False))
        self._began = time.monotonic()
        self._ended = self._began
        #: Lines that are not printed yet: when, in which order, of whom, of what kind.
        self._held: list[tuple[float, int, str, str, str]] = []
        self._count = itertools.count()
        self._flusher: asyncio.Task[None] | None = None
        #: Whose burst has begun with a grant, so that its own word of it is no news.
        self._running: set[str] = set()
        #: The scheduler's events, with seconds since the beginning.
        self.events: list[dict[str, Any]] = []

    def begin(self, at: float) -> None:
        """Let time run from then on."""
        self._began = at
        self._flusher = asyncio.create_task(self._flush_on())

    def end(self) -> None:
        """Print what is held back still."""
        self._ended = time.monotonic()
        if self._flusher is not None:
            self._flusher.cancel()
        self._flush(float("inf"))

    async def follow(self, control: AsyncControlClient) -> None:
        """Take in the scheduler's events until it is gone."""
        async for event in control.subscribe():
            self._take(event)

    def cell(self, group: str, at: float, title: str) -> None:
        """Note that a cell began."""
        self._print(at, group, "", title)

    def right(self, group: str, line: str) -> None:
        """Note that a notebook found something right."""
        self._print(time.monotonic(), group, "right", line.removeprefix("✓ "))

    def lanes(self) -> list[tuple[str, str]]:
        """Who ran when: a name and its lane, in which a column stands for what took most of its time."""
        return [(name, self._lane(group)) for group, name in self._names.items()]

    def ends(self, name: str, causes: Sequence[str]) -> int:
        """How often a notebook's burst ended so."""
        return sum(
            event["kind"] == "burst" and event["phase"] == "end" and event["cause"] in causes
            for event in self._of(name)
        )

    def handed_over(self, name: str) -> int:
        """How often a notebook's lease went to another once its cell had ended."""
        count, over, released = 0, False, False
        for event in self.events:
            kind, own = event["kind"], self._names[event["group"]] == name
            if own and kind == "burst":
                over = event["phase"] == "end" and event["cause"] in CELL_END
            elif own and kind == "release":
                released = over
            elif kind == "grant":
                # It may come back at once, when nothing of it was taken yet.
                count += released and not own
                released = False
        return count

    def moved(self, name: str, *kinds: str) -> tuple[int, float]:
        """The bytes of a notebook that were copied, and the seconds that its moves took."""
        moves = [e for e in self._of(name) if e["kind"] in (kinds or ("evict", "restore"))]
        return sum(e["copied"] for e in moves), sum(e["duration"] for e in moves)

    def _of(self, name: str) -> Iterable[dict[str, Any]]:
        return (event for event in self.events if self._names[event["group"]] == name)

    # -- events into words -----------------------------------------------------------------------------------------

    def _take(self, event: dict[str, Any]) -> None:
        group = event["group"]
        if group not in self._names:
            return
        self.events.append({**event, "seconds": event["time"] - self._began})
        kind, text = self._words(group, event)
        if text:
            self._print(event["time"], group, kind, text)

    def _words(self, group: str, event: dict[str, Any]) -> tuple[str, str]:
        """The kind of line that an event makes, and its text; empty for what is no news."""
        match event["kind"]:
            case "wait":
                return "wait", f"waits: {reason_text(event['reason']).replace('.ipynb', '')}"
            case "grant":
                self._running.add(group)
                waited = event["waited"]
                return "run", f"runs, having waited {waited:.2f} s" if waited >= 0.005 else "runs"
            case "burst" if event["phase"] == "begin":
                news = group not in self._running and not self._resumes(group)
                self._running.add(group)
                return "run", "runs: nobody took its place" if news else ""
            case "burst":
                self._running.discard(group)
                kind = "quiet" if event["cause"] == "quiet" else "end"
                return kind, ENDS.get(event["cause"], "")
            case "revoke":
                return "yield", "is asked to yield"
            case "release":
                self._running.discard(group)
                return "", ""
            case "evict" | "restore" if event["bytes"]:
                return self._move(event)
            case "refuse":
                return "refuse", f"is refused memory: {event['text']}"
            case "cancel":
                return "end", "waits no longer: interrupted"
        return "", ""

    def _resumes(self, group: str) -> bool:
        """Whether a burst only seemed to be over a moment ago; that is then not worth a line."""
        for entry in self._held:
            if entry[2:4] == (group, "quiet"):
                self._held.remove(entry)
                return True
        return False

    def _move(self, event: dict[str, Any]) -> tuple[str, str]:
        out = event["kind"] == "evict"
        text = f"{size(event['bytes'])} {'moved out to host memory' if out else 'moved in'}"
        copied, seconds = event["copied"], event["duration"]
        text += f" in {seconds:.2f} s"
        if copied < event["bytes"]:
            # Nothing was ever written to the rest.
            text += f", {size(copied)} of it copied"
        return "out" if out else "in", text

    # -- printing --------------------------------------------------------------------------------------------------

    def _print(self, at: float, group: str, kind: str, text: str) -> None:
        name = _paint(self._names[group].ljust(self._width), self._colours[group])
        glyph = _paint(GLYPHS.get(kind, " "), COLOURS.get(kind))
        shown = _paint(text, COLOURS.get(kind) if kind else "2")
        line = f"{at - self._began:8.3f} s  {name}  {glyph} {shown}"
        self._held.append((at, next(self._count), group, kind, line))

    async def _flush_on(self) -> None:
        while True:
            await asyncio.sleep(HOLD / 2)
            self._flush(time.monotonic() - HOLD)

    def _flush(self, until: float) -> None:
        ripe = sorted(entry for entry in self._held if entry[0] <= until)
        self._held = [entry for entry in self._held if entry[0] > until]
        for *_, line in ripe:
            print(line)
        if ripe:
            sys.stdout.flush()

    def _lane(self, group: str) -> str:
        spans = list(self._spans(group))
        total = self._ended - self._began
        lane = []
        for column in range(WIDTH):
            left, right = total * column / WIDTH, total * (column + 1) / WIDTH
            times = dict.fromkeys(LANES, 0.0)
            for begin, end, state in spans:
                times[state] += max(0.0, min(end, right) - max(begin, left))
            lane.append(LANES[max(times, key=lambda state: times[state])])
        return "".join(lane)

    def _spans(self, group: str) -> Iterable[tuple[float, float, str]]:
        """What the group did from when to when."""
        at, state = 0.0, "idle"
        for event in (event for event in self.events if event["group"] == group):
            follows = _follows(state, event)
            if follows != state:
                yield at, event["seconds"], state
                at, state = event["seconds"], follows
        yield at, self._ended - self._began, state


def _follows(state: str, event: dict[str, Any]) -> str:
    match event["kind"]:
        case "wait":
            return "waiting"
        case "grant":
            return "moving"
        case "restore":
            return "running" if state == "moving" else state
        case "burst":
            return "running" if event["phase"] == "begin" else "idle"
        case "release":
            return "waiting" if state == "waiting" else "idle"
    return state


class Report:
    """What the demo found.

    Parameters
    ----------
    plan
        What it ran on.
    names
        The notebooks.
    """

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._plan = plan
        self._names = list(names)
        self.gpu: dict[str, Any] = {}
        #: Seconds of each notebook alone, of each beside the other, and of both together.
        self.alone: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.together = 0.0
        #: The scheduler's totals of each notebook, and its memory backend.
        self.totals: dict[str, dict[str, Any]] = {}
        self.backends: dict[str, str] = {}
        #: What each notebook found right, by run.
        self.found: dict[str, dict[str, list[str]]] = {"alone": {}, "together": {}}
        self.timeline: Timeline | None = None
        self.problems: list[str] = []
        #: The end of the server's log, if the demo did not come to its end.
        self.log: list[str] = []

    def head(self) -> str:
        """What it runs on, before anything happens."""
        total = self.gpu["total"]
        each = size(int(total * self._plan.fraction))
        kind = "a simulated GPU" if self._plan.driver.simulated else self.gpu["name"]
        lines = [
            f"GPU: {kind}, {size(total)}. Each notebook takes {self._plan.fraction:.0%} of it, {each}"
            + (f" ({self._plan.remark})." if self._plan.remark else "."),
            "",
            "One after the other, for comparison:",
        ]
        return "\n".join(lines)

    def ran_alone(self, name: str) -> str:
        """How long a notebook took alone."""
        text = f"  {name.ljust(max(map(len, self._names)))}  {self.alone[name]:5.1f} s"
        if name == self._names[-1]:
            text += "\n\nAt once:"
        return text

    def check(self, name: str, cells: Sequence[Cell], how: str) -> None:
        """Note what a notebook's cells found, and whether all that should have found something did."""
        self.found[how][name] = [found for cell in cells for found in cell.found]
        for cell in cells:
            if cell.checks and not cell.found:
                self.problems.append(f"{name}: {cell.title!r} has checked nothing ({how})")

    def judge(self) -> None:
        """Note what is not as it must be, after both have run to their end."""
        assert self.timeline is not None
        for name in self._names:
            totals = self.totals[name]
            if not totals:
                self.problems.append(
                    f"{name} did not share the GPU: the scheduler does not know it"
                )
                continue
            moved = totals["evicted"] > 0 and totals["restored"] > 0
            if not totals["waits"] and not moved:
                self.problems.append(
                    f"{name} never waited and nothing of it moved: they did not compete"
                )
        ends = sum(self.timeline.ends(name, CELL_END) for name in self._names)
        if ends < CELL_ENDS:
            self.problems.append(
                f"the GPU was given up at a cell's end {ends} times; at least {CELL_ENDS} were due"
            )

    def text(self) -> str:
        """The summary and the verdict."""
        parts = []
        if self.timeline is not None and self.together:
            parts += [self._lanes(), self._table(), self._times()]
        if self.problems:
            parts.append(
                "\n".join(_paint(f"FAILED: {problem}", "1;31") for problem in self.problems)
            )
            if self.log:
                parts.append("\n".join(["The server's log ends with:", *self.log]))
        else:
            checks = sum(len(found) for runs in self.found.values() for found in runs.values())
            parts.append(
                _paint(f"All right: {checks} checks against {self._plan.against} hold.", "1;32")
            )
        return "\n" + "\n\n".join(parts)

    def _lanes(self) -> str:
        assert self.timeline is not None
        width = max(map(len, self._names))
        lines = [f"{name.ljust(width)}  {lane}" for name, lane in self.timeline.lanes()]
        legend = ", ".join(f"{glyph} {state}" for state, glyph in LANES.items())
        return "\n".join([*lines, f"{''.ljust(width)}  {legend}"])

    def _table(self) -> str:
        timeline = self.timeline
        assert timeline is not None
        rows: list[tuple[str, list[str]]] = [
            ("waits for the GPU", [str(self.totals[n]["waits"]) for n in self._names]),
            ("waited in all", [f"{self.totals[n]['waited']:.1f} s" for n in self._names]),
            (
                "GPU given up at a cell's end",
                [str(timeline.ends(n, CELL_END)) for n in self._names],
            ),
            ("... and taken by the other", [str(timeline.handed_over(n)) for n in self._names]),
            ("... given up inside a cell", [str(timeline.ends(n, ["quiet"])) for n in self._names]),
            (
                "copied to host memory",
                [size(timeline.moved(n, "evict")[0]) for n in self._names],
            ),
            ("copied back", [size(timeline.moved(n, "restore")[0]) for n in self._names]),
            ("spent moving", [f"{timeline.moved(n)[1]:.1f} s" for n in self._names]),
            ("memory backend", [self.backends[n] for n in self._names]),
            ("checks that hold", [str(len(self.found["together"][n])) for n in self._names]),
            ("seconds alone", [f"{self.alone[n]:.1f} s" for n in self._names]),
            ("seconds beside the other", [f"{self.seconds[n]:.1f} s" for n in self._names]),
        ]
        if not any(self.totals.values()):
            return ""
        head = ("", *self._names)
        return table(head, [(label, *cells) for label, cells in rows], set(range(1, len(head))))

    def _times(self) -> str:
        alone = sum(self.alone.values())
        ratio = self.together / alone
        change = f"{1 - ratio:.0%} less" if ratio < 1 else f"{ratio - 1:.0%} more"
        return (
            f"Both at once took {self.together:.1f} s, one after the other {alone:.1f} s: {change}."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "simulated": self._plan.driver.simulated,
            "gpu": {key: self.gpu.get(key) for key in ("name", "total")},
            "fraction": self._plan.fraction,
            "alone": self.alone,
            "one_after_the_other": sum(self.alone.values()),
            "together": self.together,
            "checks_alone": self.found["alone"],
            "notebooks": {
                name: self._notebook(name) for name in self._names if name in self.totals
            },
            "events": [] if self.timeline is None else self.timeline.events,
        }

    def _notebook(self, name: str) -> dict[str, Any]:
        assert self.timeline is not None
        return {
            "seconds": self.seconds[name],
            "backend": self.backends[name],
            "checks": self.found["together"][name],
            "given_up_at_cell_end": self.timeline.ends(name, CELL_END),
            "taken_over_at_cell_end": self.timeline.handed_over(name),
            "given_up_inside_a_cell": self.timeline.ends(name, ["quiet"]),
            "copied_out": self.timeline.moved(name, "evict")[0],
            "copied_in": self.timeline.moved(name, "restore")[0],
            "spent_moving": self.timeline.moved(name)[1],
            **self.totals[name],
        }


with contextlib.suppress(AttributeError):
    # A terminal that has no ✓ shows a question mark; it does not end the demo.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
