# SPDX-License-Identifier: BSD-3-Clause
"""The sources of the page's data: the scheduler of this machine, and the Hub services of other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.simple_httpclient import HTTPTimeoutError

from ..scheduler.protocol.async_client import AsyncControlClient
from ..scheduler.protocol.client import UNKNOWN_GROUP, ControlError, SchedulerUnreachable
from ..scheduler.protocol.text import parse_json
from .config import NODE, host_and_port
from .words import QUIET

log = logging.getLogger(__name__)

#: A node's report: the answer to `GET api/node` (docs/reference/rest.md).
Report = dict[str, Any]

#: Identifies this process, so that a service that discovers its own address recognises itself.
INSTANCE = secrets.token_hex(8)
#: Seconds for which a node's report is reused for further requests.
FRESH = 0.5
#: Seconds to wait for an answer of another node.
TIMEOUT = 10.0
#: Seconds between two lookups of the addresses of a host name.
LOOK_UP = 30.0
#: Seconds after which a discovered node that is unreachable is removed.
FORGET = 3600.0
#: Operations that an older scheduler or a personal one may lack. The page works without them.
_OPTIONAL = ("users", "audit")


class NodeUnreachable(Exception):
    """A node does not respond; the message is a sentence for an administrator.

    Parameters
    ----------
    text
        What happened and what to do.
    detail
        The technical cause, in words; empty if ``text`` contains it.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class ActionRefused(Exception):
    """A node refused a request; the message is the node's own sentence."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        #: The HTTP status for the page: 404 if the notebook does not exist.
        self.status = status


class Node:
    """One node and its latest report.

    Parameters
    ----------
    name
        Name of the node on the page.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: The latest report; None if the node has never responded.
        self.report: Report | None = None
        #: Why the node is unreachable, the technical cause, and since when (Unix time); "": it responds.
        self.error = "it has not been contacted yet"
        self.detail = ""
        self.since = time.time()
        #: Incremented with each report and each failure.
        self.version = 0
        self._updated_at = -FRESH
        self._lock = asyncio.Lock()

    async def update(self) -> None:
        """Update `report` and `error`, at most once in `FRESH` seconds."""
        async with self._lock:
            if time.monotonic() - self._updated_at < FRESH:
                return
            error = detail = ""
            try:
                self.report = await self._ask()
            except NodeUnreachable as failure:
                error, detail = str(failure), failure.detail
            if bool(error) != bool(self.error):
                self.since = time.time()
            if (error, detail) != (self.error, self.detail):
                self._log_change(error, detail)
            self.error, self.detail = error, detail
            self.version += 1
            self._updated_at = time.monotonic()

    async def act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Carry out an action on the node for the administrator with the name ``by``.

        Raises
        ------
        ActionRefused, NodeUnreachable
            If the action was not carried out.
        """
        answer = await self._act(op, params, by)
        # The latest report is out of date now.
        self._updated_at = -FRESH
        return answer

    async def usage(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the node's usage report: the scheduler's ``report`` with these parameters.

        Raises
        ------
        NodeUnreachable
            If the node does not answer.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the node's connections."""

    def _log_change(self, error: str, detail: str) -> None:
        """Log that the node has become unreachable, or responds again."""
        if error:
            cause = f" ({detail})" if detail else ""
            log.warning("gpushare: node %s is unreachable: %s%s", self.name, error, cause)
        else:
            log.info("gpushare: node %s responds", self.name)

    async def _ask(self) -> Report:
        raise NotImplementedError

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        raise NotImplementedError


