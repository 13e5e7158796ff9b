# SPDX-License-Identifier: BSD-3-Clause
"""Frames of ``csrc/protocol.h`` to and from Python objects.

The structs' layout comes from the header through the compiled extension: nothing here repeats it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..._protocol import ffi, lib
from ..core import messages as ev
from .text import parse_json, printable, to_json

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
#: A share of all, as PACE says it.
MILLION = 1_000_000
#: As a number of nanoseconds: without bound.
UNBOUNDED = (1 << 64) - 1


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow; its connection is to be closed."""


class VersionMismatch(ProtocolError):
    """The peer speaks a version of the protocol that the scheduler does not."""

    def __init__(self, version: int) -> None:
        spoken = f"protocol {VERSION}" if OLDEST == VERSION else f"protocols {OLDEST} to {VERSION}"
        super().__init__(
            f"the program speaks protocol {version} of jupyter-gpushare and the scheduler speaks {spoken}; "
            "install the same version of jupyter-gpushare for both, then restart both"
        )


def _check_version(body: bytes) -> None:
    version = ffi.from_buffer("uint32_t *", body)[0]
    if not OLDEST <= version <= VERSION:
        raise VersionMismatch(version)


class Frame(NamedTuple):
    """One frame: its type and its body."""

    type: int
    body: bytes


def _pointer(name: str) -> Any:
    return ffi.typeof(f"struct gpushare_{name} *")


_HEADER_P = _pointer("header")
_USAGE_P = _pointer("usage")
_HELLO_P = _pointer("hello")
_WELCOME_P = _pointer("welcome")
_REFUSED_P = _pointer("refused")
_LEASE_P = _pointer("lease")
_BURST_P = _pointer("burst")
_GROW_P = _pointer("grow")
_GROWN_P = _pointer("grown")
_EVICT_P = _pointer("evict")
_MOVED_P = _pointer("moved")
_CELL_P = _pointer("cell")
_CONTENDED_P = _pointer("contended")
_ROOM_P = _pointer("room")
_PREPARE_P = _pointer("prepare")
_METER_P = _pointer("meter")
_STUCK_P = _pointer("stuck")
_PACE_P = _pointer("pace")
_TICKET_P = _pointer("ticket")
_PLACE_P = _pointer("place")
_PLACED_P = _pointer("placed")
_PARK_P = _pointer("park")
_PARKED_P = _pointer("parked")
_HIBERNATED_P = _pointer("hibernated")
_WAKE_P = _pointer("wake")
_AWAKE_P = _pointer("awake")

HEADER_SIZE: int = ffi.sizeof("struct gpushare_header")
_USAGE_SIZE: int = ffi.sizeof("struct gpushare_usage")
_HELLO_SIZE: int = ffi.sizeof("struct gpushare_hello")
_PLACE_SIZE: int = ffi.sizeof("struct gpushare_place")
_PLACED_SIZE: int = ffi.sizeof("struct gpushare_placed")
_UUID_SIZE = 16
#: Enough of a HELLO or a PLACE to read its version, which comes first in every version.
_HELLO_LEAST = 4


def _exactly(pointer: Any) -> tuple[int, int]:
    size = ffi.sizeof(pointer.item)
    return size, size


