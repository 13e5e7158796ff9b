# SPDX-License-Identifier: BSD-3-Clause
"""One user asks for more than a fair part of the scheduler; the other is served all the same."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.adversary.conftest import UNIT, Node, until, works
from tests.support.client import PATIENCE, FakeClient
from tests.support.fake_hub import connect

HEADER = struct.Struct("=IHH")
LIMIT = 256


@pytest.fixture(scope="module")
def silent(shared_node: Node) -> Iterator[socket.socket]:
    """A connection of a process of its own that says nothing, from the module's beginning on."""
    code = "import socket, sys; socket.socket(fileno=0).connect(sys.argv[1])"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        command = [sys.executable, "-c", code, str(shared_node.path)]
        subprocess.run(command, stdin=end, check=True, timeout=PATIENCE)
        yield end


@pytest.fixture(autouse=True)
def beside(silent: socket.socket) -> None:
    """One silent connection exists beside all others here."""


class Flood:
    """Requests without end over several connections, whose answers are counted."""

    def __init__(self, node: Node, request: bytes, reply: int, count: int, each: int) -> None:
        self.request, self.reply = request, reply
        self.left = dict.fromkeys(range(count), each)
        self.total = count * each
        self.answered = 0
        self.ends: list[socket.socket] = []
        ticket = protocol.ticket(node.ticket("ada", "flood"))
        for _ in range(count):
            self.ends.append(connect(node.path))
            self.ends[-1].sendall(ticket)
        self._ended = False
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Flood:
        self._thread.start()
        assert self._begun.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._thread.join()
        for end in self.ends:
            end.close()

    def _go_on(self) -> None:
        selector = selectors.DefaultSelector()
        rest: dict[int, bytes] = {}
        readers = {}
        for number, end in enumerate(self.ends):
            end.setblocking(False)
            rest[number] = self.request * self.left[number]
            readers[number] = protocol.FrameReader(from_scheduler=True)
            selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
        while not self._ended:
            for key, events in selector.select(0.05):
                number, end = key.data, self.ends[key.data]
                if events & selectors.EVENT_WRITE:
                    with contextlib.suppress(BlockingIOError):
                        rest[number] = rest[number][end.send(rest[number][: 1 << 17]) :]
                    if not rest[number]:
                        selector.modify(end, selectors.EVENT_READ, number)
                if events & selectors.EVENT_READ:
                    frames = readers[number].feed(end.recv(1 << 18))
                    self.answered += sum(frame.type == self.reply for frame in frames)
                    self._begun.set()
        selector.close()


def test_control_requests_keep_no_program_off_the_gpu(node: Node, ben: FakeClient) -> None:
    request = protocol.encode_json(
        protocol.CONTROL, {"op": "explain", "protocol": protocol.CONTROL_VERSION}
    )
    with Flood(node, request, protocol.REPLY, 8, 8000) as flood:
        works(ben, 20)
        # One turn of each before each of ben's few dozen frames, and not all that was sent before them.
        assert 0 < flood.answered < flood.total / 2


def test_frames_of_a_client_keep_no_program_off_the_gpu(node: Node, ben: FakeClient) -> None:
    with node.client("ada", "busy") as ada:
        ada.grow(UNIT)
        ada.run()
        # It is told again each time that it holds the lease; and it gives it back with the last of them.
        frames = protocol.encode_event(ev.Request(ada.number, 1)) * 10_000
        frames += protocol.encode_event(ev.Released(ada.number, ada.lease, "release"))
        sending = threading.Thread(target=ada.send_raw, args=(frames,))
        sending.start()
        works(ben, 10)
        assert node.group("ada", "busy")["state"] == "running"
        sending.join()
        until(lambda: node.group("ada", "busy")["state"] == "idle")


def test_all_waiting_requests_are_finally_handled(node: Node) -> None:
    """Back-pressure loses nothing."""
    request = protocol.encode_json(
        protocol.CONTROL, {"op": "whoami", "protocol": protocol.CONTROL_VERSION}
    )
    with Flood(node, request, protocol.REPLY, 4, 1000) as flood:
        for _ in range(int(PATIENCE / 0.01)):
            if flood.answered == flood.total:
                break
            threading.Event().wait(0.01)
        assert flood.answered == flood.total


