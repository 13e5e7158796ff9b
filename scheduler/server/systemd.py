# SPDX-License-Identifier: BSD-3-Clause
"""The protocol between systemd and a service: sockets that were made before, and the state of the service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from pathlib import Path

#: The first passed descriptor.
_FIRST = 3


class ActivationError(Exception):
    """The passed descriptors are not a socket to serve. The message explains what to do."""


class Passed(socket.socket):
    """A socket that another program made, and listens on.

    Peers see the user of the process that listened last: root, not the service's user, whom no client trusts.
    """

    def listen(self, backlog: int = 0, /) -> None:
        """Leave it as it is."""


def activated(environ: MutableMapping[str, str] | None = None) -> socket.socket | None:
    """Take over the socket that this process was started with, or return None if it was started without.

    Raises
    ------
    ActivationError
        The passed descriptors are not one listening Unix socket with a path.
    """
    environ = os.environ if environ is None else environ
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    # These are of another process, whose environment was inherited.
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return None
    if int(count) != 1:
        raise ActivationError(
            f"{count} sockets were passed to the scheduler, which can serve only one; "
            "use a single ListenStream= in its socket unit"
        )
    os.set_inheritable(_FIRST, False)
    try:
        found = Passed(fileno=_FIRST)
    except OSError as error:
        raise ActivationError(
            f"the scheduler was not started with a socket ({error.strerror}); "
            "add a ListenStream= to its socket unit"
        ) from None
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    is_stream = found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM
    if not (is_stream and listens and str(found.getsockname()).startswith("/")):
        found.close()
        raise ActivationError(
            "the scheduler needs a Unix socket with a path; use ListenStream=/run/… and Accept=no in its socket unit"
        )
    return found


def path_of(listener: socket.socket) -> Path:
    """Return the path of a passed socket."""
    return Path(str(listener.getsockname()))


def expects_messages() -> bool:
    """Whether systemd started this process, and expects messages of `notify`."""
    return os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@"))


def notify(*states: str) -> None:
    """Send systemd the state of the service if it expects that, for example ``READY=1``. Errors are ignored."""
    if not expects_messages():
        return
    address = os.environ["NOTIFY_SOCKET"]
    # "@": a name in the abstract name space.
    name = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto("\n".join(states).encode(), name)


def notify_reloading() -> None:
    """Notify systemd that the configuration is being read again; ``READY=1`` ends that."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog_period() -> float | None:
    """Return the seconds in which systemd expects a ``WATCHDOG=1``; None: it expects none."""
    text = os.environ.get("WATCHDOG_USEC", "")
    owner = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not text.isdecimal() or int(text) == 0 or owner != str(os.getpid()):
        return None
    return int(text) / 1e6 / 3


def keep_alive(loop: asyncio.AbstractEventLoop) -> None:
    """Notify systemd regularly that the loop runs, if it expects that. It restarts a process that hangs."""
    period = watchdog_period()
    if period is not None:
        notify("WATCHDOG=1")
        loop.call_later(period, keep_alive, loop)