#: Least and greatest length of each type's body, for either direction.
_FROM_CLIENT = {
    HELLO: (_HELLO_LEAST, _HELLO_SIZE + MAX_GPUS * _USAGE_SIZE),
    REQUEST: _exactly(_LEASE_P),
    BURST: _exactly(_BURST_P),
    RELEASED: _exactly(_LEASE_P),
    GROW: _exactly(_GROW_P),
    USAGE: _exactly(_USAGE_P),
    EVICTED: _exactly(_MOVED_P),
    RESTORED: _exactly(_MOVED_P),
    CELL: _exactly(_CELL_P),
    MOVING: _exactly(_MOVED_P),
    METER: _exactly(_METER_P),
    STUCK: _exactly(_STUCK_P),
    TICKET: _exactly(_TICKET_P),
    PLACE: (_HELLO_LEAST, _PLACE_SIZE + MAX_PLACES * _UUID_SIZE),
    PARKED: _exactly(_PARKED_P),
    WAKE: _exactly(_WAKE_P),
    CONTROL: (2, MAX_REQUEST - HEADER_SIZE),
}
_FROM_SCHEDULER = {
    WELCOME: _exactly(_WELCOME_P),
    REFUSED: _exactly(_REFUSED_P),
    GRANT: _exactly(_LEASE_P),
    REVOKE: _exactly(_LEASE_P),
    STEP: _exactly(_LEASE_P),
    EVICT: _exactly(_EVICT_P),
    GROWN: _exactly(_GROWN_P),
    CANCEL: (0, 0),
    CONTENDED: _exactly(_CONTENDED_P),
    END_BURST: _exactly(_BURST_P),
    ROOM: _exactly(_ROOM_P),
    PREPARE: _exactly(_PREPARE_P),
    PACE: _exactly(_PACE_P),
    PLACED: (_PLACED_SIZE + _UUID_SIZE, _PLACED_SIZE + MAX_PLACES * _UUID_SIZE),
    PARK: _exactly(_PARK_P),
    HIBERNATED: _exactly(_HIBERNATED_P),
    AWAKE: _exactly(_AWAKE_P),
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


_BACKENDS, _BACKEND_CODES = _names("backend")
_CAUSES, _CAUSE_CODES = _names("cause")
_PHASES, _PHASE_CODES = _names("phase")
_GROWTHS, _GROWTH_CODES = _names("growth")
_MOVES, _MOVE_CODES = _names("move_status")
_PARKINGS, _PARKING_CODES = _names("parking")
_WAKES, _WAKE_CODES = _names("wake_cause")


class FrameReader:
    """Cuts a stream of bytes into frames.

    Parameters
    ----------
    from_scheduler
        Whether the stream comes from the scheduler; it decides which types are allowed.
    """

    def __init__(self, *, from_scheduler: bool = False) -> None:
        self._lengths = _FROM_SCHEDULER if from_scheduler else _FROM_CLIENT
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
            header = ffi.cast(_HEADER_P, base + start)
            kind, length = header.type, header.length
            allowed = self._lengths.get(kind)
            if allowed is None:
                raise ProtocolError(f"a frame of type {kind}, which does not exist here")
            if not allowed[0] <= length - HEADER_SIZE <= allowed[1]:
                raise ProtocolError(f"a frame of type {kind} with a length of {length}")
            if length > end - start:
                break
            # Kept before the yield: whoever stops iterating must not lose the rest.
            body = data[start + HEADER_SIZE : start + length]
            start += length
            yield Frame(kind, body)
        self._rest = data[start:] if start else data


@lru_cache(maxsize=256)
def gpu_name(raw: bytes) -> str:
    """The UUID of a GPU or of a MIG slice as NVML prints it."""
    return _slices.get(raw) or f"GPU-{uuid.UUID(bytes=raw)}"


@lru_cache(maxsize=256)
def gpu_bytes(name: str) -> bytes:
    """The bytes of a UUID as NVML prints it."""
    return uuid.UUID(name[4:] if name[:4] in ("GPU-", "MIG-") else name).bytes


#: What NVML calls the MIG slices, by the bytes of their UUIDs: all that a frame has of them.
_slices: dict[bytes, str] = {}


def learn_slice(name: str) -> None:
    """Have ``gpu_name`` know a MIG slice by its UUID as NVML prints it."""
    if _slices.get(raw := gpu_bytes(name)) != name:
        _slices[raw] = name
        gpu_name.cache_clear()


# --- Decoding: what clients send ------------------------------------------------------------------


def _word(words: dict[int, Any], number: int, what: str) -> Any:
    try:
        return words[number]
    except KeyError:
        raise ProtocolError(f"{what} {number}, which does not exist") from None


def _text(field: Any) -> str:
    """The text of a field, as it can be shown: here names of users and programs come in."""
    return printable(bytes(ffi.string(field)).decode("utf-8", "replace"))


def _seen(seen: Any) -> tuple[str, ...]:
    if seen.count > len(seen.gpus):
        raise ProtocolError(f"a process that sees {seen.count} GPUs")
    return tuple(gpu_name(ffi.buffer(seen.gpus[i])[:]) for i in range(seen.count))


def _usage(usage: Any) -> ev.Usage:
    return ev.Usage(
        gpu_name(ffi.buffer(usage.gpu)[:]),
        usage.promised,
        usage.resident,
        usage.pinned,
        usage.context,
        usage.host,
    )


def decode_hello(client: int, body: bytes) -> ev.Attach:
    """The event of a HELLO.

    Raises
    ------
    VersionMismatch
        If the client is of another version; nothing else of the body has been looked at.
    """
    _check_version(body)
    if len(body) < _HELLO_SIZE:
        raise ProtocolError(f"a HELLO of {len(body)} bytes")
    hello = ffi.from_buffer(_HELLO_P, body)
    if len(body) != _HELLO_SIZE + hello.gpu_count * _USAGE_SIZE:
        raise ProtocolError(f"a HELLO of {len(body)} bytes for {hello.gpu_count} GPUs")
    usages = ffi.cast(_USAGE_P, ffi.from_buffer(body) + _HELLO_SIZE)
    group = _text(hello.group)
    if not group:
        raise ProtocolError("a HELLO without a group")
    return ev.Attach(
        client=client,
        pid=hello.pid,
        group=group,
        name=_text(hello.name) or group,
        backend=_word(_BACKENDS, hello.backend, "backend"),
        cap=hello.cap,
        usages=tuple(_usage(usages[i]) for i in range(hello.gpu_count)),
        sees=_seen(hello.seen),
        reattach=bool(hello.flags & lib.GPUSHARE_HELLO_REATTACH),
        leased=bool(hello.flags & lib.GPUSHARE_HELLO_LEASED),
        busy=bool(hello.flags & lib.GPUSHARE_HELLO_BUSY),
        oversubscribe=bool(hello.flags & lib.GPUSHARE_HELLO_OVERSUBSCRIBE),
        hibernated=bool(hello.flags & lib.GPUSHARE_HELLO_HIBERNATED),
        lease=hello.lease,
    )


def decode_ticket(body: bytes) -> str:
    """The text of a TICKET.

    Raises
    ------
    ProtocolError
        If there is none in it.
    """
    text = _text(ffi.from_buffer(_TICKET_P, body).ticket)
    if not text:
        raise ProtocolError("a TICKET without a ticket")
    return text


_KEEPS: dict[int, ev.Keep] = {
    lib.GPUSHARE_KEEP_NONE: "none",
    lib.GPUSHARE_KEEP_IT: "it",
    lib.GPUSHARE_KEEP_ASK: "ask",
}


class Place(NamedTuple):
    """The body of PLACE: the GPUs that a group's client may use, in the order that it would have.

    ``keep``: what a group that has no order yet is to have.
    """

    group: str
    gpus: tuple[str, ...]
    keep: ev.Keep = "none"


def decode_place(body: bytes) -> Place:
    """The body of PLACE.

    Raises
    ------
    VersionMismatch
        If the client is of another version; nothing else of the body has been looked at.
    ProtocolError
        If it names no group, no GPU, or one of them twice.
    """
    _check_version(body)
    if len(body) < _PLACE_SIZE:
        raise ProtocolError(f"a PLACE of {len(body)} bytes")
    place = ffi.from_buffer(_PLACE_P, body)
    if len(body) != _PLACE_SIZE + place.gpu_count * _UUID_SIZE:
        raise ProtocolError(f"a PLACE of {len(body)} bytes for {place.gpu_count} GPUs")
    group, gpus = _text(place.group), _uuids(body, _PLACE_SIZE)
    if not group:
        raise ProtocolError("a PLACE without a group")
    if not 0 < len(gpus) <= MAX_PLACES or len(set(gpus)) < len(gpus):
        raise ProtocolError("a PLACE that names no GPU, too many, or one of them twice")
    return Place(group, gpus, _word(_KEEPS, place.keep, "kind of keeping"))


def _uuids(body: bytes, start: int) -> tuple[str, ...]:
    return tuple(gpu_name(body[at : at + _UUID_SIZE]) for at in range(start, len(body), _UUID_SIZE))


def _decode_request(client: int, group: str, body: bytes) -> ev.Event:
    return ev.Request(client, ffi.from_buffer(_LEASE_P, body).lease)


def _decode_burst(client: int, group: str, body: bytes) -> ev.Event:
    burst = ffi.from_buffer(_BURST_P, body)
    phase = _word(_PHASES, burst.phase, "phase")
    return ev.Burst(client, phase, _word(_CAUSES, burst.cause, "cause"), burst.at_ns / NANO)


def _decode_released(client: int, group: str, body: bytes) -> ev.Event:
    lease = ffi.from_buffer(_LEASE_P, body)
    return ev.Released(client, lease.lease, _word(_CAUSES, lease.cause, "cause"))


def _decode_grow(client: int, group: str, body: bytes) -> ev.Event:
    grow = ffi.from_buffer(_GROW_P, body)
    over, urgent = bool(grow.oversubscribe), bool(grow.urgent)
    return ev.Grow(client, grow.serial, _usage(grow.least), grow.most, over, urgent)


def _decode_usage(client: int, group: str, body: bytes) -> ev.Event:
    return ev.UsageChanged(client, _usage(ffi.from_buffer(_USAGE_P, body)))


def _decode_moved(moved: Any) -> tuple[int, ev.Usage, int, int, float, ev.MoveStatus]:
    return (
        moved.serial,
        _usage(moved.usage),
        moved.bytes,
        moved.copied,
        moved.duration_ns / NANO,
        _word(_MOVES, moved.status, "status"),
    )


def _decode_evicted(client: int, group: str, body: bytes) -> ev.Event:
    return ev.Evicted(client, *_decode_moved(ffi.from_buffer(_MOVED_P, body)))


def _decode_moving(client: int, group: str, body: bytes) -> ev.Event:
    return ev.Moving(client, *_decode_moved(ffi.from_buffer(_MOVED_P, body)))


def _decode_restored(client: int, group: str, body: bytes) -> ev.Event:
    moved = ffi.from_buffer(_MOVED_P, body)
    return ev.Restored(client, *_decode_moved(moved), moved.error)


def _decode_cell(client: int, group: str, body: bytes) -> ev.Event:
    cell = ffi.from_buffer(_CELL_P, body)
    phase = _word(_PHASES, cell.phase, "phase")
    return ev.Cell(group, phase, _text(cell.msg_id), cell.at_ns / NANO, from_kernel=True)


def _decode_meter(client: int, group: str, body: bytes) -> ev.Event:
    meter = ffi.from_buffer(_METER_P, body)
    gpu, busy = gpu_name(ffi.buffer(meter.gpu)[:]), meter.busy_ns / NANO
    return ev.Meter(client, gpu, busy, meter.submissions, meter.at_ns / NANO)


def _decode_stuck(client: int, group: str, body: bytes) -> ev.Event:
    stuck = ffi.from_buffer(_STUCK_P, body)
    return ev.Stuck(client, stuck.lease, _text(stuck.kernel), stuck.since_ns / NANO)


def _decode_parked(client: int, group: str, body: bytes) -> ev.Event:
    parked = ffi.from_buffer(_PARKED_P, body)
    status = _word(_PARKINGS, parked.status, "status")
    return ev.Parked(client, parked.serial, status, _usage(parked.needs), _seen(parked.seen))


def _decode_wake(client: int, group: str, body: bytes) -> ev.Event:
    wake = ffi.from_buffer(_WAKE_P, body)
    cause = _word(_WAKES, wake.cause, "cause")
    return ev.Wake(client, wake.serial, cause, _usage(wake.needs))


_DECODERS = {
    REQUEST: _decode_request,
    BURST: _decode_burst,
    RELEASED: _decode_released,
    GROW: _decode_grow,
    USAGE: _decode_usage,
    EVICTED: _decode_evicted,
    RESTORED: _decode_restored,
    CELL: _decode_cell,
    MOVING: _decode_moving,
    METER: _decode_meter,
    STUCK: _decode_stuck,
    PARKED: _decode_parked,
    WAKE: _decode_wake,
}


def decode(client: int, group: str, frame: Frame) -> ev.Event:
    """The event of a frame of an attached client.

    Raises
    ------
    ProtocolError
        If the frame is none that an attached client sends, or holds what does not exist.
    """
    decoder = _DECODERS.get(frame.type)
    if decoder is None:
        raise ProtocolError(f"a frame of type {frame.type} out of turn")
    return decoder(client, group, frame.body)


# --- Encoding: what the scheduler sends -----------------------------------------------------------


@lru_cache(maxsize=64)
def _fixed_header(kind: int, size: int) -> bytes:
    return bytes(ffi.buffer(ffi.new(_HEADER_P, (HEADER_SIZE + size, kind, 0)))[:])


def _frame(kind: int, body: Any) -> bytes:
    raw = ffi.buffer(body)
    return _fixed_header(kind, len(raw)) + bytes(raw[:])


def _cut(text: str, size: int) -> bytes:
    """UTF-8 that fits into ``size`` bytes with its NUL, cut at a character's boundary."""
    raw = text.encode("utf-8", "replace").replace(b"\0", b"")
    if len(raw) < size:
        return raw
    return raw[: size - 1].decode("utf-8", "ignore").encode("utf-8")


def _field_size(pointer: Any, name: str) -> int:
    return int(ffi.sizeof(dict(pointer.item.fields)[name].type))


_GROUP_SIZE = _field_size(_HELLO_P, "group")
_NAME_SIZE = _field_size(_HELLO_P, "name")
_REFUSED_TEXT_SIZE = _field_size(_REFUSED_P, "text")
_GROWN_TEXT_SIZE = _field_size(_GROWN_P, "text")
_MSG_ID_SIZE = _field_size(_CELL_P, "msg_id")
_KERNEL_SIZE = _field_size(_STUCK_P, "kernel")
_AWAKE_TEXT_SIZE = _field_size(_AWAKE_P, "text")
_NO_GPU = bytes(_UUID_SIZE)


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * NANO))


