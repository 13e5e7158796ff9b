# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import contextlib
import struct
import sys
import uuid
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.text import printable
from tests.support.client import decode_placed, place

GPU = "GPU-00112233-4455-6677-8899-aabbccddeeff"
HEADER = struct.Struct("=IHH")

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
#: A whole number of nanoseconds and of binary fractions, so that nothing is rounded.
seconds = st.integers(0, 2**30).map(lambda n: n / 512)
gpus = st.uuids().map(lambda u: f"GPU-{u}")
usages = st.builds(ev.Usage, gpus, u64, u64, u64, u64, u64)
#: A NUL ends a string on the wire, and what cannot be shown arrives as its escape.
letters = st.characters(exclude_categories=("Cs",)).filter(lambda one: printable(one) == one)


def words(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([word for word in get_args(kind) if word != "exit"])


client_events = st.one_of(
    st.builds(ev.Request, st.just(1), u64),
    st.builds(ev.Burst, st.just(1), words(ev.Phase), words(ev.Cause), seconds),
    st.builds(ev.Released, st.just(1), u64, words(ev.Cause)),
    st.builds(ev.Grow, st.just(1), u64, usages, u64),
    st.builds(ev.UsageChanged, st.just(1), usages),
    st.builds(ev.Moving, st.just(1), u64, usages, u64, u64, seconds, words(ev.MoveStatus)),
    st.builds(ev.Meter, st.just(1), gpus, seconds, u64, seconds),
    st.builds(ev.Stuck, st.just(1), u64, st.text(letters, max_size=27), seconds),
    st.builds(ev.Evicted, st.just(1), u64, usages, u64, u64, seconds, words(ev.MoveStatus)),
    st.builds(ev.Restored, st.just(1), u64, usages, u64, u64, seconds, words(ev.MoveStatus)),
    st.builds(ev.Parked, st.just(1), u64, words(ev.Parking), usages),
    st.builds(ev.Wake, st.just(1), u64, st.sampled_from(get_args(ev.WakeCause)), usages),
    st.builds(
        ev.Cell,
        st.just("g"),
        words(ev.Phase),
        st.text(letters, max_size=20),
        seconds,
        st.just(True),
    ),
)
attaches = st.builds(
    ev.Attach,
    client=st.just(1),
    pid=st.integers(1, 2**22),
    group=st.text(letters, min_size=1, max_size=15),
    name=st.text(letters, min_size=1, max_size=40),
    backend=words(ev.Backend),
    cap=u64,
    usages=st.lists(usages, max_size=protocol.MAX_GPUS).map(tuple),
    reattach=st.booleans(),
    leased=st.booleans(),
    busy=st.booleans(),
    lease=u64,
    hibernated=st.booleans(),
)
decisions = st.one_of(
    st.builds(ev.Grant, st.just(1), u64, st.booleans()),
    st.builds(ev.Room, st.just(1), u64, gpus, u64),
    st.builds(ev.Prepare, st.just(1), u64),
    st.builds(ev.Revoke, st.just(1), u64),
    st.builds(ev.Evict, st.just(1), u64, gpus, u64),
    st.builds(ev.Grown, st.just(1), u64, words(ev.Growth), u64, st.text(letters, max_size=40)),
    st.builds(ev.CancelWaits, st.just(1)),
    st.builds(ev.Contended, st.just(1), u32, u32),
    st.builds(
        ev.Pace,
        st.just(1),
        st.none() | seconds,
        seconds,
        st.integers(0, 10**6).map(lambda ppm: ppm / 10**6),
        st.booleans(),
    ),
    st.builds(ev.EndBurst, st.just(1), seconds),
    st.builds(ev.Park, st.just(1), u64),
    st.builds(ev.Hibernated, st.just(1), u64, st.booleans()),
    st.builds(ev.Awake, st.just(1), u64, u32, text=st.text(letters, max_size=40)),
    st.builds(ev.Awake, st.just(1), u64, st.just(0), gpus, gpus),
)


def frames(data: bytes, *, from_scheduler: bool = False) -> list[protocol.Frame]:
    return list(protocol.FrameReader(from_scheduler=from_scheduler).feed(data))


@given(client_events)
def test_messages_of_a_client_arrive(event: ev.Event) -> None:
    (frame,) = frames(protocol.encode_event(event))
    assert protocol.decode(1, "g", frame) == event


@given(
    st.text(letters, min_size=1, max_size=15), st.lists(gpus, min_size=1, max_size=16, unique=True)
)
def test_a_place_request_and_its_answer_arrive(group: str, order: list[str]) -> None:
    (asked,) = frames(place(group, order))
    assert protocol.decode_place(asked.body) == (group, tuple(order), "none")
    (kept,) = frames(place(group, order, keep="it"))
    assert protocol.decode_place(kept.body) == (group, tuple(order), "it")
    (answer,) = frames(protocol.placed(order[::-1]), from_scheduler=True)
    assert decode_placed(answer.body) == tuple(order[::-1])


def test_a_machine_may_have_more_gpus_than_a_process_uses() -> None:
    order = [f"GPU-{uuid.UUID(int=number)}" for number in range(protocol.MAX_PLACES)]
    (asked,) = frames(place("g", order))
    assert protocol.decode_place(asked.body).gpus == tuple(order)
    (answer,) = frames(protocol.placed(order), from_scheduler=True)
    assert decode_placed(answer.body) == tuple(order)


@pytest.mark.parametrize(
    ("group", "order"), [("", [GPU]), ("g", []), ("g", [GPU, GPU])], ids=["group", "none", "twice"]
)
def test_an_impossible_place_request_is_refused(group: str, order: list[str]) -> None:
    (asked,) = frames(place(group, order))
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_place(asked.body)


def test_a_place_request_states_its_version() -> None:
    (asked,) = frames(place("g", [GPU], version=protocol.VERSION + 1))
    with pytest.raises(protocol.VersionMismatch):
        protocol.decode_place(asked.body)


def test_a_ticket_arrives() -> None:
    (frame,) = frames(protocol.ticket("é" * 30))
    assert protocol.decode_ticket(frame.body) == "é" * 30
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_ticket(bytes(128))


@given(attaches)
def test_hello_arrives(attach: ev.Attach) -> None:
    (frame,) = frames(protocol.encode_event(attach))
    assert protocol.decode_hello(1, frame.body) == attach


@given(decisions)
def test_decisions_of_the_scheduler_arrive(decision: ev.Decision) -> None:
    data = protocol.encode(decision, 1.0)
    assert data is not None
    (frame,) = frames(data, from_scheduler=True)
    assert protocol.decode_decision(1, frame) == decision


def test_decisions_without_a_client_have_no_frame() -> None:
    assert protocol.encode(ev.ReadDevice(GPU), 1.0) is None
    assert protocol.encode(ev.Log("join", "g"), 1.0) is None


def test_welcome_and_refused_arrive() -> None:
    welcome, refused = frames(
        protocol.welcome(3, 2, 0.5, 64) + protocol.refused(71, "é" * 200), from_scheduler=True
    )
    answer = protocol.decode_welcome(welcome.body)
    assert answer == (protocol.VERSION, 2, 3, 0.5, 64, None)
    (lent,) = frames(protocol.welcome(3, 2, 0.5, 64, 7), from_scheduler=True)
    assert protocol.decode_welcome(lent.body).slot == 7
    # Cut at a character's boundary, with room for the NUL: 247 bytes hold 123 of two bytes.
    assert protocol.decode_refused(refused.body) == (71, "é" * 123)


@given(st.lists(client_events, max_size=6), st.data())
def test_frames_arrive_however_the_stream_is_cut(events: list[ev.Event], data: Any) -> None:
    stream = b"".join(map(protocol.encode_event, events))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = protocol.FrameReader()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += list(reader.feed(stream[start:end]))
    assert [protocol.decode(1, "g", frame) for frame in received] == events
    assert reader.pending == 0


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(
    chunks: list[bytes], from_scheduler: bool
) -> None:
    reader = protocol.FrameReader(from_scheduler=from_scheduler)
    with contextlib.suppress(protocol.ProtocolError):
        for chunk in chunks:
            for frame in reader.feed(chunk):
                _decode_any(frame, from_scheduler)


@given(st.sampled_from([*range(1, 17), *range(32, 49), 64, 65, 66]), st.data())
def test_arbitrary_bodies_raise_nothing_but_protocol_errors(kind: int, data: Any) -> None:
    body = data.draw(st.binary(max_size=400))
    frame = HEADER.pack(HEADER.size + len(body), kind, 0) + body
    for from_scheduler in (False, True):
        with contextlib.suppress(protocol.ProtocolError):
            for found in frames(frame, from_scheduler=from_scheduler):
                _decode_any(found, from_scheduler)


def _decode_any(frame: protocol.Frame, from_scheduler: bool) -> None:
    if frame.type in (protocol.CONTROL, protocol.REPLY, protocol.EVENT):
        protocol.decode_json(frame.body)
    elif frame.type == protocol.HELLO:
        protocol.decode_hello(1, frame.body)
    elif frame.type == protocol.WELCOME:
        protocol.decode_welcome(frame.body)
    elif frame.type == protocol.REFUSED:
        protocol.decode_refused(frame.body)
    elif from_scheduler:
        protocol.decode_decision(1, frame)
    else:
        protocol.decode(1, "g", frame)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(8, 0, 0),
        HEADER.pack(8, 99, 0),
        HEADER.pack(8, protocol.GRANT, 0),
        HEADER.pack(0, protocol.REQUEST, 0),
        HEADER.pack(31, protocol.REQUEST, 0),
        HEADER.pack(33, protocol.REQUEST, 0),
        HEADER.pack(protocol.MAX_REQUEST + 1, protocol.CONTROL, 0),
        HEADER.pack(2**32 - 1, protocol.HELLO, 0),
    ],
)
def test_an_impossible_header_is_refused_at_once(header: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        frames(header)


def test_frames_before_an_impossible_one_are_read() -> None:
    good = protocol.encode_event(ev.Request(1, 5))
    reader = protocol.FrameReader().feed(good + HEADER.pack(8, 99, 0))
    assert protocol.decode(1, "g", next(reader)) == ev.Request(1, 5)
    with pytest.raises(protocol.ProtocolError):
        next(reader)


def test_another_version_is_recognised_by_its_first_bytes() -> None:
    # A HELLO of another version may have any length.
    body = (8).to_bytes(4, sys.byteorder)
    (frame,) = frames(HEADER.pack(HEADER.size + len(body), protocol.HELLO, 0) + body)
    with pytest.raises(protocol.VersionMismatch, match="protocol 8 "):
        protocol.decode_hello(1, frame.body)


def test_long_names_are_cut_between_characters() -> None:
    attach = ev.Attach(1, 1, "g" * 100, "ä" * 200, "swap")
    (frame,) = frames(protocol.encode_event(attach))
    decoded = protocol.decode_hello(1, frame.body)
    assert decoded.group == "g" * 63
    assert decoded.name == "ä" * 95


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 60000])
def test_json_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_json(body)


def test_overlong_json_is_not_sent() -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.encode_json(protocol.CONTROL, {"op": "x" * protocol.MAX_REQUEST})
    assert frames(protocol.encode_json(protocol.CONTROL, {"op": "x" * 1000}))
