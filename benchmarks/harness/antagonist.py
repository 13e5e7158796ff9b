# SPDX-License-Identifier: BSD-3-Clause
"""A client of the scheduler that wants the whole GPU again and again, so that every other client loses it each time.

It has no CUDA and no GPU memory: it says what the interposer of a very large program would say. So programs can be
evicted as often as one likes, on a real GPU too::

    python -m jupyter_gpushare.benchmarks.harness.antagonist --pause 0.05 \\
        --socket /run/user/1000/gpushare/scheduler.sock

The scheduler should have a small quantum (``gpushare scheduler --quantum 0.01``). The other programs run for that long
in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from ...scheduler.core import messages as ev
from ...scheduler.node.arguments import Parser, size
from ...scheduler.protocol import wire as protocol
from ...scheduler.protocol.address import socket_path
from ...scheduler.protocol.client import ControlClient, ControlError

MIB = 1 << 20
#: Bytes of the GPU that it leaves free, at most one part in 128, because readings of the GPU's memory differ by about
#: this amount.
MARGIN, MARGIN_SHARE = 32 * MIB, 128
#: Seconds after which a waiting process checks whether the requested room can still exist.
LOOK_AGAIN = 0.2

_State = Literal["pausing", "growing", "waiting", "filling", "holding"]


class Antagonist:
    """One client that takes the GPU, holds it, gives it back, and pauses; as a thread: ``with Antagonist(...):``.

    Parameters
    ----------
    path
        The scheduler's socket.
    gpu
        UUID of the GPU as NVML prints it; by default the first.
    size
        Bytes to take; by default all memory that is free or can be evicted.
    hold, pause
        Seconds for which the GPU is held, and seconds until it is asked for again.
    """

    def __init__(
        self,
        path: Path,
        gpu: str | None = None,
        *,
        size: int | None = None,
        hold: float = 0.0,
        pause: float = 0.05,
    ) -> None:
        self.path = path
        self.gpu = gpu
        self.size = size
        self.hold = hold
        self.pause = pause
        #: How often it has had the GPU.
        self.turns = 0
        #: Why it ended, if not because it was told to.
        self.error: Exception | None = None
        self._usage = ev.Usage("")
        self._state: _State = "pausing"
        self._until = 0.0
        self._serial = self._number = self._lease = 0
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, name="antagonist", daemon=True)

    def __enter__(self) -> Antagonist:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._stopped.set()

    def run(self) -> None:
        """Take turns until told to stop, or until the scheduler ends the connection."""
        try:
            with (
                ControlClient(self.path) as self._control,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as self._socket,
            ):
                self._socket.connect(str(self.path))
                self._attach()
                while not self._stopped.is_set():
                    self._go_on()
                    for frame in self._receive(self._until - time.monotonic()):
                        self._obey(protocol.decode_decision(self._number, frame))
        except (OSError, ControlError, protocol.ProtocolError) as error:
            self.error = error

    # --- What it does by itself -------------------------------------------------------------------

    def _attach(self) -> None:
        if self.gpu is None:
            gpus = self._control.request("status")["status"]["gpus"]
            if not gpus:
                raise ControlError("the scheduler knows no GPU")
            self.gpu = str(gpus[0]["uuid"])
        self._usage = ev.Usage(self.gpu)
        self._send(ev.Attach(0, os.getpid(), f"antagonist-{os.getpid()}", "antagonist", "swap"))
        while not (frames := self._receive(LOOK_AGAIN)):
            if self._stopped.is_set():
                return
        if frames[0].type == protocol.REFUSED:
            raise ControlError(protocol.decode_refused(frames[0].body)[1])
        self._number = protocol.decode_welcome(frames[0].body).client
        for frame in frames[1:]:
            self._obey(protocol.decode_decision(self._number, frame))

    def _go_on(self) -> None:
        now = time.monotonic()
        if now < self._until:
            return
        if self._state == "pausing":
            room = self._room()
            if room > self._usage.promised:
                self._grow(room)
            else:
                self._shrink(room)
                self._request()
        elif self._state == "waiting":
            self._shrink(self._room())
            self._until = now + LOOK_AGAIN
        elif self._state == "holding":
            self._release("release")
        else:
            self._until = now + LOOK_AGAIN

    def _room(self) -> int:
        """Return how many bytes are available if the memory of all others is evicted."""
        status = self._control.request("status")["status"]
        gpu = next(gpu for gpu in status["gpus"] if gpu["uuid"] == self.gpu)
        fixed = sum(
            gpu[name]
            for name in ("reserve", "unevictable", "contexts", "foreign", "pending_reclaim")
        )
        total = int(gpu["total"])
        room = total - int(fixed) - min(MARGIN, total // MARGIN_SHARE)
        return max(0, room if self.size is None else min(room, self.size))

    def _grow(self, promised: int) -> None:
        self._serial += 1
        least = replace(self._usage, promised=promised)
        self._send(ev.Grow(self._number, self._serial, least, promised))
        self._state, self._until = "growing", time.monotonic() + LOOK_AGAIN

    def _shrink(self, promised: int) -> None:
        """Free what can be had no more."""
        if promised < self._usage.promised:
            resident = min(self._usage.resident, promised)
            self._usage = replace(self._usage, promised=promised, resident=resident)
            self._send(ev.UsageChanged(self._number, self._usage))

    def _request(self) -> None:
        self._serial += 1
        self._send(ev.Request(self._number, self._serial))
        self._state, self._until = "waiting", time.monotonic() + LOOK_AGAIN

    def _release(self, cause: ev.Cause) -> None:
        self._send(ev.Released(self._number, self._lease, cause))
        self._lease = 0
        self._state, self._until = "pausing", time.monotonic() + self.pause

    # --- What it is told --------------------------------------------------------------------------

    def _obey(self, decision: ev.Decision) -> None:
        match decision:
            case ev.Grown():
                if decision.status in ("resident", "swapped"):
                    self._usage = replace(self._usage, promised=decision.promised)
                self._request()
            case ev.Grant():
                self._lease = decision.lease
                if decision.filling:
                    self._state, self._until = "filling", time.monotonic() + LOOK_AGAIN
                else:
                    self._move_in()
            case ev.Room() if decision.lease == self._lease and self._state == "filling":
                # All at once: a REVOKE before that finds nothing that has arrived.
                if decision.resident >= self._usage.promised:
                    self._move_in()
            case ev.Revoke():
                if decision.lease == self._lease and self._lease:
                    self._release("revoke")
            case ev.Evict():
                self._move_out(decision)
            case ev.CancelWaits():
                if self._state == "waiting":
                    self._state, self._until = "pausing", time.monotonic() + self.pause
            case ev.EndBurst():
                if self._state == "holding":
                    self._until = 0.0
            case _:
                pass

    def _move_in(self) -> None:
        missing = self._usage.promised - self._usage.resident
        self._usage = replace(self._usage, resident=self._usage.promised)
        if missing:
            # Never written, so nothing is copied and the scheduler does not take it for a fast bus.
            self._send(ev.Restored(self._number, self._lease, self._usage, missing, 0, 0.0, "done"))
        self.turns += 1
        self._state, self._until = "holding", time.monotonic() + self.hold

    def _move_out(self, order: ev.Evict) -> None:
        leaving = min(order.bytes, self._usage.resident)
        self._usage = replace(self._usage, resident=self._usage.resident - leaving)
        self._send(ev.Evicted(self._number, order.serial, self._usage, leaving, 0, 0.0, "done"))

    # --- The wire ---------------------------------------------------------------------------------

    def _send(self, event: ev.Event) -> None:
        self._socket.sendall(protocol.encode_event(event))

    def _receive(self, timeout: float) -> list[protocol.Frame]:
        # Zero would mean "do not block"; stop() is to be heard soon.
        self._socket.settimeout(min(max(timeout, 0.0001), 0.1))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return []
        if not data:
            raise ControlError(f"the scheduler at {self.path} ended the connection")
        return list(self._reader.feed(data))


def main(argv: list[str] | None = None) -> int:
    """Take turns until a signal."""
    parser = Parser(
        prog="python -m jupyter_gpushare.benchmarks.harness.antagonist",
        description="Take the GPU from all other clients again and again, without using it.",
    )
    parser.add_argument("--socket", type=Path, metavar="PATH", help="the scheduler's socket")
    parser.add_argument("--gpu", metavar="UUID", help="which GPU (default: the first)")
    parser.add_argument(
        "--hold", type=float, default=0.0, metavar="S", help="seconds to hold it (default: 0)"
    )
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="S", help="seconds between (default: 0.05)"
    )
    parser.add_argument(
        "--bytes", type=size, metavar="B", help="bytes to take (default: the whole GPU)"
    )
    args = parser.parse_args(argv)
    if args.hold < 0 or args.pause < 0:
        parser.error("--hold and --pause are seconds, at least 0")
    antagonist = Antagonist(
        args.socket or socket_path(), args.gpu, size=args.bytes, hold=args.hold, pause=args.pause
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: antagonist.stop())
    antagonist.run()
    if antagonist.error is not None:
        print(f"gpushare: {antagonist.error}", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):
        print(f"had the GPU {antagonist.turns} times", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
