# SPDX-License-Identifier: BSD-3-Clause
"""A privileged hibernator that serves this scheduler over a Unix socket (csrc/hibernator/listen.h).

It gets a pidfd of each process, and never a number: it may be in another PID namespace, and numbers are used again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from pathlib import Path

from ..protocol.client import named, peer_uid
from .helper_process import BUSY, ENDED, Answer, Helper, HelperError
from .targets import Target

log = logging.getLogger(__name__)

#: The longest answer (csrc/hibernator/serve.h).
LONGEST = 256


class RemoteHelper(Helper):
    """A connection to a hibernator that is a service of its own."""

    def __init__(self, path: Path, connection: socket.socket) -> None:
        super().__init__()
        self._path = path
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._read)

    @classmethod
    def connect(cls, path: Path) -> RemoteHelper:
        """Connect to the hibernator at a path.

        Raises
        ------
        HelperError
            None answers there that this process trusts.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(os.fsencode(path))
            uid = peer_uid(connection)
        except OSError as error:
            connection.close()
            raise HelperError(f"no hibernator answers on {path}: {error.strerror}") from None
        if uid not in (0, os.getuid()):
            connection.close()
            raise HelperError(
                f"the hibernator on {path} belongs to another user ({named(uid)}); run it as root"
            )
        return cls(path, connection)

    async def close(self, patience: float) -> None:
        """Close the connection. The hibernator completes the steps that are under way."""
        self._lose("the scheduler ends")

    def _send(
        self, begin: list[str], target: Target | None, words: tuple[str, ...]
    ) -> Answer | None:
        if target is None:
            return self._send_with(" ".join((*begin, *words)), [])
        pidfd = target.open()
        if pidfd is None:
            # Without free descriptors, a process that lives has no pidfd either.
            return ENDED if target.has_ended() else BUSY
        try:
            return self._send_with(" ".join((*begin, "-", *words)), [pidfd])
        finally:
            os.close(pidfd)

    def _send_with(self, line: str, descriptors: list[int]) -> Answer | None:
        try:
            socket.send_fds(self._connection, [line.encode("ascii")], descriptors)
        except OSError as error:
            # The second: too many descriptors of this user are on their way.
            if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                return BUSY
            self._lose(f"the connection to the hibernator on {self._path} ended: {error.strerror}")
            raise HelperError(self.ended) from None
        return None

    def _read(self) -> None:
        try:
            message = self._connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lose(
                f"the hibernator on {self._path} ended, or does not serve this scheduler (see its log)"
            )
            return
        try:
            self._answer(message.decode("ascii", "replace"))
        except (TypeError, ValueError):
            # It is unknown which request this answered, and that one would wait forever.
            self._lose(f"the hibernator on {self._path} sent an invalid answer")

    def _lose(self, why: str) -> None:
        if self.ended:
            return
        log.info("%s", why)
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self._end(why)
