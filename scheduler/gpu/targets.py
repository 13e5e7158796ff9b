# SPDX-License-Identifier: BSD-3-Clause
"""The processes that hibernate, and how the Linux kernel identifies a client's process."""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import struct
from pathlib import Path

from ..protocol.processes import start_time
from . import checkpoint_support as ability

#: Returns a pidfd of the process that connected (Linux 6.5, <asm-generic/socket.h>).
SO_PEERPIDFD = 77
PIDFD = struct.Struct("i")
#: Errors of SO_PEERPIDFD for a process that has ended, which depend on the version of the Linux kernel.
_ENDED = (errno.ESRCH, errno.EINVAL, errno.ENODATA)
#: Errors of an older Linux kernel, and of a connection that was closed here. Others, such as a lack of descriptors, say
#: nothing about the process.
_UNKNOWN = (errno.ENOPROTOOPT, errno.EBADF)


class Target:
    """A process, by its number here.

    Parameters
    ----------
    pid
        Its number; 0: it is not visible from here.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def key(self) -> int:
        """What no other process has while this one lives."""
        return self.pid

    def __str__(self) -> str:
        return f"process {self.pid}"

    def has_ended(self) -> bool:
        """Whether it has ended, even if its parent has not collected it yet."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ESRCH)
        return re.search(r"^State:\s*[ZX]", status, re.M) is not None

    def refusal(self) -> str | None:
        """Return why a hibernator with the rights of this process must not checkpoint it: a code of `refusals.WHY`."""
        return ability.refuses(self.pid)

    def open(self) -> int | None:
        """Return a pidfd, which the caller closes; None: it has ended, or there is none now (`has_ended`)."""
        try:
            return self._open()
        except OSError:
            return None

    def _open(self) -> int | None:
        """Return a pidfd; None: there is none for this process.

        Raises
        ------
        OSError
            There is none now, for example without free descriptors.
        """
        started = start_time(self.pid)
        return None if started is None else _open_if_same(self.pid, started)


class Peer(Target):
    """The process of a client. It is the process that connected, whatever the client states.

    Parameters
    ----------
    client
        The client's number.
    connection
        The client's connection.
    pid
        The number of the process here, from the Linux kernel; 0: it is not visible from here.
    started
        When the process was started; None: unknown.
    namespace
        The inode of its PID namespace, as the client states it; 0: it does not.
    """

    def __init__(
        self,
        client: int,
        connection: socket.socket,
        pid: int,
        started: str | None,
        namespace: int,
    ) -> None:
        super().__init__(pid)
        self._client, self._connection = client, connection
        self._started, self._namespace = started, namespace

    @property
    def key(self) -> int:
        """What no other process has while this one lives. Processes that are not visible have no number here."""
        return self.pid or -self._client

    def __str__(self) -> str:
        return super().__str__() if self.pid else f"the process of client {self._client}"

    def _open(self) -> int | None:
        """Return a pidfd, as `Target._open`."""
        try:
            found = self._connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, PIDFD.size)
            return int(PIDFD.unpack(found)[0])
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        # The number may belong to another process by now.
        return None if self._started is None else _open_if_same(self.pid, self._started)

    def has_ended(self) -> bool:
        """Whether it has ended. A socket can be passed on, and a number be used again."""
        try:
            found = self._connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, PIDFD.size)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                return error.errno in _ENDED
            started = start_time(self.pid)
            if started is None:
                return self._started is not None and super().has_ended()
            return self._started is not None and started != self._started
        (pidfd,) = PIDFD.unpack(found)
        # It can be read once the process has ended. Unlike select, this takes any number of a descriptor.
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        try:
            return bool(ended.poll(0))
        finally:
            os.close(pidfd)

    def refusal(self) -> str | None:
        """Return why a hibernator with the rights of this process must not checkpoint it: a code of `refusals.WHY`."""
        if self.has_ended():
            return "failed"
        return ability.refuses(self.pid, self._namespace)

    def refusal_by_service(self) -> str | None:
        """Return why a hibernator that gets a pidfd must not checkpoint it: a code of `refusals.WHY`."""
        if self.has_ended():
            return "failed"
        try:
            pidfd = self._open()
        except OSError as error:
            # A shortage passes.
            return "failed" if error.errno in _ENDED else "descriptors"
        if pidfd is None:
            return "container"
        os.close(pidfd)
        return None


def _open_if_same(pid: int, started: str) -> int | None:
    """Return a pidfd if the process with this number was started at that time; None: it was not, or none can be had.

    Raises
    ------
    OSError
        There are no free descriptors.
    """
    # Some builds of Python lack it.
    pidfd_open = getattr(os, "pidfd_open", None)
    if pid <= 0 or pidfd_open is None:
        return None
    try:
        pidfd = int(pidfd_open(pid))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if start_time(pid) == started:
        return pidfd
    os.close(pidfd)
    return None
