# SPDX-License-Identifier: BSD-3-Clause
"""Where the page has its nodes from: the scheduler of this machine, and the services of others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from ..scheduler.protocol.async_client import AsyncControlClient
from ..scheduler.protocol.client import UNKNOWN_GROUP, ControlError, SchedulerUnreachable
from ..scheduler.protocol.text import parse_json
from .config import NODE, host_and_port
from .words import QUIET

log = logging.getLogger(__name__)

#: A node's report: `GET api/node` of docs/how-to/admin/hub-page.md.
Report = dict[str, Any]

#: Names this process, so that one that finds itself among others knows.
INSTANCE = secrets.token_hex(8)
#: Seconds for which a node's answer serves all that ask.
FRESH = 0.5
#: Seconds that another node has for its answer.
TIMEOUT = 10.0
#: Seconds between two looks at the addresses of a name.
LOOK_UP = 30.0
#: Seconds after which a discovered node that is away is forgotten.
FORGET = 3600.0
#: Scheduler's operations that an older or a personal one may lack: the page goes without.
_OPTIONAL = ("users", "audit")


class NodeAway(Exception):
    """A node does not answer; the message is a sentence for an administrator."""


class ActionRefused(Exception):
    """A node does not do what it was asked; the message is its sentence."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        #: With which the page is answered: 404 for a notebook that is not there.
        self.status = status


class Node:
    """One node, as it was seen last.

    Parameters
    ----------
    name
        What it is called.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: What it said last; None: it has never answered.
        self.report: Report | None = None
        #: Why it is away, and since when (Unix time); "": it answers.
        self.error = "it has not been asked yet"
        self.since = time.time()
        #: Counts what was seen.
        self.version = 0
        self._looked = -FRESH
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """Bring `report` and `error` up to date; at most once in `FRESH` seconds."""
        async with self._lock:
            if time.monotonic() - self._looked < FRESH:
                return
            try:
                self.report = await self._ask()
                error = ""
            except NodeAway as away:
                error = str(away)
            if bool(error) != bool(self.error):
                self.since = time.time()
            self.error = error
            self.version += 1
            self._looked = time.monotonic()

    async def act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Do something there for an administrator of that name.

        Raises
        ------
        ActionRefused, NodeAway
            If it is not done.
        """
        answer = await self._act(op, params, by)
        # What was seen before is old.
        self._looked = -FRESH
        return answer

    async def close(self) -> None:
        """End what is open."""

    async def _ask(self) -> Report:
        raise NotImplementedError

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        raise NotImplementedError


class LocalNode(Node):
    """The node scheduler of this machine.

    Parameters
    ----------
    name
        What it is called.
    path
        Its socket.
    history
        So many of its last events are kept.
    token
        What it is shown where it does not know this process as an administrator's.
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
        """Ask the scheduler, over one connection for all.

        Raises
        ------
        SchedulerUnreachable
            If none answers.
        ControlError
            If it refuses.
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
            who = await client.request("whoami")
            if not who["admin"] and self._token:
                # Run by a user whom the scheduler knows by uid: what the Hub says of this service counts for more.
                who = await client.request("login", token=self._token)
            if not who["admin"]:
                raise ControlError(
                    f"the scheduler at {self._path} takes this service for {who['user']}, who is no administrator: "
                    "run it as root or as the scheduler's user, or give it the scope custom:gpushare:admin and the "
                    "scheduler hub_api_url"
                )
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            await self._client.close()

    async def _ask(self) -> Report:
        try:
            status = (await self.request("status"))["status"]
            history = await self.request("history", since=self._sequence)
            shares = (await self.request("shares"))["shares"]
            more = {op: await self._perhaps(op) for op in _OPTIONAL}
        except ControlError as error:
            raise NodeAway(str(error)) from None
        self._sequence = history["sequence"]
        # What comes with every cell would drive all else out.
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

    async def _perhaps(self, op: str) -> Any:
        try:
            return (await self.request(op)).get(op)
        except SchedulerUnreachable:
            raise
        except ControlError as error:
            log.debug("gpushare: the scheduler does not answer %r: %s", op, error)
            return None

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        try:
            return await self.request(op, **params, on_behalf=by)
        except SchedulerUnreachable as error:
            raise NodeAway(str(error)) from None
        except ControlError as error:
            status = 404 if error.code == UNKNOWN_GROUP else 400
            raise ActionRefused(str(error), status) from None


