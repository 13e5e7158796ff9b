# SPDX-License-Identifier: BSD-3-Clause
"""A client of the scheduler without CUDA: it says what an interposer would say."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from jupyter_gpushare._protocol import ffi
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.wire import client_side, decoding, frames

#: Bound of every wait: long, because it is only reached where something is wrong.
PATIENCE = 60.0

D = TypeVar("D", bound=ev.Decision)

_KEEP_CODES = {word: code for code, word in decoding.KEEPS.items()}


def place(
    group: str, gpus: Sequence[str], version: int = protocol.VERSION, *, keep: ev.Keep = "none"
) -> bytes:
    """PLACE, which only interposers send."""
    cut = frames.cut_text(group, client_side.GROUP_SIZE)
    head = ffi.new(frames.PLACE_P, (version, len(gpus), cut, _KEEP_CODES[keep], 0))
    body = b"".join([ffi.buffer(head)[:], *map(protocol.gpu_bytes, gpus)])
    return frames.fixed_header(protocol.PLACE, len(body)) + body


def decode_placed(body: bytes) -> tuple[str, ...]:
    """The GPUs of PLACED, in order."""
    gpus = decoding.uuids_of(body, frames.PLACED_SIZE)
    assert len(gpus) == ffi.from_buffer(frames.PLACED_P, body).gpu_count
    return gpus


class Refused(Exception):
    """The scheduler answered HELLO with REFUSED."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Closed(Exception):
    """The scheduler ended the connection."""