class LocalNode(Node):
    """The node scheduler of this machine.

    Parameters
    ----------
    name
        Name of the node on the page.
    path
        The scheduler's socket.
    history
        Number of latest events to keep.
    token
        Token to log in with if the scheduler does not accept this process as an administrator's.
    """

    def __init__(self, name: str, path: Path, history: int, token: str = "") -> None:
        super().__init__(name)
        self._path = path
        self._token = token
        self._client: AsyncControlClient | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=history)
        self._sequence = 0
        self._connecting = asyncio.Lock()

    async def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send a request to the scheduler, over one connection that all requests share.

        Raises
        ------
        SchedulerUnreachable
            If no scheduler responds.
        ControlError
            If the scheduler refuses the request.
        """
        async with self._connecting:
            if self._client is not None and (not self._client.connected or self._client.late):
                await self._client.close()
                self._client = None
            if self._client is None:
                self._client = await self._connect()
                self._sequence = 0
                self._events.clear()
            client = self._client
        return await client.request(op, **params)

    async def _connect(self) -> AsyncControlClient:
        client = AsyncControlClient(self._path)
        await client.connect()
        try:
            identity = await client.request("whoami")
            if not identity["admin"] and self._token:
                # The scheduler identified this process by its uid. The Hub's token may grant more.
                identity = await client.request("login", token=self._token)
            if not identity["admin"]:
                raise ControlError(
                    f"the scheduler at {self._path} identified this service as {identity['user']}, which is not an "
                    "administrator; run the service as root or as the scheduler's user, or give it the scope "
                    "custom:gpushare:admin and set hub_api_url in the scheduler's configuration"
                )
        except BaseException:
            await client.close()
            raise
        return client

    async def usage(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scheduler's report."""
        try:
            return (await self.request("report", **asked))["report"]  # type: ignore[no-any-return]
        except SchedulerUnreachable as error:
            raise NodeUnreachable(str(error)) from None
        except ControlError as error:
            raise ActionRefused(str(error)) from None

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.close()

    async def _ask(self) -> Report:
        try:
            status = (await self.request("status"))["status"]
            history = await self.request("history", since=self._sequence)
            shares = (await self.request("shares"))["shares"]
            more = {op: await self._request_optional(op) for op in _OPTIONAL}
        except ControlError as error:
            raise NodeUnreachable(str(error)) from None
        self._sequence = history["sequence"]
        # Events of every cell would displace all others.
        self._events.extend(event for event in history["events"] if event["kind"] not in QUIET)
        return {
            "instance": INSTANCE,
            "name": self.name,
            "wall": time.time(),
            "status": status,
            "shares": shares,
            "events": list(self._events),
            **more,
        }

    async def _request_optional(self, op: str) -> Any:
        try:
            return (await self.request(op)).get(op)
        except SchedulerUnreachable:
            raise
        except ControlError as error:
            log.debug("gpushare: the scheduler refused %r: %s", op, error)
            return None

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        try:
            return await self.request(op, **params, on_behalf=by)
        except SchedulerUnreachable as error:
            raise NodeUnreachable(str(error)) from None
        except ControlError as error:
            status = 404 if error.code == UNKNOWN_GROUP else 400
            raise ActionRefused(str(error), status) from None