def welcome(
    client: int, waiting: int, quiet: float, headroom: int, slot: int | None = None
) -> bytes:
    """WELCOME: answers HELLO. With a slot, the pool's descriptor goes along with it."""
    pool = (0, 0) if slot is None else (1, slot)
    body = (VERSION, waiting, client, _nanoseconds(quiet), headroom, *pool)
    return _frame(WELCOME, ffi.new(_WELCOME_P, body))


def refused(code: int, text: str) -> bytes:
    """REFUSED: the last frame of a connection."""
    return _frame(REFUSED, ffi.new(_REFUSED_P, (code, 0, _cut(text, _REFUSED_TEXT_SIZE))))


def placed(gpus: Sequence[str], *, known: bool = False) -> bytes:
    """PLACED: answers PLACE. ``known``: the group had this order before."""
    head = ffi.buffer(ffi.new(_PLACED_P, (len(gpus), known)))[:]
    body = b"".join([head, *(gpu_bytes(gpu) for gpu in gpus)])
    return _fixed_header(PLACED, len(body)) + body


def grant(lease: int, at: float = 0.0, *, filling: bool = False) -> bytes:
    """GRANT."""
    return _frame(GRANT, ffi.new(_LEASE_P, (lease, _nanoseconds(at), 0, filling)))


