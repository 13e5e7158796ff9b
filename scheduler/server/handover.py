# SPDX-License-Identifier: BSD-3-Clause
"""What a scheduler has learnt and seen, in files for the next scheduler. Nothing that leases depend on is in them.

``learnt`` is small. It is written when the scheduler leaves and once a minute, and read before the clients attach.
``history`` has the events before those in ``learnt``, and ``timeline`` the spans that pages show. They may be large, so
they are written while the scheduler still serves, and read after the clients have attached.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import math
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct, json

from ..core import messages as ev
from ..core.core import Core
from ..core.placement import Placement
from ..gpu.devices import Devices
from ..memory.roster import boot_id
from ..protocol.text import printable_json
from ..views.estimates import LearntForecast
from ..views.timeline import LearntAccount
from .history import KEPT, EventHistory, Older
from .options import Options

log = logging.getLogger(__name__)

#: The version of the files. Fields may be added within one version.
VERSION = 1
#: Seconds between two times at which the files are written.
PERIOD = 60.0
#: Seconds after the start at which the large files are read, and between two steps; and events or spans in each.
LATER, PAUSE, AT_ONCE = 1.0, 0.005, 200
#: The largest file that is read.
LARGEST = 64 << 20
#: No lease depends on these files, so whatever goes wrong with them is only reported.
UNWRITTEN = "What the next scheduler would load cannot be written"

#: Errors from reading a damaged file, or one of another release.
DAMAGED = (DecodeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)

Content = TypeVar("Content", bound="Dated")


class Dated(Struct, frozen=True, kw_only=True):
    """The beginning of each file: since which start of the machine its times count, and when it was written."""

    version: int
    boot: str
    #: On the clock of the scheduler, and in seconds since 1970.
    at: float
    wall: float


class LearntFile(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """What the next scheduler has before the clients attach."""

    #: The version of the driver, since contexts of another one may have other sizes.
    driver: str = ""
    #: An `ev.Learnt`.
    core: Raw
    forecast: LearntForecast = LearntForecast()
    accounts: dict[str, LearntAccount] = {}
    #: By kernel that has left: its bytes on one GPU.
    sizes: dict[str, int] = {}
    #: The number of the last event; whether the scheduler left after it; and the events that the history's file lacks.
    sequence: int = 0
    last: bool = False
    events: list[dict[str, Any]] = []


class SpansFile(Dated, frozen=True, kw_only=True):
    """The first line of the timeline's file. Each further line is a span or a sample."""

    start: float


class HistoryFile(Dated, frozen=True, kw_only=True):
    """The first line of the history's file. Each further line is one event."""

    #: The number of the last event.
    sequence: int


