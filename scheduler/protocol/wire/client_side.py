# SPDX-License-Identifier: BSD-3-Clause
"""The client's side of the protocol: for the command line, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...._protocol import ffi, lib
from ...core import messages as ev
from .frames import (
    AWAKE_P,
    BACKEND_CODES,
    BURST,
    BURST_P,
    CAUSE_CODES,
    CELL,
    CELL_P,
    CONTENDED_P,
    EVICT_P,
    EVICTED,
    GROW,
    GROW_P,
    GROWN_P,
    GROWTHS,
    HELLO,
    HELLO_P,
    HIBERNATED_P,
    LEASE_P,
    METER,
    METER_P,
    MILLION,
    MOVE_CODES,
    MOVED_P,
    MOVING,
    NANO,
    PACE_P,
    PARK_P,
    PARKED,
    PARKED_P,
    PARKING_CODES,
    PHASE_CODES,
    PREPARE_P,
    REFUSED_P,
    RELEASED,
    REQUEST,
    RESTORED,
    ROOM_P,
    STUCK,
    STUCK_P,
    TICKET,
    TICKET_P,
    UNBOUNDED,
    USAGE,
    USAGE_P,
    VERSION,
    WAKE,
    WAKE_CODES,
    WAKE_P,
    WELCOME_P,
    Frame,
    ProtocolError,
    cut_text,
    field_size,
    fixed_header,
    gpu_bytes,
    gpu_name,
    make_frame,
    nanoseconds,
    text_of,
    word_of,
)

GROUP_SIZE = field_size(HELLO_P, "group")
_NAME_SIZE = field_size(HELLO_P, "name")
_MSG_ID_SIZE = field_size(CELL_P, "msg_id")
_KERNEL_SIZE = field_size(STUCK_P, "kernel")


def _seen_values(gpus: Sequence[str]) -> tuple[Any, ...]:
    return len(gpus), 0, [gpu_bytes(gpu) for gpu in gpus]


def _usage_values(usage: ev.Usage) -> tuple[Any, ...]:
    return (
        gpu_bytes(usage.gpu),
        usage.promised,
        usage.resident,
        usage.unevictable,
        usage.context,
        usage.host,
        usage.clean,
        usage.shared,
        usage.disk,
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
        HELLO_P,
        (
            version,
            attach.pid,
            flags,
            BACKEND_CODES[attach.backend],
            len(attach.usages),
            0,
            attach.lease,
            attach.cap,
            cut_text(attach.group, GROUP_SIZE),
            cut_text(attach.name, _NAME_SIZE),
            _seen_values(attach.sees),
        ),
    )
    usages = [ffi.buffer(ffi.new(USAGE_P, _usage_values(one)))[:] for one in attach.usages]
    body = b"".join([ffi.buffer(head)[:], *usages])
    return fixed_header(HELLO, len(body)) + body


def ticket(text: str) -> bytes:
    """TICKET."""
    return make_frame(TICKET, ffi.new(TICKET_P, (cut_text(text, ffi.sizeof(TICKET_P.item)),)))


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
            return make_frame(REQUEST, ffi.new(LEASE_P, (event.serial, 0, 0, 0)))
        case ev.Burst():
            at, phase = nanoseconds(event.at), PHASE_CODES[event.phase]
            return make_frame(BURST, ffi.new(BURST_P, (at, phase, CAUSE_CODES[event.cause])))
        case ev.Released():
            cause = CAUSE_CODES[event.cause]
            return make_frame(RELEASED, ffi.new(LEASE_P, (event.lease, 0, cause, 0)))
        case ev.Grow():
            least = _usage_values(event.least)
            return make_frame(
                GROW,
                ffi.new(
                    GROW_P,
                    (event.serial, least, event.most, event.oversubscribe, event.urgent),
                ),
            )
        case ev.UsageChanged():
            return make_frame(USAGE, ffi.new(USAGE_P, _usage_values(event.usage)))
        case ev.Evicted() | ev.Moving() | ev.Restored():
            body = (
                event.lease if isinstance(event, ev.Restored) else event.serial,
                _usage_values(event.usage),
                event.bytes,
                event.copied,
                *(
                    (0, 0, 0)
                    if isinstance(event, ev.Restored)
                    else (event.hashed, event.zero, event.shared)
                ),
                nanoseconds(event.duration),
                MOVE_CODES[event.status],
                event.error if isinstance(event, ev.Restored) else 0,
            )
            kinds = {ev.Evicted: EVICTED, ev.Moving: MOVING, ev.Restored: RESTORED}
            return make_frame(kinds[type(event)], ffi.new(MOVED_P, body))
        case ev.Cell():
            at, phase = nanoseconds(event.at), PHASE_CODES[event.phase]
            return make_frame(
                CELL, ffi.new(CELL_P, (at, phase, 0, cut_text(event.msg_id, _MSG_ID_SIZE)))
            )
        case ev.Meter():
            busy, at = nanoseconds(event.busy), nanoseconds(event.at)
            return make_frame(
                METER, ffi.new(METER_P, (gpu_bytes(event.gpu), at, busy, event.submissions))
            )
        case ev.Stuck():
            kernel, since = cut_text(event.kernel, _KERNEL_SIZE), nanoseconds(event.since)
            return make_frame(STUCK, ffi.new(STUCK_P, (event.lease, since, kernel)))
        case ev.Parked():
            status, needs = PARKING_CODES[event.status], _usage_values(event.needs)
            values = event.serial, status, 0, needs, _seen_values(event.sees)
            return make_frame(PARKED, ffi.new(PARKED_P, values))
        case ev.Wake():
            cause, needs = WAKE_CODES[event.cause], _usage_values(event.needs)
            return make_frame(WAKE, ffi.new(WAKE_P, (event.serial, 0, cause, 0, needs)))
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
            lease = ffi.from_buffer(LEASE_P, body)
            return ev.Grant(client, lease.lease, bool(lease.filling))
        case lib.GPUSHARE_REVOKE:
            return ev.Revoke(client, ffi.from_buffer(LEASE_P, body).lease)
        case lib.GPUSHARE_STEP:
            lease = ffi.from_buffer(LEASE_P, body)
            return ev.Step(client, lease.lease, bool(lease.filling))
        case lib.GPUSHARE_EVICT:
            order = ffi.from_buffer(EVICT_P, body)
            return ev.Evict(client, order.serial, gpu_name(ffi.buffer(order.gpu)[:]), order.bytes)
        case lib.GPUSHARE_GROWN:
            answer = ffi.from_buffer(GROWN_P, body)
            status = word_of(GROWTHS, answer.status, "growth")
            return ev.Grown(client, answer.serial, status, answer.promised, text_of(answer.text))
        case lib.GPUSHARE_CANCEL:
            return ev.CancelWaits(client)
        case lib.GPUSHARE_CONTENDED:
            others = ffi.from_buffer(CONTENDED_P, body)
            return ev.Contended(client, others.waiting, others.beside)
        case lib.GPUSHARE_END_BURST:
            return ev.EndBurst(client, ffi.from_buffer(BURST_P, body).at_ns / NANO)
        case lib.GPUSHARE_ROOM:
            more = ffi.from_buffer(ROOM_P, body)
            gpu, last = gpu_name(ffi.buffer(more.gpu)[:]), bool(more.last)
            return ev.Room(client, more.lease, gpu, more.resident, last)
        case lib.GPUSHARE_PREPARE:
            return ev.Prepare(client, ffi.from_buffer(PREPARE_P, body).bytes)
        case lib.GPUSHARE_PACE:
            told = ffi.from_buffer(PACE_P, body)
            inflight = None if told.inflight_ns == UNBOUNDED else told.inflight_ns / NANO
            share = told.share_ppm / MILLION
            return ev.Pace(client, inflight, told.stall_ns / NANO, share, bool(told.meter))
        case lib.GPUSHARE_PARK:
            return ev.Park(client, ffi.from_buffer(PARK_P, body).serial)
        case lib.GPUSHARE_HIBERNATED:
            came = ffi.from_buffer(HIBERNATED_P, body)
            return ev.Hibernated(client, came.serial, bool(came.done))
        case lib.GPUSHARE_AWAKE:
            woken = ffi.from_buffer(AWAKE_P, body)
            pair = ("", "")
            if woken.moved:
                ends = getattr(woken, "from"), woken.to
                pair = gpu_name(ffi.buffer(ends[0])[:]), gpu_name(ffi.buffer(ends[1])[:])
            return ev.Awake(client, woken.serial, woken.status, *pair, text_of(woken.text))
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
    answer = ffi.from_buffer(WELCOME_P, body)
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
    answer = ffi.from_buffer(REFUSED_P, body)
    return answer.code, text_of(answer.text)
