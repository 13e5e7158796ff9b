# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's side of the helper process (``helper.py``): its process, and the requests without an answer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Sequence

from .clock import DiskClock
from .messages import MOST, Begun, Close, Done, Open, Request, decode_answer, encode


class DiskLink:
    """Runs one helper at a time. Callers hold the tier's lock.

    Parameters
    ----------
    command
        The command, to which the number of the helper's socket is added.
    clock
        The tier's time.
    """

    def __init__(self, command: Sequence[str], clock: DiskClock) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        #: Since when each request without an answer is carried out; None: it waits for its turn.
        self._asked: dict[Request, float | None] = {}
        self._clock = clock
        #: When the helper last said something, or had nothing to do.
        self._heard_at = 0.0

    @property
    def connection(self) -> socket.socket | None:
        """The socket, if requests can be sent."""
        return self._connection

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The helper's process, until ``ended`` has returned its status."""
        return self._process

    def start(self) -> None:
        """Start a helper; there must be none.

        Raises
        ------
        OSError
            It could not be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Whoever reads the scheduler's output to its end would wait for the helper.
                stdout=subprocess.DEVNULL,
                # A signal to the terminal's session must not end it: it has data that is nowhere else.
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._connection = ours

    def send(self, message: Request, descriptors: Sequence[int] = ()) -> bool:
        """Send a message. False: the helper has ended, or is about to."""
        if self._connection is None:
            return False
        try:
            # Few messages are under way, so there is always room for one more.
            socket.send_fds(self._connection, [encode(message)], descriptors)
        except OSError:
            self.hang_up()
            return False
        if not isinstance(message, (Open, Close)):
            if not self._asked:
                self._heard_at = self._clock.now
            self._asked[message] = None
        return True

    def receive(self) -> Iterator[Done]:
        """Yield the answers that have come. If the helper has ended, hang up."""
        while self._connection is not None:
            try:
                data = self._connection.recv(MOST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.hang_up()
                return
            self._heard_at = self._clock.now
            answer = decode_answer(data)
            if isinstance(answer, Begun):
                self._asked[answer.request] = self._clock.now
            else:
                del self._asked[answer.request]
                yield answer

    def is_stuck(self) -> bool:
        """Whether a request takes too long once it was begun, or none is begun for too long."""
        if not self._asked:
            return False
        begun = [since for since in self._asked.values() if since is not None]
        return self._clock.is_late(min(begun, default=self._heard_at))

    def hang_up(self) -> None:
        """Have the helper end. ``ended`` tells when it has."""
        if self._process is None or self._connection is None:
            return
        self._connection.close()
        self._connection = None
        self._process.kill()

    def ended(self) -> int | None:
        """Return the status of a helper that has ended, once; None: there is none. Nothing is read or written then."""
        if self._process is None or self._connection is not None:
            return None
        # A disk that hangs keeps its process from ending.
        status = self._process.poll()
        if status is not None:
            self._process = None
            self._asked.clear()
        return status

    def has_gone(self, patience: float) -> bool:
        """Wait up to ``patience`` seconds for a helper that was told to end; return whether no helper is left."""
        if self._process is not None and self._connection is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self.ended()
        return self._process is None

    def leave(self, patience: float) -> None:
        """Close the connection, and wait up to ``patience`` seconds for the helper, which may outlive this process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
            self._process.returncode = 0
