# SPDX-License-Identifier: BSD-3-Clause
"""How the scheduler is divided among users: turns, shares, connections, and what is left unread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.server.connection import Connection
from jupyter_gpushare.scheduler.server.server import Server
from jupyter_gpushare.scheduler.server.throttle import LINES, PERSONAL, Lane, Limits, Throttle

LIMITS = Limits(turn=0.004, stretch=0.002, share=0.5, window=0.2)
#: What handling one frame takes.
COST = 0.001


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """A connection with frames that cost time."""

    lane: Lane

    def __init__(self, throttle: Throttle, clock: Clock, log: list[str], name: str) -> None:
        self.throttle, self.clock, self.log, self.name = throttle, clock, log, name
        self.frames = 0
        self.unread = 0

    def send(self, frames: int) -> bool:
        self.frames += frames
        return self.throttle.serve(self)

    def proceed(self, until: float) -> bool:
        while self.frames:
            self.frames -= 1
            self.clock.now += COST
            self.log.append(self.name)
            if self.clock.now >= until - 1e-9 and self.frames:
                return True
        return False


class Lab:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.clock = Clock()
        self.throttle = Throttle(limits, self.clock)
        self.log: list[str] = []

    def peer(self, user: str, free: bool = False) -> Peer:
        peer = Peer(self.throttle, self.clock, self.log, user)
        self.throttle.admit(peer, user, free)
        return peer


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_frame_waits_for_one_turn_of_each_other_connection() -> None:
    lab = Lab()
    crowd = [lab.peer("ada") for _ in range(20)]
    for peer in crowd:
        peer.send(100)
    ben = lab.peer("ben")
    before = len(lab.log)
    assert before <= 4
    assert not ben.send(1)
    assert lab.log[before:] == ["ben"]
    await rounds(3)
    assert lab.log.count("ada") <= 4 * 5
    # Each of the crowd's connections has had a stretch before any has had many.
    await rounds(30)
    left = [peer.frames for peer in crowd]
    assert max(left) - min(left) <= 4


async def test_a_connection_above_its_rate_pauses_and_loses_nothing() -> None:
    lab = Lab()
    ada = lab.peer("ada")
    ada.send(300)
    await rounds(200)
    # What it may take at once, what came to that meanwhile, and the last stretch.
    used = 300 - ada.frames
    assert 200 <= used <= 203
    for _ in range(400):
        lab.clock.now += 0.01
        await asyncio.sleep(0.001)
        if not ada.frames:
            break
    assert ada.frames == 0
    assert len(lab.log) == 300


async def test_a_connection_with_little_traffic_never_waits() -> None:
    lab = Lab()
    ben = lab.peer("ben")
    for _ in range(1000):
        assert not ben.send(1)
        lab.clock.now += 0.002
        await asyncio.sleep(0)


@pytest.mark.parametrize("limits", [PERSONAL, LIMITS])
async def test_administrators_and_personal_schedulers_are_not_throttled(limits: Limits) -> None:
    lab = Lab(limits)
    peers = [lab.peer("ada", free=limits is LIMITS) for _ in range(300)]
    peers[0].send(1000)
    assert not peers[1].send(1)
    await rounds(1000)
    assert peers[0].frames == 0
    peers[0].unread = 1 << 30
    assert not lab.throttle.overflows(peers[0])


async def test_the_number_of_connections_is_limited() -> None:
    lab = Lab(Limits(connections=2))
    first, second = lab.peer("ada"), lab.peer("ada")
    third = Peer(lab.throttle, lab.clock, lab.log, "ada")
    assert not lab.throttle.admit(third, "ada")
    lab.throttle.leave(third)
    assert lab.throttle.admit(third, "ben")
    lab.throttle.leave(first)
    assert lab.throttle.admit(third, "ada")
    assert second.lane is third.lane


async def test_a_process_with_too_many_unidentified_connections_loses_the_oldest() -> None:
    lab = Lab(Limits(unidentified=4))
    peers = [lab.peer(f"uid {n}") for n in range(7)]
    honest, *crowd = peers
    assert lab.throttle.expect(honest, 1000, 1) is None
    for peer in crowd[:3]:
        assert lab.throttle.expect(peer, 1000, 2) is None
    assert lab.throttle.expect(crowd[3], 1000, 2) is crowd[0]
    assert lab.throttle.expect(crowd[4], 1000, 2) is crowd[1]
    lab.throttle.admit(honest, "ben")
    assert lab.throttle.expect(crowd[5], 1000, 2) is None
    assert lab.throttle.unidentified == 4


async def test_unread_data_of_a_user_counts_together() -> None:
    lab = Lab(Limits(unread=100))
    one, other, ben = lab.peer("ada"), lab.peer("ada"), lab.peer("ben")
    one.unread = other.unread = 60
    ben.unread = 90
    assert not lab.throttle.overflows(one)
    assert not lab.throttle.overflows(ben)
    assert lab.throttle.overflows(other)
    one.unread = 0
    assert not lab.throttle.overflows(one)
    assert not lab.throttle.overflows(other)


async def test_the_log_is_limited_and_counts_omitted_lines() -> None:
    lab = Lab()
    ada, ben = lab.peer("ada"), lab.peer("ben")
    said = [lab.throttle.may_log(ada) for _ in range(LINES + 30)]
    assert said == [0] * LINES + [None] * 30
    assert lab.throttle.may_log(ben) == 0
    lab.clock.now += 100
    assert lab.throttle.may_log(ada) == 30


async def test_reconnecting_gives_no_new_credit() -> None:
    lab = Lab()
    ada = lab.peer("ada")
    ada.send(300)
    await rounds(200)
    lab.throttle.leave(ada)
    lab.throttle.sweep()
    again = lab.peer("ada")
    assert again.send(1)
    lab.throttle.leave(again)
    lab.clock.now += 1
    lab.throttle.sweep()
    assert lab.throttle.of("ada") is None


class Wire(asyncio.Transport):
    """A transport that notes whether it is to be read from."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


async def test_a_connection_after_a_slow_frame_is_read_at_once() -> None:
    """Otherwise, its next frame would be handled after later ones of others."""
    clock = Clock()
    handled: list[ev.Event] = []

    def handle(event: ev.Event) -> None:
        handled.append(event)
        clock.now += 1.0

    server = SimpleNamespace(throttle=Throttle(PERSONAL, clock), handle=handle)
    connection = Connection(cast("Server", server))
    server.throttle.admit(connection, "ada")
    connection.transport, connection.number, connection.attached = Wire(), 1, True
    connection.data_received(protocol.encode_event(ev.Request(1, 1)))
    assert (len(handled), connection.transport.reading) == (1, True)
    # With more frames, it takes turns with others, and loses none.
    connection.data_received(b"".join(protocol.encode_event(ev.Request(1, n)) for n in (2, 3, 4)))
    assert (len(handled), connection.transport.reading) == (2, False)
    await rounds(5)
    assert handled == [ev.Request(1, n) for n in (1, 2, 3, 4)]
    assert connection.transport.reading