def test_one_user_cannot_use_up_all_connections(node: Node, ben: FakeClient) -> None:
    ticket = protocol.ticket(node.ticket("ada", "hoard"))
    ends = []
    try:
        for _ in range(LIMIT + 20):
            ends.append(connect(node.path))
            ends[-1].sendall(ticket)
        refused = 0
        for end in ends[-20:]:
            end.settimeout(PATIENCE)
            (frame,) = protocol.FrameReader(from_scheduler=True).feed(end.recv(1 << 16))
            assert frame.type == protocol.REFUSED
            _, text = protocol.decode_refused(frame.body)
            assert f"has {LIMIT} connections" in text
            refused += 1
        assert refused == 20
        with node.client("ben") as other:
            other.grow(UNIT)
            works(other)
        works(ben)
    finally:
        for end in ends:
            end.close()
    with node.client("ada") as again:
        again.grow(UNIT)
        works(again)


def test_silent_connections_keep_no_client_out(node: Node, ben: FakeClient) -> None:
    """There may be 64 of them: a further connection replaces one of the crowd."""
    ends = [connect(node.path) for _ in range(150)]
    try:
        with node.client("ben") as other:
            other.grow(UNIT)
            works(other)
        gone = 0
        for end in ends:
            end.setblocking(False)
            try:
                gone += not end.recv(1 << 12)
            except ConnectionResetError:
                gone += 1
            except BlockingIOError:
                pass
        assert gone >= 150 - 64
    finally:
        for end in ends:
            end.close()
    works(ben)


def test_connects_and_disconnects_leave_nothing_behind(node: Node, ben: FakeClient) -> None:
    ticket = protocol.ticket(node.ticket("ada", "comes-and-goes"))
    half = HEADER.pack(4000, protocol.HELLO, 0) + b"x" * 100

    def come_and_go(count: int) -> None:
        for number in range(count):
            with connect(node.path) as end, contextlib.suppress(BrokenPipeError):
                end.sendall((b"", ticket, half, ticket + half)[number % 4])

    come_and_go(500)
    works(ben)
    descriptors, memory = node.descriptors, node.memory()
    log = len(node.scheduler.log)
    come_and_go(3000)
    works(ben)
    until(lambda: node.descriptors <= descriptors)
    assert node.memory() - memory < 8 << 20
    # Nor is the log the place to fill.
    assert len(node.scheduler.log) - log < 20_000


def test_clients_that_do_not_read_cost_bounded_memory(node: Node, ben: FakeClient) -> None:
    ticket = protocol.ticket(node.ticket("ada", "reads-nothing"))
    question = protocol.encode_json(
        protocol.CONTROL, {"op": "subscribe", "protocol": protocol.CONTROL_VERSION, "since": 0}
    ) + 3000 * protocol.encode_json(
        protocol.CONTROL, {"op": "status", "protocol": protocol.CONTROL_VERSION}
    )
    before = node.memory("VmHWM")
    ends = []
    try:
        for _ in range(40):
            ends.append(connect(node.path))
            ends[-1].sendall(ticket)
            ends[-1].setblocking(False)
            data = memoryview(question)
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                while data:
                    data = data[ends[-1].send(data) :]
        works(ben, 20)
        assert node.memory("VmHWM") - before < 80 << 20
    finally:
        for end in ends:
            end.close()


def test_notices_of_one_user_do_not_displace_others(node: Node, ben: FakeClient) -> None:
    with node.user("ada") as ada, node.user("ben") as server:
        server.ok("notice", group=ben.group, code="important", params={})
        said = [ada.ask("notice", group=f"g{n}", code="spam", params={})["ok"] for n in range(80)]
        assert any(said)
        assert not all(said)
        notices = server.ok("status")["status"]["notices"]
        assert "important" in [notice["code"] for notice in notices]


def test_half_a_frame_delays_no_other_client(node: Node, ben: FakeClient) -> None:
    ticket = protocol.ticket(node.ticket("ada", "half"))
    ends = []
    try:
        for _ in range(100):
            ends.append(connect(node.path))
            ends[-1].sendall(ticket + HEADER.pack(60_000, protocol.CONTROL, 0) + b"{" * 1000)
        works(ben)
        # A client may stop in the middle, too.
        with node.client("ada") as ada:
            ada.grow(UNIT)
            ada.run()
            ada.send_raw(protocol.encode_event(ev.Released(0, ada.lease, "release"))[:-3])
            works(ben)
    finally:
        for end in ends:
            end.close()


def test_a_silent_connection_is_closed(node: Node, silent: socket.socket) -> None:
    """Ten seconds after the module's beginning: one connection is no crowd."""
    silent.settimeout(PATIENCE)
    (frame,) = protocol.FrameReader(from_scheduler=True).feed(silent.recv(1 << 16))
    assert frame.type == protocol.REFUSED
    assert "did not identify itself" in protocol.decode_refused(frame.body)[1]
    assert silent.recv(1) == b""
