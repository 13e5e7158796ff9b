# SPDX-License-Identifier: BSD-3-Clause
"""Every connection that is accepted is served or closed, also while the scheduler accepts fewer at once or leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol.address import bind
from jupyter_gpushare.scheduler.server import listening
from jupyter_gpushare.scheduler.server.listening import Listening
from jupyter_gpushare.scheduler.server.options import Options
from jupyter_gpushare.scheduler.server.systemd import Passed
from tests.support.client import PATIENCE


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"served")
        transport.close()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    path = tmp_path / "s.sock"
    return Options(path, inherited=bind(path, None))


def connect(options: Options, count: int) -> list[socket.socket]:
    made = []
    for _ in range(count):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(str(options.path))
        one.setblocking(False)
        made.append(one)
    return made


async def answers(made: list[socket.socket]) -> list[bytes]:
    """Return what each connection receives first: a greeting, or its end."""
    loop = asyncio.get_running_loop()
    found = [await asyncio.wait_for(loop.sock_recv(one, 16), PATIENCE) for one in made]
    for one in made:
        one.close()
    return found


def test_connections_are_served_in_the_round_in_which_the_crowd_is_over(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETURN", 0.0)

    async def run() -> list[bytes]:
        made = Listening(options, Greeting)
        await made.start()
        # They arrive in the next round of the loop, in which the crowd's time is over.
        found = await answers(connect(options, 5))
        made.close(for_good=True)
        return found

    assert asyncio.run(run()) == [b"served"] * 5


def test_connections_that_come_while_the_scheduler_leaves_do_not_hang(options: Options) -> None:
    async def run() -> list[bytes]:
        made = Listening(options, Greeting)
        await made.start()
        connections = connect(options, 5)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time(), lambda: made.close(for_good=True))
        found = []
        for one in connections:
            try:
                found += await answers([one])
            except ConnectionResetError:
                found.append(b"")
        return found

    assert set(asyncio.run(run())) <= {b"served", b""}


def test_a_shortage_of_descriptors_only_delays_connections(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETURN", 0.0)
    accept, left = Passed.accept, [2]

    def short(self: Passed) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    monkeypatch.setattr(Passed, "accept", short)
    reported = []

    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        made = Listening(options, Greeting)
        await made.start()
        found = await answers(connect(options, 5))
        made.close(for_good=True)
        return found

    assert asyncio.run(run()) == [b"served"] * 5
    assert {type(error) for error in reported} == {OSError}
