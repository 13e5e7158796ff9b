# SPDX-License-Identifier: BSD-3-Clause
"""What happened: numbered events for programs, spans for the timeline, and the times of groups and waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..core import messages as ev
from ..core.core import Core
from ..node.identity import Identities
from ..protocol import wire as protocol
from ..views.estimates import Forecast
from ..views.redaction import BroadcastEvent, View
from ..views.timeline import GroupSnapshot, Ledger, SpanKind, Timeline, take_snapshot

log = logging.getLogger(__name__)

#: The number of events that are kept.
KEPT = 10_000

#: The answer to a control request, or what returns it later.
Answer = dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]

_MOVES: dict[str, SpanKind] = {"evict": "out", "restore": "in"}


class Subscriber(Protocol):
    """A connection that receives every event."""

    def write(self, data: bytes) -> None:
        """Send data."""
        ...


class Older:
    """What the previous scheduler has left in a file. It may be large, so it is loaded in steps.

    Parameters
    ----------
    read
        Reads the lines of the file. A thread does this.
    apply
        Applies some of the lines at each step.
    """

    def __init__(
        self, read: Callable[[], list[bytes]], apply: Callable[[list[bytes]], Iterator[None]]
    ) -> None:
        self._read, self._apply = read, apply
        self._reading: asyncio.Future[list[bytes]] | None = None
        self._steps: Iterator[None] | None = None
        self.loaded = False

    async def load(self, pause: float = 0.0) -> None:
        """Load what is not loaded yet, with a pause in seconds after each step. The scheduler serves meanwhile."""
        if self.loaded:
            return
        try:
            if self._reading is None:
                self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            lines = await asyncio.shield(self._reading)
            if self._steps is None:  # they are the same for all that load at the same time
                self._steps = self._apply(lines)
            for _ in self._steps:
                await asyncio.sleep(pause)
        except Exception:
            log.exception("What the previous scheduler has left cannot be loaded")
        self.loaded = True


async def _answer_after(
    loading: Coroutine[Any, Any, None], answer: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    await loading
    return answer()


class EventHistory:
    """Keeps what happened, and sends it to the subscribers.

    Parameters
    ----------
    core, identities
        Those of the server.
    started
        When the server started, seconds on CLOCK_MONOTONIC.
    observe
        Called with each line of the core's history.
    view_of
        Returns the view of a subscriber's user; None: the user sees everything.
    """

    def __init__(
        self,
        core: Core,
        identities: Identities,
        started: float,
        observe: Callable[[ev.Log], None],
        view_of: Callable[[Any], View | None],
    ) -> None:
        self._core, self._identities = core, identities
        self._observe, self._view_of = observe, view_of
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        #: The number of the last event.
        self.sequence = 0
        #: Connections that receive every event.
        self.subscribers: set[Subscriber] = set()
        #: The name and the user of each attached group.
        self._names: dict[str, str] = {}
        self._users: dict[str, str] = {}
        #: Events and spans of the previous scheduler; None: there are none. Only answers need them.
        self.older: Older | None = None
        self.older_spans: Older | None = None
        self._fresh: list[tuple[float, ev.Log]] = []
        self._snapshots: list[GroupSnapshot] = []
        self.ledger = Ledger()
        self.timeline = Timeline(started)
        self.forecast = Forecast()

    @property
    def is_due(self) -> bool:
        """Whether anything has happened that was not published."""
        return bool(self._fresh)

    def name(self, group: str, name: str) -> None:
        """Note the name of a group that is about to attach."""
        self._names[group] = name

    def join(self, group: str) -> None:
        """Note the user of a group that has attached."""
        self._users[group] = self._core.groups[group].user

    def rename(self, group: str, name: str) -> None:
        """Note the new name of a group, if it is attached."""
        if group in self._names:
            self._names[group] = name

    def note(self, line: ev.Log, now: float) -> None:
        """Note a line of the core's history."""
        self._fresh.append((now, line))

    def look(self, group: str, now: float) -> None:
        """Note the present state of a group."""
        self._snapshots.append(take_snapshot(self._core, group, now))

    def after(self, sequence: int) -> list[dict[str, Any]]:
        """Return the events after the one with a number, as far as they are kept and loaded."""
        found = []
        for event in reversed(self.events):
            if event["sequence"] <= sequence:
                break
            found.append(event)
        return found[::-1]

    def show_to_stranger(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event as unrelated users see it."""
        return self._identities.stranger().event(event)

    def spans(self, version: int, now: float, view: View | None) -> dict[str, Any]:
        """Return what has changed in the timeline, as far as it is loaded, as ``Timeline.since`` does."""
        return self.timeline.since(version, now, view)

    def lacks(self, sequence: int) -> bool:
        """Whether events after the one with a number may not be loaded yet."""
        first = self.events[0]["sequence"] if self.events else self.sequence + 1
        return self.older is not None and not self.older.loaded and sequence + 1 < first

    def with_events(self, sequence: int, answer: Callable[[], dict[str, Any]]) -> Answer:
        """Answer a request once the events after the one with a number are loaded."""
        if self.lacks(sequence):
            return _answer_after(self.load_events(), answer)
        return answer()

    def with_spans(self, answer: Callable[[], dict[str, Any]]) -> Answer:
        """Answer a request once the whole timeline is loaded."""
        if self.older_spans is not None and not self.older_spans.loaded:
            return _answer_after(self.load_spans(), answer)
        return answer()

    async def load_events(self) -> None:
        """Load the events that the previous scheduler has left."""
        if self.older is not None:
            await self.older.load()

    async def load_spans(self) -> None:
        """Load the timeline that the previous scheduler has left."""
        if self.older_spans is not None:
            await self.older_spans.load()

    async def load_slowly(self, pause: float) -> None:
        """Load both, with a pause in seconds after each step."""
        for each in (self.older, self.older_spans):
            if each is not None:
                await each.load(pause)

    def add_before(self, events: Sequence[dict[str, Any]]) -> None:
        """Add events of the previous scheduler, which are older than all others."""
        room = KEPT - len(self.events)
        self.events.extendleft(reversed(events[max(0, len(events) - room) :]))

    def forget(self, group: str) -> None:
        """Forget a group of the previous scheduler that has not returned."""
        self.ledger.forget(group)
        self.forecast.forget(group)

    def publish(self, *, estimate: bool = True) -> None:
        """Number what has happened, and send it to the subscribers; ``estimate``: estimate new waits, too."""
        fresh, self._fresh = self._fresh, []
        snapshots, self._snapshots = self._snapshots, []
        for seen in snapshots:
            honest = self.ledger.observe(seen)
            self.timeline.observe(honest)
            self.forecast.observe(honest)
        if estimate and self.forecast.due:
            self.forecast.estimates(self._core, time.monotonic())
        happened = [self._number(at, entry) for at, entry in fresh]
        if happened and self.subscribers:
            self._push(happened)

    def _number(self, at: float, entry: ev.Log) -> dict[str, Any]:
        """Number a line, and keep it as an event."""
        self.sequence += 1
        self._observe(entry)
        group = entry.group
        user = self._users.get(group) or self._identities.owner(group) or ""
        event = {
            "sequence": self.sequence,
            "time": at,
            "kind": entry.kind,
            "group": group,
            "name": self._names.get(group, group),
            "user": user,
            **entry.fields,
        }
        if entry.kind == "leave" and group not in self._core.groups:
            self._names.pop(group, None)
            self._users.pop(group, None)
        elif kind := _MOVES.get(entry.kind):
            self.timeline.move(at, group, event["name"], kind, entry.fields, user)
        self.events.append(event)
        log.debug("%s %s %s", entry.kind, group, entry.fields)
        return event

    def _push(self, events: list[dict[str, Any]]) -> None:
        """Send events to the subscribers, each as it may see them."""
        stranger = self._identities.stranger()
        broadcasts = [BroadcastEvent(event, stranger, _as_event) for event in events]
        for subscriber in list(self.subscribers):
            view = self._view_of(subscriber)
            subscriber.write(b"".join(each.to(view) for each in broadcasts))


def _as_event(event: Mapping[str, Any]) -> bytes:
    return protocol.encode_json(protocol.EVENT, event)