class RemoteNode(Node):
    """The service of another node.

    Parameters
    ----------
    name
        What it is called, until it says so itself.
    url
        The service's address, with its path.
    token
        What it is asked with.
    """

    def __init__(self, name: str, url: str, token: str) -> None:
        super().__init__(name)
        self.url = url
        self._token = token
        # Of its own: nodes that hang hold up no others.
        self._http = AsyncHTTPClient(force_instance=True, max_clients=4)
        #: What it calls itself: its part of the addresses there.
        self.its_name = name
        #: When its address was last among those of the name that it was found by, on CLOCK_MONOTONIC.
        self.found_at = 0.0

    @property
    def is_this_process(self) -> bool:
        """Whether it is this very service that answers there."""
        return self.report is not None and self.report.get("instance") == INSTANCE

    async def _ask(self) -> Report:
        report = await self._fetch("api/node")
        if not (
            isinstance(report.get("name"), str)
            and NODE.fullmatch(report["name"])
            and isinstance(report.get("status"), dict)
        ):
            raise NodeAway(f"what answers at {self.url} is no gpushare hub; check its address")
        self.its_name = report["name"]
        return report

    async def _act(self, op: str, params: Mapping[str, Any], by: str) -> dict[str, Any]:
        return await self._fetch(
            f"api/nodes/{quote(self.its_name)}/{op}", {**params, "on_behalf": by}
        )

    async def close(self) -> None:
        """End what is open."""
        self._http.close()

    async def _fetch(self, address: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
            # The token is for this address alone.
            follow_redirects=False,
        )
        try:
            answer = await self._http.fetch(request, raise_error=False)
        except (OSError, HTTPClientError, ValueError) as error:
            raise NodeAway(f"{self.url} does not answer: {error}") from None
        if answer.error is not None and answer.code == 599:
            raise NodeAway(f"{self.url} does not answer: {answer.error}")
        try:
            found = parse_json(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            found = {"message": f"it answers with status {answer.code} and no JSON"}
        if answer.code == 200:
            return found
        message = str(found.get("message"))
        if answer.code in (401, 403):
            raise NodeAway(
                f"{self.url} does not accept our token: give it the scopes custom:gpushare:read and "
                f"custom:gpushare:admin ({message})"
            )
        if body is not None and answer.code in (400, 404):
            raise ActionRefused(message, answer.code)
        raise NodeAway(f"{self.url}: {message}")


class Nodes:
    """All nodes of the page.

    Parameters
    ----------
    local
        The scheduler of this machine, if it is part of it.
    others
        The services of other nodes, by name.
    discover
        ``HOST:PORT`` of which every address is a node's service.
    prefix
        The path of this service, and of others that were told none.
    token
        What others are asked with.
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
        self._told = [
            RemoteNode(name, self._with_prefix(url), token) for name, url in others.items()
        ]
        self._discover = list(discover)
        self._found: dict[str, RemoteNode] = {}
        self._looked_up = -LOOK_UP
        self._looking_up = asyncio.Lock()

    def members(self) -> list[Node]:
        """Return the nodes to look at."""
        found = [node for node in self._found.values() if not node.is_this_process]
        return [*([self.local] if self.local is not None else []), *self._told, *found]

    def all(self) -> dict[str, Node]:
        """Return the nodes to show by their names, this machine's first."""
        nodes: dict[str, Node] = {}
        for node in [*([self.local] if self.local is not None else []), *self._told]:
            nodes.setdefault(node.name, node)
        # Of two with one name, one that answers: the other is where the node was before.
        found = sorted(self._found.values(), key=lambda node: (bool(node.error), node.its_name))
        for node in found:
            if node.is_this_process or not node.version:
                continue
            name = node.its_name
            if name in nodes:
                if node.error:
                    continue
                # Two that call themselves the same are told apart by their addresses.
                name = urlsplit(node.url).hostname or name
            node.name = name
            nodes.setdefault(name, node)
        return nodes

    async def look_up(self) -> None:
        """Ask for the addresses of the nodes that are to be discovered, where that was long ago."""
        async with self._looking_up:
            if not self._discover or time.monotonic() - self._looked_up < LOOK_UP:
                return
            for address in self._discover:
                await self._look_up(address)
            now = self._looked_up = time.monotonic()
            for url, node in list(self._found.items()):
                if node.error and now - node.found_at > FORGET:
                    await self._found.pop(url).close()

    async def _look_up(self, address: str) -> None:
        host, port = host_and_port(address)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            log.warning("gpushare: the nodes of %s cannot be found: %s", address, error)
            return
        for family, *_, place in found:
            number = f"[{place[0]}]" if family == socket.AF_INET6 else place[0]
            url = f"http://{number}:{port}{self._prefix}"
            node = self._found.get(url)
            if node is None:
                name = str(place[0]).replace(":", "-").strip("-")
                node = self._found[url] = RemoteNode(name, url, self._token)
            node.found_at = time.monotonic()

    async def close(self) -> None:
        """End what is open."""
        for node in [self.local, *self._told, *self._found.values()]:
            if node is not None:
                await node.close()

    def _with_prefix(self, url: str) -> str:
        return url if urlsplit(url).path != "/" else url.rstrip("/") + self._prefix


class Feed:
    """Looks at the nodes while somebody looks at the page: once for all.

    Parameters
    ----------
    nodes
        The nodes.
    interval
        Seconds between two looks.
    """

    def __init__(self, nodes: Nodes, interval: float) -> None:
        self._nodes = nodes
        self._interval = interval
        self._viewers: set[Callable[[], None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._looking: dict[Node, asyncio.Task[None]] = {}

    async def refresh(self) -> None:
        """Look at all nodes now."""
        await self._nodes.look_up()
        await asyncio.gather(*(node.look() for node in self._nodes.members()))

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever a node was looked at, until `forget`."""
        self._viewers.add(tell)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def forget(self, tell: Callable[[], None]) -> None:
        """Call it no more."""
        self._viewers.discard(tell)

    def stir(self) -> None:
        """Look at the nodes at once: somebody has changed something."""
        for node in self._nodes.members():
            self._begin(node)

    async def stop(self) -> None:
        """Look no more."""
        self._viewers.clear()
        tasks = [*self._looking.values(), *([self._task] if self._task is not None else [])]
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
                    self.stir()
                except Exception:
                    # The next look may do better.
                    log.exception("gpushare: the nodes were not looked at")
                await asyncio.sleep(self._interval)
        finally:
            self._task = None

    def _begin(self, node: Node) -> None:
        """Look at one node, beside the others: a slow one holds up nobody."""
        if node not in self._looking:
            self._looking[node] = asyncio.create_task(self._look(node))

    async def _look(self, node: Node) -> None:
        try:
            await node.look()
        except Exception:
            log.exception("gpushare: the node %s was not looked at", node.name)
        finally:
            self._looking.pop(node, None)
        for tell in list(self._viewers):
            tell()