def revoke(lease: int, at: float = 0.0) -> bytes:
    """REVOKE."""
    return _frame(REVOKE, ffi.new(_LEASE_P, (lease, _nanoseconds(at), 0, 0)))


def step(lease: int, at: float = 0.0, *, again: bool = False) -> bytes:
    """STEP."""
    return _frame(STEP, ffi.new(_LEASE_P, (lease, _nanoseconds(at), 0, again)))


def evict(serial: int, gpu: str, size: int) -> bytes:
    """EVICT."""
    return _frame(EVICT, ffi.new(_EVICT_P, (serial, size, gpu_bytes(gpu))))


def grown(serial: int, status: ev.Growth, promised: int, text: str = "") -> bytes:
    """GROWN: answers GROW."""
    body = (serial, promised, _GROWTH_CODES[status], 0, _cut(text, _GROWN_TEXT_SIZE))
    return _frame(GROWN, ffi.new(_GROWN_P, body))


def cancel() -> bytes:
    """CANCEL."""
    return _fixed_header(CANCEL, 0)


def contended(waiting: int, beside: int = 0) -> bytes:
    """CONTENDED."""
    return _frame(CONTENDED, ffi.new(_CONTENDED_P, (waiting, beside)))


def end_burst(at: float) -> bytes:
    """END_BURST."""
    body = (_nanoseconds(at), lib.GPUSHARE_PHASE_END, lib.GPUSHARE_CAUSE_IDLE)
    return _frame(END_BURST, ffi.new(_BURST_P, body))


