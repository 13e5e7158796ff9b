# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare demo --run`` prints: the queue's timeline while it happens, and a summary."""

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
from ...scheduler.views.words.amounts import duration, size
from ...scheduler.views.words.reasons import reason_text
from ..terminal import table
from .plan import Cell, Plan

#: Seconds by which lines are held back, to print the server's and the scheduler's reports in the order of events.
HOLD = 0.1
#: Columns of the picture that shows which notebook was running when.
WIDTH = 76
#: Bursts that must have ended with their cell. Some end earlier, when the cell no longer uses the GPU.
CELL_ENDS = 4
#: Causes of a burst's end that mean the end of a cell: reported by the Jupyter kernel or by the server.
CELL_END = ("cell", "idle")
#: How often the GPU must at least have gone to another notebook: from the first to the second and back.
HANDOVERS = 2

ENDS = {
    "cell": "released the GPU: the cell ended",
    "idle": "released the GPU: the cell ended",
    "quiet": "released the GPU: the cell continues without it",
    "release": "released the GPU on request",
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
LEGEND = """\
  ▶ running   ■ released the GPU   … waiting   ◁ preempted
  ↓ evicted to host memory   ↑ restored to the GPU   ✓ result verified
"""
COLOURS = {"run": "32", "wait": "33", "out": "35", "in": "35", "right": "1;32", "refuse": "31"}
NAME_COLOURS = ("36", "34")
LANES = {"running": "█", "restoring": "▒", "waiting": "░", "idle": "·"}


def _paint(text: str, colour: str | None) -> str:
    if not colour or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{colour}m{text}\033[0m"


class Timeline:
    """Prints the events of the queue while they happen, and keeps them.

    Parameters
    ----------
    names
        Names of the lease groups. Events of other groups are left out.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._width = max(map(len, names.values()))
        self._colours = dict(zip(self._names, itertools.cycle(NAME_COLOURS), strict=False))
        self._began = time.monotonic()
        self._ended = self._began
        #: Lines that are not printed yet: time, order, group, kind, text.
        self._held: list[tuple[float, int, str, str, str]] = []
        self._count = itertools.count()
        self._flusher: asyncio.Task[None] | None = None
        #: Groups whose burst began with a grant: the event of the burst itself adds nothing.
        self._running: set[str] = set()
        #: The scheduler's events, with seconds since the beginning.
        self.events: list[dict[str, Any]] = []
        #: Pauses between cells: group, begin and end.
        self._pauses: list[tuple[str, float, float]] = []

    def begin(self, at: float) -> None:
        """Start the clock."""
        self._began = at
        self._flusher = asyncio.create_task(self._flush_on())

    def end(self) -> None:
        """Print the lines that are still held back."""
        self._ended = time.monotonic()
        if self._flusher is not None:
            self._flusher.cancel()
        self._flush(float("inf"))

    async def follow(self, control: AsyncControlClient) -> None:
        """Process the scheduler's events until it ends."""
        async for event in control.subscribe():
            self._take(event)

    def cell(self, group: str, at: float, title: str) -> None:
        """Record that a cell began."""
        self._print(at, group, "", title)

    def pause(self, group: str, began: float, ended: float) -> None:
        """Record that a notebook's user paused between two cells."""
        self._pauses.append((group, began - self._began, ended - self._began))

    def right(self, group: str, line: str) -> None:
        """Record that a notebook verified a result."""
        self._print(time.monotonic(), group, "right", line.removeprefix("✓ "))

    def lanes(self) -> list[tuple[str, str]]:
        """Return a lane for each notebook; a column shows the state that took most of its time."""
        return [(name, self._lane(group)) for group, name in self._names.items()]

    def ends(self, name: str, causes: Sequence[str]) -> int:
        """Count a notebook's bursts that ended with one of these causes."""
        return sum(
            event["kind"] == "burst" and event["phase"] == "end" and event["cause"] in causes
            for event in self._of(name)
        )

    def handed_over(self, name: str) -> int:
        """Count how often a notebook's lease went to another one after a cell had ended."""
        count, over, released = 0, False, False
        for event in self.events:
            kind, own = event["kind"], self._names[event["group"]] == name
            if own and kind == "burst":
                over = event["phase"] == "end" and event["cause"] in CELL_END
            elif own and kind == "release":
                released = over
            elif kind == "grant":
                # The notebook may get its lease back at once, before anything was evicted.
                count += released and not own
                released = False
        return count

    def handovers(self) -> int:
        """Count how often the GPU went from one notebook to another one."""
        users = [event["group"] for event in self.events if event["kind"] == "grant"]
        return sum(one != other for one, other in itertools.pairwise(users))

    def pauses(self) -> tuple[int, int, float]:
        """Count the pauses, and those in which another notebook had the GPU; add up their seconds."""
        busy = [
            (group, begin, end)
            for group in self._names
            for begin, end, state in self._spans(group)
            if state in ("running", "restoring")
        ]
        used = sum(
            any(user != group and begin < until and end > since for user, begin, end in busy)
            for group, since, until in self._pauses
        )
        return len(self._pauses), used, sum(until - since for _, since, until in self._pauses)

    def moved(self, name: str, *kinds: str) -> tuple[int, float]:
        """Return the bytes of a notebook that were copied, and the seconds that took."""
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
        """Return an event's kind of line and its text; the text is empty if the event is not shown."""
        match event["kind"]:
            case "wait":
                return "wait", f"waiting: {reason_text(event['reason']).replace('.ipynb', '')}"
            case "grant":
                self._running.add(group)
                waited = event["waited"]
                return (
                    "run",
                    f"running after a wait of {waited:.2f} s" if waited >= 0.005 else "running",
                )
            case "burst" if event["phase"] == "begin":
                shown = group not in self._running and not self._resumes(group)
                self._running.add(group)
                return "run", "running: it still had the GPU" if shown else ""
            case "burst":
                self._running.discard(group)
                kind = "quiet" if event["cause"] == "quiet" else "end"
                return kind, ENDS.get(event["cause"], "")
            case "revoke":
                return "yield", "preempted"
            case "release":
                self._running.discard(group)
                return "", ""
            case "evict" | "restore" if event["bytes"]:
                return self._move(event)
            case "refuse":
                return "refuse", f"memory request refused: {event['text']}"
            case "cancel":
                return "end", "stopped waiting: the cell was interrupted"
        return "", ""

    def _resumes(self, group: str) -> bool:
        """Say whether a burst only paused for a moment; drop the line about its end."""
        for entry in self._held:
            if entry[2:4] == (group, "quiet"):
                self._held.remove(entry)
                return True
        return False

    def _move(self, event: dict[str, Any]) -> tuple[str, str]:
        out = event["kind"] == "evict"
        copied, seconds = event["copied"], event["duration"]
        # Memory that was never written has nothing to copy.
        if out:
            done = "evicted to host memory" if copied else "evicted without copying"
        else:
            done = "restored to the GPU" if copied else "allocated on the GPU"
        text = f"{size(event['bytes'])} {done} in {seconds:.2f} s"
        if 0 < copied < event["bytes"]:
            text += f" ({size(copied)} copied)"
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
        """Return the group's states with their begin and end."""
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
            return "restoring"
        case "restore":
            return "running" if state == "restoring" else state
        case "burst":
            return "running" if event["phase"] == "begin" else "idle"
        case "release":
            return "waiting" if state == "waiting" else "idle"
    return state


class Report:
    """The results of the demo.

    Parameters
    ----------
    plan
        What the demo runs on.
    names
        The notebooks.
    """

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._plan = plan
        self._names = list(names)
        self.gpu: dict[str, Any] = {}
        #: Seconds of each notebook alone, of each with the others, and of all together.
        self.alone: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.together = 0.0
        #: The scheduler's totals of each notebook, and its memory backend.
        self.totals: dict[str, dict[str, Any]] = {}
        self.backends: dict[str, str] = {}
        #: The results that each notebook verified, by run.
        self.found: dict[str, dict[str, list[str]]] = {"alone": {}, "together": {}}
        self.timeline: Timeline | None = None
        self.problems: list[str] = []
        #: The end of the server's log, if the demo failed.
        self.log: list[str] = []

    def head(self) -> str:
        """Explain what is about to happen."""
        total, count = self.gpu["total"], len(self._names)
        kind = "a simulated GPU" if self._plan.driver.simulated else self.gpu["name"]
        lines = [
            f"GPU: {kind}, {size(total)}.",
            f"The {count} notebooks need {size(self._each())} each ({self._plan.fraction:.0%} of the GPU) and "
            f"{size(count * self._each())} together, so they cannot all be on the GPU at the same time.",
            *([self._plan.remark] if self._plan.remark else []),
            "In both runs, the users pause between cells to look at results and to think.",
            "",
            "1. One after the other, for comparison (a dot for each cell)",
        ]
        return "\n".join(lines)

    def _each(self) -> int:
        return int(self.gpu["total"] * self._plan.fraction)

    def label(self, name: str) -> str:
        """Begin the line about a notebook's run alone."""
        return f"   {name.ljust(max(map(len, self._names)))}  "

    def ran_alone(self, name: str) -> str:
        """End the line about a notebook's run alone."""
        text = f"  {self.alone[name]:5.1f} s"
        if name == self._names[-1]:
            text += f"\n\n2. At the same time: the scheduler's events\n{LEGEND}"
        return text

    def check(self, name: str, cells: Sequence[Cell], how: str) -> None:
        """Record the results that a notebook verified, and the cells that should have verified one but did not."""
        self.found[how][name] = [found for cell in cells for found in cell.found]
        for cell in cells:
            if cell.checks and not cell.found:
                self.problems.append(f"{name}: {cell.title!r} did not check anything ({how})")

    def judge(self) -> None:
        """Record what is wrong after all notebooks have finished.

        Checks look at results and at the order of events, never at times: those depend on how busy the machine is.
        """
        assert self.timeline is not None
        for name in self._names:
            totals = self.totals[name]
            if not totals:
                self.problems.append(
                    f"{name} did not share the GPU: it never connected to the scheduler"
                )
                continue
            moved = totals["evicted"] > 0 and totals["restored"] > 0
            if not totals["waits"] and not moved:
                self.problems.append(
                    f"{name} never waited and was never evicted: it did not compete for the GPU"
                )
        ends = sum(self.timeline.ends(name, CELL_END) for name in self._names)
        if ends < CELL_ENDS:
            self.problems.append(
                f"the GPU was released at the end of {ends} cells; at least {CELL_ENDS} were expected"
            )
        handovers = self.timeline.handovers()
        if handovers < HANDOVERS:
            self.problems.append(
                f"the GPU went to another notebook {handovers} times; at least {HANDOVERS} were expected"
            )

    def text(self) -> str:
        """Return the summary."""
        parts = []
        if self.timeline is not None and self.together:
            parts += [self._lanes(), self._table()]
        if self.problems:
            parts.append(
                "\n".join(_paint(f"FAILED: {problem}", "1;31") for problem in self.problems)
            )
            if self.log:
                parts.append("\n".join(["The server's log ends with:", *self.log]))
        else:
            parts += [self._summary(self.timeline), _paint("Passed.", "1;32")]
        return "\n" + "\n\n".join(part for part in parts if part)

    def _summary(self, timeline: Timeline | None) -> str:
        """Say in a few lines what this run has shown."""
        assert timeline is not None
        needed, total = len(self._names) * self._each(), self.gpu["total"]
        pauses, used, thought = timeline.pauses()
        moved = sum(timeline.moved(name)[1] for name in self._names)
        waits = ", ".join(f"{n} {duration(self.totals[n]['waited'])}" for n in self._names)
        checks = sum(len(found) for runs in self.found.values() for found in runs.values())
        lines = [
            *self._times(),
            f"- The notebooks needed {size(needed)} on a GPU of {size(total)}, and none ran out of memory.",
            f"- In {used} of {pauses} pauses, another notebook used the GPU while the user was thinking.",
            f"- Moving memory took {duration(moved)}; the pauses took {duration(thought)}.",
            f"- Time spent waiting for the GPU: {waits}.",
            f"- All {checks} results are the same as those of {self._plan.against}.",
        ]
        return "\n".join(["Summary", "", *lines])

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
            ("waited, total", [f"{self.totals[n]['waited']:.1f} s" for n in self._names]),
            (
                "released the GPU at the end of a cell",
                [str(timeline.ends(n, CELL_END)) for n in self._names],
            ),
            (
                "... and another notebook got the GPU",
                [str(timeline.handed_over(n)) for n in self._names],
            ),
            (
                "released the GPU within a cell",
                [str(timeline.ends(n, ["quiet"])) for n in self._names],
            ),
            ("copied to host memory", [size(timeline.moved(n, "evict")[0]) for n in self._names]),
            ("copied back", [size(timeline.moved(n, "restore")[0]) for n in self._names]),
            ("time spent moving memory", [f"{timeline.moved(n)[1]:.1f} s" for n in self._names]),
            ("memory backend", [self.backends[n] for n in self._names]),
            ("verified results", [str(len(self.found["together"][n])) for n in self._names]),
            ("run time alone", [f"{self.alone[n]:.1f} s" for n in self._names]),
            ("run time together", [f"{self.seconds[n]:.1f} s" for n in self._names]),
        ]
        if not any(self.totals.values()):
            return ""
        head = ("", *self._names)
        lines = table(head, [(label, *cells) for label, cells in rows], set(range(1, len(head))))
        return lines.plain

    def _times(self) -> list[str]:
        alone = sum(self.alone.values())
        ratio = self.together / alone
        lines = [
            f"  one after the other  {alone:6.1f} s",
            f"  at the same time     {self.together:6.1f} s",
            f"  ratio                {ratio:6.2f}    "
            + (f"({1 - ratio:.0%} less time)" if ratio < 1 else f"({ratio - 1:.0%} more time)"),
            "",
        ]
        if ratio >= 1:
            lines += [
                "Sharing saved no time in this run. Usually, this means that other programs keep the machine busy.",
                "",
            ]
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return everything, for programs."""
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "simulated": self._plan.driver.simulated,
            "gpu": {key: self.gpu.get(key) for key in ("name", "total")},
            "fraction": self._plan.fraction,
            "alone": self.alone,
            "one_after_the_other": sum(self.alone.values()),
            "together": self.together,
            "ratio": self.together / sum(self.alone.values()) if self.together else None,
            **self._order(),
            "checks_alone": self.found["alone"],
            "notebooks": {
                name: self._notebook(name) for name in self._names if name in self.totals
            },
            "events": [] if self.timeline is None else self.timeline.events,
        }

    def _order(self) -> dict[str, Any]:
        if self.timeline is None:
            return {}
        pauses, used, seconds = self.timeline.pauses()
        return {
            "handovers": self.timeline.handovers(),
            "pauses": pauses,
            "pauses_used_by_others": used,
            "pauses_seconds": seconds,
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
    # A terminal that cannot show ✓ shows a question mark instead of ending the demo.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
