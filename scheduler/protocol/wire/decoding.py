# SPDX-License-Identifier: BSD-3-Clause
"""Frames of clients, as events of the core."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...._protocol import ffi, lib
from ...core import messages as ev
from .frames import (
    BACKENDS,
    BURST,
    BURST_P,
    CAUSES,
    CELL,
    CELL_P,
    EVICTED,
    GROW,
    GROW_P,
    HELLO_P,
    HELLO_SIZE,
    LEASE_P,
    MAX_PLACES,
    METER,
    METER_P,
    MOVED_P,
    MOVES,
    MOVING,
    NANO,
    PARKED,
    PARKED_P,
    PARKINGS,
    PHASES,
    PLACE_P,
    PLACE_SIZE,
    RELEASED,
    REQUEST,
    RESTORED,
    STUCK,
    STUCK_P,
    TICKET_P,
    USAGE,
    USAGE_P,
    USAGE_SIZE,
    UUID_SIZE,
    WAKE,
    WAKE_P,
    WAKES,
    Frame,
    ProtocolError,
    check_version,
    gpu_name,
    text_of,
    word_of,
)


def _seen(seen: Any) -> tuple[str, ...]:
    if seen.count > len(seen.gpus):
        raise ProtocolError(f"a process that sees {seen.count} GPUs")
    return tuple(gpu_name(ffi.buffer(seen.gpus[i])[:]) for i in range(seen.count))


def _usage(usage: Any) -> ev.Usage:
    return ev.Usage(
        gpu_name(ffi.buffer(usage.gpu)[:]),
        usage.promised,
        usage.resident,
        usage.unevictable,
        usage.context,
        usage.host,
        usage.clean,
        usage.shared,
        usage.disk,
    )


def decode_hello(client: int, body: bytes) -> ev.Attach:
    """The event of a HELLO.

    Raises
    ------
    VersionMismatch
        If the client is of another version; nothing else of the body has been looked at.
    """
    check_version(body)
    if len(body) < HELLO_SIZE:
        raise ProtocolError(f"a HELLO of {len(body)} bytes")
    hello = ffi.from_buffer(HELLO_P, body)
    if len(body) != HELLO_SIZE + hello.gpu_count * USAGE_SIZE:
        raise ProtocolError(f"a HELLO of {len(body)} bytes for {hello.gpu_count} GPUs")
    usages = ffi.cast(USAGE_P, ffi.from_buffer(body) + HELLO_SIZE)
    group = text_of(hello.group)
    if not group:
        raise ProtocolError("a HELLO without a group")
    return ev.Attach(
        client=client,
        pid=hello.pid,
        group=group,
        name=text_of(hello.name) or group,
        backend=word_of(BACKENDS, hello.backend, "backend"),
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


def pid_namespace(body: bytes) -> int:
    """The PID namespace that a HELLO states, which was decoded before; 0: none."""
    return int(ffi.from_buffer(HELLO_P, body).pid_namespace)


def decode_ticket(body: bytes) -> str:
    """The text of a TICKET.

    Raises
    ------
    ProtocolError
        If there is none in it.
    """
    text = text_of(ffi.from_buffer(TICKET_P, body).ticket)
    if not text:
        raise ProtocolError("a TICKET without a ticket")
    return text


KEEPS: dict[int, ev.Keep] = {
    lib.GPUSHARE_KEEP_NONE: "none",
    lib.GPUSHARE_KEEP_IT: "it",
    lib.GPUSHARE_KEEP_ASK: "ask",
}


class Place(NamedTuple):
    """The body of PLACE: the GPUs that a group's client may use, in the order that it would have.

    ``keep``: the order of a group that has none yet.
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
    check_version(body)
    if len(body) < PLACE_SIZE:
        raise ProtocolError(f"a PLACE of {len(body)} bytes")
    place = ffi.from_buffer(PLACE_P, body)
    if len(body) != PLACE_SIZE + place.gpu_count * UUID_SIZE:
        raise ProtocolError(f"a PLACE of {len(body)} bytes for {place.gpu_count} GPUs")
    group, gpus = text_of(place.group), uuids_of(body, PLACE_SIZE)
    if not group:
        raise ProtocolError("a PLACE without a group")
    if not 0 < len(gpus) <= MAX_PLACES or len(set(gpus)) < len(gpus):
        raise ProtocolError("a PLACE that names no GPU, too many, or one of them twice")
    return Place(group, gpus, word_of(KEEPS, place.keep, "kind of keeping"))