def room(lease: int, gpu: str, resident: int, *, last: bool = False) -> bytes:
    """ROOM."""
    return _frame(ROOM, ffi.new(_ROOM_P, (lease, resident, gpu_bytes(gpu), last, 0)))


def prepare(size: int) -> bytes:
    """PREPARE."""
    return _frame(PREPARE, ffi.new(_PREPARE_P, (size,)))


def pace(decision: ev.Pace) -> bytes:
    """PACE."""
    inflight = decision.inflight
    body = (
        UNBOUNDED if inflight is None else _nanoseconds(inflight),
        _nanoseconds(decision.stall),
        min(MILLION, max(0, round(decision.share * MILLION))),
        decision.meter,
    )
    return _frame(PACE, ffi.new(_PACE_P, body))


def park(serial: int) -> bytes:
    """PARK."""
    return _frame(PARK, ffi.new(_PARK_P, (serial,)))


def hibernated(serial: int, *, done: bool, context: int = 0) -> bytes:
    """HIBERNATED."""
    return _frame(HIBERNATED, ffi.new(_HIBERNATED_P, (serial, done, 0, context)))


def awake(decision: ev.Awake) -> bytes:
    """AWAKE."""
    moved = bool(decision.gpu_to)
    body = (
        decision.serial,
        decision.status,
        moved,
        gpu_bytes(decision.gpu_from) if moved else _NO_GPU,
        gpu_bytes(decision.gpu_to) if moved else _NO_GPU,
        _cut(decision.text, _AWAKE_TEXT_SIZE),
    )
    return _frame(AWAKE, ffi.new(_AWAKE_P, body))


