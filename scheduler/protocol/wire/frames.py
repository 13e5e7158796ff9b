# SPDX-License-Identifier: BSD-3-Clause
"""Frames of ``csrc/protocol.h``: their types and structs, and how a stream is cut into them.

The structs' layout comes from the header through the compiled extension: nothing here repeats it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ...._protocol import ffi, lib
from ..text import printable

VERSION: int = lib.GPUSHARE_PROTOCOL_VERSION
OLDEST: int = lib.GPUSHARE_PROTOCOL_OLDEST
CONTROL_VERSION: int = lib.GPUSHARE_CONTROL_VERSION
MAX_REQUEST: int = lib.GPUSHARE_MAX_REQUEST
MAX_REPLY: int = lib.GPUSHARE_MAX_REPLY
MAX_GPUS: int = lib.GPUSHARE_MAX_GPUS
HELLO: int = lib.GPUSHARE_HELLO
REQUEST: int = lib.GPUSHARE_REQUEST
BURST: int = lib.GPUSHARE_BURST
RELEASED: int = lib.GPUSHARE_RELEASED
GROW: int = lib.GPUSHARE_GROW
USAGE: int = lib.GPUSHARE_USAGE
EVICTED: int = lib.GPUSHARE_EVICTED
RESTORED: int = lib.GPUSHARE_RESTORED
CELL: int = lib.GPUSHARE_CELL
MOVING: int = lib.GPUSHARE_MOVING
METER: int = lib.GPUSHARE_METER
STUCK: int = lib.GPUSHARE_STUCK
TICKET: int = lib.GPUSHARE_TICKET
PLACE: int = lib.GPUSHARE_PLACE
PARKED: int = lib.GPUSHARE_PARKED
WAKE: int = lib.GPUSHARE_WAKE
WELCOME: int = lib.GPUSHARE_WELCOME
REFUSED: int = lib.GPUSHARE_REFUSED
GRANT: int = lib.GPUSHARE_GRANT
REVOKE: int = lib.GPUSHARE_REVOKE
STEP: int = lib.GPUSHARE_STEP
MAX_PLACES: int = lib.GPUSHARE_MAX_PLACES
EVICT: int = lib.GPUSHARE_EVICT
GROWN: int = lib.GPUSHARE_GROWN
CANCEL: int = lib.GPUSHARE_CANCEL
CONTENDED: int = lib.GPUSHARE_CONTENDED
END_BURST: int = lib.GPUSHARE_END_BURST
ROOM: int = lib.GPUSHARE_ROOM
PREPARE: int = lib.GPUSHARE_PREPARE
PACE: int = lib.GPUSHARE_PACE
PLACED: int = lib.GPUSHARE_PLACED
PARK: int = lib.GPUSHARE_PARK
HIBERNATED: int = lib.GPUSHARE_HIBERNATED
AWAKE: int = lib.GPUSHARE_AWAKE
CONTROL: int = lib.GPUSHARE_CONTROL
REPLY: int = lib.GPUSHARE_REPLY
EVENT: int = lib.GPUSHARE_EVENT
NANO = 1_000_000_000
#: The unit of shares in PACE.
MILLION = 1_000_000
#: No bound, as a number of nanoseconds.
UNBOUNDED = (1 << 64) - 1


class ProtocolError(Exception):
    """The peer violated the protocol. Its connection must be closed."""


class VersionMismatch(ProtocolError):
    """The peer uses a version of the protocol that the scheduler does not support."""

    def __init__(self, version: int) -> None:
        spoken = f"protocol {VERSION}" if OLDEST == VERSION else f"protocols {OLDEST} to {VERSION}"
        super().__init__(
            f"the program speaks protocol {version} of jupyter-gpushare and the scheduler speaks {spoken}; "
            "install the same version of jupyter-gpushare for both, then restart both"
        )


def check_version(body: bytes) -> None:
    """Check the version of HELLO or PLACE, which is the first field of each."""
    version = ffi.from_buffer("uint32_t *", body)[0]
    if not OLDEST <= version <= VERSION:
        raise VersionMismatch(version)


class Frame(NamedTuple):
    """One frame: its type and its body."""

    type: int
    body: bytes


def _pointer(name: str) -> Any:
    return ffi.typeof(f"struct gpushare_{name} *")


HEADER_P = _pointer("header")
USAGE_P = _pointer("usage")
HELLO_P = _pointer("hello")
WELCOME_P = _pointer("welcome")
REFUSED_P = _pointer("refused")
LEASE_P = _pointer("lease")
BURST_P = _pointer("burst")
GROW_P = _pointer("grow")
GROWN_P = _pointer("grown")
EVICT_P = _pointer("evict")
MOVED_P = _pointer("moved")
CELL_P = _pointer("cell")
CONTENDED_P = _pointer("contended")
ROOM_P = _pointer("room")
PREPARE_P = _pointer("prepare")
METER_P = _pointer("meter")
STUCK_P = _pointer("stuck")
PACE_P = _pointer("pace")
TICKET_P = _pointer("ticket")
PLACE_P = _pointer("place")
PLACED_P = _pointer("placed")
PARK_P = _pointer("park")
PARKED_P = _pointer("parked")
HIBERNATED_P = _pointer("hibernated")
WAKE_P = _pointer("wake")
AWAKE_P = _pointer("awake")
HEADER_SIZE: int = ffi.sizeof("struct gpushare_header")
USAGE_SIZE: int = ffi.sizeof("struct gpushare_usage")
HELLO_SIZE: int = ffi.sizeof("struct gpushare_hello")
PLACE_SIZE: int = ffi.sizeof("struct gpushare_place")
PLACED_SIZE: int = ffi.sizeof("struct gpushare_placed")
UUID_SIZE = 16
#: Enough of a HELLO or a PLACE to read its version, which comes first in every version.
_HELLO_LEAST = 4


def _exactly(pointer: Any) -> tuple[int, int]:
    size = ffi.sizeof(pointer.item)
    return size, size


#: Least and greatest length of each type's body, for either direction.
FROM_CLIENT = {
    HELLO: (_HELLO_LEAST, HELLO_SIZE + MAX_GPUS * USAGE_SIZE),
    REQUEST: _exactly(LEASE_P),
    BURST: _exactly(BURST_P),
    RELEASED: _exactly(LEASE_P),
    GROW: _exactly(GROW_P),
    USAGE: _exactly(USAGE_P),
    EVICTED: _exactly(MOVED_P),
    RESTORED: _exactly(MOVED_P),
    CELL: _exactly(CELL_P),
    MOVING: _exactly(MOVED_P),
    METER: _exactly(METER_P),
    STUCK: _exactly(STUCK_P),
    TICKET: _exactly(TICKET_P),
    PLACE: (_HELLO_LEAST, PLACE_SIZE + MAX_PLACES * UUID_SIZE),
    PARKED: _exactly(PARKED_P),
    WAKE: _exactly(WAKE_P),
    CONTROL: (2, MAX_REQUEST - HEADER_SIZE),
}
FROM_SCHEDULER = {
    WELCOME: _exactly(WELCOME_P),
    REFUSED: _exactly(REFUSED_P),
    GRANT: _exactly(LEASE_P),
    REVOKE: _exactly(LEASE_P),
    STEP: _exactly(LEASE_P),
    EVICT: _exactly(EVICT_P),
    GROWN: _exactly(GROWN_P),
    CANCEL: (0, 0),
    CONTENDED: _exactly(CONTENDED_P),
    END_BURST: _exactly(BURST_P),
    ROOM: _exactly(ROOM_P),
    PREPARE: _exactly(PREPARE_P),
    PACE: _exactly(PACE_P),
    PLACED: (PLACED_SIZE + UUID_SIZE, PLACED_SIZE + MAX_PLACES * UUID_SIZE),
    PARK: _exactly(PARK_P),
    HIBERNATED: _exactly(HIBERNATED_P),
    AWAKE: _exactly(AWAKE_P),
    REPLY: (2, MAX_REPLY - HEADER_SIZE),
    EVENT: (2, MAX_REPLY - HEADER_SIZE),
}


def _names(enum: str) -> tuple[dict[int, Any], dict[str, int]]:
    """An enum's values by number and by the word that `events` has for them."""
    prefix = f"GPUSHARE_{enum.upper()}_"
    elements = ffi.typeof(f"enum gpushare_{enum}").elements
    if enum == "move_status":
        prefix = "GPUSHARE_MOVE_"
    elif enum == "wake_cause":
        prefix = "GPUSHARE_WAKE_"
    words = {number: name.removeprefix(prefix).lower() for number, name in elements.items()}
    return words, {word: number for number, word in words.items()}


