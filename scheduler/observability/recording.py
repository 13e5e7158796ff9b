# SPDX-License-Identifier: BSD-3-Clause
"""Recordings of the core's events: docs/explanation/scheduling.md, "Explaining, recording, replaying".

A recording is text with one JSON value a line. The first is an object, the header: the format's ``version``, the
``release`` that wrote it, the core's ``settings``, and the ``state`` at its beginning (``checkpoint.py``; null: that of
a new core). Each other line is one event: ``[time, kind, fields, decisions, checksum]``, with the number of the core's
decisions and their checksum. Lines of the history (``Log``) do not count.
"""

from __future__ import annotations

import json
import logging
import typing
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from ..._version import __version__
from ..core import messages as ev
from ..core.core import Core
from ..core.policy_api import PolicyRegistry
from ..core.rules import Rules
from ..policies import REGISTRY
from . import checkpoint
from .checkpoint import CheckpointError

log = logging.getLogger(__name__)

VERSION = 1
#: The number of events that are kept at least; and the number of further ones during which a good moment is awaited.
KEPT, LATE = 10_000, 40_000
#: With more clients, writing the state takes so long that a client might wait for it (10 ms).
FEW = 60


class RecordingError(Exception):
    """A recording cannot be read, or there is none. The message is one sentence for the user."""


class Entry(NamedTuple):
    """An event and its result: the decisions, or an error."""

    time: float
    event: ev.Event
    outcome: list[ev.Decision] | Exception


class Line(NamedTuple):
    """An entry as it is in a recording."""

    time: float
    event: ev.Event
    decisions: int
    checksum: str


@dataclass(slots=True)
class Kept:
    """The last events of a core, and the state before them."""

    settings: dict[str, Any]
    #: The number of entries at which a new beginning is needed, and of further ones until it no longer waits.
    enough: int
    late: int
    #: The state before ``entries``; None: that of a new core.
    state: list[Any] | None = None
    entries: list[Entry] = field(default_factory=list)
    #: The entries and the state before these.
    older: tuple[list[Any] | None, list[Entry]] | None = None
    #: The number of entries at which the next beginning is needed.
    look_again: int = 0
    #: Why nothing is kept at present; empty: events are kept.
    lost: str = ""


class Sink(Protocol):
    """A recording that takes entries: ``writer.Writer``."""

    @property
    def path(self) -> Path:
        """The path of the file."""
        ...

    @property
    def ended(self) -> str | None:
        """How it ended, or empty."""
        ...

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        ...

    def stop(self) -> None:
        """Write what has arrived so far, and end."""
        ...

    async def close(self) -> None:
        """Stop, and wait until everything is written."""
        ...

    def status(self) -> dict[str, Any]:
        """Return its state as described in docs/reference/control.md."""
        ...


class RecordedCore(Core):
    """A core that keeps the last events and their results.

    Keeping them costs one append for each. Once there are enough, the state before them is replaced by a later one, at
    a moment when no client waits.

    Parameters
    ----------
    policies, rules
        As for the core.
    kept, late
        As in ``KEPT`` and ``LATE``.
    """

    def __init__(
        self,
        policies: PolicyRegistry,
        rules: Rules | None = None,
        *,
        kept: int = KEPT,
        late: int = LATE,
    ) -> None:
        super().__init__(policies, rules)
        self.kept = Kept(self.rules.stated(), kept, late, look_again=kept)
        #: The recording that gets all entries from now on.
        self.sink: Sink | None = None

    def handle(self, event: ev.Event, now: float) -> list[ev.Decision]:
        """Apply an event, and keep it."""
        try:
            decisions = super().handle(event, now)
        except Exception as error:
            self._keep(Entry(now, event, error))
            raise
        self._keep(Entry(now, event, decisions))
        return decisions

    def _keep(self, entry: Entry) -> None:
        kept = self.kept
        kept.entries.append(entry)
        if self.sink is not None:
            self.sink.add(entry)
        if len(kept.entries) >= kept.look_again:
            self._begin_anew()

    def header(self) -> dict[str, Any]:
        """Return the header of the kept events.

        Raises
        ------
        RecordingError
            Nothing is kept.
        """
        kept = self.kept
        if kept.lost:
            raise RecordingError(kept.lost)
        return {
            "gpushare": "recording",
            "version": VERSION,
            "release": __version__,
            "settings": kept.settings,
            "state": kept.state if kept.older is None else kept.older[0],
        }

    def entries(self) -> list[Entry]:
        """Return the kept entries."""
        kept = self.kept
        return [*([] if kept.older is None else kept.older[1]), *kept.entries]

    def _begin_anew(self) -> None:
        kept = self.kept
        quiet = not self.queue and (len(self.clients) <= FEW or not self.model.leased)
        if not quiet and len(kept.entries) < kept.enough + kept.late:
            kept.look_again = len(kept.entries) + 64
            return
        kept.older = None if kept.lost else (kept.state, kept.entries)
        kept.entries, kept.look_again, kept.lost = [], kept.enough, ""
        if not quiet:
            kept.lost = "the scheduler has had no quiet moment for long"
        else:
            try:
                kept.state = checkpoint.encode(self, Core, ("kept", "sink"))
            except CheckpointError as error:
                kept.lost = str(error)
            except Exception as error:
                # Whatever another package's policy contains, the users of the GPU must not be affected.
                log.exception("the state cannot be written down")
                kept.lost = f"its state cannot be written ({error})"
        if kept.lost:
            kept.older = None
            kept.lost += ", so the events that it keeps have no beginning; start it with --record"