def encode(decision: ev.Decision, now: float) -> bytes | None:
    """The frame that carries a decision to its client, or None for one that goes to no client."""
    match decision:
        case ev.Grant():
            return grant(decision.lease, now, filling=decision.filling)
        case ev.Revoke():
            return revoke(decision.lease, now)
        case ev.Evict():
            return evict(decision.serial, decision.gpu, decision.bytes)
        case ev.Grown():
            return grown(decision.serial, decision.status, decision.promised, decision.text)
        case ev.CancelWaits():
            return cancel()
        case ev.Contended():
            return contended(decision.waiting, decision.beside)
        case ev.EndBurst():
            return end_burst(decision.at)
        case ev.Step():
            return step(decision.lease, now, again=decision.again)
        case ev.Room():
            return room(decision.lease, decision.gpu, decision.resident, last=decision.last)
        case ev.Prepare():
            return prepare(decision.bytes)
        case ev.Pace():
            return pace(decision)
        case ev.Park():
            return park(decision.serial)
        case ev.Hibernated():
            return hibernated(decision.serial, done=decision.done, context=decision.context)
        case ev.Awake():
            return awake(decision)
        case _:
            return None


# --- JSON -----------------------------------------------------------------------------------------


def encode_json(kind: int, value: Any) -> bytes:
    """A CONTROL, REPLY or EVENT frame.

    Raises
    ------
    ProtocolError
        If it is longer than its receiver reads.
    """
    body = to_json(value)
    if len(body) > _FROM_CLIENT.get(kind, _FROM_SCHEDULER[REPLY])[1]:
        raise ProtocolError(f"a message of {len(body)} bytes is too long")
    length = HEADER_SIZE + len(body)
    return bytes(ffi.buffer(ffi.new(_HEADER_P, (length, kind, 0)))[:]) + body


def decode_json(body: bytes) -> dict[str, Any]:
    """The object of a CONTROL, REPLY or EVENT frame, whose texts can be shown.

    Raises
    ------
    ProtocolError
        If it is no JSON object.
    """
    try:
        value = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("a message that is no JSON object")
    return value


# --- The client's side: for tests and benchmarks --------------------------------------------------


def _seen_values(gpus: Sequence[str]) -> tuple[Any, ...]:
    return len(gpus), 0, [gpu_bytes(gpu) for gpu in gpus]


