# SPDX-License-Identifier: BSD-3-Clause
"""How long requests go unanswered while a scheduler takes over from another one, with 50 clients that contend.

The clients are connections that send what the interposer sends: one group at a time may run, each runs for a
millisecond, and all others wait. When a connection ends, they reconnect as the interposer does. Beside them, a control
program sends one request after the other. The next scheduler stands by, and the running one is told to end (SIGTERM).
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...scheduler.core import messages as ev
from ...scheduler.protocol import wire as protocol
from ..harness.figures import Figure
from ..harness.machine import MIB, Machine, machine

CLIENTS = 50
#: Seconds of a client's burst, and of a control program between two requests.
BURST, PAUSE = 0.001, 0.001
#: Seconds before the interposer's first attempt to reconnect, and before the next one (``channel.c``).
FIRST_RETRY, RETRY = 0.0, 0.04
#: Seconds of contention before and after each take-over.
CALM = 1.0


class Crowd:
    """Clients and a control program in one loop, and how long they wait.

    Parameters
    ----------
    path
        The scheduler's socket.
    gpu
        The GPU that all clients use.
    """

    def __init__(self, path: Path, gpu: str) -> None:
        self.path, self.gpu = path, gpu
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        #: When a client was granted a lease last; and since the last `forget`, the longest time without a grant, the
        #: longest time of a client without a scheduler, and the longest time of a control request.
        self.granted = time.monotonic()
        self.without_grant = self.without_scheduler = self.control = 0.0
        self.grants = self.welcomes = 0
        self.clients = [Client(self, f"crowd-{number}") for number in range(CLIENTS)]
        self.prober = Prober(self)

    def forget(self) -> None:
        """Begin to measure."""
        self.without_grant = self.without_scheduler = self.control = 0.0
        self.grants = self.welcomes = 0

    def grant(self) -> None:
        """Note that a client was granted a lease."""
        now = time.monotonic()
        self.without_grant = max(self.without_grant, now - self.granted)
        self.granted, self.grants = now, self.grants + 1

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), do))

    def watch(self, connection: socket.socket, receive: Callable[[], None]) -> None:
        """Call a function when a connection can be read."""
        self._selector.register(connection, selectors.EVENT_READ, receive)

    def drop(self, connection: socket.socket) -> None:
        """Close a connection."""
        self._selector.unregister(connection)
        connection.close()

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until a condition holds."""
        while not until():
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            wait = self._timers[0][0] - time.monotonic() if self._timers else 0.1
            for key, _ in self._selector.select(max(0.0, min(wait, 0.1))):
                key.data()

    def run_for(self, seconds: float) -> None:
        """Go on for some seconds."""
        end = time.monotonic() + seconds
        self.run(lambda: time.monotonic() >= end)

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self.drop(key.fileobj)
        self._selector.close()