class Files:
    """The files of one scheduler.

    Parameters
    ----------
    folder
        The folder.
    prefix
        The beginning of their names.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._failed = False

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._folder / f"{self._prefix}{name}"

    def read(self, name: str) -> bytes:
        """Return the content of a file; empty: there is none, or it cannot be read."""
        # In a folder of all users, it may be another user's, or a pipe that never ends.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path(name), flags)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    self.ignore(name, "it is not a file of this user")
                elif found.st_size > LARGEST:
                    self.ignore(name, f"it has more than {LARGEST} bytes")
                else:
                    return file.read()
        except FileNotFoundError:
            pass
        except OSError as error:
            self.ignore(name, error.strerror or str(error))
        return b""

    def read_lines(self, name: str) -> list[bytes]:
        """Return the lines of a file; one empty line: there is none, or it cannot be read."""
        return self.read(name).split(b"\n")

    def decode(self, name: str, data: bytes, decoder: json.Decoder[Content]) -> Content | None:
        """Decode a file's content; None: it is of a later version, or damaged."""
        try:
            version = _VERSION.decode(data).version
            if version == VERSION:
                return decoder.decode(data)
            self.ignore(name, f"it has version {version}, and this release reads version {VERSION}")
        except DAMAGED as error:
            self.ignore(name, error)
        return None

    def ignore(self, name: str, reason: object) -> None:
        """Report that a file is ignored."""
        log.warning("What an earlier scheduler left in %s is ignored: %s", self.path(name), reason)

    def write(self, name: str, data: bytes) -> bool:
        """Replace a file as a whole; return whether that succeeded."""
        path = self.path(name)
        fresh = path.with_name(path.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(data)
            fresh.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()  # a part of it may fill the disk
            # A shortage of file descriptors is reported where connections are accepted.
            if not self._failed and error.errno not in (errno.EMFILE, errno.ENFILE):
                self._failed = True
                log.error(
                    "What the next scheduler would load cannot be written to %s: %s",
                    *(path, error.strerror),
                )
            return False
        self._failed = False
        return True


class _Version(Struct):
    version: int


# Made once, before the previous scheduler has ended, because that takes milliseconds.
_VERSION = json.Decoder(_Version)
_LEARNT, _SPANS = json.Decoder(LearntFile), json.Decoder(SpansFile)
_CORE = json.Decoder(ev.Learnt)
_HISTORY, _EVENT = json.Decoder(HistoryFile), json.Decoder(dict[str, Any])
_encode = json.Encoder().encode


def files_of(options: Options) -> Files | None:
    """Return the files of a scheduler with these options; None: it keeps none."""
    if not options.identity.node:
        return Files(options.path.parent, f"{options.path.name}.")
    folder = options.identity.state_dir
    return None if folder is None else Files(folder, "")


class Handover:
    """Writes the files for the next scheduler, and reads those of the previous one.

    Parameters
    ----------
    files
        The files; None: nothing is kept.
    core, devices, history, placement
        Those of the server.
    handle
        Passes an event to the core.
    """

    def __init__(
        self,
        files: Files | None,
        core: Core,
        devices: Devices,
        history: EventHistory,
        placement: Placement,
        handle: Callable[[ev.Event], None],
    ) -> None:
        self._files, self._core, self._devices = files, core, devices
        self._history, self._placement, self._handle = history, placement, handle
        self._boot = boot_id()
        self._started = self._written = time.monotonic()
        #: The events, encoded, and the number of the last one; and of the last one in the history's file.
        self._lines: deque[bytes] = deque(maxlen=KEPT)
        self._encoded = self._filed = 0
        self._writing: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        #: The parts of what was learnt, encoded.
        self._learnt: dict[str, Raw] = {}
        #: The groups of the previous scheduler that may still return.
        self._groups: frozenset[str] = frozenset()

    # --- To the next scheduler --------------------------------------------------------------------

    def poll(self) -> None:
        """Read what is left to read, and write the files once a minute, so that a crash loses at most that."""
        now = time.monotonic()
        if now >= self._started + LATER and self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._history.load_slowly(PAUSE))
        if self._files is None:
            return
        self._encode_events()
        if now >= self._written + PERIOD and self._writing is None:
            for group in self._groups - self._core.groups.keys():
                self._history.forget(group)
            self._groups = frozenset()
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def prepare(self) -> None:
        """Write the large files for the last time, and encode what was learnt. The scheduler serves meanwhile."""
        while self._writing is not None:
            await self._writing
        self._written = math.inf  # no other write may overlap with this one
        try:
            await self.write_large()
            self._encode_learnt()
        except Exception:
            log.exception(UNWRITTEN)

    async def _write_all(self) -> None:
        try:
            await self.write_large()
            self._encode_learnt()
            self.write()
        except Exception:
            log.exception(UNWRITTEN)
        finally:
            self._written, self._writing = time.monotonic(), None

    def abandon(self) -> None:
        """Write nothing more, because the state may be wrong."""
        if self._writing is not None:
            self._writing.cancel()

    async def write_large(self) -> None:
        """Write the history and the timeline."""
        if self._files is None:
            return
        await self._history.load_events()
        await self._history.load_spans()
        self._encode_events()
        last = self._encoded
        head = _encode(HistoryFile(**self._dated(), sequence=last))
        if await self._write("history", b"\n".join((head, *self._lines))):
            self._filed = last
        dated = self._dated()
        lines = [_encode(SpansFile(**dated, start=self._history.timeline.start))]
        for line in self._history.timeline.learnt(dated["at"]):
            lines.append(line)
            if len(lines) % AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._write("timeline", b"\n".join(lines))

    async def _write(self, name: str, data: bytes) -> bool:
        """Have a thread write, because the disk may be slow; return whether that succeeded."""
        assert self._files is not None
        return await asyncio.to_thread(self._files.write, name, data)

    def _encode_events(self) -> None:
        """Encode the events that are new. This is done every second, so that it never takes long."""
        self._history.publish()
        fresh = self._history.after(self._encoded)
        self._lines.extend(map(_encode_event, fresh))
        self._encoded = self._history.sequence

    def _encode_learnt(self) -> None:
        """Encode what was learnt. It changes little until the scheduler leaves."""
        history, now = self._history, time.monotonic()
        self._learnt = {
            "driver": Raw(_encode(self._devices.driver_version or "")),
            "core": Raw(_encode(self._core.learnt())),
            "forecast": Raw(_encode(history.forecast.learnt())),
            "accounts": Raw(_encode(history.ledger.learnt(now))),
            "sizes": Raw(_encode(self._placement.learnt())),
        }

    def write(self, *, last: bool = False) -> None:
        """Write what was learnt, with the events since the history was written; ``last``: no further events come."""
        if self._files is None or not self._learnt:
            return
        history = self._history
        # No estimate will be compared with its wait any more.
        history.publish(estimate=not last)
        try:
            events = [Raw(_encode_event(event)) for event in history.after(self._filed)]
            content = {"sequence": history.sequence, "last": last, "events": events}
            self._files.write("learnt", _encode({**self._dated(), **self._learnt, **content}))
        except Exception:
            log.exception(UNWRITTEN)

    def _dated(self) -> dict[str, Any]:
        return {"version": VERSION, "boot": self._boot, "at": time.monotonic(), "wall": time.time()}

    # --- From the previous scheduler --------------------------------------------------------------

    def begin(self) -> None:
        """Apply what the previous scheduler has learnt. The GPUs are known, and no client has attached."""
        if self._files is None or not (data := self._files.read("learnt")):
            return
        found = self._files.decode("learnt", data, _LEARNT)
        if found is None:
            return
        history = self._history
        if self._is_present(found):
            history.forecast.recall(found.forecast)
            history.ledger.recall(found.accounts)
            self._groups = frozenset(found.accounts)
        else:
            history.forecast.recall(LearntForecast(errors=found.forecast.errors))
        self._placement.recall(found.sizes)
        later = self._later(found)
        # After a crash, there were events with further numbers, which are not used again.
        history.sequence = found.sequence + (0 if found.last else KEPT)
        history.add_before(
            [_moved(event, later) for event in found.events if self._is_event(event)]
        )
        first = min([event["sequence"] for event in history.events], default=found.sequence + 1)
        self._filed = self._encoded = first - 1
        history.older = Older(
            functools.partial(self._files.read_lines, "history"), self._add_events
        )
        history.older_spans = Older(
            functools.partial(self._files.read_lines, "timeline"), self._add_spans
        )
        try:
            core = _CORE.decode(found.core)
        except DAMAGED as error:
            self._files.ignore("learnt", error)
            return
        if found.driver != (self._devices.driver_version or ""):
            core = core.without_gpus()
        self._handle(ev.Recall(core if self._is_present(found) else core.lasting()))

    def _add_events(self, found_lines: list[bytes]) -> Iterator[None]:
        """Add the events of the previous scheduler's file, some at each step, the last ones first."""
        assert self._files is not None
        first, *lines = found_lines
        head = self._files.decode("history", first, _HISTORY) if first else None
        if head is None:
            return
        end, last, later = len(lines), self._filed, self._later(head)
        while end > 0:
            begin = max(0, end - AT_ONCE)
            try:
                found = [_EVENT.decode(line) for line in lines[begin:end]]
                # If the previous scheduler was killed between its files, this one has later events than the other.
                events = [
                    _moved(event, later)
                    for event in found
                    if self._is_event(event) and event["sequence"] <= last
                ]
            except DAMAGED as error:
                self._files.ignore("history", error)
                return
            same = not later and len(events) == len(found)
            kept = lines[begin:end] if same else [_encode_event(event) for event in events]
            self._lines.extendleft(reversed(kept[max(0, len(kept) + len(self._lines) - KEPT) :]))
            self._history.add_before(events)
            end = begin
            yield

    def _add_spans(self, found_lines: list[bytes]) -> Iterator[None]:
        """Add the spans of the previous scheduler's file, some at each step."""
        assert self._files is not None
        first, *lines = found_lines
        head = self._files.decode("timeline", first, _SPANS) if first else None
        if head is None or not self._is_present(head):
            return
        try:
            yield from self._history.timeline.recall(head.start, lines, AT_ONCE)
        except DAMAGED as error:
            self._files.ignore("timeline", error)

    def _is_event(self, event: dict[str, Any]) -> bool:
        """Whether viewers can show an event, whichever release wrote it."""
        if not (_has_numbers(event) and _has_texts(event)):
            return False
        try:
            self._history.show_to_stranger(event)
        except DAMAGED:
            return False
        return True

    def _is_present(self, found: Dated) -> bool:
        """Whether the times of a file are of the present clock."""
        return bool(self._boot) and found.boot == self._boot and found.at <= time.monotonic()

    def _later(self, found: Dated) -> float:
        """Return the seconds to add to the times of a file, so that they are of the present clock."""
        if self._is_present(found):
            return 0.0
        return time.monotonic() - max(0.0, time.time() - found.wall) - found.at


def _encode_event(event: dict[str, Any]) -> bytes:
    try:
        return _encode(event)
    except UnicodeEncodeError:
        # It names a file whose name is not UTF-8.
        return _encode(printable_json(event))


def _moved(event: dict[str, Any], later: float) -> dict[str, Any]:
    return {**event, "time": event["time"] + later} if later else event


def _has_numbers(event: dict[str, Any]) -> bool:
    return isinstance(event.get("sequence"), int) and isinstance(event.get("time"), (int, float))


def _has_texts(event: dict[str, Any]) -> bool:
    """Whether an event has the texts, and the codes with parameters, that all viewers need."""
    texts = [event.get(name) for name in ("kind", "group", "name", "user")]
    coded = [event["reason"]] if event.get("reason") is not None else []
    if event.get("kind") == "notice":
        coded.append(event)
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(one, dict)
        and isinstance(one.get("code"), str)
        and isinstance(one.get("params"), dict)
        for one in coded
    )
