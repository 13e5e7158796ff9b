# SPDX-License-Identifier: BSD-3-Clause
"""The lower limit of a hand-off through a third process on this machine.

A program sends a message over a unix socket. A Python process waits for it in the event loop that the scheduler uses,
and forwards it without a decision. A helper thread reads it and wakes the thread that waits. A hand-off has the same
messages, wake-ups and kinds of processes. So its additional time is the work of the scheduler and the interposer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import subprocess
from collections.abc import Mapping

from .machine import probe_command

#: Nanoseconds between two messages: all processes are asleep by then, as between two hand-offs.
GAP = 20_000_000


class _Forward(asyncio.Protocol):
    """Forwards all data to a socket."""

    def __init__(self, out: socket.socket) -> None:
        self._out = out

    def data_received(self, data: bytes) -> None:
        self._out.send(data)

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().stop()


def _forward(incoming: socket.socket, out: socket.socket) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.create_connection(lambda: _Forward(out), sock=incoming))
    loop.run_forever()


def hops(environ: Mapping[str, str], count: int) -> list[float]:
    """Send this number of messages and return the seconds that each took."""
    sender, entry = socket.socketpair()
    exit_, receiver = socket.socketpair()
    with sender, entry, exit_, receiver:
        middle = multiprocessing.get_context("fork").Process(target=_forward, args=(entry, exit_))
        middle.start()
        ends = sender.fileno(), receiver.fileno()
        try:
            done = subprocess.run(
                probe_command("hops", str(count), str(GAP), *map(str, ends)),
                env=dict(environ),
                pass_fds=ends,
                stdout=subprocess.PIPE,
                check=True,
                timeout=60 + count * GAP / 1e9,
            )
        finally:
            middle.terminate()
            middle.join()
    return [int(line) / 1e9 for line in done.stdout.split()]
