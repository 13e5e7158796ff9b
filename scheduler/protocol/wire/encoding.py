# SPDX-License-Identifier: BSD-3-Clause
"""Decisions of the core, as frames to clients."""

from __future__ import annotations

from collections.abc import Sequence

from ...._protocol import ffi, lib
from ...core import messages as ev
from .frames import (
    AWAKE,
    AWAKE_P,
    BURST_P,
    CANCEL,
    CONTENDED,
    CONTENDED_P,
    END_BURST,
    EVICT,
    EVICT_P,
    GRANT,
    GROWN,
    GROWN_P,
    GROWTH_CODES,
    HIBERNATED,
    HIBERNATED_P,
    LEASE_P,
    MILLION,
    PACE,
    PACE_P,
    PARK,
    PARK_P,
    PLACED,
    PLACED_P,
    PREPARE,
    PREPARE_P,
    REFUSED,
    REFUSED_P,
    REVOKE,
    ROOM,
    ROOM_P,
    STEP,
    UNBOUNDED,
    UUID_SIZE,
    VERSION,
    WELCOME,
    WELCOME_P,
    cut_text,
    field_size,
    fixed_header,
    gpu_bytes,
    make_frame,
    nanoseconds,
)

_REFUSED_TEXT_SIZE = field_size(REFUSED_P, "text")
_GROWN_TEXT_SIZE = field_size(GROWN_P, "text")
_AWAKE_TEXT_SIZE = field_size(AWAKE_P, "text")
_NO_GPU = bytes(UUID_SIZE)


def welcome(
    client: int, waiting: int, quiet: float, headroom: int, slot: int | None = None
) -> bytes:
    """WELCOME: answers HELLO. With a slot, the pool's descriptor goes along with it."""
    pool = (0, 0) if slot is None else (1, slot)
    body = (VERSION, waiting, client, nanoseconds(quiet), headroom, *pool)
    return make_frame(WELCOME, ffi.new(WELCOME_P, body))


def refused(code: int, text: str) -> bytes:
    """REFUSED: the last frame of a connection."""
    return make_frame(REFUSED, ffi.new(REFUSED_P, (code, 0, cut_text(text, _REFUSED_TEXT_SIZE))))


def placed(gpus: Sequence[str], *, known: bool = False) -> bytes:
    """PLACED: answers PLACE. ``known``: the group had this order before."""
    head = ffi.buffer(ffi.new(PLACED_P, (len(gpus), known)))[:]
    body = b"".join([head, *(gpu_bytes(gpu) for gpu in gpus)])
    return fixed_header(PLACED, len(body)) + body


def grant(lease: int, at: float = 0.0, *, filling: bool = False) -> bytes:
    """GRANT."""
    return make_frame(GRANT, ffi.new(LEASE_P, (lease, nanoseconds(at), 0, filling)))


def revoke(lease: int, at: float = 0.0) -> bytes:
    """REVOKE."""
    return make_frame(REVOKE, ffi.new(LEASE_P, (lease, nanoseconds(at), 0, 0)))


def step(lease: int, at: float = 0.0, *, again: bool = False) -> bytes:
    """STEP."""
    return make_frame(STEP, ffi.new(LEASE_P, (lease, nanoseconds(at), 0, again)))


def evict(serial: int, gpu: str, size: int) -> bytes:
    """EVICT."""
    return make_frame(EVICT, ffi.new(EVICT_P, (serial, size, gpu_bytes(gpu))))


def grown(serial: int, status: ev.Growth, promised: int, text: str = "") -> bytes:
    """GROWN: answers GROW."""
    body = (serial, promised, GROWTH_CODES[status], 0, cut_text(text, _GROWN_TEXT_SIZE))
    return make_frame(GROWN, ffi.new(GROWN_P, body))


def cancel() -> bytes:
    """CANCEL."""
    return fixed_header(CANCEL, 0)


def contended(waiting: int, beside: int = 0) -> bytes:
    """CONTENDED."""
    return make_frame(CONTENDED, ffi.new(CONTENDED_P, (waiting, beside)))


def end_burst(at: float) -> bytes:
    """END_BURST."""
    body = (nanoseconds(at), lib.GPUSHARE_PHASE_END, lib.GPUSHARE_CAUSE_IDLE)
    return make_frame(END_BURST, ffi.new(BURST_P, body))


def room(lease: int, gpu: str, resident: int, *, last: bool = False) -> bytes:
    """ROOM."""
    return make_frame(ROOM, ffi.new(ROOM_P, (lease, resident, gpu_bytes(gpu), last, 0)))


def prepare(size: int) -> bytes:
    """PREPARE."""
    return make_frame(PREPARE, ffi.new(PREPARE_P, (size,)))


def pace(decision: ev.Pace) -> bytes:
    """PACE."""
    inflight = decision.inflight
    body = (
        UNBOUNDED if inflight is None else nanoseconds(inflight),
        nanoseconds(decision.stall),
        min(MILLION, max(0, round(decision.share * MILLION))),
        decision.meter,
    )
    return make_frame(PACE, ffi.new(PACE_P, body))


def park(serial: int) -> bytes:
    """PARK."""
    return make_frame(PARK, ffi.new(PARK_P, (serial,)))


def hibernated(serial: int, *, done: bool, context: int = 0) -> bytes:
    """HIBERNATED."""
    return make_frame(HIBERNATED, ffi.new(HIBERNATED_P, (serial, done, 0, context)))


def awake(decision: ev.Awake) -> bytes:
    """AWAKE."""
    moved = bool(decision.gpu_to)
    body = (
        decision.serial,
        decision.status,
        moved,
        gpu_bytes(decision.gpu_from) if moved else _NO_GPU,
        gpu_bytes(decision.gpu_to) if moved else _NO_GPU,
        cut_text(decision.text, _AWAKE_TEXT_SIZE),
    )
    return make_frame(AWAKE, ffi.new(AWAKE_P, body))


def encode(decision: ev.Decision, now: float) -> bytes | None:
    """Return the frame that carries a decision to its client; None: the decision is for no client."""
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