# --- Writing --------------------------------------------------------------------------------------


def write_header(header: dict[str, Any]) -> bytes:
    """Return the first line."""
    return json.dumps(header, separators=(",", ":")).encode() + b"\n"


def write(entry: Entry) -> bytes:
    """Return an entry as a line."""
    event = entry.event
    return _encode([entry.time, type(event).__name__, event, *_sum(entry.outcome)]) + b"\n"


def _sum(outcome: list[ev.Decision] | Exception) -> tuple[int, str]:
    if isinstance(outcome, Exception):
        return 0, _checksum([type(outcome).__name__])
    said = [
        (type(decision).__name__, decision) for decision in outcome if type(decision) is not ev.Log
    ]
    return len(said), _checksum(said) if said else ""


def _checksum(said: list[Any]) -> str:
    return f"{zlib.crc32(_encode(said)):08x}"


_encode = msgspec.json.Encoder().encode


# --- Reading --------------------------------------------------------------------------------------


class Recording:
    """A recording that is being read.

    Parameters
    ----------
    lines
        Its lines, which are read while ``lines`` of this object is iterated.

    Raises
    ------
    RecordingError
        It is not a recording, or is of another version.
    """

    def __init__(self, lines: Iterable[str | bytes]) -> None:
        self._lines = iter(lines)
        try:
            header = json.loads(next(self._lines, ""))
        except ValueError:
            raise _unreadable(1) from None
        if not isinstance(header, dict) or header.get("gpushare") != "recording":
            raise RecordingError("this is not a recording; make one with: gpushare record FILE")
        if header.get("version") != VERSION:
            raise RecordingError(
                f"the recording has version {header.get('version')!r} and this release reads version {VERSION}: "
                "replay it with the release that wrote it"
            )
        self.release = str(header.get("release"))
        self.settings: dict[str, Any] = header.get("settings") or {}
        self._state = header.get("state")

    def core(self) -> Core:
        """Return a core in its state at the beginning of the recording."""
        try:
            if self._state is not None:
                core = checkpoint.decode(self._state)
                if isinstance(core, Core):
                    return core
                raise RecordingError(
                    "the state that the recording begins with is not a scheduler's"
                )
            return Core(REGISTRY, Rules(**self.settings))
        except (CheckpointError, TypeError, ValueError) as error:
            raise RecordingError(f"the recording of release {self.release}: {error}") from None

    def lines(self) -> Iterator[Line]:
        """Read the events, once.

        Raises
        ------
        RecordingError
            A line cannot be read. The last one may be cut off; the recording then ends before it.
        """
        number = 1
        broken = None
        for text in self._lines:
            number += 1
            if broken is not None:
                raise broken
            try:
                yield _read(text, number)
            except RecordingError as error:
                broken = error
        if broken is not None and number == 2:
            raise broken


def _unreadable(number: int) -> RecordingError:
    return RecordingError(f"line {number} of the recording cannot be read")


def _read(text: str | bytes, number: int) -> Line:
    try:
        at, name, fields, decisions, checksum = _LINE.decode(text)
        kind = _EVENTS[name]
        if not fields.keys() <= set(kind.__struct_fields__):
            raise KeyError(name)
        return Line(at, msgspec.convert(fields, kind, str_keys=True), decisions, checksum)
    except (KeyError, msgspec.ValidationError):
        raise RecordingError(
            f"line {number} of the recording is no event that this release knows"
        ) from None
    except (UnicodeError, msgspec.DecodeError):
        raise _unreadable(number) from None


_LINE = msgspec.json.Decoder(tuple[float, str, dict[str, Any], int, str])
_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(ev.Event)}


# --- Replaying ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Difference:
    """Where a replay first made other decisions."""

    number: int
    #: Seconds since the first event.
    after: float
    event: ev.Event
    recorded: int
    found: list[ev.Decision] | Exception


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    events: int = 0
    #: The recorded policy.
    decisions: int = 0
    #: Seconds from the first event to the last.
    lasted: float = 0.0
    difference: Difference | None = None
    #: Decisions of the replay, by kind.
    kinds: Counter[str] = field(default_factory=Counter)
    #: The number of events that the core did not accept.
    refused: int = 0


def replay(recording: Recording, policy: str | None = None) -> Replay:
    """Pass the events of a recording to a core again, and compare.

    It stops at the first difference unless another policy is chosen. The answers of clients stay as recorded.

    Raises
    ------
    RecordingError
        It cannot be read, or the policy does not exist.
    """
    core = recording.core()
    done = Replay()
    first: float | None = None
    for line in recording.lines():
        if first is None:
            first = line.time
            if policy is not None:
                try:
                    core.handle(ev.Configure(policy=policy), line.time)
                except ValueError as error:
                    raise RecordingError(str(error)) from None
        event = line.event
        if policy is not None and isinstance(event, ev.Configure):
            event = ev.Configure(event.quantum, event.anti_thrash)
        outcome: list[ev.Decision] | Exception
        try:
            outcome = core.handle(event, line.time)
        except Exception as error:
            outcome = error
            done.refused += 1
        else:
            done.kinds.update(type(d).__name__ for d in outcome if type(d) is not ev.Log)
        done.events += 1
        done.decisions += line.decisions
        done.lasted = line.time - first
        if done.difference is None and _sum(outcome) != (line.decisions, line.checksum):
            done.difference = Difference(
                done.events, done.lasted, line.event, line.decisions, outcome
            )
        if done.difference is not None and policy is None:
            break
    return done
