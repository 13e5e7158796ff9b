# SPDX-License-Identifier: BSD-3-Clause
"""What a scheduler has learnt and seen, in files for the next scheduler. Nothing that leases depend on is in them.

``learnt`` is small. It is written when the scheduler leaves and once a minute, and read before the clients attach.
``history`` has the events before those in ``learnt``, and ``timeline`` the spans that pages show. They may be large, so
they are written while the scheduler still serves, and read after the clients have attached.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
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
from .history import KEPT, EventHistory
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
    core: ev.Learnt
    forecast: LearntForecast = LearntForecast()
    accounts: dict[str, LearntAccount] = {}
    #: By kernel that has left: its bytes on one GPU.
    sizes: dict[str, int] = {}
    #: The number of the last event, and the events that are not in the history's file.
    sequence: int = 0
    events: list[dict[str, Any]] = []


class SpansFile(Dated, frozen=True, kw_only=True):
    """The first line of the timeline's file. Each further line is a span or a sample."""

    start: float


class HistoryFile(Dated, frozen=True, kw_only=True):
    """The first line of the history's file. Each further line is one event."""

    #: The number of these events, and the number of the last one.
    events: int
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
        path = self.path(name)
        try:
            if path.stat().st_size <= LARGEST:
                return path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            log.warning("What an earlier scheduler left in %s is ignored: %s", path, error.strerror)
            return b""
        log.warning(
            "What an earlier scheduler left in %s is ignored: it has more than %d bytes",
            *(path, LARGEST),
        )
        return b""

    def decode(self, name: str, data: bytes, decoder: json.Decoder[Content]) -> Content | None:
        """Decode a file's content; None: it is of a later version, or damaged."""
        path = self.path(name)
        try:
            version = _VERSION.decode(data).version
            if version == VERSION:
                return decoder.decode(data)
            log.warning(
                "What an earlier scheduler left in %s is ignored: it has version %d, and this release reads version %d",
                *(path, version, VERSION),
            )
        except (DecodeError, UnicodeError) as error:
            self.ignore(name, error)
        return None

    def ignore(self, name: str, error: Exception) -> None:
        """Report that a file is ignored."""
        log.warning("What an earlier scheduler left in %s is ignored: %s", self.path(name), error)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""
        path = self.path(name)
        fresh = path.with_name(path.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(data)
            fresh.replace(path)
        except OSError as error:
            # A shortage of file descriptors is reported where connections are accepted.
            if not self._failed and error.errno not in (errno.EMFILE, errno.ENFILE):
                self._failed = True
                log.error(
                    "What the next scheduler would load cannot be written to %s: %s",
                    *(path, error.strerror),
                )
            return
        self._failed = False


class _Version(Struct):
    version: int


# Made once, before the previous scheduler has ended, because that takes milliseconds.
_VERSION = json.Decoder(_Version)
_LEARNT, _SPANS = json.Decoder(LearntFile), json.Decoder(SpansFile)
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
        #: The parts of what was learnt, encoded.
        self._learnt: dict[str, Raw] = {}
        #: The groups of the previous scheduler that may still return.
        self._groups: frozenset[str] = frozenset()

    # --- To the next scheduler --------------------------------------------------------------------

    def poll(self) -> None:
        """Read what is left to read, and write the files once a minute, so that a crash loses at most that."""
        now = time.monotonic()
        if now >= self._started + LATER:
            self._load_some()
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
        if self._writing is not None:
            await self._writing
        await self.write_large()
        self._encode_learnt()

    async def _write_all(self) -> None:
        try:
            await self.write_large()
            self._encode_learnt()
            self.write()
        finally:
            self._writing = None

    async def write_large(self) -> None:
        """Write the history and the timeline."""
        if self._files is None:
            return
        self._history.load()
        await self._write("history", self._events_file())
        dated = self._dated()
        lines = [_encode(SpansFile(**dated, start=self._history.timeline.start))]
        for line in self._history.timeline.learnt(dated["at"]):
            lines.append(line)
            if len(lines) % AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._write("timeline", b"\n".join(lines))

    async def _write(self, name: str, data: bytes) -> None:
        """Have a thread write, because the disk may be slow."""
        assert self._files is not None
        await asyncio.to_thread(self._files.write, name, data)

    def _encode_events(self) -> None:
        """Encode the events that are new. This is done every second, so that it never takes long."""
        self._history.publish()
        fresh = self._history.events_after(self._encoded)
        self._lines.extend(map(_encode_event, fresh))
        self._encoded = self._history.sequence

    def _events_file(self) -> bytes:
        self._encode_events()
        self._filed = self._encoded
        head = HistoryFile(**self._dated(), events=len(self._lines), sequence=self._filed)
        return b"\n".join((_encode(head), *self._lines))

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

    def write(self) -> None:
        """Write what was learnt, with the events since the history was written."""
        if self._files is None or not self._learnt:
            return
        history, dated = self._history, self._dated()
        history.publish()
        self._written = dated["at"]
        events = [Raw(_encode_event(event)) for event in history.events_after(self._filed)]
        content = {**dated, **self._learnt, "sequence": history.sequence, "events": events}
        self._files.write("learnt", _encode(content))

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
        history, core = self._history, found.core
        if found.driver != (self._devices.driver_version or ""):
            core = core.without_gpus()
        if self._is_present(found):
            history.forecast.recall(found.forecast)
            history.ledger.recall(found.accounts)
            self._groups = frozenset(found.accounts)
        else:
            core = core.lasting()
            history.forecast.recall(LearntForecast(errors=found.forecast.errors))
        self._placement.recall(found.sizes)
        later = self._later(found)
        history.sequence = found.sequence
        history.add_before([_moved(event, later) for event in found.events if _is_event(event)])
        first = min([event["sequence"] for event in history.events], default=found.sequence + 1)
        self._filed = self._encoded = first - 1
        history.older, history.older_spans = self._read_events(), self._read_spans()
        self._handle(ev.Recall(core))

    def _load_some(self) -> None:
        """Load some of what the previous scheduler has left, and the rest in later rounds of the loop."""
        if self._history.load_some():
            asyncio.get_running_loop().call_later(PAUSE, self._load_some)

    def _read_events(self) -> Iterator[None]:
        """Add the events of the previous scheduler's file, some at each step, the last ones first."""
        assert self._files is not None
        first, *lines = self._files.read("history").split(b"\n")
        head = self._files.decode("history", first, _HISTORY) if first else None
        if head is None:
            return
        # If the previous scheduler was killed, it may have used other numbers since. This one uses them again.
        end = max(0, len(lines) - max(0, head.sequence - self._filed))
        later = self._later(head)
        while end > 0:
            begin = max(0, end - AT_ONCE)
            try:
                found = [_EVENT.decode(line) for line in lines[begin:end]]
            except (DecodeError, UnicodeError) as error:
                self._files.ignore("history", error)
                return
            events = [_moved(event, later) for event in found if _is_event(event)]
            same = not later and len(events) == len(found)
            kept = lines[begin:end] if same else [_encode_event(event) for event in events]
            self._lines.extendleft(reversed(kept[max(0, len(kept) + len(self._lines) - KEPT) :]))
            self._history.add_before(events)
            end = begin
            yield

    def _read_spans(self) -> Iterator[None]:
        """Add the spans of the previous scheduler's file."""
        assert self._files is not None
        first, *lines = self._files.read("timeline").split(b"\n")
        head = self._files.decode("timeline", first, _SPANS) if first else None
        if head is None or not self._is_present(head):
            return
        try:
            yield from self._history.timeline.recall(head.start, lines, AT_ONCE)
        except (DecodeError, UnicodeError) as error:
            self._files.ignore("timeline", error)

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


def _is_event(event: dict[str, Any]) -> bool:
    """Whether an event has what all viewers need, whichever release wrote it."""
    texts = [event.get(name) for name in ("kind", "group", "name", "user")]
    if not all(isinstance(text, str) for text in texts):
        return False
    if not (isinstance(event.get("sequence"), int) and isinstance(event.get("time"), (int, float))):
        return False
    reason = event.get("reason")
    coded = [] if reason is None else [reason]
    if event["kind"] == "notice":
        coded.append(event)
    if event["kind"] == "entitle" and not (
        isinstance(event.get("whose"), str) and isinstance(event.get("members"), list)
    ):
        return False
    return all(
        isinstance(one, dict)
        and isinstance(one.get("code"), str)
        and isinstance(one.get("params"), dict)
        for one in coded
    )
