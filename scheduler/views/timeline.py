# SPDX-License-Identifier: BSD-3-Clause
"""The activity of groups in the last minutes (docs/contributing/lab-protocol.md), and the times of their cells.

Both get the state of a group after each event that concerns it, and derive what has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import Raw, Struct, json

from ..protocol.text import to_json
from .redaction import OTHER

if TYPE_CHECKING:
    from ..core.core import Core
    from .redaction import View

#: The seconds for which spans are kept, and the largest number of spans.
KEEP, MOST = 1800.0, 5000
#: A move arrives in pieces, with pauses of less than so many seconds.
GAP = 0.5
#: A utilisation that does not change is recorded again after so many seconds.
SAME = 10.0

SpanKind = Literal["burst", "wait", "in", "out", "hibernated"]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The state of a group at one moment. Times are seconds on CLOCK_MONOTONIC."""

    time: float
    group: str
    name: str
    #: Since when it has submitted work, and since when it has waited; None: it does not. A frozen group does not wait.
    ran_since: float | None
    waited_since: float | None
    #: Open cells with their begin, oldest first.
    cells: dict[str, float]
    #: Whether it holds a lease; and from when other groups can have its room unless it is busy.
    leased: bool = False
    movable_at: float = 0.0
    #: Whether it has no process any more.
    left: bool = False
    user: str = ""
    #: Since when it has been hibernated.
    hibernated_since: float | None = None


def take_snapshot(core: Core, group_id: str, now: float) -> GroupSnapshot:
    """Return the present state of a group."""
    group = core.groups.get(group_id)
    if group is None:
        return GroupSnapshot(now, group_id, group_id, None, None, {}, left=True)
    sleep = group.hibernation
    waits = [w.since for w in core.queue if w.group is group and w.logged and not w.frozen]
    # If a user only wakes it, no work is waiting.
    needed = bool(group.cells) or any(client.asked for client in group.clients.values())
    if sleep is not None and group.waking and needed:
        waits.append(sleep.since)
    return GroupSnapshot(
        now,
        group_id,
        group.name,
        group.burst.ran_since if group.busy else None,
        min(waits, default=None),
        dict(group.cells),
        leased=group.lease is not None and not group.yielding,
        movable_at=core.residency.movable_at(group),
        user=group.user,
        hibernated_since=(
            sleep.since if sleep is not None and sleep.stage == "hibernated" else None
        ),
    )


class Span(TypedDict):
    """A piece of the timeline: docs/contributing/lab-protocol.md."""

    id: int
    group: str
    name: str
    kind: SpanKind
    start: float
    end: float | None
    gpu: str | None
    bytes: int


class LearntSpan(Struct, frozen=True, array_like=True, tag="span"):
    """A span and its user, for the next scheduler."""

    user: str
    span: Span


class LearntSample(Struct, frozen=True, array_like=True, tag="sample"):
    """A reading of a GPU's utilisation, for the next scheduler."""

    time: float
    gpu: str
    percent: int


_LINE = json.Decoder(LearntSpan | LearntSample)


