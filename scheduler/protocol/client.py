# SPDX-License-Identifier: BSD-3-Clause
"""A blocking client of the scheduler's control requests (``docs/reference/control.md``)."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import re
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Raw

from . import wire as protocol
from .address import is_own_place, socket_path, too_long
from .text import printable

#: Seconds after which a scheduler that does not answer counts as unreachable.
TIMEOUT = 5.0
#: Seconds between two attempts to connect while too many other processes are waiting: doubled from the first to the
#: last.
FIRST_PAUSE, LAST_PAUSE = 0.01, 0.5
#: Environment variables: the file with this process's ticket; and the users whose schedulers it trusts in addition to
#: its own user and root.
TICKET_FILE = "GPUSHARE_TICKET_FILE"
TRUSTED = "GPUSHARE_SCHEDULER_UID"
#: Longest ticket (struct gpushare_ticket).
MAX_TICKET = 127
#: The token with which JupyterHub identifies the user of a process.
HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
#: The file with the token of this pod's resource claim (the DRA driver).
CLAIM_FILE = "GPUSHARE_CLAIM_FILE"


class ControlError(Exception):
    """The scheduler refused a request. The message is the scheduler's sentence."""

    #: The reason as a code for programs (docs/reference/control.md); mostly empty.
    code = ""


#: The codes of refusals because no group has the requested id or name, and because the claim is not known (yet).
UNKNOWN_GROUP, UNKNOWN_CLAIM = "unknown_group", "unknown_claim"
#: Seconds for which a client waits until a new scheduler knows its claim.
CLAIM_PATIENCE = 5.0


class SchedulerUnreachable(ControlError):
    """No scheduler answers. The message explains what to do."""


class NotAdmitted(ControlError):
    """A scheduler does not accept the identity of this process. The message explains why."""


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end of a Unix socket; 0: it is not visible from here."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[0])


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


def user_name(uid: int) -> str:
    """Return the name of a user, or the uid if the system has no name for it."""
    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def named(uid: int) -> str:
    """Return a user as text: the name, if there is one, and the uid."""
    name = user_name(uid)
    return f"uid {uid}" if name == str(uid) else f"{name}, uid {uid}"


def attempt(connection: socket.socket, path: Path) -> bool:
    """Try to connect a non-blocking socket; False: too many other connections are waiting to be accepted.

    Raises
    ------
    SchedulerUnreachable
        No scheduler that this process trusts listens there.
    """
    if trouble := too_long(path):
        raise SchedulerUnreachable(trouble)
    try:
        connection.connect(os.fsencode(path))
    except BlockingIOError:
        return False
    except OSError as error:
        raise unreachable(path, error) from None
    _check_peer(connection, path)
    return True


def pauses_until(deadline: float) -> Iterator[float]:
    """Iterate over the seconds to wait before each further attempt to connect, until a time on CLOCK_MONOTONIC.

    They are random, so that clients that were rejected together do not return together.
    """
    pause = FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, random.uniform(pause / 2, pause))
        pause = min(2 * pause, LAST_PAUSE)


def crowded(path: Path, timeout: float) -> SchedulerUnreachable:
    """Make the error for a scheduler that accepts no connection in time."""
    return SchedulerUnreachable(
        f"the scheduler at {path} could not accept this connection for {timeout:g} s, because too many others are "
        "waiting; try again later"
    )


def _check_peer(connection: socket.socket, path: Path) -> None:
    uid = peer_uid(connection)
    if uid not in (0, os.getuid(), *trusted_uids()):
        raise SchedulerUnreachable(
            f"the scheduler at {path} is owned by another user ({named(uid)}). Set GPUSHARE_SOCKET to your own "
            f"scheduler's socket, or set {TRUSTED}={uid} if it is your node's scheduler"
        )