def uuids_of(body: bytes, start: int) -> tuple[str, ...]:
    """Return the GPUs whose UUIDs follow a struct."""
    return tuple(gpu_name(body[at : at + UUID_SIZE]) for at in range(start, len(body), UUID_SIZE))


def _decode_request(client: int, group: str, body: bytes) -> ev.Event:
    return ev.Request(client, ffi.from_buffer(LEASE_P, body).lease)


def _decode_burst(client: int, group: str, body: bytes) -> ev.Event:
    burst = ffi.from_buffer(BURST_P, body)
    phase = word_of(PHASES, burst.phase, "phase")
    return ev.Burst(client, phase, word_of(CAUSES, burst.cause, "cause"), burst.at_ns / NANO)


def _decode_released(client: int, group: str, body: bytes) -> ev.Event:
    lease = ffi.from_buffer(LEASE_P, body)
    return ev.Released(client, lease.lease, word_of(CAUSES, lease.cause, "cause"))


def _decode_grow(client: int, group: str, body: bytes) -> ev.Event:
    grow = ffi.from_buffer(GROW_P, body)
    over, urgent = bool(grow.oversubscribe), bool(grow.urgent)
    return ev.Grow(client, grow.serial, _usage(grow.least), grow.most, over, urgent)


def _decode_usage(client: int, group: str, body: bytes) -> ev.Event:
    return ev.UsageChanged(client, _usage(ffi.from_buffer(USAGE_P, body)))


def _decode_moved(moved: Any) -> tuple[int, ev.Usage, int, int, float, ev.MoveStatus]:
    return (
        moved.serial,
        _usage(moved.usage),
        moved.bytes,
        moved.copied,
        moved.duration_ns / NANO,
        word_of(MOVES, moved.status, "status"),
    )


def _decode_evicted(client: int, group: str, body: bytes) -> ev.Event:
    moved = ffi.from_buffer(MOVED_P, body)
    return ev.Evicted(client, *_decode_moved(moved), moved.hashed, moved.zero, moved.shared)


def _decode_moving(client: int, group: str, body: bytes) -> ev.Event:
    moved = ffi.from_buffer(MOVED_P, body)
    return ev.Moving(client, *_decode_moved(moved), moved.hashed, moved.zero, moved.shared)


def _decode_restored(client: int, group: str, body: bytes) -> ev.Event:
    moved = ffi.from_buffer(MOVED_P, body)
    return ev.Restored(client, *_decode_moved(moved), moved.error)


def _decode_cell(client: int, group: str, body: bytes) -> ev.Event:
    cell = ffi.from_buffer(CELL_P, body)
    phase = word_of(PHASES, cell.phase, "phase")
    return ev.Cell(group, phase, text_of(cell.msg_id), cell.at_ns / NANO, from_kernel=True)


def _decode_meter(client: int, group: str, body: bytes) -> ev.Event:
    meter = ffi.from_buffer(METER_P, body)
    gpu, busy = gpu_name(ffi.buffer(meter.gpu)[:]), meter.busy_ns / NANO
    return ev.Meter(client, gpu, busy, meter.submissions, meter.at_ns / NANO)


def _decode_stuck(client: int, group: str, body: bytes) -> ev.Event:
    stuck = ffi.from_buffer(STUCK_P, body)
    return ev.Stuck(client, stuck.lease, text_of(stuck.kernel), stuck.since_ns / NANO)


def _decode_parked(client: int, group: str, body: bytes) -> ev.Event:
    parked = ffi.from_buffer(PARKED_P, body)
    status = word_of(PARKINGS, parked.status, "status")
    return ev.Parked(client, parked.serial, status, _usage(parked.needs), _seen(parked.seen))


def _decode_wake(client: int, group: str, body: bytes) -> ev.Event:
    wake = ffi.from_buffer(WAKE_P, body)
    cause = word_of(WAKES, wake.cause, "cause")
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