class Timeline:
    """Spans and samples of the last minutes.

    Parameters
    ----------
    now
        The time at which it begins, seconds on CLOCK_MONOTONIC.
    keep, most
        Seconds after which a span that has ended is dropped, and the largest number of spans.
    """

    def __init__(self, now: float, *, keep: float = KEEP, most: int = MOST) -> None:
        self._start = now
        self._keep = keep
        self._most = most
        #: Counts the changes.
        self.version = 0
        self._last_id = 0
        self._spans: dict[int, Span] = {}
        #: The version of each span's last change, in this order.
        self._changed: dict[int, int] = {}
        self._ended: deque[int] = deque()
        self._open: dict[tuple[str, SpanKind], Span] = {}
        #: The last move of each group on each GPU.
        self._moves: dict[tuple[str, str], Span] = {}
        #: Spans that have ended are encoded once, and not for each request.
        self._texts: dict[int, bytes] = {}
        #: These spans as other users see them; and the user of each span.
        self._hidden: dict[int, bytes] = {}
        self._users: dict[int, str] = {}
        self._samples: deque[tuple[int, float, bytes]] = deque()
        self._levels: dict[str, tuple[float, int]] = {}

    @property
    def start(self) -> float:
        """Return the time at which it begins."""
        return self._start

    def learnt(self, now: float) -> Iterator[bytes]:
        """Iterate over all spans and samples, encoded. Spans that have not ended end now."""
        for number, span in list(self._spans.items()):
            text = self._texts.get(number) or to_json({**span, "end": max(now, span["start"])})
            user = to_json(self._users.get(number, ""))
            yield b'["span",%b,%b]' % (user, text)
        for _, _, text in list(self._samples):
            yield b'["sample",%b' % text[1:]

    def recall(self, start: float, lines: Sequence[bytes], at_once: int) -> Iterator[None]:
        """Add spans and samples of another scheduler, ``at_once`` lines at each step.

        Raises
        ------
        msgspec.DecodeError
            A line is not valid.
        """
        samples = []
        room = max(0, self._most - len(self._spans))
        spans = sum(line.startswith(b'["span"') for line in lines)  # the samples come after them
        for number, line in enumerate(lines[max(0, spans - room) :], 1):
            found = _LINE.decode(line)
            if isinstance(found, LearntSample):
                text = to_json((found.time, found.gpu, found.percent))
                samples.append((found.time, text))
            elif found.span["end"] is not None:
                span = found.span
                self._add(
                    *(span["group"], span["name"], span["kind"], span["start"], span["end"]),
                    *(span["gpu"], span["bytes"], found.user),
                )
            if number % at_once == 0:
                yield
        self._ended = deque(sorted(self._ended, key=self._end_of))
        self.version += 1
        self._samples.extendleft((self.version, time, text) for time, text in reversed(samples))
        self._start = min(self._start, start)

    def _end_of(self, number: int) -> float:
        return self._spans[number]["end"] or 0.0

    def observe(self, seen: GroupSnapshot) -> None:
        """Apply the new state of a group."""
        self._update(seen, "burst", seen.ran_since)
        self._update(seen, "wait", seen.waited_since)
        self._update(seen, "hibernated", seen.hibernated_since)

    def move(
        self, time: float, group: str, name: str, kind: SpanKind, fields: Any, user: str = ""
    ) -> None:
        """Add a move of a group's memory: ``fields`` are those of the log's ``evict`` or ``restore``."""
        if not fields["bytes"]:
            return
        gpu, start = fields["gpu"], time - fields["duration"]
        last = self._moves.get((group, gpu))
        if (
            last is not None
            and last["kind"] == kind
            and last["end"] is not None
            and start - last["end"] < GAP
        ):
            last["end"] = max(last["end"], time)
            last["start"] = min(last["start"], start)
            last["bytes"] += fields["bytes"]
            self._touch(last)
            return
        self._add(group, name, kind, start, time, gpu, fields["bytes"], user)

    def utilization(self, time: float, gpu: str, percent: int | None) -> None:
        """Add a reading of a GPU's utilisation."""
        # Readings arrive all the time, even if no page requests the timeline.
        self._forget(time)
        at, before = self._levels.get(gpu, (-SAME, -1))
        if percent is None or (percent == before and time - at < SAME):
            return
        self._levels[gpu] = (time, percent)
        self.version += 1
        self._samples.append((self.version, time, to_json((time, gpu, percent))))

    def since(self, version: int, now: float, view: View | None = None) -> dict[str, Any]:
        """Return what has changed since a version (0: all), as lab-protocol.md describes it and a user may see it.

        Parameters
        ----------
        version
            The last version that the page has.
        now
            The time.
        view
            The view of the user; None: an administrator.
        """
        self._forget(now)
        spans = []
        for number in reversed(self._changed):
            if self._changed[number] <= version:
                break
            spans.append(self._text(number, view))
        samples = []
        for changed, _, text in reversed(self._samples):
            if changed <= version:
                break
            samples.append(text)
        return {
            "version": self.version,
            "start": self._start,
            "spans": Raw(b"[%b]" % b",".join(reversed(spans))),
            "samples": Raw(b"[%b]" % b",".join(reversed(samples))),
        }

    def _text(self, number: int, view: View | None) -> bytes:
        if view is None or self._users[number] == view.user:
            return self._texts.get(number) or to_json(self._spans[number])
        text = self._hidden.get(number)
        if text is None:
            span = self._spans[number]
            text = to_json({**span, "group": view.hide(span["group"]), "name": OTHER})
            if span["end"] is not None:
                self._hidden[number] = text
        return text

    def _update(self, seen: GroupSnapshot, kind: SpanKind, since: float | None) -> None:
        key = (seen.group, kind)
        span = self._open.get(key)
        if span is not None and (since is None or since > span["start"]):
            del self._open[key]
            span["end"] = max(span["start"], seen.time if since is None else since)
            self._ended.append(span["id"])
            self._touch(span)
            span = None
        if span is None and since is not None:
            self._open[key] = self._add(
                seen.group, seen.name, kind, since, None, None, 0, seen.user
            )

    def _add(
        self,
        group: str,
        name: str,
        kind: SpanKind,
        start: float,
        end: float | None,
        gpu: str | None,
        size: int,
        user: str,
    ) -> Span:
        self._last_id += 1
        span = Span(
            id=self._last_id,
            group=group,
            name=name,
            kind=kind,
            start=start,
            end=end,
            gpu=gpu,
            bytes=size,
        )
        self._spans[span["id"]] = span
        self._users[span["id"]] = user
        if gpu is not None:
            self._moves[group, gpu] = span
        if end is not None:
            self._ended.append(span["id"])
        self._touch(span)
        if len(self._spans) > self._most:
            self._forget(0.0)
        return span

    def _touch(self, span: Span) -> None:
        self.version += 1
        self._changed.pop(span["id"], None)
        self._changed[span["id"]] = self.version
        self._hidden.pop(span["id"], None)
        if span["end"] is not None:
            self._texts[span["id"]] = to_json(span)

    def _forget(self, now: float) -> None:
        """Drop spans that are too old, and the oldest ones if there are too many."""
        oldest = now - self._keep
        while self._ended:
            span = self._spans[self._ended[0]]
            number, end, gpu = span["id"], span["end"], span["gpu"]
            assert end is not None
            if end >= oldest and len(self._spans) <= self._most:
                break
            self._ended.popleft()
            del self._spans[number], self._changed[number], self._texts[number]
            del self._users[number]
            self._hidden.pop(number, None)
            if gpu is not None and self._moves.get((span["group"], gpu)) is span:
                del self._moves[span["group"], gpu]
            self._start = max(self._start, end)
        self._start = max(self._start, oldest)
        while self._samples and self._samples[0][1] < self._start:
            self._samples.popleft()


