# SPDX-License-Identifier: BSD-3-Clause
"""The requests of both clients, as values, and their answers. Nothing here sends anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from .errors import GpuShareError, Refused, Unavailable, Unreachable
from .find import GROUP, Server

Answer = TypeVar("Answer")

#: The most seconds for which the server waits before it answers (docs/reference/rest.md).
LONGEST_POLL = 300.0


@dataclass(frozen=True)
class Code:
    """A reason for programs.

    Attributes
    ----------
    code
        One of the codes of docs/reference/control.md, such as ``needs_memory``.
    params
        Its parameters.
    """

    code: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Forecast:
    """When a notebook would run if it asked now.

    Attributes
    ----------
    group, name
        The notebook; None if it does not exist yet.
    gpu
        The UUID of the GPU.
    earliest, likely, latest
        Seconds until it has a lease: the expected value, and the interval that contains 90% of such waits. None if it
        cannot run until something else happens.
    restore
        Seconds that it then takes to restore its memory.
    reason
        Why it does not run at once.
    text
        The forecast as a sentence.
    """

    group: str | None
    name: str | None
    gpu: str | None
    earliest: float | None
    likely: float | None
    latest: float | None
    restore: float
    reason: Code
    text: str

    @property
    def now(self) -> bool:
        """Whether it would run at once."""
        return self.latest == 0


@dataclass(frozen=True)
class Reservation:
    """A reservation of the GPU.

    Attributes
    ----------
    group
        The ID of the notebook.
    state
        ``waiting`` or ``ready``; None without a reservation, and after its end.
    until_in
        Seconds until it lapses, once it is ready.
    group_state
        The state of the notebook, such as ``waiting`` or ``running``.
    """

    group: str
    state: str | None
    until_in: float | None
    group_state: str

    @property
    def ready(self) -> bool:
        """Whether the GPU is reserved for the notebook now, or the notebook is running."""
        return self.state == "ready" or (self.state is None and self.group_state == "running")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request.

    Attributes
    ----------
    method, path
        The HTTP method, and the path below the server's base URL.
    read
        Makes the result of the answer.
    query, body
        The parameters in the address, and in the body.
    """

    method: str
    path: str
    read: Callable[[dict[str, Any]], Answer]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    def url(self, server: Server) -> str:
        """Return the whole address."""
        query = {name: value for name, value in self.query.items() if value is not None}
        return f"{server.url}gpushare/api/{self.path}" + (f"?{urlencode(query)}" if query else "")

    def content(self) -> bytes | None:
        """Return the encoded body."""
        return None if self.body is None else json.dumps(self.body).encode()

    def result(self, server: Server, status: int, content: bytes) -> Answer:
        """Return the result of an answer.

        Raises
        ------
        GpuShareError
            The server refused the request, or the answer is not one of the API.
        """
        try:
            answer = json.loads(content) if content else {}
        except ValueError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, dict):
            try:
                return self.read(answer)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise Unreachable(
                    f"The program at {server.url} did not answer as a Jupyter server with jupyter-gpushare does. Check "
                    "the address, and install the same version there and here."
                ) from None
        message = str((answer.get("message") if isinstance(answer, dict) else "") or "")
        if status == 503 and message:
            raise Unavailable(message)
        if status == 404 and not message:
            raise Unreachable(
                f"The Jupyter server at {server.url} has no gpushare API. Install jupyter-gpushare into its "
                "environment, and check the address."
            )
        # Jupyter checks this before it checks who sends a request without a valid token.
        if status == 401 or (status == 403 and (not message or "_xsrf" in message)):
            token = "the token" if server.token else "a request without a token"
            raise Refused(status, f"The server refused {token}. Pass a valid one.")
        if 400 <= status < 500:
            raise Refused(
                status, message or f"The server refused the request with status {status}."
            )
        raise Unreachable(
            f"The Jupyter server at {server.url} answered with status {status}. See its log."
        )


def headers(server: Server) -> dict[str, str]:
    """Return the headers of every request."""
    found = {"Accept": "application/json", "Content-Type": "application/json"}
    if server.token:
        found["Authorization"] = f"token {server.token}"
    return found


def unreachable(server: Server, why: object) -> Unreachable:
    """Return the error for a server that does not respond."""
    return Unreachable(
        f"The Jupyter server at {server.url} does not respond: {why}. Check the address and whether it runs."
    )


def own(group: str | None) -> str:
    """Return the group that a request is about: by default, the kernel in which this process runs.

    Raises
    ------
    GpuShareError
        None is stated, and this process is not in a kernel that shares the GPU.
    """
    found = group or os.environ.get(GROUP, "")
    if not found:
        raise GpuShareError(
            "No notebook is stated, and this process is not in a kernel that shares the GPU. Pass group: the ID or "
            "name of a notebook, as `status` shows it."
        )
    return found


# --- The requests ---------------------------------------------------------------------------------


def status() -> Call[dict[str, Any]]:
    """Return the request for the state of all GPUs and groups."""
    return Call("GET", "status", dict)


def explain(group: str | None) -> Call[dict[str, Any]]:
    """Return the request for the order of the queue, with sentences."""
    return Call(
        "GET",
        "explain",
        lambda answer: dict(answer["explanation"]),
        query={"group": group, "text": "1"},
    )


def when(
    group: str | None, memory: int | None, priority: str | None, gpu: str | None
) -> Call[Forecast]:
    """Return the request for a forecast."""
    if memory is None:
        return Call(
            "GET", "when", _forecast, query={"group": own(group), "priority": priority, "gpu": gpu}
        )
    query = {"group": group, "bytes": memory, "priority": priority, "gpu": gpu}
    return Call("GET", "when", _forecast, query=query)


def act(operation: str, group: str | None) -> Call[str]:
    """Return a request that is about one group and returns its ID."""
    return Call("POST", operation, lambda answer: str(answer["group"]), body={"group": own(group)})


def reserve(group: str | None) -> Call[Reservation]:
    """Return the request that reserves the GPU for a group."""
    return Call("POST", "reservations", _reservation, body={"group": own(group)})


def reservation(group: str | None, wait: float = 0.0) -> Call[Reservation]:
    """Return the request for the reservation of a group. The server may wait this many seconds before it answers."""
    path = f"reservations/{quote(own(group), safe='')}"
    return Call("GET", path, _reservation, query={"wait": f"{wait:g}"})


def cancel(group: str | None) -> Call[Reservation]:
    """Return the request that cancels the reservation of a group."""
    return Call("DELETE", f"reservations/{quote(own(group), safe='')}", _reservation)


def set_class(group: str | None, priority: str) -> Call[str]:
    """Return the request that sets the class of a group."""
    body = {"group": own(group), "priority": priority}
    return Call("POST", "adjust", lambda answer: str(answer["group"]), body=body)


def _reservation(answer: dict[str, Any]) -> Reservation:
    found = answer["reservation"] or {}
    return Reservation(answer["group"], found.get("state"), found.get("until_in"), answer["state"])


def _forecast(answer: dict[str, Any]) -> Forecast:
    found = answer["when"]
    reason = Code(found["reason"]["code"], found["reason"]["params"])
    names = ("group", "name", "gpu", "earliest", "likely", "latest", "restore", "text")
    return Forecast(**{name: found[name] for name in names}, reason=reason)