class FakeClient:
    """One connection that plays one client with memory on one GPU at most."""

    def __init__(
        self,
        path: Path,
        group: str,
        gpu: str | None = None,
        *,
        name: str = "",
        backend: ev.Backend = "swap",
        cap: int = 0,
        ticket: str = "",
        connection: socket.socket | None = None,
    ) -> None:
        self.group = group
        self.name = name or group
        self.backend: ev.Backend = backend
        self.cap = cap
        self.usage = None if gpu is None else ev.Usage(gpu)
        self.number = 0
        self.lease = 0
        self._serial = 0
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._inbox: list[protocol.Frame] = []
        #: The pool that came with WELCOME, and this client's slot in it.
        self.pool: int | None = None
        self.slot: int | None = None
        #: When the last bytes came in, on CLOCK_MONOTONIC.
        self.received_at = 0.0
        self.socket = connection or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        if connection is None:
            self.socket.connect(str(path))
        if ticket:
            self.send_raw(protocol.ticket(ticket))

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, as a process that dies does."""
        self.socket.close()
        if self.pool is not None:
            os.close(self.pool)
            self.pool = None

    # --- What an interposer does --------------------------------------------------------------

    def attach(
        self,
        *,
        reattach: bool = False,
        leased: bool = False,
        busy: bool = False,
        hibernated: bool = False,
    ) -> protocol.Welcome:
        """Say HELLO and wait for the answer."""
        attach = ev.Attach(
            client=0,
            pid=os.getpid(),
            group=self.group,
            name=self.name,
            backend=self.backend,
            cap=self.cap,
            usages=() if self.usage is None else (self.usage,),
            reattach=reattach,
            leased=leased,
            busy=busy,
            lease=self.lease,
            hibernated=hibernated,
        )
        self.send(attach)
        return self.expect_welcome()

    def place(self, *gpus: str) -> tuple[str, ...]:
        """Ask for the order in which to use these GPUs."""
        self.send_raw(place(self.group, gpus))
        frame = self._next(PATIENCE)
        if frame.type == protocol.REFUSED:
            raise Refused(*protocol.decode_refused(frame.body))
        assert frame.type == protocol.PLACED, frame
        return decode_placed(frame.body)

    def grow(self, promised: int, *, context: int = 0, unevictable: int = 0) -> ev.Grown:
        """Ask for as much as then is promised in all, and take it if it is given."""
        assert self.usage is not None
        self._serial += 1
        least = replace(
            self.usage,
            promised=promised,
            context=self.usage.context + context,
            unevictable=self.usage.unevictable + unevictable,
        )
        self.send(ev.Grow(self.number, self._serial, least, promised))
        grown = self.expect(ev.Grown)
        assert grown.serial == self._serial
        if grown.status in ("resident", "swapped"):
            resident = self.usage.resident
            if grown.status == "resident":
                resident += grown.promised - self.usage.promised
            self.change(replace(least, promised=grown.promised, resident=resident))
        return grown

    def change(self, usage: ev.Usage) -> None:
        """State what is held now."""
        self.usage = usage
        self.send(ev.UsageChanged(self.number, usage))

    def request(self) -> None:
        """Submit without a lease."""
        self._serial += 1
        self.send(ev.Request(self.number, self._serial))

    def take(self, grant: ev.Grant | None = None) -> None:
        """Wait for the grant and bring the memory in."""
        grant = grant or self.expect(ev.Grant)
        self.lease = grant.lease
        if self.usage is None or self.usage.resident == self.usage.promised:
            return
        size = self.usage.promised - self.usage.resident
        self.usage = replace(self.usage, resident=self.usage.promised, host=0)
        self.send(ev.Restored(self.number, self.lease, self.usage, size, size, 0.001, "done"))

    def run(self) -> None:
        """Submit and wait until it may run."""
        self.request()
        self.take()

    def end_burst(self, cause: ev.Cause = "quiet") -> None:
        """End the burst and keep the lease."""
        self.send(ev.Burst(self.number, "end", cause, time.monotonic()))

    def release(self, cause: ev.Cause = "revoke") -> None:
        """Give the lease back."""
        self.send(ev.Released(self.number, self.lease, cause))
        self.lease = 0

    def evict(self) -> ev.Evict:
        """Wait to be told to move memory out, and do so."""
        order = self.expect(ev.Evict)
        assert self.usage is not None
        size = min(order.bytes, self.usage.resident)
        self.usage = replace(
            self.usage, resident=self.usage.resident - size, host=self.usage.host + size
        )
        self.send(ev.Evicted(self.number, order.serial, self.usage, size, size, 0.001, "done"))
        return order

    # --- The wire -----------------------------------------------------------------------------

    def send(self, event: ev.Event) -> None:
        """Send the frame that causes an event."""
        self.socket.sendall(protocol.encode_event(event))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def expect_welcome(self) -> protocol.Welcome:
        """Wait for WELCOME; raise `Refused` for REFUSED."""
        frame = self._next(PATIENCE)
        if frame.type == protocol.REFUSED:
            raise Refused(*protocol.decode_refused(frame.body))
        assert frame.type == protocol.WELCOME, frame
        answer = protocol.decode_welcome(frame.body)
        self.number, self.slot = answer.client, answer.slot
        assert (self.slot is None) == (self.pool is None)
        return answer

    def expect(self, kind: type[D], timeout: float = PATIENCE) -> D:
        """Wait for a decision of this kind; others stay for later."""
        deadline = time.monotonic() + timeout
        seen = 0
        while True:
            for index in range(seen, len(self._inbox)):
                decision = protocol.decode_decision(self.number, self._inbox[index])
                if isinstance(decision, kind):
                    del self._inbox[index]
                    return decision
            seen = len(self._inbox)
            try:
                self._receive(deadline - time.monotonic())
            except TimeoutError:
                others = [protocol.decode_decision(self.number, frame) for frame in self._inbox]
                raise TimeoutError(f"no {kind.__name__} came; there were {others}") from None

    def expect_closed(self) -> None:
        """Wait until the scheduler ends the connection."""
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(Closed):
            while True:
                self._receive(deadline - time.monotonic())

    def has(self, kind: type[D]) -> bool:
        """Whether a decision of this kind has come already."""
        with contextlib.suppress(TimeoutError, Closed):
            while True:
                self._receive(0.0)
        return any(
            isinstance(protocol.decode_decision(self.number, frame), kind) for frame in self._inbox
        )

    def _next(self, timeout: float) -> protocol.Frame:
        deadline = time.monotonic() + timeout
        while not self._inbox:
            self._receive(deadline - time.monotonic())
        return self._inbox.pop(0)

    def _receive(self, timeout: float) -> None:
        # Zero would mean "do not block" and raise another error than a timeout.
        self.socket.settimeout(max(timeout, 0.001))
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
        except ConnectionResetError:
            data, descriptors = b"", []
        if descriptors:
            assert self.pool is None, "a second pool"
            (self.pool,) = descriptors
        self.received_at = time.monotonic()
        if not data:
            raise Closed
        self._inbox.extend(self._reader.feed(data))