class Stopwatch:
    """Measures for how many seconds something was the case, up to now or up to a recent moment."""

    __slots__ = ("_ended", "_pieces", "since")

    def __init__(self) -> None:
        #: Since when it has been the case; None: it is not.
        self.since: float | None = None
        self._ended = 0.0
        self._pieces: deque[tuple[float, float]] = deque(maxlen=64)

    def set(self, since: float | None, now: float) -> None:
        """Set since when it has been the case, or None."""
        if since == self.since:
            return
        if self.since is not None:
            end = now if since is None else max(self.since, since)
            self._ended += end - self.since
            self._pieces.append((self.since, end))
        self.since = since

    def begin_with(self, seconds: float) -> None:
        """Continue from the seconds that another scheduler has measured."""
        self._ended = seconds

    def total(self, at: float) -> float:
        """Return the seconds up to ``at``."""
        total = self._ended
        for start, end in reversed(self._pieces):
            if end <= at:
                break
            total -= end - max(start, at)
        return total if self.since is None else total + max(0.0, at - self.since)


class LearntAccount(Struct, frozen=True, array_like=True):
    """The seconds for which a group has waited and run, and its last cell, for the next scheduler."""

    waited: float
    ran: float
    last: dict[str, Any] | None = None


@dataclass(slots=True)
class Account:
    """The times of one group, in total and in its cells."""

    waits: Stopwatch = field(default_factory=Stopwatch)
    runs: Stopwatch = field(default_factory=Stopwatch)
    #: By open cell: the seconds that the group had waited and run before the cell.
    cells: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: The last cell that ended, as docs/reference/control.md describes it.
    last: dict[str, Any] | None = None
    #: When it was last observed not to wait.
    free: float = 0.0


class Ledger:
    """Counts for how many seconds each group and its cells waited and ran."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def learnt(self, now: float) -> dict[str, LearntAccount]:
        """Return the times of each group up to now, and its last cell."""
        return {
            group: LearntAccount(account.waits.total(now), account.runs.total(now), account.last)
            for group, account in self._accounts.items()
        }

    def recall(self, learnt: Mapping[str, LearntAccount]) -> None:
        """Continue from the times that another scheduler has counted."""
        for group, known in learnt.items():
            account = self._accounts[group] = Account(last=known.last)
            account.waits.begin_with(known.waited)
            account.runs.begin_with(known.ran)

    def forget(self, group: str) -> None:
        """Forget a group that has left."""
        self._accounts.pop(group, None)

    def observe(self, seen: GroupSnapshot) -> GroupSnapshot:
        """Apply the new state of a group; return the state with the time since which it has really waited.

        A group that returns to its old place in the queue did not wait while it was served, or frozen.
        """
        if seen.left:
            self.forget(seen.group)
            return seen
        account = self._accounts.setdefault(seen.group, Account())
        since = seen.waited_since
        if since is None:
            account.free = seen.time
        elif account.waits.since is not None:
            since = account.waits.since
        elif since < account.free:
            since = seen.time
        account.waits.set(since, seen.time)
        account.runs.set(seen.ran_since, seen.time)
        for cell in [cell for cell in account.cells if cell not in seen.cells]:
            account.last = {"msg_id": cell, **_taken(account, cell, seen.time)}
            del account.cells[cell]
        for cell, at in seen.cells.items():
            if cell not in account.cells:
                account.cells[cell] = (account.waits.total(at), account.runs.total(at))
        return seen if since == seen.waited_since else replace(seen, waited_since=since)

    def cell(self, group: str, cell: str, now: float) -> dict[str, float]:
        """Return the seconds that an open cell has waited and run so far."""
        account = self._accounts.get(group)
        if account is None or cell not in account.cells:
            return {"waited": 0.0, "ran": 0.0}
        return _taken(account, cell, now)

    def totals(self, group: str, now: float) -> dict[str, float]:
        """Return the seconds that a group has waited and run so far."""
        account = self._accounts.get(group)
        if account is None:
            return {"waited": 0.0, "ran": 0.0}
        return {"waited": account.waits.total(now), "ran": account.runs.total(now)}

    def last_cell(self, group: str) -> dict[str, Any] | None:
        """Return the last cell that ended, with its times."""
        account = self._accounts.get(group)
        return None if account is None else account.last


def _taken(account: Account, cell: str, now: float) -> dict[str, float]:
    waited, ran = account.cells[cell]
    return {"waited": account.waits.total(now) - waited, "ran": account.runs.total(now) - ran}