BACKENDS, BACKEND_CODES = _names("backend")
CAUSES, CAUSE_CODES = _names("cause")
PHASES, PHASE_CODES = _names("phase")
GROWTHS, GROWTH_CODES = _names("growth")
MOVES, MOVE_CODES = _names("move_status")
PARKINGS, PARKING_CODES = _names("parking")
WAKES, WAKE_CODES = _names("wake_cause")


class FrameReader:
    """Cuts a stream of bytes into frames.

    Parameters
    ----------
    from_scheduler
        Whether the stream comes from the scheduler; it decides which types are allowed.
    """

    def __init__(self, *, from_scheduler: bool = False) -> None:
        self._lengths = FROM_SCHEDULER if from_scheduler else FROM_CLIENT
        self._rest = b""

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes.

        Raises
        ------
        ProtocolError
            As soon as a header cannot be one; the frames before it have been yielded.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        start, end = 0, len(data)
        base = ffi.from_buffer(data)
        while end - start >= HEADER_SIZE:
            header = ffi.cast(HEADER_P, base + start)
            kind, length = header.type, header.length
            allowed = self._lengths.get(kind)
            if allowed is None:
                raise ProtocolError(f"a frame of type {kind}, which does not exist here")
            if not allowed[0] <= length - HEADER_SIZE <= allowed[1]:
                raise ProtocolError(f"a frame of type {kind} with a length of {length}")
            if length > end - start:
                break
            # Updated before the yield, so that a caller that stops iterating does not lose the rest.
            body = data[start + HEADER_SIZE : start + length]
            start += length
            yield Frame(kind, body)
        self._rest = data[start:] if start else data