class Peer:
    """A connection that is made again when it ends.

    Parameters
    ----------
    crowd
        Whose loop it is in.
    greet
        Called after each connection.
    hear
        Called with each frame.
    """

    def __init__(
        self, crowd: Crowd, greet: Callable[[], None], hear: Callable[[protocol.Frame], None]
    ) -> None:
        self._crowd, self._greet, self._hear = crowd, greet, hear
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._connection: socket.socket | None = None
        #: When the last connection that the scheduler had answered ended.
        self.away_since = time.monotonic()

    def connect(self) -> None:
        """Connect, and try again later if no scheduler listens."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(self._crowd.path))
        except OSError:
            connection.close()
            self._crowd.after(RETRY, self.connect)
            return
        self._connection, self._reader = connection, protocol.FrameReader(from_scheduler=True)
        self._crowd.watch(connection, self._receive)
        self._greet()

    def send(self, data: bytes) -> None:
        """Send, if there is a connection; its end is seen when it is read."""
        if self._connection is not None:
            try:
                self._connection.send(data)
            except OSError:
                return

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 1)
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.close(descriptor)
        if not data:
            self._crowd.drop(self._connection)
            self._connection, self.away_since = None, time.monotonic()
            self._crowd.after(FIRST_RETRY, self.connect)
            return
        for frame in self._reader.feed(data):
            self._hear(frame)


class Client:
    """A client that always wants the GPU."""

    def __init__(self, crowd: Crowd, group: str) -> None:
        self._crowd, self._group = crowd, group
        self._usage = ev.Usage(crowd.gpu, MIB, MIB)
        self._number = self._lease = self._serial = 0
        self._again = self._busy = False
        self._peer = Peer(crowd, self._greet, self._hear)
        self._peer.connect()

    def _send(self, event: ev.Event) -> None:
        self._peer.send(protocol.encode_event(event))

    def _greet(self) -> None:
        self._send(
            ev.Attach(
                0, os.getpid(), self._group, self._group, "managed", usages=(self._usage,),
                reattach=self._again, leased=self._lease != 0, busy=self._busy, lease=self._lease,
            )
        )  # fmt: skip

    def _request(self) -> None:
        if self._lease == 0:
            self._serial += 1
            self._send(ev.Request(self._number, self._serial))

    def _hear(self, frame: protocol.Frame) -> None:
        if frame.type == protocol.REFUSED:
            raise RuntimeError(protocol.decode_refused(frame.body)[1])
        if frame.type == protocol.WELCOME:
            self._number = protocol.decode_welcome(frame.body).client
            if self._again:
                away = time.monotonic() - self._peer.away_since
                self._crowd.without_scheduler = max(self._crowd.without_scheduler, away)
            self._again = True
            self._crowd.welcomes += 1
            self._request()
            return
        match protocol.decode_decision(self._number, frame):
            case ev.Grant(lease=lease):
                self._crowd.grant()
                self._lease, self._busy = lease, True
                self._crowd.after(BURST, self._end)
            case ev.Revoke(lease=lease) if lease == self._lease and not self._busy:
                self._release()

    def _end(self) -> None:
        self._busy = False
        self._send(ev.Burst(self._number, "end", "cell", time.monotonic()))
        self._release()

    def _release(self) -> None:
        if self._lease:
            self._send(ev.Released(self._number, self._lease, "revoke"))
            self._lease = 0
            self._request()


class Prober:
    """A control program that sends one request after the other."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._asked = time.monotonic()
        self._peer = Peer(crowd, self._ask, self._hear)
        self._peer.connect()

    def _ask(self) -> None:
        request = {"protocol": protocol.CONTROL_VERSION, "op": "whoami"}
        self._peer.send(protocol.encode_json(protocol.CONTROL, request))

    def _begin(self) -> None:
        self._asked = time.monotonic()
        self._ask()

    def _hear(self, frame: protocol.Frame) -> None:
        self._crowd.control = max(self._crowd.control, time.monotonic() - self._asked)
        self._crowd.after(PAUSE, self._begin)


def successor(here: Machine, *flags: str) -> subprocess.Popen[str]:
    """Start a scheduler that stands by, and return once it does."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_gpushare.scheduler", "--socket", str(here.socket)),
            *("--stand-by", *flags),
        ],
        env=here.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "standing by\n":
        raise RuntimeError("the next scheduler does not stand by")
    return process


def take_over(here: Machine, crowd: Crowd, number: signal.Signals, *flags: str) -> None:
    """Have a scheduler that stands by take over, by a signal to the running one; the crowd measures."""
    before, after = here.scheduler, successor(here, *flags)
    assert before is not None
    try:
        crowd.run_for(CALM)
        crowd.forget()
        before.send_signal(number)
        crowd.run(lambda: crowd.welcomes == CLIENTS)
        crowd.run_for(CALM)
    finally:
        here.scheduler = after
        before.kill()
        before.wait()
        if before.stdout is not None:
            before.stdout.close()


def run(rounds: int = 5) -> Iterator[Figure]:
    """Measure the longest waits during take-overs."""
    flags = ("--anti-thrash", "on", "--quantum", "600")
    with machine(*flags) as here:
        status = here.control("status")["status"]
        assert isinstance(status, dict)
        crowd = Crowd(here.socket, status["gpus"][0]["uuid"])
        try:
            crowd.run(lambda: crowd.welcomes == CLIENTS)
            crowd.run_for(CALM)
            crowd.forget()
            crowd.run_for(CALM)
            calm = crowd.without_grant, crowd.without_scheduler, crowd.control
            found = []
            for _ in range(rounds):
                take_over(here, crowd, signal.SIGTERM, *flags)
                found.append((crowd.without_grant, crowd.without_scheduler, crowd.control))
        finally:
            crowd.close()
    metrics = "without a grant", "of a client without a scheduler", "of a control request"
    for name, bare, values in zip(metrics, calm, zip(*found, strict=True), strict=True):
        yield Figure(
            "takeover", f"longest time {name}, {CLIENTS} clients", max(values) * 1000, "ms",
            bare * 1000, len(values), max(values) * 1000 - min(values) * 1000, target=50.0,
        )  # fmt: skip
