# SPDX-License-Identifier: BSD-3-Clause
"""The blocking client."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import time
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    BaseHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from . import calls
from .calls import Call, Forecast, Reservation
from .find import find_server

Answer = TypeVar("Answer")


class Client:
    """Shows and controls how notebooks share the GPUs of a Jupyter server. In a kernel, it needs no arguments.

    Parameters
    ----------
    url
        The base URL of the server, such as ``http://localhost:8888/``; default: ``GPUSHARE_URL``, the server that
        started this kernel, or the only server that this user runs.
    token
        A token of the server or of JupyterHub; default: ``GPUSHARE_TOKEN``, or the token of the running server.
    timeout
        Seconds to wait for an answer.
    context
        For servers with a self-signed certificate: an SSL context that accepts it.

    Raises
    ------
    NoServer
        No server, or more than one, was found.

    Examples
    --------
    >>> client = Client("http://localhost:8888/", "TOKEN")  # doctest: +SKIP
    >>> client.when_could_i_run(memory=8 << 30).text  # doctest: +SKIP
    'It can run now: the GPU has room for it'
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._server = find_server(url, token)
        self._timeout = timeout
        self._opener = make_opener(self._server.url, context)

    @property
    def url(self) -> str:
        """The base URL of the Jupyter server."""
        return self._server.url

    def status(self) -> dict[str, Any]:
        """Return the state of all GPUs and groups, as docs/reference/control.md describes it ("Status")."""
        return self._send(calls.status())

    def explain(self, group: str | None = None) -> dict[str, Any]:
        """Return why groups wait, and why running groups are throttled.

        Parameters
        ----------
        group
            The ID or name of a group; default: all that wait or are throttled.

        Returns
        -------
        dict
            The explanation of docs/reference/control.md ("Explanations"). Its ``lines`` are sentences.
        """
        return self._send(calls.explain(group))

    def when_could_i_run(
        self,
        group: str | None = None,
        *,
        memory: int | None = None,
        priority: str | None = None,
        gpu: str | None = None,
    ) -> Forecast:
        """Return when a notebook would run if it asked now. This changes nothing.

        Parameters
        ----------
        group
            The ID or name of one of the user's groups; default, without ``memory``: this kernel.
        memory
            For a notebook that does not exist yet: the bytes that it will use on the GPU.
        priority
            The class of a new notebook; default: ``interactive``.
        gpu
            The UUID or index of the GPU of a new notebook; default: the GPU on which it would run first.
        """
        return self._send(calls.when(group, memory, priority, gpu))

    def release(self, group: str | None = None) -> str:
        """End the burst of a group, so that the next one can run; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.act("release", group))

    def evict(self, group: str | None = None) -> str:
        """Release the GPU and evict all memory of a group to the host; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.act("evict", group))

    def hibernate(self, group: str | None = None) -> str:
        """Free all GPU memory of a group as soon as it is idle, including its CUDA context; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.act("hibernate", group))

    def wake(self, group: str | None = None) -> str:
        """Wake a hibernated group before its next cell does; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.act("wake", group))

    def ready(self, group: str | None = None) -> str:
        """Get a group ready: restore its memory before its next cell, if no other group needs the room; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.act("ready", group))

    def run_when(self, group: str | None = None) -> Reservation:
        """Reserve the GPU for a group, and return at once: the group holds a place in the queue.

        Its memory is restored when its turn comes, and its lease is then kept for a bounded time, by default a minute.
        Use the GPU once the reservation is ready (``wait_ready``); otherwise, it lapses.

        Parameters
        ----------
        group
            The ID or name of the group, which has used the GPU before; default: this kernel.
        """
        return self._send(calls.reserve(group))

    def wait_ready(self, group: str | None = None, timeout: float = 300.0) -> Reservation:
        """Wait until the reservation of a group is ready or has ended, and return it.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        timeout
            Seconds to wait at most; 0: return its state now. Afterwards, it may still be waiting.
        """
        until = time.monotonic() + timeout
        while True:
            left = min(max(0.0, until - time.monotonic()), self._timeout / 2, calls.LONGEST_POLL)
            found = self._send(calls.reservation(group, left))
            if found.state != "waiting" or time.monotonic() >= until:
                return found

    def cancel(self, group: str | None = None) -> Reservation:
        """Cancel the reservation of a group.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.cancel(group))

    def set_class(self, priority: str, group: str | None = None) -> str:
        """Set the class of a group; return its ID.

        Parameters
        ----------
        priority
            ``interactive``, ``agent``, ``background``, or ``auto``: its behaviour decides.
        group
            The ID or name of the group; default: this kernel.
        """
        return self._send(calls.set_class(group, priority))

    def _send(self, call: Call[Answer]) -> Answer:
        request = Request(
            call.url(self._server), call.content(), calls.headers(self._server), method=call.method
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                status, content = answer.status, answer.read()
        except HTTPError as error:
            with error:
                status, content = error.code, error.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise calls.unreachable(self._server, getattr(error, "reason", error)) from None
        return call.result(self._server, status, content)


def make_opener(url: str, context: ssl.SSLContext | None = None) -> OpenerDirector:
    """Return what opens addresses of a server.

    Parameters
    ----------
    url
        The server.
    context
        For servers with a self-signed certificate: an SSL context that accepts it.
    """
    found: list[BaseHandler] = [] if context is None else [HTTPSHandler(context=context)]
    if is_loopback(url):
        # A proxy cannot reach this machine by that name.
        found.append(ProxyHandler({}))
    return build_opener(*found)


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