@lru_cache(maxsize=256)
def gpu_name(raw: bytes) -> str:
    """Return the UUID of a GPU or of a MIG slice as NVML prints it."""
    return _slices.get(raw) or f"GPU-{uuid.UUID(bytes=raw)}"


@lru_cache(maxsize=256)
def gpu_bytes(name: str) -> bytes:
    """Return the bytes of a UUID that NVML printed."""
    return uuid.UUID(name[4:] if name[:4] in ("GPU-", "MIG-") else name).bytes


#: NVML's names of MIG slices, by the bytes of their UUIDs, because frames contain only these bytes.
_slices: dict[bytes, str] = {}


def register_slice(name: str) -> None:
    """Register the UUID of a MIG slice as NVML prints it, for ``gpu_name``."""
    if _slices.get(raw := gpu_bytes(name)) != name:
        _slices[raw] = name
        gpu_name.cache_clear()


def word_of(words: dict[int, Any], number: int, what: str) -> Any:
    """Return the word for a number of an enum."""
    try:
        return words[number]
    except KeyError:
        raise ProtocolError(f"{what} {number}, which does not exist") from None


def text_of(field: Any) -> str:
    """Return the text of a field with harmless characters only, because users choose names."""
    return printable(bytes(ffi.string(field)).decode("utf-8", "replace"))


@lru_cache(maxsize=64)
def fixed_header(kind: int, size: int) -> bytes:
    """Return the header of a frame with a body of this size."""
    return bytes(ffi.buffer(ffi.new(HEADER_P, (HEADER_SIZE + size, kind, 0)))[:])


def make_frame(kind: int, body: Any) -> bytes:
    """Return the frame with a struct as its body."""
    raw = ffi.buffer(body)
    return fixed_header(kind, len(raw)) + bytes(raw[:])


def cut_text(text: str, size: int) -> bytes:
    """UTF-8 that fits into ``size`` bytes with its NUL, cut at a character's boundary."""
    raw = text.encode("utf-8", "replace").replace(b"\0", b"")
    if len(raw) < size:
        return raw
    return raw[: size - 1].decode("utf-8", "ignore").encode("utf-8")


def field_size(pointer: Any, name: str) -> int:
    """Return the size of a struct's field, bytes."""
    return int(ffi.sizeof(dict(pointer.item.fields)[name].type))


def nanoseconds(seconds: float) -> int:
    """Return seconds as a frame states them."""
    return max(0, int(seconds * NANO))
