# SPDX-License-Identifier: BSD-3-Clause
"""The client for asyncio."""

from __future__ import annotations

import ssl
import time
from typing import Any, TypeVar

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from . import calls
from .calls import Call, Forecast, Reservation
from .find import find_server

Answer = TypeVar("Answer")

#: Requests at once, most of which only wait.
MOST = 100


class AsyncClient:
    """Does what ``Client`` does from an asyncio event loop: ``async with AsyncClient() as client``.

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
        self._context = context
        self._http: AsyncHTTPClient | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def url(self) -> str:
        """The base URL of the Jupyter server."""
        return self._server.url

    async def status(self) -> dict[str, Any]:
        """Return the state of all GPUs and groups, as docs/reference/control.md describes it ("Status")."""
        return await self._send(calls.status())

    async def explain(self, group: str | None = None) -> dict[str, Any]:
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
        return await self._send(calls.explain(group))

    async def when_could_i_run(
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
        return await self._send(calls.when(group, memory, priority, gpu))

    async def release(self, group: str | None = None) -> str:
        """End the burst of a group, so that the next one can run; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.act("release", group))

    async def evict(self, group: str | None = None) -> str:
        """Release the GPU and evict all memory of a group to the host; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.act("evict", group))

    async def hibernate(self, group: str | None = None) -> str:
        """Free all GPU memory of a group as soon as it is idle, including its CUDA context; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.act("hibernate", group))

    async def wake(self, group: str | None = None) -> str:
        """Wake a hibernated group before its next cell does; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.act("wake", group))

    async def ready(self, group: str | None = None) -> str:
        """Get a group ready: restore its memory before its next cell, if no other group needs the room; return its ID.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.act("ready", group))

    async def run_when(self, group: str | None = None) -> Reservation:
        """Reserve the GPU for a group, and return at once: the group holds a place in the queue.

        Its memory is restored when its turn comes, and its lease is then kept for a bounded time, by default a minute.
        Use the GPU once the reservation is ready (``wait_ready``); otherwise, it lapses.

        Parameters
        ----------
        group
            The ID or name of the group, which has used the GPU before; default: this kernel.
        """
        return await self._send(calls.reserve(group))

    async def wait_ready(self, group: str | None = None, timeout: float = 300.0) -> Reservation:
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
            found = await self._send(calls.reservation(group, left))
            if found.state != "waiting" or time.monotonic() >= until:
                return found

    async def cancel(self, group: str | None = None) -> Reservation:
        """Cancel the reservation of a group.

        Parameters
        ----------
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.cancel(group))

    async def set_class(self, priority: str, group: str | None = None) -> str:
        """Set the class of a group; return its ID.

        Parameters
        ----------
        priority
            ``interactive``, ``agent``, ``background``, or ``auto``: its behaviour decides.
        group
            The ID or name of the group; default: this kernel.
        """
        return await self._send(calls.set_class(group, priority))

    async def _send(self, call: Call[Answer]) -> Answer:
        if self._http is None:
            # It belongs to the event loop that runs now.
            self._http = SimpleAsyncHTTPClient(force_instance=True, max_clients=MOST)
        request = HTTPRequest(
            call.url(self._server),
            call.method,
            calls.headers(self._server),
            call.content(),
            connect_timeout=self._timeout,
            request_timeout=self._timeout,
            ssl_options=self._context,
        )
        try:
            answer = await self._http.fetch(request, raise_error=False)
        except (OSError, ValueError, HTTPClientError) as error:
            raise calls.unreachable(self._server, error) from None
        return call.result(self._server, answer.code, answer.body)
