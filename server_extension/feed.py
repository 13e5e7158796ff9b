# SPDX-License-Identifier: BSD-3-Clause
"""Keeps numbered deltas for the pages that look, and announces each number (lab-protocol.md, "Live by push").

The event bus carries numbers only: its readers need the permission for `events`, not the one for `gpushare`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from logging import Logger
from pathlib import Path

from jupyter_events import EventLogger

from .delta import Changes, State

SCHEMA = Path(__file__).parent / "schemas" / "changed.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpushare/changed/v1"

#: Seconds for which a page is registered.
REGISTRATION = 60.0
#: Most pages that are registered at once.
MAX_PAGES = 1000
#: Seconds that the first change of a series waits for the others.
GATHER = 0.01
#: Shortest time between two deltas in seconds, and the same as a multiple of the processor time that the last one took.
INTERVAL = 0.1
SHARE = 20
#: Seconds after which the state is looked at though nothing was said to have changed: what other programs do makes no
#: event.
LOOK = 1.0
#: Longest time between two announcements in seconds, also where nothing has changed.
BEAT = 5.0
#: Deltas that are kept for pages that fetch them late: those of 3 seconds at least.
KEPT = 30

#: Makes the state; with the version of the timeline that is known (0: none), the new part of the timeline as well.
Source = Callable[[int | None], Awaitable[State]]


class TooManyPages(Exception):
    """No more pages can be registered; the message is shown to the user."""


@dataclass
class Page:
    """A page that looks: until when in the loop's time, and whether at the timeline."""

    until: float
    timeline: bool


class Feed:
    """The state of the GPUs for pages that look, and their deltas.

    Every state is made under one lock, and every change from one state to the next goes into a delta, so a page that
    applies all deltas after the one that a reply names has the same state as the server.

    Parameters
    ----------
    events
        The server's event bus.
    source
        Makes the state.
    log
        For what goes wrong.
    """

    def __init__(self, events: EventLogger, source: Source, log: Logger) -> None:
        self._events = events
        self._source = source
        self._log = log
        #: The name of this feed: deltas of different feeds cannot be combined.
        self.stream = secrets.token_hex(8)
        #: The number of the last delta.
        self.sequence = 0
        #: The last deltas, as JSON, with their numbers.
        self._deltas: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._pages: dict[str, Page] = {}
        self._changes: Changes | None = None
        #: The version of the timeline that went into states and changes; None: no page shows it.
        self._version: int | None = None
        #: The timeline could not be had when it was looked at last: the next delta lacks a part of it.
        self._gap = False
        self._lock = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._announced = 0.0

    async def state(self, page: str | None = None, timeline: bool = False) -> State:
        """Return the whole state, and register the page that asks.

        Raises
        ------
        TooManyPages
            If it cannot be registered.
        """
        if page is not None:
            self._register(page, timeline)
        async with self._lock:
            # What changes from here on has a higher number, though it may be in the answer already.
            sequence, known = self.sequence, self._version
            whole = None
            if timeline and known is not None:
                whole = (await self._source(0))["timeline"]
            state = await self._look(timeline)
            news = state.pop("timeline")
            if timeline and known is None:
                whole = news
            if whole is not None and self._changes is not None:
                # A page adds samples to those it has.
                whole = {**whole, "samples": self._changes.untold(whole["samples"])}
        return {**state, "stream": self.stream, "sequence": sequence, "timeline": whole}

    def since(self, number: int) -> str:
        """Return the deltas after a number, as a JSON object.

        A page that lacks more than is kept sees that from the numbers.
        """
        deltas = ",".join(text for own, text in self._deltas if own > number)
        return f'{{"stream": "{self.stream}", "sequence": {self.sequence}, "deltas": [{deltas}]}}'

    def forget(self, page: str) -> None:
        """End the registration of a page."""
        self._pages.pop(page, None)
        self._stirred.set()

    def changed(self) -> None:
        """Note that the state may have changed."""
        self._stirred.set()

    def restart(self) -> None:
        """Note that there is another scheduler, whose timeline has nothing to do with the last one's."""
        self._version, self._gap = None, False
        self._leave_out()
        self._stirred.set()

    async def stop(self) -> None:
        """Tell nothing more."""
        self._pages.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _leave_out(self) -> None:
        """Leave a number out: pages that hear the next one ask for the whole state."""
        self.sequence += 1

    def _register(self, page: str, timeline: bool) -> None:
        loop = asyncio.get_running_loop()
        if page not in self._pages and self._watched() and len(self._pages) >= MAX_PAGES:
            raise TooManyPages(f"{MAX_PAGES} pages are already open; close some of them")
        self._pages[page] = Page(loop.time() + REGISTRATION, timeline)
        if self._task is None:
            # Nobody has kept the count since the last delta.
            self._leave_out()
            self._announced = loop.time()
            self._task = loop.create_task(self._run())

    def _watched(self) -> bool:
        """Whether some page looks still."""
        now = asyncio.get_running_loop().time()
        self._pages = {name: page for name, page in self._pages.items() if page.until > now}
        return bool(self._pages)

    async def _look(self, timeline: bool = False) -> State:
        """Make the state, with what is new of the timeline, and note what has changed for open pages."""
        wanted = any(page.timeline for page in self._pages.values())
        known = self._version if wanted else None
        state = await self._source(known or 0 if wanted or timeline else None)
        news = state["timeline"]
        if self._task is None:
            return state
        if self._changes is None:
            self._changes = Changes(state)
        else:
            # The page that asks for the timeline first gets it whole.
            self._changes.see(state, None if known is None else news)
        self._version = news["version"] if wanted and news else None
        if self._gap and news:
            self._leave_out()
        self._gap = wanted and not news
        return state

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stirred.wait(), LOOK)
                if not self._watched():
                    return
                await asyncio.sleep(GATHER)
                self._stirred.clear()
                took = await self._tell(loop)
                await asyncio.sleep(min(max(INTERVAL, SHARE * took), BEAT - 2 * LOOK))
        finally:
            self._task = self._changes = self._version = None
            self._gap = False
            self._deltas.clear()

    async def _tell(self, loop: asyncio.AbstractEventLoop) -> float:
        """Announce a delta if something changed, or the last one again after a while; return the seconds of work.

        To wait for the scheduler, or for a processor, is no work.
        """
        spent = time.thread_time()
        async with self._lock:
            begun = loop.time()
            try:
                await self._look()
                changes = self._changes
                if changes is not None and changes.any:
                    if changes.unspeakable:
                        self._leave_out()
                    self._keep(changes.take())
                    self._announce(begun)
                elif changes is not None and begun - self._announced > BEAT - 2 * LOOK:
                    self._announce(begun)
            except Exception:
                # The next attempt may succeed; pages that receive nothing send requests.
                self._log.exception("gpushare: cannot send the changes to the pages")
        # The listeners write to their sockets before this goes on.
        await asyncio.sleep(0)
        return time.thread_time() - spent

    def _keep(self, delta: State) -> None:
        """Number a delta, and keep it for the pages."""
        self.sequence += 1
        numbered = {"stream": self.stream, "sequence": self.sequence, **delta}
        # Made once, however many pages fetch it.
        self._deltas.append((self.sequence, json.dumps(numbered)))

    def _announce(self, now: float) -> None:
        """Emit the number of the last delta."""
        self._announced = now
        self._events.emit(
            schema_id=SCHEMA_ID, data={"stream": self.stream, "sequence": self.sequence}
        )