class RemoteNode(Node):
    """Another node, which is reached through its Hub service.

    Parameters
    ----------
    name
        Name of the node until its service has reported one.
    url
        The service's address, with its path.
    token
        Token for requests to the service.
    """

    def __init__(self, name: str, url: str, token: str) -> None:
        super().__init__(name)
        self.url = url
        self._token = token
        # Each node has a separate client, so that a node that hangs does not delay the others.
        self._http = AsyncHTTPClient(force_instance=True, max_clients=4)
        #: The name that the service reports, which is part of its addresses.
        self.its_name = name
        #: When the latest lookup of its host name returned its address, on CLOCK_MONOTONIC.
        self.found_at = 0.0

    @property
    def is_this_process(self) -> bool:
        """Whether the address leads to this process itself."""
        return self.report is not None and self.report.get("instance") == INSTANCE

    async def _ask(self) -> Report:
        report = await self._fetch("api/node")
        if not (
            isinstance(report.get("name"), str)
            and NODE.fullmatch(report["name"])
            and isinstance(report.get("status"), dict)
        ):
            raise NodeUnreachable(
                f"the program at {self.url} is not a gpushare Hub service; correct the node's address"
            )
        self.its_name = report["name"]
        return report

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        return await self._fetch(
            f"api/nodes/{quote(self.its_name)}/{op}", {**params, "on_behalf": by}
        )

    async def usage(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report of the service's own node."""
        query = urlencode(asked, doseq=True)
        found = await self._fetch(f"api/report?{query}", refusable=True)
        return found["report"]  # type: ignore[no-any-return]

    async def state(self) -> dict[str, Any]:
        """Return the state of all nodes that the service shows.

        Raises
        ------
        NodeUnreachable
            If the service does not answer.
        """
        return await self._fetch("api/state")

    async def close(self) -> None:
        """Close the HTTP client."""
        self._http.close()

    async def _fetch(
        self, address: str, body: dict[str, Any] | None = None, *, refusable: bool = False
    ) -> dict[str, Any]:
        """Return the answer to a request; ``refusable``: the scheduler may refuse its parameters."""
        request = HTTPRequest(
            self.url + address,
            method="GET" if body is None else "POST",
            headers={
                "Authorization": f"token {self._token}",
                "Content-Type": "application/json",
            },
            body=None if body is None else json.dumps(body),
            connect_timeout=TIMEOUT,
            request_timeout=TIMEOUT,
            # The token must not be sent to any other address.
            follow_redirects=False,
        )
        try:
            answer = await self._http.fetch(request, raise_error=False)
        except HTTPTimeoutError as error:
            raise NodeUnreachable(
                f"its Hub service did not respond within {TIMEOUT:g} s; check that the machine is not overloaded",
                f"{self.url}: {_cause(error)}",
            ) from None
        except (OSError, HTTPClientError, ValueError) as error:
            raise NodeUnreachable(
                "cannot connect to its Hub service; check that the machine is on and the service (gpushare hub) is "
                "running",
                f"{self.url}: {_cause(error)}",
            ) from None
        try:
            found = parse_json(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            found = {"message": f"the answer has status {answer.code} and is not JSON"}
        if answer.code == 200:
            return found
        message = str(found.get("message"))
        if answer.code in (401, 403):
            raise NodeUnreachable(
                "its Hub service rejected this service's token; give the token the scopes custom:gpushare:read and "
                "custom:gpushare:admin",
                f"{self.url}: {message}",
            )
        if answer.code in (400, 404) and (body is not None or (refusable and answer.code == 400)):
            raise ActionRefused(message, answer.code)
        raise NodeUnreachable(message, self.url)


def _cause(error: Exception) -> str:
    """Return why a request failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message
    elif isinstance(error, OSError):
        text = error.strerror or str(error)
    elif isinstance(error, HTTPClientError):
        text = error.message
    else:
        text = str(error)
    return text[:1].lower() + text[1:]


class Nodes:
    """All nodes of the page.

    Parameters
    ----------
    local
        The scheduler of this machine; None if the page shows other nodes only.
    others
        Addresses of other nodes' services, by name.
    discover
        List of ``HOST:PORT``; every address of the host is a node's service.
    prefix
        The path of this service, and of other services whose address has no path.
    token
        Token for requests to other services.
    """

    def __init__(
        self,
        local: LocalNode | None,
        others: Mapping[str, str],
        discover: Iterable[str],
        prefix: str,
        token: str,
    ) -> None:
        self.local = local
        self._prefix = prefix
        self._token = token
        self._configured = [
            RemoteNode(name, self._with_prefix(url), token) for name, url in others.items()
        ]
        self._discover = list(discover)
        self._discovered: dict[str, RemoteNode] = {}
        self._looked_up = -LOOK_UP
        self._looking_up = asyncio.Lock()

    def members(self) -> list[Node]:
        """Return the nodes to contact."""
        found = [node for node in self._discovered.values() if not node.is_this_process]
        return [*([self.local] if self.local is not None else []), *self._configured, *found]

    def all(self) -> dict[str, Node]:
        """Return the nodes to show, by name; the node of this machine comes first."""
        nodes: dict[str, Node] = {}
        for node in [*([self.local] if self.local is not None else []), *self._configured]:
            nodes.setdefault(node.name, node)
        # If two nodes report the same name, the node that responds wins: the other address is an old one.
        found = sorted(
            self._discovered.values(), key=lambda node: (bool(node.error), node.its_name)
        )
        for node in found:
            if node.is_this_process or not node.version:
                continue
            name = node.its_name
            if name in nodes:
                if node.error:
                    continue
                # If two nodes that respond report the same name, the second is named after its address.
                name = urlsplit(node.url).hostname or name
            node.name = name
            nodes.setdefault(name, node)
        return nodes

    async def look_up(self) -> None:
        """Look up the addresses of the nodes to discover, at most once in `LOOK_UP` seconds."""
        async with self._looking_up:
            if not self._discover or time.monotonic() - self._looked_up < LOOK_UP:
                return
            for address in self._discover:
                await self._look_up(address)
            now = self._looked_up = time.monotonic()
            for url, node in list(self._discovered.items()):
                if node.error and now - node.found_at > FORGET:
                    await self._discovered.pop(url).close()

    async def _look_up(self, address: str) -> None:
        host, port = host_and_port(address)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            log.warning("gpushare: cannot look up the nodes of %s: %s", address, _cause(error))
            return
        for family, *_, place in found:
            number = f"[{place[0]}]" if family == socket.AF_INET6 else place[0]
            url = f"http://{number}:{port}{self._prefix}"
            node = self._discovered.get(url)
            if node is None:
                name = str(place[0]).replace(":", "-").strip("-")
                node = self._discovered[url] = RemoteNode(name, url, self._token)
            node.found_at = time.monotonic()

    async def close(self) -> None:
        """Close all connections."""
        for node in [self.local, *self._configured, *self._discovered.values()]:
            if node is not None:
                await node.close()

    def _with_prefix(self, url: str) -> str:
        return url if urlsplit(url).path != "/" else url.rstrip("/") + self._prefix


class Feed:
    """Updates the nodes while at least one viewer has the page open, once for all viewers.

    Parameters
    ----------
    nodes
        The nodes.
    interval
        Seconds between two updates.
    """

    def __init__(self, nodes: Nodes, interval: float) -> None:
        self._nodes = nodes
        self._interval = interval
        self._viewers: set[Callable[[], None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._updating: dict[Node, asyncio.Task[None]] = {}

    async def refresh(self) -> None:
        """Update all nodes now."""
        await self._nodes.look_up()
        await asyncio.gather(*(node.update() for node in self._nodes.members()))

    def watch(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` after each update of a node, until `unwatch`."""
        self._viewers.add(notify)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def unwatch(self, notify: Callable[[], None]) -> None:
        """Stop calling ``notify``."""
        self._viewers.discard(notify)

    def update_soon(self) -> None:
        """Start an update of all nodes without waiting for it."""
        for node in self._nodes.members():
            self._begin(node)

    async def stop(self) -> None:
        """Stop all updates."""
        self._viewers.clear()
        tasks = [*self._updating.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        try:
            while self._viewers:
                try:
                    await self._nodes.look_up()
                    self.update_soon()
                except Exception:
                    # The next update may succeed.
                    log.exception("gpushare: the nodes could not be updated")
                await asyncio.sleep(self._interval)
        finally:
            self._task = None

    def _begin(self, node: Node) -> None:
        """Start an update of one node, independently of the others: a slow node does not delay them."""
        if node not in self._updating:
            self._updating[node] = asyncio.create_task(self._update(node))

    async def _update(self, node: Node) -> None:
        try:
            await node.update()
        except Exception:
            log.exception("gpushare: the node %s could not be updated", node.name)
        finally:
            self._updating.pop(node, None)
        for notify in list(self._viewers):
            notify()