def _usage_values(usage: ev.Usage) -> tuple[Any, ...]:
    return (
        gpu_bytes(usage.gpu),
        usage.promised,
        usage.resident,
        usage.pinned,
        usage.context,
        usage.host,
    )


def hello(attach: ev.Attach, version: int = VERSION) -> bytes:
    """HELLO."""
    flags = (
        lib.GPUSHARE_HELLO_REATTACH * attach.reattach
        | lib.GPUSHARE_HELLO_LEASED * attach.leased
        | lib.GPUSHARE_HELLO_BUSY * attach.busy
        | lib.GPUSHARE_HELLO_OVERSUBSCRIBE * attach.oversubscribe
        | lib.GPUSHARE_HELLO_HIBERNATED * attach.hibernated
    )
    head = ffi.new(
        _HELLO_P,
        (
            version,
            attach.pid,
            flags,
            _BACKEND_CODES[attach.backend],
            len(attach.usages),
            0,
            attach.lease,
            attach.cap,
            _cut(attach.group, _GROUP_SIZE),
            _cut(attach.name, _NAME_SIZE),
            _seen_values(attach.sees),
        ),
    )
    usages = [ffi.buffer(ffi.new(_USAGE_P, _usage_values(one)))[:] for one in attach.usages]
    body = b"".join([ffi.buffer(head)[:], *usages])
    return _fixed_header(HELLO, len(body)) + body


def ticket(text: str) -> bytes:
    """TICKET."""
    return _frame(TICKET, ffi.new(_TICKET_P, (_cut(text, ffi.sizeof(_TICKET_P.item)),)))


def encode_event(event: ev.Event) -> bytes:
    """The frame by which a client causes ``event``.

    Raises
    ------
    TypeError
        If no client can.
    """
    match event:
        case ev.Attach():
            return hello(event)
        case ev.Request():
            return _frame(REQUEST, ffi.new(_LEASE_P, (event.serial, 0, 0, 0)))
        case ev.Burst():
            at, phase = _nanoseconds(event.at), _PHASE_CODES[event.phase]
            return _frame(BURST, ffi.new(_BURST_P, (at, phase, _CAUSE_CODES[event.cause])))
        case ev.Released():
            cause = _CAUSE_CODES[event.cause]
            return _frame(RELEASED, ffi.new(_LEASE_P, (event.lease, 0, cause, 0)))
        case ev.Grow():
            least = _usage_values(event.least)
            return _frame(
                GROW,
                ffi.new(
                    _GROW_P,
                    (event.serial, least, event.most, event.oversubscribe, event.urgent),
                ),
            )
        case ev.UsageChanged():
            return _frame(USAGE, ffi.new(_USAGE_P, _usage_values(event.usage)))
        case ev.Evicted() | ev.Moving() | ev.Restored():
            body = (
                event.lease if isinstance(event, ev.Restored) else event.serial,
                _usage_values(event.usage),
                event.bytes,
                event.copied,
                _nanoseconds(event.duration),
                _MOVE_CODES[event.status],
                event.error if isinstance(event, ev.Restored) else 0,
            )
            kinds = {ev.Evicted: EVICTED, ev.Moving: MOVING, ev.Restored: RESTORED}
            return _frame(kinds[type(event)], ffi.new(_MOVED_P, body))
        case ev.Cell():
            at, phase = _nanoseconds(event.at), _PHASE_CODES[event.phase]
            return _frame(CELL, ffi.new(_CELL_P, (at, phase, 0, _cut(event.msg_id, _MSG_ID_SIZE))))
        case ev.Meter():
            busy, at = _nanoseconds(event.busy), _nanoseconds(event.at)
            return _frame(
                METER, ffi.new(_METER_P, (gpu_bytes(event.gpu), at, busy, event.submissions))
            )
        case ev.Stuck():
            kernel, since = _cut(event.kernel, _KERNEL_SIZE), _nanoseconds(event.since)
            return _frame(STUCK, ffi.new(_STUCK_P, (event.lease, since, kernel)))
        case ev.Parked():
            status, needs = _PARKING_CODES[event.status], _usage_values(event.needs)
            values = event.serial, status, 0, needs, _seen_values(event.sees)
            return _frame(PARKED, ffi.new(_PARKED_P, values))
        case ev.Wake():
            cause, needs = _WAKE_CODES[event.cause], _usage_values(event.needs)
            return _frame(WAKE, ffi.new(_WAKE_P, (event.serial, 0, cause, 0, needs)))
        case _:
            raise TypeError(f"no client sends {type(event).__name__}")