def trusted_uids(environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Return the users whose schedulers this process trusts in addition to its own user and root.

    They are listed in ``GPUSHARE_SCHEDULER_UID``.

    Raises
    ------
    SchedulerUnreachable
        The variable is not a list of numbers.
    """
    text = (os.environ if environ is None else environ).get(TRUSTED, "")
    if not re.fullmatch(r"(\d{1,10}(,\d{1,10})*,?)?", text, re.ASCII):
        raise SchedulerUnreachable(
            f"{TRUSTED}={text} is not a comma-separated list of uids; correct or unset it"
        )
    return tuple(int(uid) for uid in text.split(",") if uid)


def read_ticket(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the ticket of this process from the file ``GPUSHARE_TICKET_FILE``; None: there is no ticket.

    Raises
    ------
    NotAdmitted
        The file exists and cannot be used.
    """
    path = (os.environ if environ is None else environ).get(TICKET_FILE, "")
    if not path:
        return None
    try:
        # Follow no link of another user, and do not wait for a writer if it is a pipe.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotAdmitted(f"the ticket {path} cannot be used: {error.strerror}") from None
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise NotAdmitted(
                f"the ticket {path} cannot be used: it must be a file that you own, with mode 0600"
            )
        lines = opened.read(MAX_TICKET + 2).decode("ascii", "replace").split("\n")
    if not 0 < len(lines[0]) <= MAX_TICKET:
        raise NotAdmitted(f"the ticket {path} cannot be used: the file contains no ticket")
    return lines[0]


def read_claim(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the token of this pod's resource claim from the file ``GPUSHARE_CLAIM_FILE``; None: there is none.

    Raises
    ------
    NotAdmitted
        The file cannot be used.
    """
    path = (os.environ if environ is None else environ).get(CLAIM_FILE, "")
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise NotAdmitted(
            f"the token of the resource claim, {path}, cannot be used: {error.strerror}; restart the pod"
        ) from None
    if not token:
        raise NotAdmitted(f"the token of the resource claim, {path}, is empty; restart the pod")
    return token


def unreachable(path: Path, error: OSError) -> SchedulerUnreachable:
    """Explain why a connection to the scheduler failed."""
    if isinstance(error, PermissionError):
        return SchedulerUnreachable(
            f"you are not allowed to connect to the scheduler's socket {path}. Set GPUSHARE_SOCKET to your own "
            "scheduler's socket, or ask your administrator for access"
        )
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        if path.exists() and not path.is_socket():
            return SchedulerUnreachable(
                f"{path} is not a socket; set GPUSHARE_SOCKET to the scheduler's socket"
            )
        if not is_own_place(path):
            return SchedulerUnreachable(
                f"no scheduler is running at {path}. This is the node's scheduler, which your administrator runs; "
                "ask whether its service is running"
            )
        return SchedulerUnreachable(
            f"no scheduler is running at {path}; "
            "start JupyterLab with jupyter-gpushare, or run: gpushare scheduler"
        )
    return SchedulerUnreachable(f"cannot reach the scheduler at {path}: {error.strerror or error}")


def encode_request(op: str, params: dict[str, Any]) -> bytes:
    """Encode a control request as a frame.

    Raises
    ------
    ControlError
        A parameter cannot be sent.
    """
    request = {"op": op, "protocol": protocol.CONTROL_VERSION, **params}
    try:
        # msgspec would write null in place of NaN, which may mean something else.
        text = json.dumps(request, separators=(",", ":"), allow_nan=False)
        return protocol.encode_json(protocol.CONTROL, Raw(text.encode()))
    except (protocol.ProtocolError, ValueError, TypeError) as error:
        raise ControlError(f"the request {op!r} cannot be sent: {error}") from None


def decode_answer(frame: protocol.Frame) -> dict[str, Any]:
    """Decode a reply or an event from the scheduler.

    Raises
    ------
    ControlError
        The scheduler refused the connection.
    """
    if frame.type == protocol.REFUSED:
        raise ControlError(protocol.decode_refused(frame.body)[1])
    if frame.type not in (protocol.REPLY, protocol.EVENT):
        raise protocol.ProtocolError(f"unexpected frame of type {frame.type}")
    return protocol.decode_json(frame.body)


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply, or raise the refusal that it carries.

    Raises
    ------
    ControlError
        The scheduler refused the request.
    """
    if not reply.get("ok"):
        refusal = ControlError(
            str(reply.get("error", "the scheduler refused the request without giving a reason"))
        )
        refusal.code = str(reply.get("code", ""))
        raise refusal
    return reply


class ControlClient:
    """A blocking connection to the scheduler; a context manager.

    Parameters
    ----------
    path
        The scheduler's socket; default: the user's.
    timeout
        Seconds to wait for an answer.

    Raises
    ------
    SchedulerUnreachable
        No scheduler answers.
    NotAdmitted
        The scheduler requires an identity, and does not accept the one of this process.
    """

    def __init__(self, path: Path | None = None, timeout: float = TIMEOUT) -> None:
        self.path = path or socket_path()
        self._timeout = timeout
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._events: deque[dict[str, Any]] = deque()
        self._replies: deque[dict[str, Any]] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            ticket = read_ticket()
            claim = read_claim() if ticket is None else None
            self._connect()
            if ticket is not None:
                self._socket.sendall(protocol.ticket(ticket))
            else:
                self._log_in(os.environ.get(HUB_TOKEN), claim)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _connect(self) -> None:
        pauses = pauses_until(time.monotonic() + self._timeout)
        while not attempt(self._socket, self.path):
            pause = next(pauses, None)
            if pause is None:
                raise crowded(self.path, self._timeout)
            time.sleep(pause)

    def _log_in(self, token: str | None, claim: str | None) -> None:
        if not (token or claim):
            return
        me = self.request("whoami")
        try:
            if token and me["needs"] == "login":
                self.request("login", token=token)
            if claim and me["node"]:
                self._present(claim)
        except SchedulerUnreachable:
            raise
        except ControlError as error:
            raise NotAdmitted(str(error)) from None

    def _present(self, claim: str) -> None:
        for pause in pauses_until(time.monotonic() + CLAIM_PATIENCE):
            try:
                self.request("present_claim", token=claim)
                return
            except ControlError as error:
                if error.code != UNKNOWN_CLAIM:
                    raise
            time.sleep(pause)
        self.request("present_claim", token=claim)

    def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send one request and return the answer.

        Raises
        ------
        ControlError
            The scheduler refuses it.
        SchedulerUnreachable
            The connection ends, or no answer comes in time.
        """
        message = encode_request(op, params)
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(message)
        except OSError as error:
            # A scheduler that refuses this user sends the reason before it closes the connection.
            with contextlib.suppress(SchedulerUnreachable, TimeoutError):
                self._receive(self._timeout)
            raise unreachable(self.path, error) from None
        deadline = time.monotonic() + self._timeout
        try:
            while not self._replies:
                self._receive(deadline - time.monotonic())
        except TimeoutError:
            # A late reply would be taken for the reply to the next request.
            self.close()
            raise SchedulerUnreachable(
                f"no response from the scheduler at {self.path} within {self._timeout:g} s"
            ) from None
        return checked(self._replies.popleft())

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """Return the next event after a ``subscribe``; None: there is none within ``timeout`` seconds.

        Raises
        ------
        SchedulerUnreachable
            The connection ends.
        """
        deadline = time.monotonic() + timeout
        while not self._events:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            try:
                self._receive(left)
            except TimeoutError:
                return None
        return self._events.popleft()

    def _receive(self, timeout: float) -> None:
        try:
            self._socket.settimeout(max(timeout, 0.001))
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            raise
        except OSError as error:
            raise unreachable(self.path, error) from None
        if not data:
            raise SchedulerUnreachable(f"the scheduler at {self.path} closed the connection")
        try:
            for frame in self._reader.feed(data):
                queue = self._events if frame.type == protocol.EVENT else self._replies
                queue.append(decode_answer(frame))
        except protocol.ProtocolError as error:
            raise SchedulerUnreachable(
                f"the program at {self.path} is not a scheduler of this version: {error}"
            ) from None