def decode_decision(client: int, frame: Frame) -> ev.Decision:
    """The decision that a scheduler's frame carries to ``client``.

    Raises
    ------
    ProtocolError
        If it carries none.
    """
    body = frame.body
    match frame.type:
        case lib.GPUSHARE_GRANT:
            lease = ffi.from_buffer(_LEASE_P, body)
            return ev.Grant(client, lease.lease, bool(lease.filling))
        case lib.GPUSHARE_REVOKE:
            return ev.Revoke(client, ffi.from_buffer(_LEASE_P, body).lease)
        case lib.GPUSHARE_STEP:
            lease = ffi.from_buffer(_LEASE_P, body)
            return ev.Step(client, lease.lease, bool(lease.filling))
        case lib.GPUSHARE_EVICT:
            order = ffi.from_buffer(_EVICT_P, body)
            return ev.Evict(client, order.serial, gpu_name(ffi.buffer(order.gpu)[:]), order.bytes)
        case lib.GPUSHARE_GROWN:
            answer = ffi.from_buffer(_GROWN_P, body)
            status = _word(_GROWTHS, answer.status, "growth")
            return ev.Grown(client, answer.serial, status, answer.promised, _text(answer.text))
        case lib.GPUSHARE_CANCEL:
            return ev.CancelWaits(client)
        case lib.GPUSHARE_CONTENDED:
            others = ffi.from_buffer(_CONTENDED_P, body)
            return ev.Contended(client, others.waiting, others.beside)
        case lib.GPUSHARE_END_BURST:
            return ev.EndBurst(client, ffi.from_buffer(_BURST_P, body).at_ns / NANO)
        case lib.GPUSHARE_ROOM:
            more = ffi.from_buffer(_ROOM_P, body)
            gpu, last = gpu_name(ffi.buffer(more.gpu)[:]), bool(more.last)
            return ev.Room(client, more.lease, gpu, more.resident, last)
        case lib.GPUSHARE_PREPARE:
            return ev.Prepare(client, ffi.from_buffer(_PREPARE_P, body).bytes)
        case lib.GPUSHARE_PACE:
            told = ffi.from_buffer(_PACE_P, body)
            inflight = None if told.inflight_ns == UNBOUNDED else told.inflight_ns / NANO
            share = told.share_ppm / MILLION
            return ev.Pace(client, inflight, told.stall_ns / NANO, share, bool(told.meter))
        case lib.GPUSHARE_PARK:
            return ev.Park(client, ffi.from_buffer(_PARK_P, body).serial)
        case lib.GPUSHARE_HIBERNATED:
            came = ffi.from_buffer(_HIBERNATED_P, body)
            return ev.Hibernated(client, came.serial, bool(came.done))
        case lib.GPUSHARE_AWAKE:
            woken = ffi.from_buffer(_AWAKE_P, body)
            pair = ("", "")
            if woken.moved:
                ends = getattr(woken, "from"), woken.to
                pair = gpu_name(ffi.buffer(ends[0])[:]), gpu_name(ffi.buffer(ends[1])[:])
            return ev.Awake(client, woken.serial, woken.status, *pair, _text(woken.text))
        case _:
            raise ProtocolError(f"a frame of type {frame.type} out of turn")


class Welcome(NamedTuple):
    """The body of WELCOME."""

    version: int
    waiting: int
    client: int
    quiet: float
    headroom: int
    #: The client's mark in the pool that came along, or None: there is none.
    slot: int | None


def decode_welcome(body: bytes) -> Welcome:
    """The body of WELCOME."""
    answer = ffi.from_buffer(_WELCOME_P, body)
    return Welcome(
        answer.version,
        answer.contended,
        answer.client,
        answer.quiet_ns / NANO,
        answer.headroom,
        answer.slot if answer.pool else None,
    )


def decode_refused(body: bytes) -> tuple[int, str]:
    """The errno and the sentence of REFUSED."""
    answer = ffi.from_buffer(_REFUSED_P, body)
    return answer.code, _text(answer.text)
